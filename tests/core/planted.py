"""Bugs that admission must never have, as patches of its source: the tests are tested with them.

Eighteen come from a review of published faults in admission controllers, seven from the first
skeleton of this house, the rest from reading `core/admission.py` line by line. Two of the
eighteen cannot exist here as they were, and are adapted: "evicts oldest" (a shorter queue evicts
nobody; so it is that it does) and "no client deadline" (clients have none; the limit that can be
forgotten is that of a pause).
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


_GRANT = "self._grant(now, events)"
_EXPIRE_BEFORE = "self._expire_before(now, events)"
_EXPIRE_UNTIL = "self._expire_until(now, events)"
_COOL_UNTIL = "self._cool_until(now, events)"
_LET_TIME_PASS = "self._let_time_pass(now, events)"
_LEAVE = "del self._queue[ticket.number]"

_EIGHTEEN = {
    "barging": Patch("arrive", "if not queue and", "if"),
    "zombie": Patch("finish", _LEAVE),
    "late time-out": Patch("_expire_until", "> now", ">= now"),
    "head-only expiry": Patch("_expire_until", "now, events)", "now, events); return"),
    "grant before expiry": Patch(
        "_let_time_pass", _EXPIRE_UNTIL, f"{_GRANT}; {_EXPIRE_UNTIL}; return"
    ),
    "cost ignored": Patch("_grant", "weight = ticket.weight", "weight = 1"),
    "small one passes": Patch(
        "_grant",
        "next(iter(queue.values()))",
        "min(queue.values(), key=lambda waiter: self._used + waiter.weight > self._cap)",
    ),
    "one grant per event": Patch(
        "_grant", "arrived_s, paused_s))", "arrived_s, paused_s)); return"
    ),
    "place needed for a direct grant": Patch(
        "arrive", "if not queue and", "if not queue and self.limits.queue and"
    ),
    "pause leaks": Patch("_takes", "not self._paused and", ""),
    "leaving the queue frees a slot": Patch("finish", _LEAVE, f"{_LEAVE}; self._used -= 1"),
    "finish keeps a slot": Patch("finish", "-= ticket.weight", "-= ticket.weight - 1"),
    "double release": Patch("finish", "ticket.state = _GONE"),
    "stuck head": Patch("change_limits", "if waiter.weight > heaviest", "if False"),
    "a shorter queue evicts the oldest": Patch(
        "change_limits",
        _EXPIRE_BEFORE,
        "while len(self._queue) > limits.queue:\n"
        "            self._reject(self._queue.popitem(last=False)[1], Reason.QUEUE_FULL, events)\n",
    ),
    "one budget": Patch("resume", "self._paused_total_s += now - self._paused_since_s"),
    "no pause limit": Patch("_deadline", "return self._paused_since_s + left_s", "return inf"),
    "no grants before the event": Patch("arrive", _LET_TIME_PASS, _EXPIRE_UNTIL),
    "cancel frees at once": Patch("cool", "self._used_cooling +=", "self._used -="),
}
_SEVEN = {
    "last come, first served": Patch("_grant", "iter(queue", "reversed(queue"),
    "freed slot not handed on": Patch("finish", "self._free(now)", "_NOTHING"),
    "one over the cap": Patch(
        "arrive", "weight <= self._cap and (", "weight <= self._cap + 1 and ("
    ),
    "a tie goes to the limit": Patch("_expire_before", ">= now", "> now"),
    "queue one too deep": Patch("arrive", "elif len(queue) <", "elif len(queue) <="),
    "only the head can leave": Patch(
        "finish", _LEAVE, f"if next(iter(self._queue)) == ticket.number: {_LEAVE}"
    ),
    "waited_s always 0": Patch("_grant", "now - ticket.arrived_s", "0.0"),
}
_OURS = {
    "paused_s always 0": Patch("_grant", "self._paused_total_s - ticket.paused_mark_s", "0.0"),
    "heavy newcomer counted as one": Patch("arrive", "self._used += weight", "self._used += 1"),
    "too heavy blocks the queue": Patch("_bar", "weight > self._heaviest", "False"),
    "admitted while paused": Patch("_look", "self._paused or", ""),
    "paused time of others counts": Patch("_joined", "self._paused_s(now)", "self._paused_total_s"),
    "awake clock runs while paused": Patch(
        "_awake_s", "(self._paused_since_s if self._paused else now)", "now"
    ),
    "a paused queue is a short one": Patch("_places_for", " + max(0, self._cap - self._used)", ""),
    "a paused queue is a long one": Patch(
        "_places_for", "max(0, self._cap - self._used)", "self._cap"
    ),
    "a pause is not looked at": Patch("pause", "self._look()"),
    "the plain way for each weight": Patch("_grant", "(plain or", "(True or"),
    "pause again starts anew": Patch("pause", "if not self._paused:", "if True:"),
    "first pause limit stays": Patch(
        "_promise", "_pause_limit_s = limit_s", "_pause_limit_s = min(self._pause_limit_s, limit_s)"
    ),
    "a shorter pause limit is for all": Patch(
        "_promise", "max(ticket.promised_s, limit_s)", "limit_s"
    ),
    "a longer pause limit is for newcomers alone": Patch(
        "_promise", "max(ticket.promised_s, limit_s)", "ticket.promised_s or limit_s"
    ),
    "the head goes first, whatever was promised": Patch(
        "_first_to_go", "if self._paused and self._promises_differ:", "if False:"
    ),
    "pause forgives the overdue": Patch("pause", _EXPIRE_BEFORE),
    "resume forgives the overdue": Patch("resume", f"{_EXPIRE_BEFORE}  # by", "pass  # by"),
    "resume forgets a shorter limit": Patch("resume", f"{_EXPIRE_BEFORE}  # a", "pass  # a"),
    "resume lets nobody in": Patch("resume", _GRANT),
    "late timer admits the overdue": Patch("_free", _EXPIRE_BEFORE),
    "time is not let pass": Patch("arrive", "now >= self._quiet_until_s", "False"),
    "expiry of a heavy head frees nobody": Patch(
        "expire", _LET_TIME_PASS, f"{_COOL_UNTIL}; {_EXPIRE_UNTIL}"
    ),
    "new limits let nobody in": Patch("change_limits", _GRANT),
    "new limits come after a limit": Patch("change_limits", _EXPIRE_BEFORE, _EXPIRE_UNTIL),
    "new limits forgive the overdue": Patch("change_limits", _EXPIRE_BEFORE),
    "drain keeps the queue": Patch("drain", "lambda _: True", "lambda _: False"),
    "drain admits newcomers": Patch("_bar", "if self._draining:", "if False:"),
    "a drain is not looked at": Patch("drain", "self._look()"),
    "drain from the tail": Patch(
        "dismiss", "self._queue.values()", "[*self._queue.values()][::-1]"
    ),
    "wrong word for a paused expiry": Patch(
        "_too_late", "Reason.MODEL_WAKING if self._paused else ", ""
    ),
    "second finish not counted": Patch("finish", "self.duplicate_finishes += 1"),
    "timer armed by another sum": Patch(
        "next_deadline",
        "self._deadline(self._first_to_go())",
        "next(iter(self._queue.values())).arrived_s + self.limits.queue_timeout_s",
    ),
}

_QUIET = "self._quiet_until_s = -inf"
_LIMITS_SEEN_EARLIER = {
    "a pause does not change when limits come": Patch("pause", _QUIET),
    "a resume does not change when limits come": Patch("resume", _QUIET),
    "new limits do not change when limits come": Patch(
        "_take", _QUIET, "self._quiet_until_s = getattr(self, '_quiet_until_s', -inf)"
    ),
    "a limit seen is for ever": Patch(
        "_expire_until", "deadline_s\n                return", "inf\n                return"
    ),
}

_COOLING = {
    "cooling counts as in flight": Patch("in_flight", " - self._used_cooling"),
    "cooling is for ever": Patch("_cool_s", "return ", "return inf + "),
    "cooling ends at once": Patch("_cool_s", " + self.limits.cooling_limit_s", ""),
    "a cool slot waits for an arrival": Patch("next_deadline", "if self._cooling:", "if False:"),
    "the engine's sign is not heard": Patch("finish", "self._let_go(ticket)"),
    "a sign frees one slot": Patch("_let_go", "self._used -= ticket.weight", "self._used -= 1"),
    "a slot is freed twice": Patch("_cool_until", "ticket.state = _GONE"),
    "cooling ends in silence": Patch("_cool_until", "events.append(Cooled(ticket))"),
    "one slot cools at a time": Patch("_cool_until", "while cooling and", "if cooling and"),
    "a cool slot comes after a limit": Patch(
        "_let_time_pass", "if self._cooling and self._cool_until(now, events):", "if False:"
    ),
    "a cool slot is for newcomers": Patch("arrive", _LET_TIME_PASS, _COOL_UNTIL),
    "a tie goes to the limit, not to the cool slot": Patch(
        "_let_time_pass", f"{_EXPIRE_BEFORE}\n            {_GRANT}"
    ),
    "the last to cool is the first": Patch("_cool_until", "iter(cooling", "reversed(cooling"),
    "a waiter cools": Patch("cool", "if ticket.state is not _IN_FLIGHT:", "if False:"),
    "cooling twice starts anew": Patch("cool", "if ticket.state is _COOLING:", "if False:"),
    "resume forgets the cool": Patch("resume", _COOL_UNTIL),
    "pause forgets the cool": Patch("pause", _COOL_UNTIL),
    "new limits forget the cool": Patch("change_limits", _COOL_UNTIL),
}

_KEPT = {
    "a kept place is for everybody": Patch("arrive", "queue - kept", "queue"),
    "a place is kept while paused": Patch(
        "_places_for", "return places if", "places -= kept; return places if"
    ),
    "one kept place too many": Patch("arrive", "queue - kept", "queue - kept - 1"),
    "a slot is kept too": Patch(
        "arrive", "weight <= self._cap and (", "weight + kept <= self._cap and ("
    ),
}

PLANTED: Mapping[str, Patch] = MappingProxyType(
    _EIGHTEEN | _SEVEN | _OURS | _LIMITS_SEEN_EARLIER | _COOLING | _KEPT
)


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
