"""What holds for every test, and what every room of them may use (`stopwatch`).

Hypothesis measures no time: that a machine is busy is no fault of what is tested. With CI set it
tries the same examples each time: a commit passes or does not. By hand it looks for new ones.
"""

import os
import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("steady", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("steady")
