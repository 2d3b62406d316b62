"""Tells those who wait their place in line, without committing to a status: interim answers (103).

They go to who asks for them and, by configuration, to clients that are known to pass over what they
do not know of it. Never to those that would take one for the final answer, and never through a
proxy unasked: what that would make of it nobody knows. Who asks for that instead is told inside of
the stream (`early_stream.py`).
"""

import asyncio
from collections.abc import Mapping
from math import ceil, inf
from time import monotonic
from typing import Literal, Protocol
from urllib.parse import parse_qsl

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.core.request import Ticket
from tornado_frontdoor.proxy.callers import patience_of
from tornado_frontdoor.proxy.gate_driver import GateDriver
from tornado_frontdoor.surfaces.base import Refused

Progress = Literal["known", "asked", "off"]

FIRST_S = 1.0
"""Who waits for less is told nothing."""
EVERY_S = 2.0
TICK_S = 0.5
TOLD_WITHIN_S = 2 * (EVERY_S + TICK_S)
"""Who waits longer than that in silence never waits in silence, also on a slow network."""

_WAYS = {"X-Frontdoor-Progress": ("103", "sse"), "progress": ("sse",)}
"""How one may ask to be told, in a header and in the query."""

_PROXIED = ("via", "forwarded", "x-forwarded-for")
_KNOWN_AGENTS = ("curl/", "python-httpx/", "aiohttp/", "node", "undici", "frontdoor")
_KNOWN_HEADER = "x-stainless-lang"
"""Of OpenAI's and Anthropic's SDKs, in every language they are in."""
_TAKE_IT_FOR_FINAL = ("python-requests/", "urllib3/", "go-http-client/")


class InLine(Protocol):
    """A request in line, as it is told of its place."""

    in_stream: bool
    """Whether it is told inside of its stream, and also while the engine has not begun it."""

    @property
    def waits(self) -> bool:
        """Whether it still is to be told anything."""
        ...

    @property
    def line(self) -> tuple[GateDriver, Ticket]:
        """Where it waits, and as whom."""
        ...

    def tell(self, headers: list[tuple[str, str]]) -> None:
        """Send an interim answer."""
        ...


def check_words(headers: Mapping[str, str], query: str) -> None:
    """Raise Refused where a client asks to be told in a way that there is not."""
    if not query and "x-frontdoor-progress" not in headers:
        return
    asked = [("X-Frontdoor-Progress", headers.get("x-frontdoor-progress", "").strip())]
    asked += [("progress", word) for name, word in parse_qsl(query) if name == "progress"]
    for name, word in asked:
        ways = _WAYS[name]
        if word and word.lower() not in ways:
            detail = f"{name} must be {' or '.join(ways)}, not {quoted(word)}"
            raise Refused(Reason.BAD_REQUEST, detail, name)


def bears_interim_answers(headers: Mapping[str, str], progress: Progress) -> bool:
    """Tell whether a client is to get interim answers; `headers` has lower-case names."""
    if headers.get("x-frontdoor-progress", "").strip() == "103":
        return progress != "off"
    if progress != "known" or any(name in headers for name in _PROXIED):
        return False
    agent = headers.get("user-agent", "").lower()
    if any(name in agent for name in _TAKE_IT_FOR_FINAL):
        return False
    return _KNOWN_HEADER in headers or any(name in agent for name in _KNOWN_AGENTS)


def silence_borne_s(headers: Mapping[str, str], progress: Progress) -> float:
    """Return how long a client waits in the queue; whoever is told its place in time waits on."""
    patience_s, prolonged = patience_of(headers)
    told = prolonged and patience_s > TOLD_WITHIN_S and bears_interim_answers(headers, progress)
    return inf if told else patience_s


class PlaceTeller:
    """Tells all who wait and bear it; one timer, and none while nobody waits."""

    def __init__(self) -> None:
        self._due_s: dict[InLine, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due_s)

    def add(self, waiting: InLine) -> None:
        """Tell a request of its place from now on, until it waits no more."""
        self._due_s[waiting] = monotonic() + FIRST_S
        if self._timer is None:
            self._arm()

    def close(self) -> None:
        """Tell nobody any more."""
        self._due_s.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = monotonic()
        places: dict[GateDriver, dict[Ticket, int]] = {}
        for waiting, due_s in list(self._due_s.items()):
            if not waiting.waits:
                del self._due_s[waiting]
                continue
            if due_s > now_s:
                continue
            driver, ticket = waiting.line
            if driver not in places:
                line = driver.gate.waiting()
                places[driver] = {one: place for place, one in enumerate(line, start=1)}
            place = places[driver].get(ticket, 0 if waiting.in_stream else None)
            if place is not None:
                self._due_s[waiting] = now_s + EVERY_S
                waiting.tell(headers_of(driver, place))
        if self._due_s:
            self._arm()


def headers_of(driver: GateDriver, place: int) -> list[tuple[str, str]]:
    """Return what an interim answer says."""
    gate = driver.gate
    return [
        ("Queue-Position", str(place)),
        ("Queue-Eta-Ms", str(ceil(gate.expected_wait_s(place) * 1000))),
        ("Engine-State", gate.state.value),
    ]
