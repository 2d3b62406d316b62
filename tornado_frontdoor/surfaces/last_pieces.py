"""The last pieces of an answer, which tell how it ended and what it counted."""

from tornado_frontdoor.surfaces.chunked import piece_of

LAST_PIECES = 4
"""How many are kept: a count comes with the last events of a stream."""
SMALL_PIECE_BYTES = 64
"""A piece below it is joined with the next one, so that four hold any `[DONE]` or error's head."""
SMALL_CHUNK_BYTES = SMALL_PIECE_BYTES + 8
"""A chunk above it holds no small piece: a size takes two to four digits, and line ends four."""
SHOWN_BYTES = 300


def shown(raw: bytes) -> str:
    """Return what people are shown of an answer: its beginning."""
    return raw[:SHOWN_BYTES].decode("utf-8", "replace")


class LastPieces:
    """What came last; older pieces are never looked at again."""

    __slots__ = ("_chunks", "_is_all", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._chunks: list[bytes] = []
        """What came after `_pieces`, framed as it came: few are ever asked what they hold."""
        self._is_all = True

    def add(self, piece: bytes) -> None:
        """Keep a piece in the place of the oldest."""
        if self._chunks:
            self._take_off_framing()
        pieces = self._pieces
        if pieces and len(pieces[-1]) < SMALL_PIECE_BYTES:
            pieces[-1] += piece  # an end may come byte by byte
            return
        pieces.append(piece)
        if len(pieces) > LAST_PIECES:
            del pieces[0]
            self._is_all = False

    def add_chunk(self, chunk: bytes) -> None:
        """Keep a whole chunk, as `add` what it holds."""
        if len(chunk) < SMALL_CHUNK_BYTES:
            self.add(piece_of(chunk))
            return
        chunks = self._chunks
        chunks.append(chunk)
        if len(chunks) > LAST_PIECES:
            del chunks[0]
            self._pieces.clear()
            self._is_all = False

    @property
    def pieces(self) -> list[bytes]:
        """The last pieces, the oldest first."""
        if self._chunks:
            self._take_off_framing()
        return self._pieces

    @property
    def is_all(self) -> bool:
        """Whether they are all that came."""
        if self._chunks:
            self._take_off_framing()
        return self._is_all

    def _take_off_framing(self) -> None:
        chunks, self._chunks = self._chunks, []
        for chunk in chunks:
            self.add(piece_of(chunk))

    def shown(self) -> str:
        """Return what people are shown of it, after an ellipsis where its beginning is gone."""
        told = shown(b"".join(self.pieces))
        return told if self.is_all else f"\N{HORIZONTAL ELLIPSIS}{told}"
