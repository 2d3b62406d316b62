"""A load balancer's eye: which doors answer /health with 200, written down for the clients."""

import http.client
import threading
from pathlib import Path
from urllib.parse import urlsplit

from loadtests.lib.doors import write_doors

EVERY_S = 0.1
PATIENCE_S = 0.5


class Balancer:
    """A thread that keeps the list of doors in a file; leaving the context ends the requests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.doors: list[str] = []
        """Those that there are; those that are healthy get requests."""
        self.rests = True
        """Whether nobody gets requests."""
        self.listed: list[str] = []
        """Those that get requests now."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        write_doors(path, [])

    def __enter__(self) -> "Balancer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        write_doors(self.path, None)

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            healthy = [] if self.rests else [door for door in [*self.doors] if is_healthy(door)]
            if healthy != self.listed and not (self.rests and healthy):
                write_doors(self.path, healthy)
                self.listed = healthy


def is_healthy(door: str) -> bool:
    """Tell whether a front door says soon that it takes requests."""
    connection = http.client.HTTPConnection(urlsplit(door).netloc, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
