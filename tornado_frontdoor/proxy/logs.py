"""Log lines on their way out: one stream, one format, and never the loop that waits for a reader.

Everything that is logged goes through a `LogWriter`: the loop puts a line, or what one is to say,
into a bounded buffer; a thread writes it. When nobody reads, lines are dropped, counted, and the
gap is said once there is room again.
"""

import json
import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import time_ns
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.json import Encoder
from msgspec.structs import asdict

from tornado_frontdoor.core.printable import printable

Format = Literal["json", "text"]
Fields = Mapping[str, Any] | Struct
"""What a line says, by names in their order, from the time on: texts, numbers, booleans, None."""

MESSAGE_LENGTH = 2000
"""Characters of one message; what it quotes of others is bounded where it is quoted."""
LINES_KEPT = 200
GATHER_S = 0.02
"""How long a line may wait for more of them."""
LINES_AT_ONCE = 64
"""Made and written in one go: some hundred microseconds in which the loop may have to wait."""
REQUEST_BYTES = 1024
"""What a request counts for whose line is not made yet."""
LAST_WORDS_S = 1.0
"""How long the end of the process waits for lines that nobody has read yet."""

_encode = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
_quick = Encoder().encode


class LineSink(Protocol):
    """Where access lines go: a `LogWriter`, or any text file."""

    def write(self, line: str, /) -> object:
        """Take one line, with its line break."""
        ...


class LogWriter:
    """Writes lines to stderr or to a file from a thread of its own. `write` never blocks."""

    def __init__(self, path: Path | None, style: Format, buffer_bytes: int) -> None:
        self.style: Format = style
        self.dropped = 0
        """Lines that were thrown away since the start."""
        self.recent: deque[str] = deque(maxlen=LINES_KEPT)
        """The last lines that are no request's."""
        self._path = path
        self._descriptor = self._open()
        self._buffer_bytes = buffer_bytes
        self._lines: deque[bytes | Fields] = deque()
        self._held_bytes = 0
        self._gap = 0
        self._reopen = self._closing = False
        self._lock = threading.RLock()  # the collector may log in the middle of `_take`
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Take a line, or drop it when too many wait already."""
        data = line.encode("utf-8", "backslashreplace")
        self._take(data, len(data))

    def write_request(self, fields: Fields) -> None:
        """Take what the line of a request says; the line is made on the thread."""
        self._take(fields, REQUEST_BYTES)

    def _take(self, line: bytes | Fields, size_bytes: int) -> None:
        with self._lock:
            if self._closing or self._held_bytes + size_bytes > self._buffer_bytes:
                self.dropped += 1
                self._gap += 1
                return
            self._lines.append(line)
            self._held_bytes += size_bytes
            if len(self._lines) == 1 or self._is_due():
                self._changed.notify()

    def reopen(self) -> None:
        """Open the file anew before the next line: the old one may have been moved away."""
        with self._changed:
            self._reopen = self._path is not None
            self._changed.notify()

    def close(self) -> None:
        """Write what is left, for a second at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(LAST_WORDS_S)
        if self._path is not None and not self._thread.is_alive():
            os.close(self._descriptor)

    # The thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._lines or self._gap or self._reopen or self._closing):
                    self._changed.wait()
                if self._closing and not self._lines and not self._gap:
                    return
                if not self._closing:
                    # More lines come with it: each turn of this thread costs the loop its own.
                    self._changed.wait_for(self._is_due, GATHER_S)
                reopen, self._reopen = self._reopen, False
                lines = [self._lines.popleft() for _ in range(min(len(self._lines), LINES_AT_ONCE))]
                gap = 0 if self._lines else self._gap
                self._gap -= gap
            if reopen:
                self._open_again()
            self._put(self._piece_of(lines, gap))
            with self._changed:
                self._held_bytes -= sum(
                    len(line) if isinstance(line, bytes) else REQUEST_BYTES for line in lines
                )

    def _is_due(self) -> bool:
        return self._closing or self._held_bytes * 2 > self._buffer_bytes

    def _piece_of(self, lines: list[bytes | Fields], gap: int) -> bytes:
        """Return lines to write now; when all are out, also how many were dropped since."""
        made = [
            line
            if isinstance(line, bytes)
            else access_line(self.style, line).encode("utf-8", "backslashreplace")
            for line in lines
        ]
        if gap:
            told = f"{gap} log lines were dropped: nobody read them fast enough"
            made.append(as_line(self.style, now(), "WARNING", told).encode())
        return b"".join(made)

    def _put(self, piece: bytes) -> None:
        left = memoryview(piece)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # somebody shares it with us and has made it so
                with suppress(OSError):
                    select.select((), (self._descriptor,), (), 1.0)
            except OSError:  # nobody reads any more, or the disk is full: requests go on
                lost = bytes(left).count(b"\n")
                with self._changed:
                    self.dropped += lost
                return

    def _open(self) -> int:
        if self._path is None:
            return sys.stderr.fileno()
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)

    def _open_again(self) -> None:
        try:
            fresh = self._open()
        except OSError as error:
            told = f"log.file cannot be opened again, the old one is kept: {error}"
            self._put(as_line(self.style, now(), "ERROR", told).encode())
            return
        os.close(self._descriptor)
        self._descriptor = fresh


