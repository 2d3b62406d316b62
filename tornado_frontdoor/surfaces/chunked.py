"""HTTP/1.1's chunked framing as engines write it: a size, its piece, nothing else (RFC 9112, 7.1).

Whatever else the framing allows (extensions, sizes that begin with zeros, the last chunk, trailers)
is not read here: who meets it leaves the answer to a real reader.
"""

import re

_SIZE = rb"[1-9a-fA-F][0-9a-fA-F]{0,4}"
_SIZE_LINE = re.compile(rb"(%b)\r\n" % _SIZE)
_SIZE_LINE_BEGUN = re.compile(rb"%b\r?\Z" % _SIZE)
_MOST_KNOWN_BYTES = 8 * 1024
_size_lines: dict[int, bytes] = {}
"""By the length of a whole chunk, as they come up: a quarter of the time of making one."""


def is_one_chunk(raw: bytes) -> bool:
    """Tell whether `raw` is one chunk of 1 to 65,535 bytes, its size written in small letters."""
    line = _size_lines.get(len(raw)) or _size_line(len(raw))
    return raw[: len(line)] == line and raw[-2:] == b"\r\n"


def _size_line(length: int) -> bytes:
    """Return how a chunk of so many bytes in all must begin; what none can, where there is none."""
    for digits in range(1, 5):
        size = length - digits - 4
        line = b"%x\r\n" % size
        if size > 0 and len(line) == digits + 2:
            break
    else:
        line = b"-" * (length + 1)
    if length <= _MOST_KNOWN_BYTES:
        _size_lines[length] = line
    return line


def piece_of(chunk: bytes) -> bytes:
    """Return what a whole chunk holds."""
    return chunk[chunk.index(b"\n") + 1 : -2]


def whole_chunks(raw: bytes) -> list[bytes]:
    """Return the whole chunks at the beginning of `raw`; none where anything else follows them."""
    found = chunks_in(raw)
    return found[0] if found is not None else []


def chunks_in(raw: bytes) -> tuple[list[bytes], int] | None:
    """Return the whole chunks at the beginning of `raw`, and where an unfinished one begins.

    None: there is anything else, as the last chunk, so that where a chunk begins is not known.
    """
    chunks: list[bytes] = []
    at, length = 0, len(raw)
    while at < length:
        line = _SIZE_LINE.match(raw, at)
        if line is None:
            return (chunks, at) if _SIZE_LINE_BEGUN.match(raw, at) else None
        end = line.end() + int(line[1], 16) + 2
        closing = raw[end - 2 : end]
        if closing != b"\r\n":
            return (chunks, at) if closing in {b"", b"\r"} and end > length else None
        chunks.append(raw[at:end])
        at = end
    return chunks, at
