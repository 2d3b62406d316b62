"""Who is in the memory of the GPUs, whose turn is next, who goes for whom: the ledger, as shown.

Nothing is decided here. What a request for a sleeping model would set going is the ledger's own
plan, asked as if that request had come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum, inf, isfinite
from typing import Any

from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.gpu_occupant import (
    Granted,
    MakeRoom,
    Moving,
    NeverFits,
    Occupant,
    RoomLimits,
)
from tornado_frontdoor.core.gpu_room import plan

Fields = dict[str, Any]


def gpus_of(ledger: GpuLedger, now: float) -> Fields | None:
    """Return all GPUs with what is in them; None where nothing is known of their sizes.

    `engines` is by the names of upstreams; GiB are for each of an engine's devices.
    """
    limits = ledger.limits
    if not limits.device_gib:
        return None
    occupants = [one for one in ledger.occupants() if one.devices]
    asking = sorted(
        (one for one in occupants if one.asks is Moving.WAKING),
        key=lambda one: (one.asks_since_s, one.upstream),
    )
    devices = sorted(device for device in limits.device_gib if isinstance(device, int))
    return {
        "devices": [_device(device, occupants, limits) for device in devices],
        "host": _host(occupants, limits),
        "engines": {one.told_name: _engine(one, occupants, ledger, now) for one in occupants},
        "turns": [
            {
                "upstream": one.told_name,
                "waits_s": round(now - one.asks_since_s, 1),
                "waits_for": ledger.waits_for(one.upstream),
            }
            for one in asking
        ],
    }


def _device(device: int, occupants: Sequence[Occupant], limits: RoomLimits) -> Fields:
    limit_gib = limits.device_gib[device]
    return {
        "device": device,
        "memory_gib": _gib(limits.whole_gib.get(device, limit_gib)),
        "limit_gib": _gib(limit_gib),
        "taken_gib": _gib(fsum(one.gib for one in occupants if device in one.devices)),
    }


def _host(occupants: Sequence[Occupant], limits: RoomLimits) -> Fields | None:
    """Return what the weights of sleepers take of the host; None where it has no limit."""
    if not isfinite(limits.host_gib):
        return None
    taken_gib = fsum(one.weights_gib for one in occupants if one.level == 1)
    return {"limit_gib": _gib(limits.host_gib), "taken_gib": _gib(taken_gib)}


def _engine(one: Occupant, occupants: Sequence[Occupant], ledger: GpuLedger, now: float) -> Fields:
    leaves = ledger.told(one.upstream) is not None
    return {
        "devices": list(one.devices),
        "gib": _gib(one.gib),
        "awake_gib": _gib(one.awake_gib),
        "asleep_gib": _gib(one.asleep_gib),
        "weights_gib": _gib(one.weights_gib),
        "level": one.level,
        "moving": None if one.moving is None else one.moving.value,
        "pinned": one.pinned,
        "priority": one.priority,
        "room_for": ledger.room_for(one.upstream) if leaves else None,
        "goes_to": one.goes_to if leaves else None,
        "if_asked": _if_asked(one, occupants, ledger.limits, now),
    }


def _if_asked(
    one: Occupant, occupants: Sequence[Occupant], limits: RoomLimits, now: float
) -> str | None:
    """Say what a request for a sleeping engine would set going; None where it is not asleep."""
    if one.level == 0 or one.moving is not None or one.asks is not None:
        return None
    asked = replace(one, asks=Moving.WAKING, asks_since_s=now, goes_to=None)
    made = plan([asked if other is one else other for other in occupants], limits, now)
    names = {other.upstream: other.told_name for other in occupants}
    leave: list[str] = []
    for order in made.orders:
        match order:
            case Granted(upstream=owner) if owner == one.upstream:
                return "wakes at once"
            case NeverFits(upstream=owner, detail=detail) if owner == one.upstream:
                return f"can never wake: {detail}"
            case MakeRoom(upstream=owner, for_upstream=wanted) if wanted == one.upstream:
                leave.append(names[owner])
            case _:
                pass
    if leave:
        return f"sends {', '.join(leave)} to sleep"
    return _waits(made.waits_for, one.upstream, made.next_s)


def _waits(waits_for: Mapping[str, str], owner: str, next_s: float) -> str:
    later = ", until their time is over" if next_s < inf else ""
    return f"waits for {waits_for.get(owner, 'its turn')}{later}"


def _gib(value: float) -> float:
    return round(value, 2)