class _Handler(logging.Handler):
    """What the program logs by name, as lines of the writer's format."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a traceback stays with it."""
        trace = self.format_trace(record)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = as_line(self._writer.style, time, record.levelname, record.getMessage(), trace)
        self._writer.recent.append(as_text(time, record.levelname, record.getMessage()))
        self._writer.write(line)

    @staticmethod
    def format_trace(record: logging.LogRecord) -> str:
        """Return the traceback of a record, if it has one."""
        if not record.exc_info:
            return ""
        return logging.Formatter().formatException(record.exc_info)


_second = (0, "")


def now() -> str:
    """Return the wall clock's time as log lines have it."""
    global _second  # noqa: PLW0603 - one value, replaced whole, so that any thread may read it
    seconds, rest_ns = divmod(time_ns(), 1_000_000_000)
    second, text = _second
    if second != seconds:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        _second = (seconds, text)
    return f"{text}.{str(1000 + rest_ns // 1_000_000)[1:]}+00:00"


def as_line(style: Format, time: str, level: str, message: str, trace: str = "") -> str:
    """Return one line of the log; only a traceback in text takes more, indented ones."""
    if style == "json":
        entry: dict[str, Any] = {"time": time, "level": level}
        entry["message"] = printable(message, MESSAGE_LENGTH)
        if trace:
            entry["traceback"] = trace
        return _encode(entry) + "\n"
    lines = [as_text(time, level, message)]
    lines += [f"    {printable(line, MESSAGE_LENGTH)}" for line in trace.splitlines()]
    return "\n".join(lines) + "\n"


def as_text(time: str, level: str, message: str) -> str:
    """Return a line for eyes, without its break."""
    return f"{time} {level} {printable(message, MESSAGE_LENGTH)}"


def access_line(style: Format, fields: Fields) -> str:
    """Return the line of a request: an object, or `key=value` without what is not known."""
    if style == "json":
        return f"{_object(fields)}\n"
    time, *pairs = _named(fields).items()
    told = (f"{key}={_word(value)}" for key, value in pairs if value not in (None, ""))
    return f"{time[1]} INFO request {' '.join(told)}\n"


def _object(fields: Fields) -> str:
    with suppress(TypeError, ValueError):  # a lone surrogate, or what nobody ever puts there
        quick = _quick(fields)
        if quick.isascii():
            return quick.decode()
    return _encode(_named(fields))  # which escapes what could move a cursor


def _named(fields: Fields) -> Mapping[str, Any]:
    return asdict(fields) if isinstance(fields, Struct) else fields


def writer_of(log: LineSink) -> Callable[[Fields], None]:
    """Return who takes what the lines of requests say."""
    if isinstance(log, LogWriter):
        return log.write_request

    def write(fields: Fields) -> None:
        with suppress(OSError, ValueError):  # nobody reads it, or it is closed: requests go on
            log.write(access_line("json", fields))

    return write


def _word(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    plain = value.isprintable() and not any(c in ' "=' for c in value)
    return value if plain else json.dumps(value, ensure_ascii=not value.isprintable())


@contextmanager
def logging_to(path: Path | None, style: Format, buffer_bytes: int) -> Iterator[LogWriter]:
    """Send everything that is logged through one writer; raises OSError for a file it cannot open.

    Of Tornado's own loggers only warnings are let through: the access line is ours to write.
    """
    writer = LogWriter(path, style, buffer_bytes)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [_Handler(writer)]
    root.setLevel(logging.INFO)
    for name in ("tornado.general", "tornado.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield writer
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        writer.close()
