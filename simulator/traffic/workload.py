"""Who comes when, and with how much work: every random number of a request, drawn at its birth.

Rule 1: one stream for each purpose, `SeedSequence(seed, spawn_key=(replication, purpose))`. Two
        points of a sweep therefore see the same requests, and their difference is not noise.
Rule 2: nothing is drawn when a request is admitted or served: that would break rule 1.
Rule 3: gaps are not clipped, windows are not rescaled to the exact rate, and prompt and output
        are not drawn from one number: each of these hides variance that traffic has.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import NamedTuple, Protocol

import numpy as np

from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Rows, Service, Sized
from simulator.traffic.streams import Purpose, Streams

BLOCK = 4096
"""Requests made at a time; memory does not grow with the number of requests."""


class Request(NamedTuple):
    """One request as its client makes it."""

    at_s: float
    work: float
    """Seconds, or output tokens where the service has a profile of tokens."""
    prompt: float
    """Tokens."""
    patience_s: float
    weight: int


Timed = tuple[float, float, float, float, int]
"""The same as a plain tuple: a name for each part would cost a call for each of a million."""


class Arrivals(Protocol):
    """An open stream of requests."""

    def blocks(self, streams: Streams) -> Iterator[Rows]:
        """Yield the requests of one replication in order of time, some at a time."""
        ...

    def faster(self, factor: float) -> "Arrivals":
        """Return the same stream at `factor` times the rate."""
        ...

    @property
    def random(self) -> bool:
        """Whether two replications differ."""
        ...

    @property
    def has_sizes(self) -> bool:
        """Whether requests bring their tokens with them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Independent gaps: Poisson at `cv` 1, Gamma otherwise."""

    rate: float
    cv: float = 1.0
    random = True
    has_sizes = False

    def blocks(self, streams: Streams) -> Iterator[Rows]:
        """Yield requests without end."""
        rng = streams.of(Purpose.GAPS)
        shape = self.cv**-2
        at_s = 0.0
        while True:
            if self.cv == 1.0:
                gaps = rng.exponential(1 / self.rate, BLOCK)
            else:
                gaps = rng.gamma(shape, 1 / (self.rate * shape), BLOCK)
            gaps[0] += at_s
            instants = np.cumsum(gaps)
            at_s = float(instants[-1])
            yield Rows(instants)

    def faster(self, factor: float) -> "Renewal":
        """Return the same stream at `factor` times the rate."""
        return replace(self, rate=self.rate * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulated:
    """MMPP(2): Poisson at a low rate and at `ratio` times it, for exponential dwells in turn."""

    rate: float
    ratio: float
    high_s: float
    low_s: float
    random = True
    has_sizes = False

    def blocks(self, streams: Streams) -> Iterator[Rows]:
        """Yield requests without end, one dwell at a time; the start state is drawn too."""
        dwells, gaps = streams.of(Purpose.DWELLS), streams.of(Purpose.GAPS)
        share, low = self._share, self._low
        high = bool(dwells.random() < share)
        at_s = 0.0
        while True:
            dwell_s = dwells.exponential(self.high_s if high else self.low_s)
            count = gaps.poisson(dwell_s * low * (self.ratio if high else 1.0))
            if count:
                yield Rows(at_s + np.sort(gaps.random(count)) * dwell_s)
            at_s += dwell_s
            high = not high

    @property
    def _share(self) -> float:
        """How much of the time the rate is high."""
        return self.high_s / (self.high_s + self.low_s)

    @property
    def _low(self) -> float:
        """The low rate."""
        return self.rate / (self._share * self.ratio + 1 - self._share)

    @property
    def in_dwell(self) -> float:
        """The mean requests of the dwell that has more; they are drawn together."""
        return self._low * max(self.ratio * self.high_s, self.low_s)

    def faster(self, factor: float) -> "Modulated":
        """Return the same stream at `factor` times the rate, with the same dwells."""
        return replace(self, rate=self.rate * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """`count` requests at the instant 0."""

    count: int
    random = False
    has_sizes = False

    def blocks(self, streams: Streams) -> Iterator[Rows]:  # noqa: ARG002 - nothing is random
        """Yield them all."""
        yield Rows(np.zeros(self.count))

    def faster(self, factor: float) -> "Burst":
        """Return a burst of `factor` times the size."""
        return Burst(count=max(1, round(self.count * factor)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """A recorded stream. `thin` keeps a random share of it, `stretch` lengthens its time.

    Thinning keeps the time scales of bursts, stretching keeps the CV of gaps. Each replication
    thins anew; without thinning there is one sample path and no replication makes it two. With
    `bootstrap_s` the replications are random orders of blocks of that length instead.
    """

    rows: Rows
    thin: float = 1.0
    stretch: float = 1.0
    bootstrap_s: float = 0.0
    told: str = ""
    """What was read and what was left out."""

    @property
    def has_sizes(self) -> bool:
        """Whether the recording has tokens."""
        return self.rows.output is not None

    @property
    def random(self) -> bool:
        """Whether two replications differ."""
        return self.thin < 1 or self.bootstrap_s > 0

    def blocks(self, streams: Streams) -> Iterator[Rows]:
        """Yield the requests that are left of the recording."""
        rows = self.rows
        rng = streams.of(Purpose.THINNING)
        if self.bootstrap_s:
            rows = _reordered(rows, self.bootstrap_s, rng)
        if self.thin < 1:
            rows = rows.taken(rng.random(len(rows.at_s)) < self.thin)
        if self.stretch != 1:
            rows = rows._replace(at_s=rows.at_s * self.stretch)
        for start in range(0, len(rows.at_s), BLOCK):
            yield rows.taken(slice(start, start + BLOCK))

    @property
    def span_s(self) -> float:
        """Seconds until its last request."""
        return float(self.rows.at_s[-1]) * self.stretch

    def faster(self, factor: float) -> "Replay":
        """Return the same recording at `factor` times the rate: time runs faster."""
        return replace(self, stretch=self.stretch / factor)


def _reordered(rows: Rows, block_s: float, rng: np.random.Generator) -> Rows:
    """Return as many blocks of `block_s` as the recording has, drawn with replacement."""
    number = (rows.at_s // block_s).astype(int)
    count = int(number[-1]) + 1
    edges = np.searchsorted(number, np.arange(count + 1))
    drawn = rng.integers(0, count, count)
    index = np.concatenate([np.arange(edges[b], edges[b + 1]) for b in drawn])
    moved = np.concatenate(
        [np.full(edges[b + 1] - edges[b], (place - b) * block_s) for place, b in enumerate(drawn)]
    )
    taken = rows.taken(index)
    return taken._replace(at_s=taken.at_s + moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """`clients` that think for an exponential time, ask, and think again however that ended."""

    clients: int
    think_s: float
    random = True
    has_sizes = False

    def faster(self, factor: float) -> "Closed":
        """Return the same clients, thinking for `1 / factor` of the time."""
        return replace(self, think_s=self.think_s / factor)


def requests(
    arrivals: Arrivals,
    service: Service,
    patience: Distribution,
    streams: Streams,
    count: int | None,
) -> Iterator[Request]:
    """Yield the first `count` requests of a replication, all of them when None."""
    return map(Request._make, timed(arrivals, service, patience, streams, count))


def timed(
    arrivals: Arrivals,
    service: Service,
    patience: Distribution,
    streams: Streams,
    count: int | None,
) -> Iterator[Timed]:
    """Yield the same as plain tuples."""
    return chain.from_iterable(_blocks(arrivals, service, patience, streams, count))


def _blocks(
    arrivals: Arrivals,
    service: Service,
    patience: Distribution,
    streams: Streams,
    count: int | None,
) -> Iterator[Iterator[Timed]]:
    work, prompts = streams.of(Purpose.WORK), streams.of(Purpose.PROMPT)
    patiences = streams.of(Purpose.PATIENCE)
    left = count
    for block in arrivals.blocks(streams):
        rows = block if left is None else block.taken(slice(0, left))
        yield columns(service.sized(rows, work, prompts), patience, patiences)
        if left is not None:
            left -= len(rows.at_s)
            if left <= 0:
                return


def columns(rows: Sized, patience: Distribution, patiences: np.random.Generator) -> Iterator[Timed]:
    """Yield requests of plain numbers."""
    if rows.patience_s is not None:
        patient: Iterable[float] = rows.patience_s.tolist()
    elif patience.kind == "const":
        patient = repeat(patience.mean)
    else:
        patient = patience.draw(patiences, len(rows.at_s)).tolist()
    return zip(
        rows.at_s.tolist(),
        rows.work.tolist(),
        repeat(0.0) if rows.prompt is None else rows.prompt.tolist(),
        patient,
        repeat(1) if rows.weight is None else rows.weight.astype(int).tolist(),
        strict=False,  # a column that is the same for all has no end
    )


class Clients:
    """The clients of a closed loop: each has its own streams, whatever the others do."""

    def __init__(
        self, closed: Closed, service: Service, patience: Distribution, streams: Streams
    ) -> None:
        self._closed = closed
        self._service = service
        self._patience = patience
        self._streams = streams
        self._next = [self._requests(client) for client in range(closed.clients)]

    def __len__(self) -> int:
        return self._closed.clients

    def after_thought(self, client: int) -> Request:
        """Return a client's next request; its instant is the time it thinks first."""
        return next(self._next[client])

    def _requests(self, client: int) -> Iterator[Request]:
        thinking, work, prompts, patiences = (
            self._streams.of(purpose, client)
            for purpose in (Purpose.THINKING, Purpose.WORK, Purpose.PROMPT, Purpose.PATIENCE)
        )
        while True:
            rows = Rows(thinking.exponential(self._closed.think_s, 64))
            sized = self._service.sized(rows, work, prompts)
            yield from map(Request._make, columns(sized, self._patience, patiences))
