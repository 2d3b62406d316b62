"""The laws that an engine can be asked about, or watched for; `invariants.py` has all nine."""

from collections.abc import Mapping, Sequence

from simulator.model.invariants import LawError


class EngineWitness:
    """Watches one engine from outside its gate: law 7."""

    def __init__(self, *, proven: bool = False) -> None:
        self.wakes = 0
        self._proven = proven
        self._waking = False

    def wake_began(self) -> None:
        """Note the first step of a wake sequence."""
        if self._waking:
            raise LawError(7, "a second wake begins while one runs")
        self.wakes += 1
        self._waking = True
        self._proven = False

    def wake_ended(self, *, proven: bool) -> None:
        """Note that the sequence is over, and whether its proof succeeded."""
        if not self._waking:
            raise LawError(7, "a wake ends that never began")
        self._waking = False
        self._proven = proven

    def sleep_began(self, inside: int) -> None:
        """Note that the engine is put to sleep, and how many tickets its gate holds."""
        if self._waking:
            raise LawError(7, "the engine is put to sleep while it wakes")
        if inside:
            raise LawError(7, f"the engine is put to sleep with {inside} tickets inside")
        self._proven = False

    def lost(self) -> None:
        """Note that the engine died, restarted or cannot be reached: nothing is proven any more."""
        self._waking = False
        self._proven = False

    def saw_request(self) -> None:
        """Judge that a request reached the engine."""
        if not self._proven:
            raise LawError(7, "a request reached an engine whose wake was not proven")


def judge_engine_counters(
    counters: Mapping[str, object],
    cap: int,
    admitted: Sequence[str],
    *,
    in_order: bool = True,
    at_rest: bool = True,
) -> None:
    """Judge an engine stand-in's own counters (`GET /stand-in/stats`): laws 1, 2, 6 and 8.

    `admitted` are the request ids in the order in which they were admitted. The engine may have
    missed some of them (a client may go in between), but may know no other. Two that are admitted
    in one instant may meet on their way: say `in_order=False` where that can happen.
    """
    highest = counters["max_concurrent"]
    assert isinstance(highest, int)
    if highest > cap:
        raise LawError(1, f"the engine ran {highest} at once, the cap is {cap}")
    seen = counters["order"]
    assert isinstance(seen, list)
    strangers = set(seen) - set(admitted)
    if strangers:
        raise LawError(8, f"the engine saw what was never admitted: {sorted(strangers)[:3]}")
    rest = iter(admitted)
    if in_order and not all(any(known == request for known in rest) for request in seen):
        raise LawError(2, "the engine saw requests in another order than that of admission")
    if at_rest and (counters["in_flight"] or counters["waiting"]):
        raise LawError(6, f"at rest the engine still counts {dict(counters)}")
