"""Several front doors: which of them get requests now, as a load balancer would have it.

`--doors FILE` holds a JSON list of base URLs, which whoever writes it may replace at any time. With
none in it users wait; with `null` instead of a list they are done.
"""

import json
from pathlib import Path


class Doors:
    """The list in a file, read again when the file is another one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._urls: list[str] | None = []

    @property
    def urls(self) -> list[str] | None:
        """The front doors that get requests; None: no more requests."""
        status = self._path.stat()
        seen = (status.st_ino, status.st_mtime_ns)
        if seen != self._seen:
            self._urls, self._seen = json.loads(self._path.read_text()), seen
        return self._urls


def write_doors(path: Path, urls: list[str] | None) -> None:
    """Replace the list in one step, so that nobody reads half of it."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(urls))
    draft.replace(path)


def read_doors(text: str) -> None:
    """Raise ValueError or OSError for a file that is no such list."""
    urls = json.loads(Path(text).read_text())
    if urls is None:
        return  # they are done
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        raise ValueError(f"{text} holds no JSON list of URLs")
