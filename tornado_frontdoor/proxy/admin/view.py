"""What the page shows: engines, who is inside them, the configuration in force, its own files."""

from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any

from tornado_frontdoor import __version__
from tornado_frontdoor.config import Settings
from tornado_frontdoor.config.changes import in_force
from tornado_frontdoor.proxy.admin.history import History
from tornado_frontdoor.proxy.logs import LineSink, LogWriter
from tornado_frontdoor.proxy.proxied_request import ProxiedRequest
from tornado_frontdoor.surfaces.base import Document

INSIDE_SHOWN = 200
"""Of each upstream; the counts are whole."""

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_FOLDER = files(__package__) / "page"
_FILES = {"/": "index.html"} | {f"/{file.name}": file.name for file in _FOLDER.iterdir()}
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    ("Cache-Control", "no-cache"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Content-Security-Policy", _POLICY),
]

Fields = dict[str, Any]


def file_of(path: str) -> Document | None:
    """Return a file of the page; none of them holds anything that is not in the package."""
    name = _FILES.get(path)
    if name is None:
        return None
    body = (_FOLDER / name).read_bytes()
    kind = f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    return Document(200, [("Content-Type", kind), *_HEADERS], body)


class View:
    """Reads a running front door for those who look at it."""

    def __init__(
        self,
        engines: Callable[[], dict[str, Fields]],
        together: Callable[[], Fields],
        under_way: Callable[[], Iterable[ProxiedRequest]],
        uptime_s: Callable[[], float],
        history: History,
        log: LineSink,
    ) -> None:
        self.engines = engines
        self.together = together
        self._under_way = under_way
        self._uptime_s = uptime_s
        self._history = history
        self._log = log
        self.settings: Settings | None = None
        self._read_of: Settings | None = None
        self._config: Sequence[Sequence[str]] = ()

    def queues(self) -> dict[str, list[Fields]]:
        """Return who is inside each upstream, in order of arrival; `place` of those who wait."""
        inside: dict[str, list[Fields]] = {name: [] for name in self.engines()}
        waiting: dict[str, int] = {}
        for request in sorted(self._under_way(), key=lambda one: one.record.arrived_s):
            seen = request.seen()
            name = str(seen["upstream"])
            if seen["state"] == "queued":
                waiting[name] = waiting.get(name, 0) + 1
                seen["place"] = waiting[name]
            if len(inside.setdefault(name, [])) < INSIDE_SHOWN:
                inside[name].append(seen)
        return inside

    def log_lines(self) -> Iterable[str]:
        """Return the last lines of the log that are no request's."""
        return [*self._log.recent] if isinstance(self._log, LogWriter) else ()

    def history(self) -> list[Fields]:
        """Return the last hours by the minute."""
        return self._history.minutes()

    def config(self) -> Sequence[Sequence[str]]:
        """Return the configuration in force, key by key; its file is read once."""
        settings = self.settings
        if settings is not None and settings is not self._read_of:
            self._read_of, self._config = settings, in_force(settings)
        return self._config

    def rest(self) -> Fields:
        """Return what else a snapshot has."""
        return {
            "version": __version__,
            "uptime_s": round(self._uptime_s(), 3),
            "path": str(self.settings.path) if self.settings else None,
            "config": self.config(),
        }
