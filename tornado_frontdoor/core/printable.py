"""Text of others, made fit for answers and log lines: bounded, on one line, without control codes.

A model's name may be 60 MB, an engine's error text may hold line breaks that forge a log line, or
codes that move a terminal's cursor.
"""

from reprlib import Repr

LONGEST = 200
"""Characters of a name or an error text that are shown."""

_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = LONGEST


def printable(text: str, most: int = LONGEST) -> str:
    """Return the text clipped, with what cannot be printed on one line escaped as Python does."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    if short.isprintable():
        return short
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)


def quoted(value: object) -> str:
    """Return a value as Python writes it; of a long or large one its beginning and end."""
    return _repr.repr(value)
