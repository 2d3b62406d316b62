"""Puts this room's own modules (`naive_line`, `walks`, ...) within reach of its tests.

They cannot be imported as `tests.core.…`: ciw installs a package of the name `tests`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
