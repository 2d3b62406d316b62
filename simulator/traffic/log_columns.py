"""A log of requests as columns that grow: what each reader of a log fills in, line by line."""

from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.traffic.distributions import Floats
from simulator.traffic.service import Rows

RAN = frozenset({"served", "client_gone_streaming", "upstream_error", "upstream_timeout"})
"""Outcomes of requests that held a slot."""
KNOWN_SHARE = 0.9
"""Served requests whose tokens must be known, or they are not used at all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AccessLog:
    """What an access log holds of one upstream (or of all): rows and how each ended."""

    rows: Rows
    outcomes: tuple[str, ...]
    waits_s: Floats
    first_bytes_s: Floats
    """From admission to the first byte; not a number where there was none."""
    streams: NDArray[np.bool_]
    """Whether the answer was a stream, so that its first byte is a first token."""
    skipped: int
    """Lines that are no access line."""
    others: int
    """Access lines of other upstreams, of requests that take no slot or never met a gate."""
    started: str
    """Wall clock of the first arrival."""
    upstream: str
    """Whose requests they are; empty where the log does not say."""
    keys: Mapping[str, int] = field(default_factory=dict)
    """How many requests brought whose key, as the front door's own log names them."""
    format: str = "the front door's own log"
    """Whose log it is."""

    @property
    def left_out(self) -> str:
        """What was left out and why, in words."""
        return (
            f"{self.others} access lines of other upstreams or of requests that met no gate, "
            f"{self.skipped} other lines"
        )


class LoggedRequest(NamedTuple):
    """One request of a log; times are seconds, instants those of the epoch."""

    arrived_s: float
    total_s: float
    """From arrival to end."""
    outcome: str
    waited_s: float = 0.0
    first_byte_s: float = nan
    """From arrival; not a number where there was none."""
    tokens_in: float = nan
    tokens_out: float = nan
    weight: int = 1
    stream: bool = False
    upstream: str = ""
    key: str | None = None


def _numbers() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class LogColumns:
    """The requests of a log, by the names of `LoggedRequest`."""

    arrived_s: "array[float]" = field(default_factory=_numbers)
    waited_s: "array[float]" = field(default_factory=_numbers)
    total_s: "array[float]" = field(default_factory=_numbers)
    first_byte_s: "array[float]" = field(default_factory=_numbers)
    tokens_in: "array[float]" = field(default_factory=_numbers)
    tokens_out: "array[float]" = field(default_factory=_numbers)
    weight: "array[int]" = field(default_factory=lambda: array("H"))
    stream: "array[int]" = field(default_factory=lambda: array("b"))
    outcome: "array[int]" = field(default_factory=lambda: array("H"))
    names: list[str] = field(default_factory=list)
    """Outcomes by their number."""
    upstreams: dict[str, int] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    others: int = 0

    def __len__(self) -> int:
        return len(self.arrived_s)

    def add(self, one: LoggedRequest) -> None:
        """Take one request in."""
        self.arrived_s.append(one.arrived_s)
        self.total_s.append(one.total_s)
        self.waited_s.append(one.waited_s)
        self.first_byte_s.append(one.first_byte_s)
        self.tokens_in.append(one.tokens_in)
        self.tokens_out.append(one.tokens_out)
        self.weight.append(one.weight)
        self.stream.append(one.stream)
        if one.outcome not in self.names:
            self.names.append(one.outcome)
        self.outcome.append(self.names.index(one.outcome))
        self.upstreams[one.upstream] = self.upstreams.get(one.upstream, 0) + 1
        if one.key is not None:
            self.keys[one.key] = self.keys.get(one.key, 0) + 1

    def log(self, format_name: str) -> AccessLog:
        """Return the whole of it in order of arrival."""
        arrived_s = np.array(self.arrived_s)
        order = np.argsort(arrived_s, kind="stable")
        number = np.array(self.outcome)[order]
        waited_s, total_s = (np.array(each)[order] for each in (self.waited_s, self.total_s))
        first_s = np.maximum(0.0, np.array(self.first_byte_s)[order] - waited_s)
        started_s = float(arrived_s[order[0]])
        ran, served, gone = (self._which(number, names) for names in (RAN, {"served"}, _GONE))
        rows = Rows(
            arrived_s[order] - started_s,
            _tokens(np.array(self.tokens_in)[order], served),
            _tokens(np.array(self.tokens_out)[order], served),
            service_s=np.where(ran, np.maximum(0.0, total_s - waited_s), nan),
            weight=np.maximum(1.0, np.array(self.weight, dtype=np.float64)[order]),
            patience_s=np.where(gone, np.where(waited_s > 0, waited_s, total_s), inf),
        )
        return AccessLog(
            rows=rows,
            outcomes=tuple(self.names[each] for each in number),
            waits_s=waited_s,
            first_bytes_s=first_s,
            streams=np.array(self.stream, dtype=bool)[order],
            skipped=self.skipped,
            others=self.others,
            started=str(np.datetime64(round(started_s * 1000), "ms")),
            upstream=next(iter(self.upstreams)),
            keys=self.keys,
            format=format_name,
        )

    def _which(self, number: NDArray[np.uint16], names: Collection[str]) -> NDArray[np.bool_]:
        wanted = [at for at, name in enumerate(self.names) if name in names]
        return np.isin(number, wanted)


_GONE = frozenset({"client_gone_queued"})


def _tokens(values: Floats, served: NDArray[np.bool_]) -> Floats | None:
    """Return token counts, not a number where a request has none; None where too few have them."""
    known = served & ~np.isnan(values)
    return values if known.sum() >= KNOWN_SHARE * max(1, int(served.sum())) else None
