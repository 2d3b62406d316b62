"""What must hold after a run, by the engines' own counters and by the clients' count.

Each law is a sentence and whether it held. The engines know nothing of the front door's opinion of
itself: a slot that is thought free and is not, or a refused request that got through, shows here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.harness.scenarios import LoadScenario, StandInEngine
from loadtests.harness.watch import Look, growth

Counts = Mapping[str, int]
Statistics = Mapping[str, Any]

GROWTH_ALLOWED = {"rss_mib": 8.0, "descriptors": 16, "threads": 2, "tasks": 16}
LOOKS_NEEDED = 30
ID_LENGTH = 26
ORDER_ALLOWED_S = 0.25
"""A request's number is made when its head comes, its place when its body is whole: 50 ms were
seen between them on a busy machine."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence and whether it held."""

    text: str
    holds: bool


def at_engine(
    engine: StandInEngine,
    stats: Statistics,
    clients: Counts,
    *,
    leaves: bool,
    canaries: int,
    left_in_line: int = 0,
) -> Iterator[Finding]:
    """Yield the laws of one engine; `clients` says how its model's requests ended for them."""
    name, started = engine.model, stats["started"]
    ended = stats["finished"] + stats["aborted"] + stats["failed"]
    served, left = clients.get("served", 0), clients.get("left", 0)
    if engine.cap is not None:
        most = stats["max_concurrent"]
        yield Finding(
            f"{name}: never more than {engine.cap} in flight (most: {most})", most <= engine.cap
        )
        late_s = overtaken_s(stats["order"])
        yield Finding(
            f"{name}: served in the order of arrival (to {late_s * 1000:.0f} ms)",
            late_s <= ORDER_ALLOWED_S,
        )
    rest = stats["in_flight"], stats["waiting"]
    yield Finding(f"{name}: at rest afterwards {rest}", rest == (0, 0))
    yield Finding(f"{name}: started {started} = ended {ended}", started == ended)
    if leaves:
        finished, aborted = stats["finished"], stats["aborted"]
        yield Finding(
            f"{name}: finished {finished}, aborted {aborted}; served {served}, left {left}",
            stats["failed"] == 0 and served <= finished <= served + left and aborted <= left,
        )
        most = served + left - left_in_line
        yield Finding(
            f"{name}: {left_in_line} left while queued; of the others at most {most} reached the "
            f"engine ({started - canaries})",
            started - canaries <= most,
        )
    else:
        yield Finding(
            f"{name}: nothing aborted or failed ({stats['aborted']}, {stats['failed']})",
            stats["aborted"] == stats["failed"] == 0,
        )
        reached = started - canaries
        yield Finding(
            f"{name}: {reached} reached the engine, {served} were served, "
            f"{clients.get('refused', 0)} refused",
            reached == served,
        )
    if engine.sleeps:
        yield from _asleep(name, stats)


def overtaken_s(order: Sequence[str]) -> float:
    """Return by how much the latest was late that was begun before one that had come earlier.

    `order` are the front door's request ids as the engine began them; the first twelve digits are
    milliseconds. An engine's own canary has another id, and is left out.
    """
    came_ms = [int(one[:12], 16) for one in order if len(one) == ID_LENGTH]
    latest, most = 0, 0
    for at_ms in came_ms:
        latest = max(latest, at_ms)
        most = max(most, latest - at_ms)
    return most / 1000


def _asleep(name: str, stats: Statistics) -> Iterator[Finding]:
    early, garbage = stats["not_proven_awake"], stats["garbage_tokens"]
    yield Finding(f"{name}: {garbage} tokens of garbage", garbage == 0)
    yield Finding(
        f"{name}: {stats['control_overlaps']} overlapping transitions",
        not stats["control_overlaps"],
    )
    yield Finding(f"{name}: {early} requests before it was awake", early == 0)


def of_the_burst(
    scenario: LoadScenario, users: int, clients: Mapping[str, Counts]
) -> Iterator[Finding]:
    """Yield what a burst must come to: what fits in slots and line is served, the rest refused."""
    for engine in scenario.engines:
        room = (engine.cap or 0) + engine.queue
        counts = clients.get(engine.model, {})
        seen = counts.get("served", 0), counts.get("refused", 0)
        due = min(users, room), max(0, users - room)
        yield Finding(
            f"{engine.model}: {seen[0]} served, {seen[1]} refused; due {due}", seen == due
        )


def of_the_door(status: Mapping[str, Any], log: str, exit_code: int) -> Iterator[Finding]:
    """Yield what must hold of the front door itself."""
    inside = {
        key: (upstream["in_flight"], upstream["queued"])
        for key, upstream in status["upstreams"].items()
        if upstream["in_flight"] or upstream["queued"]
    }
    yield Finding(f"front door: no slot and no place taken afterwards {inside or ''}", not inside)
    yield Finding(f"front door: drained and ended with {exit_code}", exit_code == 0)
    yield Finding("front door: no traceback in its log", "Traceback" not in log)


def of_departures(outcomes: Counts) -> Iterator[Finding]:
    """Yield that clients really left in both places, as the front door saw it."""
    for outcome in ("client_gone_queued", "client_gone_streaming"):
        count = outcomes.get(outcome, 0)
        yield Finding(f"front door: {count} ended as {outcome}", count > 0)


def of_the_looks(scenario: LoadScenario, looks: list[Look], in_vain: int) -> Iterator[Finding]:
    """Yield what must hold of every look at the front door, and of all together.

    Growth is judged from `LOOKS_NEEDED` on, a second each.
    """
    text = f"front door: looked at {len(looks) + in_vain} times, {in_vain} in vain"
    yield Finding(text, in_vain == 0)
    for engine in scenario.engines:
        if engine.cap is None:
            continue
        most = _most(look.in_flight[engine.model] for look in looks)
        longest = _most(look.queued[engine.model] for look in looks)
        yield Finding(
            f"{engine.model}: by its own status at most {most} in flight, {longest} queued",
            most <= engine.cap and longest <= engine.queue,
        )
    if len(looks) >= LOOKS_NEEDED:
        for name, allowed in GROWTH_ALLOWED.items():
            values = [getattr(look, name) for look in looks]
            grown = growth(values)
            yield Finding(
                f"front door: {name} {min(values):.0f} to {max(values):.0f}, grown by {grown:.1f}",
                grown <= allowed,
            )


def _most(values: Iterable[int]) -> int:
    return max(values, default=0)
