"""What holds for every test, and what every room of them may use (`stopwatch`).

Hypothesis measures no time: that a machine is busy is no fault of what is tested. With CI set it
tries the same examples each time: a commit passes or does not. By hand it looks for new ones, and
as many as `depth` is told.

Where no bytecode may be written beside the sources it is written into pytest's own cache: half of
what a process costs that starts is reading its sources anew, and the tests start hundreds.
"""

import os
import sys
from pathlib import Path

from hypothesis import settings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(
        HERE.parent / ".pytest_cache" / "bytecode"
    )
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from depth import examples  # noqa: E402 - found by the path above

settings.register_profile(
    "steady", max_examples=examples(40), deadline=None, derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("steady")
