"""Whose engine may be in the memory of the GPUs: what fits, who makes room, whose turn it is.

Everything is one function of one snapshot, `plan`: it keeps nothing between two calls and may be
asked again whenever anything changed.

Rule 1: the memory of what is awake or waking, and what sleepers leave behind, never exceeds a GPU.
Rule 2: wakes take turns in the order of their oldest waiter. One that cannot begin yet keeps its
        devices from all that come after it.
Rule 3: room is made by those who are idle, least recently used first, and only as much as is
        needed. One that is pinned never makes room.
Rule 4: one that has work makes room too, but not before it was awake for `stay_factor` times what
        a switch to it costs (at most `max_turn_wait_s`), and while its own queue was here first
        not before the other has waited `max_turn_wait_s`. To make room means: admit nobody any
        more, let those in flight end, then sleep. No stream is cut.
Rule 5: falling asleep needs no room, only its turn on its devices, and goes before any wake. From
        level 1 to 2 an engine wakes for a moment, which it may do only where there is room.
Rule 6: whoever was told to make room and has not begun is told to stay when nobody needs it.
Rule 7: a group is one more place, with room for one that is awake; all the rules hold for it.

Sources: llama-swap#158, #319, #749 (a stray call evicts the one in use), ollama#10948 (thrashing),
llama.cpp#28443 (two waiters choose one victim); `shared` of one GPU is vLLM's utilization plus the
CUDA context of each process.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, inf
from typing import NamedTuple

from tornado_frontdoor.core.gpu_occupant import (
    Granted,
    MakeRoom,
    Moving,
    NeverFits,
    Occupant,
    Place,
    RoomLimits,
    RoomOrder,
    StayAwake,
)
from tornado_frontdoor.engines.base import STOPPED

_ROUNDING_GIB = 1e-6


class Plan(NamedTuple):
    """What is to be done now, who waits for what, and when time alone will change it."""

    orders: tuple[RoomOrder, ...]
    waits_for: Mapping[str, str]
    """Of each that wants to wake and may not yet: what it waits for, in words."""
    next_s: float


@dataclass(slots=True)
class _Draft:
    """A plan as it grows; `gone` are those who make room already, and where they go."""

    orders: list[RoomOrder] = field(default_factory=list)
    waits_for: dict[str, str] = field(default_factory=dict)
    next_s: float = inf
    needed: set[str] = field(default_factory=set)
    taken: set[Place] = field(default_factory=set)
    host_gib: float = 0.0


def plan(occupants: Sequence[Occupant], limits: RoomLimits, now: float) -> Plan:
    """Return who may wake and who has to make room, by the rules above."""
    limits = _with_groups(occupants, limits)
    draft = _Draft(host_gib=fsum(one.weights_gib for one in occupants if one.level == 1))
    gib = {
        place: fsum(one.gib_in(place) for one in occupants if place in one.places)
        for place in limits.device_gib
    }
    draft.taken = {place for one in occupants if one.moving for place in one.places}
    falling = [one for one in occupants if one.asks is Moving.SLEEPING]
    for one in falling:
        if not one.must_wake_to_fall:
            _grant(one, draft)
    asking = [one for one in occupants if one.asks is Moving.WAKING]
    for one in sorted(asking, key=_turn):
        if impossible := _never_fits(one, occupants, limits):
            draft.orders.append(NeverFits(one.upstream, impossible))
        else:
            _serve(one, occupants, limits, gib, draft, now)
            draft.taken.update(one.places)
    for one in falling:
        fits = (
            limits.device_gib.get(place, inf) - gib.get(place, 0.0) >= _grows_gib(one, place)
            for place in one.places
        )
        if one.must_wake_to_fall and all(fits):
            _grant(one, draft)
    for one in occupants:
        if one.told and one.upstream not in draft.needed:
            draft.orders.append(StayAwake(one.upstream))
    return Plan(tuple(draft.orders), draft.waits_for, draft.next_s)


def room_of(
    one: Occupant, occupants: Sequence[Occupant], limits: RoomLimits
) -> tuple[float, float]:
    """Return what is free beside one that is awake or wakes, and what others could free yet.

    Of its devices the one with the least counts; infinity: nothing is limited.
    """
    devices = [device for device in one.devices if device in limits.device_gib]
    taken = {
        device: fsum(other.gib for other in occupants if device in other.devices)
        for device in devices
    }
    free = [limits.device_gib[device] - taken[device] for device in devices]
    more = [
        taken[device] - one.gib - fsum(_beside(one, device, occupants).values())
        for device in devices
    ]
    return min(free, default=inf), min(more, default=0.0)


def _grant(one: Occupant, draft: _Draft) -> None:
    if draft.taken.isdisjoint(one.places):
        draft.orders.append(Granted(one.upstream))
        draft.taken.update(one.places)


def _with_groups(occupants: Sequence[Occupant], limits: RoomLimits) -> RoomLimits:
    """Have each group as one more place, in which there is room for one that is awake."""
    groups = {group for one in occupants for group in one.groups}
    if not groups:
        return limits
    room: dict[Place, float] = {**limits.device_gib}
    room.update(dict.fromkeys(groups, 1.0))
    return replace(limits, device_gib=room)


def _grows_gib(one: Occupant, place: Place) -> float:
    return one.gib_at(0, place) - one.gib_in(place)


def _turn(one: Occupant) -> tuple[float, str]:
    return (one.asks_since_s, one.upstream)


def _serve(
    one: Occupant,
    occupants: Sequence[Occupant],
    limits: RoomLimits,
    gib: dict[Place, float],
    draft: _Draft,
    now: float,
) -> None:
    others = [other for other in occupants if other is not one]
    lacking = {
        place: gib[place]
        + _grows_gib(one, place)
        - max(limits.device_gib[place], _least_gib_beside(one, place, occupants))
        for place in one.places
        if place in limits.device_gib
    }
    lacking = {place: short for place, short in lacking.items() if short > _ROUNDING_GIB}
    busy = draft.taken.intersection(one.places)
    if not lacking:
        if busy:
            draft.waits_for[one.upstream] = f"another transition {_where(busy)}"
        else:
            draft.orders.append(Granted(one.upstream))
            _reserve(one, gib)
        return
    short_of = _where(lacking)
    leaving = [
        other
        for other in others
        if other.goes_to is not None and any(place in lacking for place in other.places)
    ]
    for other in leaving:
        draft.needed.add(other.upstream)
        _shorten(lacking, other, other.goes_to or 0)
    if lacking:
        lacking = _ask_for_room(one, others, limits, lacking, draft, now)
    names = _listed(sorted({*_wanted_of(one, others, draft)}))
    draft.waits_for[one.upstream] = f"room made by {names}" if names else f"room {short_of}"
    # What is being freed is meant for this one: nobody behind it may take it.
    _reserve(one, gib)


def _reserve(one: Occupant, gib: dict[Place, float]) -> None:
    for place in one.places:
        gib[place] = gib.get(place, 0.0) + _grows_gib(one, place)


def _wanted_of(one: Occupant, others: Iterable[Occupant], draft: _Draft) -> Iterator[str]:
    for other in others:
        if other.upstream in draft.needed and set(other.places) & set(one.places):
            yield other.told_name


def _ask_for_room(
    one: Occupant,
    others: Sequence[Occupant],
    limits: RoomLimits,
    lacking: dict[Place, float],
    draft: _Draft,
    now: float,
) -> dict[Place, float]:
    """Tell as many to make room as are needed, or nobody while that would not be enough."""
    able: list[Occupant] = []
    for other in others:
        if _may_make_room(other, lacking, draft):
            from_s = _may_leave_from_s(other, one, limits)
            if from_s > now:
                draft.next_s = min(draft.next_s, from_s)
            else:
                able.append(other)
    able.sort(key=_first_to_go)
    chosen = _fewest(_with_levels(able, limits, draft.host_gib), lacking)
    if chosen is None:
        return lacking
    for other, level in chosen:
        draft.needed.add(other.upstream)
        draft.host_gib += other.weights_gib if level == 1 else 0.0
        draft.orders.append(MakeRoom(other.upstream, level, one.upstream))
    return {}


def _may_make_room(other: Occupant, lacking: Mapping[Place, float], draft: _Draft) -> bool:
    if other.pinned or not other.known or other.moving or other.goes_to is not None:
        return False
    if other.upstream in draft.needed or not any(place in lacking for place in other.places):
        return False
    if other.level == 0:
        return bool(other.levels)
    return STOPPED in other.levels and other.level != STOPPED and other.asks is None


def _may_leave_from_s(other: Occupant, asking: Occupant, limits: RoomLimits) -> float:
    """Return the instant from which `other` has to make room for the one that asks."""
    if other.idle or other.level != 0:
        return other.rests_until_s
    stay_s = min(limits.stay_factor * other.switch_cost_s, limits.max_turn_wait_s)
    stays_until_s = other.woke_s + stay_s
    if other.oldest_waiter_s < asking.asks_since_s:  # its own queue was here first
        stays_until_s = max(stays_until_s, asking.asks_since_s + limits.max_turn_wait_s)
    return max(stays_until_s, other.rests_until_s)


def _with_levels(
    able: Iterable[Occupant], limits: RoomLimits, host_gib: float
) -> list[tuple[Occupant, int]]:
    """Send each to the shallowest level that it knows and that the host still has room for."""
    found = []
    for other in able:
        level = STOPPED
        if other.level == 0:
            fits = host_gib + other.weights_gib <= limits.host_gib + _ROUNDING_GIB
            level = min((to for to in other.levels if to != 1 or fits), default=max(other.levels))
        host_gib += other.weights_gib if level == 1 else 0.0
        found.append((other, level))
    return found


def _first_to_go(other: Occupant) -> tuple[bool, bool, int, float, float, str]:
    return (
        other.level != 0,  # sleepers last: they only leave a residue behind
        not other.idle,
        other.priority,
        other.active_s,
        other.switch_cost_s,
        other.upstream,
    )


def _fewest(
    able: Sequence[tuple[Occupant, int]], lacking: Mapping[Place, float]
) -> list[tuple[Occupant, int]] | None:
    """Return who is enough, in order, leaving out whom it also goes without; None: all are not."""
    chosen: list[tuple[Occupant, int]] = []
    left = dict(lacking)
    for other, level in able:
        if not left:
            break
        if any(place in left for place in other.places):
            chosen.append((other, level))
            _shorten(left, other, level)
    if left:
        return None
    for pair in chosen[:-1]:
        rest = [kept for kept in chosen if kept is not pair]
        left = dict(lacking)
        for other, level in rest:
            _shorten(left, other, level)
        if not left:
            chosen = rest
    return chosen


def _shorten(lacking: dict[Place, float], other: Occupant, level: int) -> None:
    """Take off what is lacking what another frees by going to a level."""
    for place in other.places:
        if place in lacking:
            lacking[place] -= other.gib_in(place) - other.gib_at(level, place)
            if lacking[place] <= _ROUNDING_GIB:
                del lacking[place]


def _never_fits(one: Occupant, occupants: Sequence[Occupant], limits: RoomLimits) -> str:
    """Say why it can never be awake beside those that stay, if so."""
    for place in one.places:
        limit_gib = limits.device_gib.get(place, inf)
        there_is = limits.whole_gib.get(place, limit_gib)
        if _least_gib_beside(one, place, occupants) > there_is + _ROUNDING_GIB:
            stay = _beside(one, place, occupants)
            if isinstance(place, str):
                awake = _listed(name for name, gib in stay.items() if gib)
                return f"group {place} has room for one; {awake} stays awake"
            rest = " + ".join(f"{gib:.1f} of {name}" for name, gib in stay.items() if gib)
            return (
                f"GPU {place} has {there_is:.1f} GiB; {one.told_name} needs {one.awake_gib:.1f}"
                + (f" beside {rest}" if rest else "")
            )
    return ""


def _least_gib_beside(one: Occupant, place: Place, occupants: Sequence[Occupant]) -> float:
    """Return what a place has to hold for it to be awake, when all others have made room."""
    return one.gib_at(0, place) + fsum(_beside(one, place, occupants).values())


def _beside(one: Occupant, place: Place, occupants: Sequence[Occupant]) -> dict[str, float]:
    return {
        other.told_name: other.gib_in(place)
        if other.pinned or not other.levels
        else other.gib_at(max(other.levels), place)
        for other in occupants
        if other is not one and place in other.places
    }


def _where(places: Iterable[Place]) -> str:
    """Return places for people: `on GPU 0, 1 and in group big`."""
    places = list(places)
    devices = sorted(place for place in places if isinstance(place, int))
    groups = sorted(place for place in places if isinstance(place, str))
    told = [f"on GPU {_listed(devices)}"] if devices else []
    return " and ".join([*told, *([f"in group {_listed(groups)}"] if groups else [])])


def _listed(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
