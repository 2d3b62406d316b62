"""JSON read by msgspec, in a quarter of the library's time, and as the library reads it.

Where msgspec reads a text at all its value is the library's: the last of two equal keys, whole
numbers of any size, floats to the last bit. What it refuses (`NaN`, a lone surrogate, a number
beyond all floats) is read by the library, which takes more than JSON, or says what is wrong.

It writes what the library writes, too, but for floats with an exponent (`1e16` for `1e+16`): those
are told apart as they are read, so that what was read by `decode_to_encode` is written alike.
"""

import json
from typing import Any

from msgspec import MsgspecError, Raw
from msgspec.json import Decoder, Encoder


class _ExponentFloat(float):
    """A float that the library writes with an exponent."""


def _float(text: str) -> float:
    value = float(text)
    if not value or 1e-4 <= abs(value) < 1e16:
        return value
    if value - value != 0:
        raise ValueError("beyond all floats")
    return _ExponentFloat(value)


def _write_float(value: float) -> Raw:
    return Raw(float.__repr__(value).encode())


_decode = Decoder().decode
_decode_to_encode = Decoder(float_hook=_float).decode
_encode = Encoder(enc_hook=_write_float).encode

NOT_QUICK = (MsgspecError, ValueError, RecursionError)
"""What `decode` raises where the library is to be asked."""


def decode(data: bytes | str) -> Any:
    """Return the value of a text; raises one of NOT_QUICK, which is no judgement of the text."""
    return _decode(data)


def decode_to_encode(data: bytes) -> Any:
    """Return what `decode` returns, fit for `encode`; raises as `decode` does."""
    return _decode_to_encode(data)


def encode(value: object) -> bytes:
    """Return compact JSON, byte for byte as the library writes it with its characters as they are.

    For what `decode_to_encode` has read, put together anew or not, and texts and whole numbers.
    """
    return _encode(value)


def loads(data: bytes | str) -> Any:
    """Return what `json.loads` returns; raises what it raises."""
    try:
        return _decode(data)
    except NOT_QUICK:
        return json.loads(data)
