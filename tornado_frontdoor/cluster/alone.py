"""A door that hears of no owner: refuses, or goes on with its own share of each cap.

Rule 1: gates of its own, with its share for a cap, count what it runs already; none of an engine
        that is put to sleep, because nobody may wake it.
Rule 2: the shares of all doors are within the cap, but one of them may have run more than its share
        when contact was lost. So each start looks at the engine's own count first, and leaves room
        for one start of every other door that the count cannot show yet.
"""

from collections.abc import Mapping

from tornado_frontdoor.cluster.actions import (
    Action,
    CloseGates,
    CountEngine,
    GateAdopt,
    GateArrive,
    GateFinish,
    Grant,
    OpenGates,
    Say,
    TurnAway,
)
from tornado_frontdoor.cluster.messages import Admitted
from tornado_frontdoor.cluster.rules import SETTLED_S, ClusterRules
from tornado_frontdoor.cluster.tickets import Own, OwnStage
from tornado_frontdoor.core.decisions import Outcome, Reason, Refusal

RETRY_AFTER_S = 5.0
FRESH_S = 0.05
"""A look at the engine's count is good for a start within this."""


class Alone:
    """One door without an owner. `own` are its requests; `out` takes what is to be done."""

    def __init__(
        self, me: str, rules: ClusterRules, doors: int, own: dict[int, Own], out: list[Action]
    ) -> None:
        self._me = me
        self._rules = rules
        self._doors = doors
        self._own = own
        self._out = out
        self._split: bool | None = None
        """Whether this door goes on with its share; None: that is not known yet."""
        self._starts: dict[str, list[Own]] = {}
        self._asked: dict[str, int] = {}
        self._counts: dict[str, dict[str, int | None]] = {}
        self._ask_s: dict[str, float] = {}
        self._rounds = 0

    @property
    def splits(self) -> bool:
        """Whether this door goes on with its share."""
        return bool(self._split)

    @property
    def refuses(self) -> bool:
        """Whether this door has nothing for anybody, and knows so."""
        return self._split is False

    def share(self, address: str) -> int:
        """Return the slots that this door has at an engine."""
        return self._rules.share(address, self._doors) if self._split else 0

    def allow(self, may_split: bool, now: float) -> None:
        """Go on with the share while nobody else can have been given it, else refuse."""
        split = may_split and any(self._rules.share(a, self._doors) for a in self._rules.gates)
        if split == self._split:
            return
        if self._split:
            self._starts.clear()
            self._out.append(CloseGates())
        self._split = split
        if split:
            shares = {address: self.share(address) for address in self._rules.gates}
            self._out += [
                OpenGates({address: share for address, share in shares.items() if share}),
                Say("goes on with its share of each cap"),
            ]
        for own in [*self._own.values()]:
            if own.stage is OwnStage.RUNNING:
                if self.share(own.address):
                    key = (self._me, own.number)
                    self._out.append(GateAdopt(key, own.address, own.weight, own.replica))
            else:
                own.stage = OwnStage.WAITING
                self.arrive(own, now)

    def arrive(self, own: Own, now: float) -> None:
        """Take a request of this door; while nothing is allowed yet it waits."""
        if self._split is None:
            return
        if own.weight <= self.share(own.address):
            waited_s = now - own.entered_s
            key = (self._me, own.number)
            more = own.affinity, own.terms
            self._out.append(GateArrive(key, own.address, own.weight, waited_s, *more))
        else:
            detail = "The front doors have lost touch with one another"
            self._refuse(own, detail)

    def finish(self, own: Own, outcome: Outcome) -> None:
        """End a request, wherever it is."""
        starts = self._starts.get(own.address, [])
        if own in starts:
            starts.remove(own)
        if self.share(own.address):
            self._out.append(GateFinish((self._me, own.number), outcome))

    def admitted(self, own: Own, told: Admitted) -> None:
        """Take that a request has a slot of the share; it starts when the engine has room."""
        own.waited_s, own.replica = told.waited_s, told.replica
        self._starts.setdefault(own.address, []).append(own)

    def tick(self, now: float) -> None:
        """Ask engines for their counts where somebody wants to start."""
        for address, starts in self._starts.items():
            if starts and now >= self._ask_s.get(address, 0.0):
                self._rounds += 1
                self._asked[address] = self._rounds
                self._counts[address] = {}
                self._ask_s[address] = now + 1.0  # or when it has answered
                for engine in self._rules.engines(address):
                    self._out.append(CountEngine(engine, self._rounds))

    def sampled(self, sample: CountEngine, busy: int | None, now: float) -> None:
        """Let one request start if the counts of all engines behind its name leave room for it."""
        address = next((a for a, round_ in self._asked.items() if round_ == sample.round), "")
        starts = self._starts.get(address)
        if not starts:
            return
        counts = self._counts[address]
        counts[sample.address] = busy
        if len(counts) < len(self._rules.engines(address)):
            return
        self._asked[address] = 0
        self._ask_s[address] = now + SETTLED_S
        if None in counts.values():
            for own in [*starts]:
                self._out.append(GateFinish((self._me, own.number), Outcome.CLUSTER_OUTAGE))
                self._refuse(own, "The engine does not tell how much it runs")
            starts.clear()
            return
        known = {engine: count for engine, count in counts.items() if count is not None}
        if self._has_room(starts[0], known):
            own = starts.pop(0)
            own.grant(own.waited_s, 0.0, own.replica, now)
            self._out.append(Grant(own.number, own.waited_s, own.paused_s, own.replica))

    def _has_room(self, own: Own, counts: Mapping[str, int]) -> bool:
        """Tell whether a start of ours and one of every other door fit beside what runs."""
        gate = self._rules.gates[own.address]
        assert gate.cap is not None
        more = own.weight + self._doors - 1
        slots = self._rules.slots_of(own.address, own.replica)
        here = counts.get(own.replica, 0)
        return sum(counts.values()) + more <= gate.cap and here + more <= slots

    def may_start(self, own: Own, now: float) -> bool:
        """Tell whether the look at the engine is fresh enough; if not, another one is made."""
        if now - own.granted_s <= FRESH_S:
            self._ask_s[own.address] = now + 2 * SETTLED_S
            return True
        own.stage = OwnStage.WAITING
        self._starts.setdefault(own.address, []).insert(0, own)
        return False

    def _refuse(self, own: Own, detail: str) -> None:
        self._own.pop(own.number, None)
        self._out.append(
            TurnAway(own.number, Refusal(Reason.CLUSTER_OUTAGE, detail, None, RETRY_AFTER_S))
        )
