"""Puts this room's modules and the wire of tests/proxy within reach of its tests."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "proxy")]
