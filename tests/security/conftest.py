"""Puts the scene of the proxy's tests (`doorway`, `wire`) within reach, and this room's engines."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "proxy"))
sys.path.insert(0, str(Path(__file__).parent))
