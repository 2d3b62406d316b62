"""Users that do their part once and say so: bursts, closed loops and open-loop arrivals."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, cast

import gevent
from gevent.event import Event
from gevent.pool import Group
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError
from locust import User, events, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import STATE_CLEANUP, STATE_STOPPED, STATE_STOPPING, WorkerRunner

from loadtests.lib import arrivals, holds
from loadtests.lib.dialects import ClientCall
from loadtests.lib.doors import Doors
from loadtests.lib.hooks import on
from loadtests.lib.run import done, samples, show
from loadtests.lib.visits import Measurement, client_of, visit

HOST = "http://127.0.0.1:8080"
ENDING = (STATE_STOPPING, STATE_CLEANUP, STATE_STOPPED)

_numbers = itertools.count()
_sources: list[int] = []
"""The numbers of the open-loop users of this process."""
_gate = Event()


@on(events.test_start)
def _begin(**_: Any) -> None:
    global _numbers  # noqa: PLW0603 - on the web page a run may follow a run
    _numbers = itertools.count()
    _sources.clear()
    Caller.surfaces.clear()
    _gate.clear()


@on(events.spawning_complete)
def _open_the_gate(**_: Any) -> None:
    _gate.set()


class Caller(User):
    """A user that does its part once; subclasses say what it is in `part`."""

    abstract = True
    host = HOST
    surfaces: ClassVar[list[str]] = []
    """The chat dialects that this front door speaks; found out once, by whoever comes first."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.number = next(_numbers)
        # Without a command line there are no options, and no user either.
        self.options = cast("Any", environment.parsed_options)
        runner = environment.runner
        self.worker = runner.worker_index if isinstance(runner, WorkerRunner) else 0
        self.rng = random.Random(f"{self.options.seed} {self.worker} {self.number}")
        self.doors = Doors(Path(self.options.doors)) if self.options.doors else None
        self._clients: dict[str, HTTPClient] = {}
        urls = self.doors and self.doors.urls
        own = urls[self.number % len(urls)] if urls else environment.host or self.host or HOST
        self.turn_to(own)

    def turn_to(self, door: str) -> None:
        """Ask this front door from now on."""
        self.door = door
        client = self._clients.get(door)
        if client is None:
            client = self._clients[door] = client_of(door)
        self.client: HTTPClient = client

    def on_start(self) -> None:
        """Find out which dialects there are."""
        if not self.surfaces:
            found = ["openai", "anthropic"] if self._speaks_anthropic() else ["openai"]
            if not self.surfaces:  # somebody may have been faster
                self.surfaces.extend(found)

    def _speaks_anthropic(self) -> bool:
        try:
            response = self.client.request("HEAD", "/llm")
        except (OSError, HTTPParseError):
            return False  # nobody is there at all: each request will say so
        response.release()
        return bool(response.status_code == 200)

    @task
    def all_of_it(self) -> None:
        """Do the part, then be gone."""
        try:
            self.part()
        except Exception as error:  # noqa: BLE001 - the run has to end, and to fail
            samples.failures[f"{type(error).__name__}: {error}"] += 1
        finally:
            for client in self._clients.values():
                client.close()
        done(self.environment)
        raise StopUser

    def part(self) -> None:
        """What this user does."""
        raise NotImplementedError

    def wait_for_all(self) -> None:
        """Return in the same instant for all users of this process, once all are here."""
        _gate.wait()

    @property
    def is_ending(self) -> bool:
        """Whether the run is being stopped."""
        runner = self.environment.runner
        return runner is None or runner.state in ENDING

    def hold_s(self) -> float:
        """Draw how long the engine is to hold a request."""
        return holds.parse(self.options.hold)(self.rng)

    def ask(self, call: ClientCall, due_s: float | None = None, **how: Any) -> Measurement:
        """Make one request, and write down how it went."""
        due_s = monotonic() if due_s is None else due_s
        tokens = None if self.options.real else call.tokens + call.thoughts
        try:
            seen = visit(self.client, call, due_s, tokens=tokens, **how)
        except gevent.GreenletExit:
            samples.count(call.model, call.group, "failed", "cut short by the end of the run")
            raise
        self._count(call, seen)
        return seen

    def _count(self, call: ClientCall, seen: Measurement) -> None:
        group = call.group
        samples.count(call.model, group, seen.kind, seen.outcome)
        failed = seen.outcome if seen.kind == "failed" else None
        name = group if seen.kind in {"served", "failed"} else f"{group}: {seen.outcome}"
        show(self.environment, "POST", name, seen.total_s, seen.length, failed)
        if seen.kind != "served":
            samples.measure(group, seen.kind, seen.total_s)
            return
        samples.measure(group, "total", seen.total_s)
        samples.measure(group, "waited", seen.waited_s)
        # What neither the line nor the engine took: the front door's own time, the client's, and
        # what both lost to whoever else uses the machine.
        samples.measure(group, "added", seen.total_s - seen.waited_s - call.engine_s)
        if call.stream:
            self._count_stream(group, seen)

    def _count_stream(self, group: str, seen: Measurement) -> None:
        samples.measure(group, "gap", *seen.gaps_s)
        for name, value in (("first_token", seen.first_token_s), ("visible", seen.visible_s)):
            if value is not None:
                samples.measure(group, name, value)
                show(self.environment, "SSE", f"{group}: {name}", value, seen.tokens, None)
        if seen.gaps_s:
            mean_s = sum(seen.gaps_s) / len(seen.gaps_s)
            show(self.environment, "SSE", f"{group}: mean gap", mean_s, seen.tokens, None)


