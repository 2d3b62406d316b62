"""Where libcurl puts its requests together, in the heap of the C library."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("mapped_apart.py")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="no glibc, or an old one")
def test_what_each_handle_sends_from_is_mapped_apart_and_little_else() -> None:
    told = subprocess.run([sys.executable, PROGRAM, "100"], capture_output=True, check=True)
    by_calls, by_others = json.loads(told.stdout)
    assert by_calls >= 75  # there may be room in the heap for the first ones
    assert by_others == 0
