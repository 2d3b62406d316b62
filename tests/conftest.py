"""What holds for every test, and what every room of them may use (`stopwatch`).

Hypothesis measures no time: that a machine is busy is no fault of what is tested.
"""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
