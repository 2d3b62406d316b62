"""Server-sent events as they come from an engine: bytes in any pieces to whole frames.

Follows the parsing rules of the HTML standard, with two differences: the last frame is taken
although no empty line follows it (some engines end so), and `id:` and `retry:` mean nothing here.
Lines end in CRLF, LF or CR wherever the pieces are cut. A line is decoded as UTF-8 only when it is
whole, so that no character is lost between two pieces.
"""

from msgspec import Struct

LIMIT_BYTES = 16 * 1024 * 1024
"""Longest unfinished frame; an engine that sends more without an end is broken."""

_BOM = b"\xef\xbb\xbf"
_CR, _LF = 13, 10


class Frame(Struct, frozen=True, gc=False):
    """One event: its type where it names one, and its data lines joined with a newline."""

    event: str | None
    data: str


class FrameTooLongError(Exception):
    """A frame grew above the reader's limit; the stream cannot be read any further."""


class Reader:
    """Reads one stream. Linear in the bytes fed, however small the pieces are."""

    __slots__ = ("_after_cr", "_data", "_event", "_first", "_kept", "_limit", "_tail", "is_clean")

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._tail: list[bytes] = []  # pieces of a line whose end has not come
        self._data: list[str] = []
        self._event: str | None = None
        self._kept = 0  # bytes in `_tail` and of the lines in `_data`
        self._first = True
        self._after_cr = False
        self.is_clean = True
        """Nothing is kept and nothing owed: a chunk starts a frame."""

    def feed(self, chunk: bytes) -> list[Frame]:
        """Take a piece; return the frames that it completes. Raises FrameTooLongError."""
        line, _, rest = chunk.partition(b"\n")
        if (
            rest == b"\n"
            and self.is_clean
            and line[:6] == b"data: "
            and _CR not in line
            and len(line) <= self._limit
        ):
            self._first = False
            return [Frame(None, line[6:].decode("utf-8", "replace"))]
        if not self.is_clean or chunk[-2:] != b"\n\n" or _CR in chunk or len(chunk) > self._limit:
            return self._read(chunk)
        lines = chunk.split(b"\n")  # data, empty, data, empty, ..., empty
        if any(lines[1::2]):
            return self._read(chunk)
        frames = []
        for line in lines[:-1:2]:
            if line[:6] != b"data: ":
                return self._read(chunk)
            frames.append(Frame(None, line[6:].decode("utf-8", "replace")))
        self._first = False
        return frames

    def close(self) -> list[Frame]:
        """Take the end of the stream; return the frame that no empty line has closed."""
        frames = self._read(b"\n") if self._tail else []
        self._dispatch(frames)
        return frames

    def _read(self, chunk: bytes) -> list[Frame]:
        frames: list[Frame] = []
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == _LF:  # the second half of a CRLF
                chunk = chunk[1:]
        if b"\n" in chunk or b"\r" in chunk:
            # bytes.splitlines knows CR, LF and CRLF only; str.splitlines would also cut at U+2028.
            lines = b"".join([*self._tail, chunk]).splitlines()
            self._kept -= sum(map(len, self._tail))
            self._tail.clear()
            self._after_cr = chunk[-1] == _CR
            chunk = b"" if chunk[-1] in (_CR, _LF) else lines.pop()
            for line in lines:
                self._line(line, frames)
        if chunk:
            self._tail.append(chunk)
            self._keep(len(chunk))
        self.is_clean = not (self._tail or self._data or self._event or self._after_cr)
        return frames

    def _line(self, line: bytes, frames: list[Frame]) -> None:
        """Take one whole line without its end."""
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch(frames)
            return
        self._keep(len(line))
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value.decode("utf-8", "replace"))
            return
        self._kept -= len(line)
        if name == b"event":
            self._event = value.decode("utf-8", "replace")

    def _dispatch(self, frames: list[Frame]) -> None:
        if self._data:
            frames.append(Frame(self._event or None, "\n".join(self._data)))
            self._data.clear()
            self._kept = 0  # the tail is empty whenever a whole line is read
        self._event = None

    def _keep(self, size: int) -> None:
        self._kept += size
        if self._kept > self._limit:
            raise FrameTooLongError(f"a frame of the stream is longer than {self._limit} bytes")