class ClosedUser(Caller):
    """A user that asks again as soon as it was answered, for `--seconds`."""

    abstract = True

    def part(self) -> None:
        """Ask and ask again."""
        self.wait_for_all()
        end_s = monotonic() + self.options.seconds
        while monotonic() < end_s and not self.is_ending:
            self.once()

    def once(self) -> None:
        """One request and whatever follows it."""
        raise NotImplementedError


class Open(Caller):
    """A source of requests that come when they are due, whatever became of those before."""

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.is_first = not _sources
        """Whether this is the first source of its process."""
        _sources.append(self.number)

    @property
    def sources(self) -> int:
        """How many such users share the rate, in all processes together."""
        return int(self.options.all_users)

    def part(self) -> None:
        """Begin each request when it is due; then wait for all that are under way."""
        self.wait_for_all()
        under_way = Group()
        start_s, seconds = monotonic(), self.options.seconds
        schedule = arrivals.until(seconds, self.schedule())
        try:
            for at_s in schedule:
                gevent.sleep(max(0.0, start_s + at_s - monotonic()))
                if self.is_ending:
                    break
                samples.offered["due"] += 1
                under_way.spawn(self._begin, start_s + at_s, start_s + seconds)
            under_way.join()
        finally:
            under_way.kill()  # nobody, unless the run was cut short

    def _begin(self, due_s: float, end_s: float) -> None:
        now_s = monotonic()
        samples.offered["begun"] += now_s <= end_s + arrivals.GRACE_S
        samples.measure("arrivals", "lag", now_s - due_s)
        self.arrive(due_s)

    def schedule(self) -> Iterator[float]:
        """Return when requests are due."""
        options = self.options
        if options.trace:
            # One source plays it: rows dealt out to several would need them to agree on who is who.
            plays = self.sources == 1 or (self.worker == 0 and self.is_first)
            return arrivals.trace(Path(options.trace), options.thin if plays else 0.0, self.rng)
        return arrivals.poisson(self.kinds * options.rate / self.sources, self.rng)

    kinds: ClassVar[int] = 1
    """How many kinds of request there are, each of which comes at the rate."""

    def arrive(self, due_s: float) -> None:
        """One request, due at this instant."""
        raise NotImplementedError
