"""Bugs that admission must never have, as patches of its source: the tests are tested with them.

Eighteen come from a review of published faults in admission controllers, seven from the first
skeleton of this house, the rest from reading `core/admission.py` line by line. Three of the
eighteen cannot exist here as they were, and are adapted: "cancel frees at once" (there is no
cooling state, a slot is given back when the transfer is over; so it is a departure from the line
that frees a slot), "evicts oldest" (a shorter line evicts nobody; so it is that it does) and "no
client deadline" (clients have none; the limit that can be forgotten is that of a hold).
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import NamedTuple

from tornado_frontdoor.core import admission
from tornado_frontdoor.core.admission import AdmissionController


class Patch(NamedTuple):
    """What stands once in one method, and what is put in its place."""

    method: str
    old: str
    new: str = "pass"


_GRANT = "self._grant(now, moves)"
_EXPIRE_BEFORE = "self._expire_before(now, moves)"
_EXPIRE_UNTIL = "self._expire_until(now, moves)"
_LEAVE = "del self._line[ticket.number]"

_EIGHTEEN = {
    "barging": Patch("arrive", "and not self._line and", "and"),
    "zombie": Patch("finish", _LEAVE),
    "late time-out": Patch("_expire_until", "> now", ">= now"),
    "head-only expiry": Patch("_expire_until", "reason, moves)", "reason, moves); return"),
    "grant before expiry": Patch(
        "expire", _EXPIRE_UNTIL, f"{_GRANT}; {_EXPIRE_UNTIL}; return moves"
    ),
    "cost ignored": Patch("_grant", "self._used + ticket.weight >", "self._used + 1 >"),
    "small one passes": Patch(
        "_grant",
        "next(iter(line.values()))",
        "min(line.values(), key=lambda waiter: self._used + waiter.weight > self._cap)",
    ),
    "one grant per event": Patch("_grant", "arrived_s, held_s))", "arrived_s, held_s)); return"),
    "place needed for a direct grant": Patch(
        "arrive", "not self._line and", "not self._line and self.limits.queue and"
    ),
    "hold leaks": Patch("_grant", "if self._held:", "if False:"),
    "leaving the line frees a slot": Patch("finish", _LEAVE, f"{_LEAVE}; self._used -= 1"),
    "finish keeps a slot": Patch("finish", "-= ticket.weight", "-= ticket.weight - 1"),
    "double release": Patch("finish", "ticket.state = _GONE"),
    "stuck head": Patch("change_limits", "if waiter.weight > self._cap", "if False"),
    "a shorter line evicts the oldest": Patch(
        "change_limits",
        _EXPIRE_BEFORE,
        "while len(self._line) > limits.queue:\n"
        "            self._turn(self._line.popitem(last=False)[1], Reason.QUEUE_FULL, moves)\n",
    ),
    "one budget": Patch("resume", "self._held_total_s += now - self._held_since_s"),
    "no hold limit": Patch("_deadline", "return self._held_since_s + left_s", "return inf"),
    "no grants before the event": Patch("arrive", _GRANT),
}
_SEVEN = {
    "last come, first served": Patch("_grant", "iter(line", "reversed(line"),
    "freed slot not handed on": Patch("finish", _GRANT),
    "one over the cap": Patch("arrive", "weight <= self._cap", "weight <= self._cap + 1"),
    "a tie goes to the limit": Patch("_expire_before", ">= now", "> now"),
    "queue one too deep": Patch("arrive", "< self._places()", "<= self._places()"),
    "only the head can leave": Patch(
        "finish", _LEAVE, f"if next(iter(self._line)) == ticket.number: {_LEAVE}"
    ),
    "waited_s always 0": Patch("_grant", "now - ticket.arrived_s", "0.0"),
}
_OURS = {
    "held_s always 0": Patch("_grant", "self._held_total_s - ticket.held_mark_s", "0.0"),
    "heavy newcomer counted as one": Patch("arrive", "self._used += weight", "self._used += 1"),
    "too heavy blocks the line": Patch("arrive", "elif weight > self._cap:", "elif False:"),
    "admitted while held": Patch("arrive", "not self._held and ", ""),
    "held time of others counts": Patch("arrive", "self._held_s(now)", "self._held_total_s"),
    "awake clock runs while held": Patch(
        "_awake_s", "(self._held_since_s if self._held else now)", "now"
    ),
    "a held line is a short one": Patch("_places", " + max(0, self._cap - self._used)", ""),
    "a held line is a long one": Patch("_places", "max(0, self._cap - self._used)", "self._cap"),
    "hold again starts anew": Patch("hold", "if not self._held:", "if True:"),
    "first hold limit stays": Patch(
        "hold", "_hold_limit_s = limit_s", "_hold_limit_s = min(self._hold_limit_s, limit_s)"
    ),
    "shorter hold spares the line": Patch("hold", _EXPIRE_UNTIL),
    "hold forgives the overdue": Patch("hold", _EXPIRE_BEFORE),
    "resume forgives the overdue": Patch("resume", f"{_EXPIRE_BEFORE}  # by", "pass  # by"),
    "resume forgets a shorter limit": Patch("resume", f"{_EXPIRE_BEFORE}  # a", "pass  # a"),
    "resume lets nobody in": Patch("resume", _GRANT),
    "late timer admits the overdue": Patch("finish", _EXPIRE_BEFORE),
    "expiry of a heavy head frees nobody": Patch("expire", _GRANT),
    "new limits let nobody in": Patch("change_limits", _GRANT),
    "new limits come after a limit": Patch("change_limits", _EXPIRE_BEFORE, _EXPIRE_UNTIL),
    "new limits forgive the overdue": Patch("change_limits", _EXPIRE_BEFORE),
    "drain keeps the line": Patch("drain", "while self._line:", "while False:"),
    "drain admits newcomers": Patch("arrive", "if self._draining:", "if False:"),
    "drain from the tail": Patch("drain", "last=False", "last=True"),
    "wrong word for a held expiry": Patch(
        "_expire_until", "Reason.MODEL_WAKING if self._held else ", ""
    ),
    "wrong word for a late expiry": Patch(
        "_expire_before", "Reason.MODEL_WAKING if self._held else ", ""
    ),
    "second finish not counted": Patch("finish", "self.duplicate_finishes += 1"),
    "timer armed by another sum": Patch(
        "next_deadline",
        "self._deadline(next(iter(self._line.values())))",
        "next(iter(self._line.values())).arrived_s + self.limits.queue_timeout_s",
    ),
}

PLANTED: Mapping[str, Patch] = MappingProxyType(_EIGHTEEN | _SEVEN | _OURS)


def patched(source: str, patch: Patch) -> str:
    """Return the source with the bug in it; raises ValueError when its place is not found once."""
    method = re.search(
        rf"^    def {patch.method}\(.*?(?=^    def |^class |\Z)", source, re.MULTILINE | re.DOTALL
    )
    if method is None or method[0].count(patch.old) != 1:
        raise ValueError(f"not found once in {patch.method}: {patch.old}")
    bug = method[0].replace(patch.old, patch.new)
    return source[: method.start()] + bug + source[method.end() :]


def planted(bug: str) -> type[AdmissionController]:
    """Return the controller with one bug."""
    source = Path(admission.__file__).read_text(encoding="utf-8")
    module = ModuleType("planted_admission")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    code = compile(patched(source, PLANTED[bug]), f"<{bug}>", "exec")
    exec(code, module.__dict__)  # noqa: S102 - our own source
    controller: type[AdmissionController] = module.AdmissionController
    return controller
