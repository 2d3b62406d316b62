"""What the front doors of one cluster must agree upon: the limits of the gates they share."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any, NamedTuple

from tornado_frontdoor.config import Settings
from tornado_frontdoor.config.faults import printable, shown

_OF_UPSTREAM = ("admission", "sleep", "gpu", "cooling_limit_s", "replicas", "pick")
_OF_ALL = ("groups", "cluster.lease_s", "cluster.on_outage")
_SHOWN = 8


class SharedLimits(NamedTuple):
    """The limits of one front door."""

    fingerprint: str = ""
    """A short name of all of them."""
    text: str = ""
    """JSON; empty: not known, as of a front door of an earlier release."""


def limits_in(settings: Settings) -> SharedLimits:
    """Return all that front doors of one cluster must agree upon."""
    agreed = {
        upstream.url: [
            asdict(upstream.admission) if upstream.admission else None,
            asdict(upstream.sleep) if upstream.sleep else None,
            asdict(upstream.gpu) if upstream.gpu else None,
            upstream.cooling_limit_s,
            # As before there were devices where there are none: doors of both releases agree.
            {
                one.url: (one.slots, one.devices) if one.devices else one.slots
                for one in upstream.replicas
            },
            upstream.pick,
        ]
        for upstream in settings.upstreams.values()
    }
    assert settings.cluster is not None
    groups = {name: asdict(group) for name, group in settings.groups.items()}
    shared = [agreed, groups, settings.cluster.lease_s, settings.cluster.on_outage]
    text = json.dumps(shared, sort_keys=True)
    return SharedLimits(sha256(text.encode()).hexdigest()[:12], text)


def differences(theirs: SharedLimits, here: SharedLimits) -> list[str]:
    """Return in words what differs, setting by setting; nothing where it is not known."""
    try:
        different = [*_different(json.loads(theirs.text), json.loads(here.text))]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return []
    more = len(different) - _SHOWN
    return [*different[:_SHOWN], f"{more} more"] if more > 0 else different


def _different(there: Sequence[Any], here: Sequence[Any]) -> Iterator[str]:
    theirs, ours = there[0], here[0]
    for url in dict.fromkeys((*ours, *theirs)):
        if url not in theirs or url not in ours:
            yield f"the upstream at {shown(url)} is only {'here' if url in ours else 'there'}"
            continue
        for name, one, other in zip(_OF_UPSTREAM, theirs[url], ours[url], strict=False):
            yield from _compared(name, f" of {shown(url)}", one, other)
    for name, one, other in zip(_OF_ALL, there[1:], here[1:], strict=False):
        yield from _compared(name, "", one, other)


def _compared(name: str, whose: str, there: object, here: object) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys((*here, *there)):
            yield from _compared(f"{name}.{printable(key)}", whose, there.get(key), here.get(key))
    elif there != here:
        yield f"{name}{whose} is {_word(there)} there and {_word(here)} here"


def _word(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_word, value))}]"
    return "none" if value is None else shown(value)
