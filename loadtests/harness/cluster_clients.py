"""Clients of several front doors: always as many requests under way, each at one of the doors.

A client that finds nobody at a front door goes to the next one, as a load balancer would send it;
one whose answer breaks off has lost something, and says so.
"""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

BODY = json.dumps({"model": "reasoning", "messages": [], "stream": True}).encode()
PAUSE_S = 0.05


class EndedRequest(NamedTuple):
    """How one request ended."""

    request_id: str
    sent_s: float
    ended_s: float
    kind: str
    """`served`, `refused REASON`, `broken` or, with nobody there, `moved`."""


class ClientCrowd:
    """So many clients, each with one request under way, until the block is left."""

    def __init__(self, doors: Sequence[str], count: int) -> None:
        self.doors = list(doors)
        self.outcomes: list[EndedRequest] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._one, args=(number,), daemon=True)
            for number in range(count)
        ]

    def __enter__(self) -> "ClientCrowd":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=60)

    def since(self, began_s: float) -> Counter[str]:
        """Return how those ended that ended since then."""
        return Counter(one.kind for one in [*self.outcomes] if one.ended_s >= began_s)

    def _one(self, number: int) -> None:
        while not self._over.is_set():
            doors = self.doors
            outcome = ask(doors[number % len(doors)])
            self.outcomes.append(outcome)
            number += 1
            if outcome.kind != "served":
                time.sleep(PAUSE_S)


def ask(door: str) -> EndedRequest:
    """Send one request and read its answer to the end."""
    sent_s = time.monotonic()
    request_id = ""
    try:
        connection = http.client.HTTPConnection(urlsplit(door).netloc, timeout=60)
        connection.connect()
    except OSError:
        return EndedRequest("", sent_s, time.monotonic(), "moved")
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", BODY, headers)
        answer = connection.getresponse()
        request_id = answer.headers.get("X-Request-Id", "")
        body = answer.read()
    except (OSError, http.client.HTTPException):
        kind = "broken"
    else:
        kind = _kind(answer.status, body)
    finally:
        connection.close()
    return EndedRequest(request_id, sent_s, time.monotonic(), kind)


def _kind(status: int, body: bytes) -> str:
    if status == 200:
        return "served" if b"data: [DONE]" in body else "broken"
    try:
        return f"refused {json.loads(body)['error']['code']}"
    except (ValueError, KeyError, TypeError):
        return f"refused {status}"
