"""The command line and the package; puts this room's modules within reach of its tests."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "end_to_end")]
