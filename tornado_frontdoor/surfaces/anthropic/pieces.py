"""A chunk of an engine's stream that brings text or reasoning and nothing else, as most do.

It is read into these classes in one go: what nobody asks for (probabilities, the ids of tokens) is
only stepped over. Whatever is put together in some other way is no piece, and for others to judge.
"""

from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from tornado_frontdoor.surfaces.quick_json import NOT_QUICK


class TextDelta(Struct, gc=False):
    """What is new."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    tool_calls: Any = None


class TextChoice(Struct, gc=False):
    """The choice that was asked for."""

    delta: TextDelta
    index: int = 0
    finish_reason: None = None


class TextPiece(Struct, gc=False):
    """The chunk; more than one choice is never asked for."""

    choices: list[TextChoice]
    usage: Any = None
    error: None = None


_decode = Decoder(TextPiece).decode


def read_piece(data: str) -> TextPiece | None:
    """Return the piece that a chunk is; None: it is none."""
    try:
        piece = _decode(data)
    except NOT_QUICK:
        return None
    choices = piece.choices
    if len(choices) != 1 or choices[0].index or choices[0].delta.tool_calls:
        return None
    return piece
