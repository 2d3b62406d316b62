"""The last pieces of an answer, which tell how it ended and what it counted."""

LAST_PIECES = 4
"""How many are kept: a count comes with the last events of a stream."""
SMALL_PIECE_BYTES = 64
"""A piece below it is joined with the next one, so that four hold any `[DONE]` or error's head."""
SHOWN_BYTES = 300


def shown(raw: bytes) -> str:
    """Return what people are shown of an answer: its beginning."""
    return raw[:SHOWN_BYTES].decode("utf-8", "replace")


class LastPieces:
    """What came last; older pieces are never looked at again."""

    __slots__ = ("is_all", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.is_all = True
        """Whether they are all that came."""

    def add(self, piece: bytes) -> None:
        """Keep a piece in the place of the oldest."""
        pieces = self.pieces
        if pieces and len(pieces[-1]) < SMALL_PIECE_BYTES:
            pieces[-1] += piece  # an end may come byte by byte
            return
        pieces.append(piece)
        if len(pieces) > LAST_PIECES:
            del pieces[0]
            self.is_all = False

    def shown(self) -> str:
        """Return what people are shown of it, after an ellipsis where its beginning is gone."""
        told = shown(b"".join(self.pieces))
        return told if self.is_all else f"\N{HORIZONTAL ELLIPSIS}{told}"
