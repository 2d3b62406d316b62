"""Puts this room's own modules (`anthropic_bench`) within reach of its tests.

They cannot be imported as `tests.surfaces.…`: ciw installs a package of the name `tests`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
