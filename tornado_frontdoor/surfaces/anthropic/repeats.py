"""Chunks of an engine's stream that differ from one before in their text alone, as most do.

One chunk is read in earnest. What stands before and after its text is kept, once a word put in its
place was read as the text, and nothing else changed: as JSON has no contexts, any other text there
is read as the text, too. A chunk that begins and ends so goes on as it is written: its text is
neither read nor written anew. Whatever has an escape, or is not UTF-8, is read in earnest.
"""

import re

from tornado_frontdoor.surfaces.anthropic.fields import encode_text
from tornado_frontdoor.surfaces.anthropic.pieces import TextPiece, read_piece

PATIENCE = 8
"""How many forms in a row are kept in vain until nobody looks for another."""
MOST_BYTES = 64 * 1024
_WORD = "a word"
_PLAIN = re.compile(rb'"[^\x00-\x1f"\\]+"')


class Repeats:
    """The form of the last chunk, and whether another has it."""

    __slots__ = ("_after", "_before", "_left", "kind")

    def __init__(self) -> None:
        self._before = self._after = b""
        self._left = PATIENCE
        self.kind = ""
        """What the text of the form is: `text`, `thinking`, or nothing yet."""

    def learn(self, data: str, text: str) -> None:
        """Keep the form of a chunk that brought `text`, if it has one."""
        if not self._left or "\n" in data or data.count(literal := encode_text(text)) != 1:
            return
        self._left -= 1
        before, after = data.split(literal)
        probe = read_piece(f"{before}{encode_text(_WORD)}{after}")
        self.kind = _kind_of(probe) if probe is not None else ""
        self._before = f"data: {before}".encode()
        self._after = f"{after}\n\n".encode()

    def text_in(self, chunk: bytes) -> bytes:
        """Return the text of a chunk of this form, as JSON writes it; nothing: it has another."""
        before, after = self._before, self._after
        if not (self.kind and chunk.startswith(before) and chunk.endswith(after)):
            return b""
        literal = chunk[len(before) : -len(after)]
        if _PLAIN.fullmatch(literal) is None or len(chunk) > MOST_BYTES:
            return b""
        if not literal.isascii():
            try:
                literal.decode()
            except UnicodeDecodeError:
                return b""
        self._left = PATIENCE
        return literal


def _kind_of(probe: TextPiece) -> str:
    """Return as what the word was read, where it alone was."""
    delta = probe.choices[0].delta
    found = {
        "text": delta.content,
        "thinking": delta.reasoning or delta.reasoning_content,
    }
    words = [kind for kind, text in found.items() if text]
    alone = len(words) == 1 and found[words[0]] == _WORD and not probe.usage
    return words[0] if alone else ""
