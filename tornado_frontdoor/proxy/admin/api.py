"""The admin listener: status for people, metrics for Prometheus. Never on the public port."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from math import isfinite
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, unquote

from tornado_frontdoor import __version__
from tornado_frontdoor.core.catalog import Catalog
from tornado_frontdoor.core.decisions import Answered, EngineState, Reason, Refusal, Verdict
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.engines.base import STOPPED
from tornado_frontdoor.proxy.admin import parameters
from tornado_frontdoor.proxy.admin.events import EventHub
from tornado_frontdoor.proxy.admin.explain import explain
from tornado_frontdoor.proxy.admin.gpus import gpus_of
from tornado_frontdoor.proxy.admin.guard import WRONG_TOKEN_DELAY_S, Denial, Guard
from tornado_frontdoor.proxy.admin.orders import order, orders_of, unknown_replica, woken
from tornado_frontdoor.proxy.admin.replicas import is_drained, replicas_of, shown_of
from tornado_frontdoor.proxy.admin.view import file_of
from tornado_frontdoor.proxy.admin.what_if import Unanswerable, WhatIf, limits_of
from tornado_frontdoor.proxy.downstream.client import Client
from tornado_frontdoor.proxy.telemetry import Telemetry
from tornado_frontdoor.proxy.upstreams import Upstream
from tornado_frontdoor.surfaces.base import Document
from tornado_frontdoor.surfaces.retry_headers import STATUS

LOG = logging.getLogger("frontdoor")

Found = Document | Coroutine[Any, Any, Document]


class Admin:
    """Serves the admin listener. What it shows can be exchanged while it runs."""

    max_body_bytes = 64 * 1024
    write_stall_timeout_s = 30.0
    confirm_s = 8.0
    """An owner of gates shows them with each of its beats; the command line waits for 10 s."""

    def __init__(
        self,
        telemetry: Telemetry,
        token: str | None,
        reread: Callable[[], tuple[bool, list[str]]] = lambda: (False, ["nothing to read again"]),
    ) -> None:
        self._telemetry = telemetry
        self.guard = Guard(token, partial(telemetry.refused_at_edge, "admin"))
        self._reread = reread
        self._started_s = monotonic()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.catalog = Catalog(())
        self.upstreams: Mapping[str, Upstream] = {}
        self.cluster: Callable[[], Mapping[str, Any]] | None = None
        """What this front door is among those that share its gates; None: it is alone."""
        self.ledger: Callable[[], GpuLedger] | None = None
        """Who is in the GPUs' memory."""
        self.what_if = WhatIf()
        self.hub: EventHub | None = None
        """Tells viewers what happens; without one there is no `/admin/events`."""

    def turn_away(self, client: Client) -> Document | None:
        """Refuse who may not call, and what is not here."""
        denial = self.guard.denial(client, without_token=self._file(client) is not None)
        if denial is not None:
            client.found = denial
            return None if denial.late else _denied(denial)
        if self._answer_of(client) is None and not self._wants_events(client):
            return _json(404, {"error": f"there is nothing at {client.method} {client.target}"})
        return None

    def refuse_body(self, client: Client, reason: Reason) -> Document:  # noqa: ARG002 - a protocol
        """Refuse a body that no call here needs."""
        status = 413 if reason is Reason.BODY_TOO_LARGE else 408
        return _json(status, {"error": "no call here takes such a body"})

    def never_came(self, client: Client, size_bytes: int) -> None:
        """A client left before its body was whole: nothing to say."""

    def malformed(self, request_id: str, address: str, refusal: Refusal) -> Document:  # noqa: ARG002
        """Answer what is no request."""
        self._telemetry.refused_at_edge("admin", "malformed")
        return _json(STATUS[refusal.reason], {"error": refusal.detail})

    def handshake_failed(self) -> None:
        """There is no TLS here."""

    def serve(self, client: Client) -> None:
        """Answer a call, at once or when the engine has done what it asks for."""
        if client.found is not None:
            self.guard.delayed += 1
            found: Found = self._deny_late(client.found)
        else:
            answer = self._answer_of(client)
            if answer is None:
                assert self.hub is not None
                self.hub.join(client, client.headers.get("last-event-id"))
                return
            found = answer()
        if isinstance(found, Document):
            client.send(found)
            return
        task = asyncio.get_running_loop().create_task(self._send(client, found))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deny_late(self, denial: Denial) -> Document:
        try:
            await asyncio.sleep(WRONG_TOKEN_DELAY_S)
        finally:
            self.guard.delayed -= 1
        return _denied(denial)

    async def _send(self, client: Client, answer: Coroutine[Any, Any, Document]) -> None:
        client.send(await answer)

    def _answer_of(self, client: Client) -> Callable[[], Found] | None:
        """Return who answers: a function of what path and query name; None: nobody, or events."""
        file = self._file(client)
        if file is not None:
            return lambda: file
        path, _, query = client.target.partition("?")
        answer = self._call_of(client, path, query)
        if answer is None and not self._wants_events(client):
            return None
        wrong = parameters.wrong(path, query)
        return partial(_json, 400, {"error": wrong}) if wrong else answer

    def _call_of(self, client: Client, path: str, query: str) -> Callable[[], Found] | None:
        if client.method == "POST":
            for verb, answer in (
                ("wake", partial(self._wake, client.address)),
                ("sleep", partial(self._sleep, client.address)),
                ("drain", self._drain),
                ("believe", self._believe),
                ("what-if", self._what_if),
                ("pin", partial(self._order, "pin", client.address)),
                ("unpin", partial(self._order, "unpin", client.address)),
                ("keep", partial(self._order, "keep", client.address)),
            ):
                prefix = f"/admin/{verb}/"
                if path.startswith(prefix) and len(path) > len(prefix):
                    return partial(
                        answer, unquote(path.removeprefix(prefix)), dict(parse_qsl(query))
                    )
        if client.method == "GET" and path.startswith("/admin/explain/"):
            return partial(self._explain, unquote(path.removeprefix("/admin/explain/")))
        answers: dict[tuple[str, str], Callable[[], Found]] = {
            ("GET", "/admin/status"): self._status,
            ("POST", "/admin/reload"): self._reload,
            ("GET", "/metrics"): partial(self._metrics, client.headers),
        }
        return answers.get((client.method, path))

    @staticmethod
    def _file(client: Client) -> Document | None:
        path = client.target.partition("?")[0]
        return file_of(path) if client.method in ("GET", "HEAD") else None

    def _wants_events(self, client: Client) -> bool:
        asked = (client.method, client.target.partition("?")[0])
        return self.hub is not None and asked == ("GET", "/admin/events")

    # Waking and sleeping

    def _order(self, verb: str, address: str, name: str, query: Mapping[str, str]) -> Found:
        upstream = self._upstream_of(name)
        return _unknown(name) if upstream is None else order(verb, upstream, query, address)

    def _wake(self, address: str, name: str, query: Mapping[str, str]) -> Found:
        upstream = self._upstream_of(name)
        if upstream is None:
            return _unknown(name)
        if not _has_replica(upstream, query):
            return unknown_replica(upstream, query)
        woken(upstream, query, address)
        waking = upstream.wake(replica=query.get("replica"))
        if query.get("wait") == "true":
            return self._wake_and_wait(upstream, waking)
        task = asyncio.get_running_loop().create_task(waking)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return _json(202, {"upstream": upstream.settings.key, "state": upstream.state})

    async def _wake_and_wait(
        self, upstream: Upstream, waking: Coroutine[Any, Any, Answered]
    ) -> Document:
        return _told(upstream, await waking, {Verdict.DONE: 200}, otherwise=503)

    def _sleep(self, address: str, name: str, query: Mapping[str, str]) -> Found:
        upstream = self._upstream_of(name)
        if upstream is None:
            return _unknown(name)
        if "for" in query or "until" in query:
            return order("sleep", upstream, query, address)
        first = min(upstream.keeper.gate.sleep_levels, default=1)
        level = query.get("level", str(first))
        if level not in ("1", "2", "3"):
            return _json(400, {"error": f"level must be 1, 2 or 3, not {level}"})
        if not _has_replica(upstream, query):
            return unknown_replica(upstream, query)
        return self._sleep_and_wait(upstream, int(level), query.get("replica"))

    async def _sleep_and_wait(
        self, upstream: Upstream, level: int, replica: str | None
    ) -> Document:
        statuses = {Verdict.DONE: 200, Verdict.BUSY: 409, Verdict.UNSUPPORTED: 501}
        return _told(upstream, await upstream.sleep(level, replica), statuses, otherwise=503)

    def _drain(self, name: str, query: Mapping[str, str]) -> Found:
        upstream = self._upstream_of(name)
        if upstream is None:
            return _unknown(name)
        url, undo = query.get("replica", ""), query.get("undo") == "true"
        if not upstream.drain_engine(url, undo=undo):
            return unknown_replica(upstream, query)
        if is_drained(upstream, url, undo=undo):
            return _json(200, shown_of(upstream))
        return self._confirm_drain(upstream, url, undo=undo)

    async def _confirm_drain(self, upstream: Upstream, url: str, *, undo: bool) -> Document:
        """Answer once the front door that owns the gates has shown that it is so."""
        try:
            async with asyncio.timeout(self.confirm_s):
                while not is_drained(upstream, url, undo=undo):  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.02)
        except TimeoutError:
            why = "it was asked for, and no front door that owns the gates has confirmed it"
            return _json(503, {"error": f"{why} for {self.confirm_s:g} s: look at the status"})
        return _json(200, shown_of(upstream))

    def _believe(self, name: str, query: Mapping[str, str]) -> Found:
        upstream = self._upstream_of(name)
        if upstream is None:
            return _unknown(name)
        if upstream.engine is None:
            return _json(501, {"error": f"{name} has no sleep table, so no canary"})
        targets = upstream.sleepers.targets(query.get("replica"))
        if not targets:
            return unknown_replica(upstream, query)
        for engine in targets:
            engine.believe()
        return _json(200, {"upstream": upstream.settings.key, "state": upstream.state})

    def _what_if(self, name: str, query: Mapping[str, str]) -> Found:
        upstream = self._upstream_of(name)
        return _unknown(name) if upstream is None else self._replay(upstream, query)

    async def _replay(self, upstream: Upstream, query: Mapping[str, str]) -> Document:
        try:
            return _json(200, await self.what_if.ask(upstream, limits_of(query)))
        except Unanswerable as error:
            return _json(error.status, {"error": str(error)})

    def _upstream_of(self, name: str) -> Upstream | None:
        """Find an upstream by its name or by that of a model of it."""
        upstream = self.upstreams.get(name)
        if upstream is not None:
            return upstream
        target = self.catalog.resolve(name)
        return None if target is None else self.upstreams.get(target.upstream)

    def _reload(self) -> Document:
        try:
            good, said = self._reread()
        except Exception as error:
            LOG.exception("the configuration could not be read again")
            why = f"a fault of the front door: {error!r}: see its log"
            return _json(500, {"reloaded": False, "error": why})
        if good:
            return _json(200, {"reloaded": True, "notes": said})
        return _json(409, {"reloaded": False, "error": "\n".join(said)})

    # Showing

    def _explain(self, name: str) -> Document:
        upstream = self._upstream_of(name)
        if upstream is None:
            return _unknown(name)
        since_s = self._telemetry.state_since_s(upstream.settings.key)
        return _json(200, explain(upstream, since_s))

    def _status(self) -> Document:
        uptime_s = round(self.uptime_s(), 3)
        status = {"version": __version__, "uptime_s": uptime_s, "upstreams": self.engines()}
        told = {name: value for name, value in self.together().items() if value is not None}
        return _json(200, status | told)

    def together(self) -> dict[str, Any]:
        """Return what concerns all engines: what they take of the GPUs, who else serves them."""
        return {
            "gpus": None if self.ledger is None else gpus_of(self.ledger(), monotonic()),
            "cluster": None if self.cluster is None else dict(self.cluster()),
        }

    def uptime_s(self) -> float:
        """Return how long this has been here."""
        return monotonic() - self._started_s

    def engines(self) -> dict[str, dict[str, Any]]:
        """Return each upstream as it is."""
        return {key: self._describe(upstream) for key, upstream in self.upstreams.items()}

    def _describe(self, upstream: Upstream) -> dict[str, Any]:
        gate = upstream.keeper.gate
        key = upstream.settings.key
        idle_s = gate.idle_for_s()
        oldest_s = gate.oldest_wait_s
        stops = STOPPED in gate.sleep_levels
        learned_s = gate.learned_s
        timeout_s = gate.limits.queue_timeout_s
        return {
            "url": upstream.settings.url,
            "models": [t.model for t in self.catalog.targets if t.upstream == key],
            "replicas": replicas_of(upstream),
            "state": upstream.state,
            "since_s": self._telemetry.state_since_s(key),
            "can_sleep": upstream.engine is not None,
            "sleep_depth": upstream.sleep_depth,
            "running": gate.state not in (EngineState.UNKNOWN, EngineState.DOWN),
            "sleeping": gate.state
            in (EngineState.SLEEPING, EngineState.OFFLOADED, EngineState.STOPPED),
            "wake_in_progress": gate.state is EngineState.WAKING,
            "wake_step": gate.wake_step,
            "wake_steps": gate.wake_steps,
            "transition_s": None if gate.transition_s is None else round(gate.transition_s, 1),
            "waits_for": gate.waits_for,
            "makes_room": gate.makes_room,
            "orders": orders_of(upstream),
            "last_activity_s": None if idle_s is None else round(idle_s, 3),
            "sleep_support": gate.sleep_support,
            "sleep_fault": gate.sleep_fault,
            "canary": gate.proof,
            "in_flight": gate.in_flight,
            "cooling": gate.cooling,
            "cap": gate.limits.cap,
            "slots": upstream.settings.admission.slots if upstream.settings.admission else None,
            "queued": gate.queued,
            "oldest_wait_s": None if oldest_s is None else round(oldest_s, 3),
            "queue": gate.limits.queue if gate.limits.cap is not None else None,
            "queue_timeout_s": timeout_s if isfinite(timeout_s) else None,
            "returns": {
                "expected": gate.returns_expected,
                "places_kept": gate.returns_kept,
                "places": gate.limits.return_places,
                "came_back": gate.came_back,
                "stayed_away": gate.stayed_away,
            },
            "wakes_total": gate.wakes_total,
            "estimated_wake_seconds": {
                depth: learned_s.get(depth)
                for depth in ("sleeping", "offloaded", *(("stopped",) if stops else ()))
            },
        }

    def _metrics(self, headers: Mapping[str, str]) -> Document:
        accept, encodings = headers.get("accept", ""), headers.get("accept-encoding", "")
        body, sent = self._telemetry.scrape(accept, encodings)
        return Document(200, sent, body)


def _has_replica(upstream: Upstream, query: Mapping[str, str]) -> bool:
    """Tell whether one of several engines is there where one is named."""
    return query.get("replica", upstream.settings.url) in upstream.settings.urls


def _told(
    upstream: Upstream, answered: Answered, statuses: Mapping[Verdict, int], otherwise: int
) -> Document:
    """Render what came of an operator's request."""
    key = upstream.settings.key
    status = statuses.get(answered.verdict, otherwise)
    told: dict[str, Any] = {"upstream": key, "state": upstream.state}
    if status != 200:
        told["reason"] = answered.verdict.value
        told["error"] = f"{key}: {answered.verdict.value}: {answered.detail}".rstrip(": ")
    return _json(status, told)


def _denied(denial: Denial) -> Document:
    return _json(denial.status, {"error": denial.error}, list(denial.headers))


def _unknown(name: str) -> Document:
    return _json(404, {"error": f"there is no upstream and no model {quoted(name)}"})


def _json(status: int, value: object, headers: list[tuple[str, str]] | None = None) -> Document:
    body = json.dumps(value).encode()
    return Document(status, [("Content-Type", "application/json"), *(headers or [])], body)
