"""JSON read by msgspec, in a quarter of the library's time, and as the library reads it.

Where msgspec reads a text at all its value is the library's: the last of two equal keys, whole
numbers of any size, floats to the last bit. What it refuses (`NaN`, a lone surrogate, a number
beyond all floats) is read by the library, which takes more than JSON, or says what is wrong.
"""

import json
from typing import Any

from msgspec import MsgspecError
from msgspec.json import Decoder

_decode = Decoder().decode

NOT_QUICK = (MsgspecError, ValueError, RecursionError)
"""What `decode` raises where the library is to be asked."""


def decode(data: bytes | str) -> Any:
    """Return the value of a text; raises one of NOT_QUICK, which is no judgement of the text."""
    return _decode(data)


def loads(data: bytes | str) -> Any:
    """Return what `json.loads` returns; raises what it raises."""
    try:
        return _decode(data)
    except NOT_QUICK:
        return json.loads(data)
