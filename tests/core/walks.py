"""Seeded random walks of an AdmissionController, each judged by the laws and by the naive line.

A walk draws its limits, its grid of time and the manners of its driver: a punctual one calls
`expire` at each `next_deadline()`, a late one when it happens to. Half the walks run on a coarse
grid, so that arrivals, grants, limits and departures meet in one instant; some clients have no
patience at all and leave in the instant in which they came. At the end of each walk everything is
finished and time runs until nobody is left.

Run as a script it prints the digest of the traces of a range of seeds: `walks.py 0-19`.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from random import Random

from depth import parse_seeds
from naive_line import NaiveLine, Seen, seen

from simulator.model.invariants import QueueWitness, digest
from tornado_frontdoor.core.admission import AdmissionController, AdmissionEvent, AdmissionLimits
from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.core.request import Ticket, TicketState

WEIGHTS_OF_EVENTS = {
    "arrive": 34,
    "come_and_go": 4,
    "end_flight": 20,
    "cool": 8,
    "let_go": 3,
    "leave_line": 8,
    "finish_again": 3,
    "expire": 6,
    "pause": 5,
    "resume": 7,
    "change_limits": 5,
    "drain": 1,
}


class Walk:
    """One walk; `run` raises an AssertionError (or whatever a bug raises) when it was not legal."""

    def __init__(
        self,
        seed: int,
        controller: type[AdmissionController] = AdmissionController,
        *,
        by_model: bool = True,
        by_laws: bool = True,
    ) -> None:
        self.rng = Random(seed)
        self.trace: list[str] = []
        self.met: Counter[str] = Counter()
        self.grid_s = self.rng.choice((1.0, 0.5, 0.25, None))
        self.punctual = self.rng.random() < 0.7
        self.now = 0.0
        self.places = Random(-1 - seed)  # of its own: half the walks are as they were without
        self.keeps_places = self.places.random() < 0.5
        limits = self._draw_limits()
        self.line = controller(limits)
        exact = self.grid_s is not None
        self.model = (
            NaiveLine(limits.cap, limits.queue, limits.queue_timeout_s, limits.cooling_limit_s)
            if by_model and exact
            else None
        )
        self.witness = (
            QueueWitness(
                limits.cap,
                limits.queue,
                limits.queue_timeout_s,
                cooling_limit_s=limits.cooling_limit_s,
                tolerance_s=0.0 if exact else 1e-9,
            )
            if by_laws
            else None
        )
        self.inside: dict[int, Ticket] = {}
        self.cooling: dict[int, Ticket] = {}
        self.gone: list[Ticket] = []

    def run(self, steps: int = 60) -> "Walk":
        """Take `steps` random events, then finish everything."""
        names = list(WEIGHTS_OF_EVENTS)
        for name in self.rng.choices(names, list(WEIGHTS_OF_EVENTS.values()), k=steps):
            self._move_on(self._draw_pause())
            getattr(self, name)()
        self._finish_everything()
        return self

    # Events

    def arrive(self) -> Ticket:
        """Someone comes."""
        ticket = Ticket(self.rng.choice((1, 1, 1, 2, 3)))
        kept = self.places.choice((0, 1, 2, 9)) if self.keeps_places else 0
        places = self.line.limits.queue
        moves = self.line.arrive(ticket, self.now, kept=kept)
        self.inside[ticket.number] = ticket
        self._judge(
            f"arrive {ticket.number}x{ticket.weight} without {kept}",
            moves,
            lambda witness: witness.arrived(self.now, ticket.number, ticket.weight, kept, kept),
            lambda model: model.arrive(ticket.weight, self.now, kept),
        )
        turned_away = ticket.state is TicketState.GONE
        self.met["a place was kept"] += turned_away and 0 < places - self.line.queued <= kept
        return ticket

    def come_and_go(self) -> None:
        """Someone without patience: comes and leaves in one instant."""
        ticket = self.arrive()
        if ticket.state is not TicketState.GONE:
            self._finish(ticket)

    def end_flight(self) -> None:
        """Someone in flight ends; in the same instant perhaps the one who got the slot too."""
        flying = self._in_state(TicketState.IN_FLIGHT)
        if not flying:
            return
        deadline_s = self.line.next_deadline()
        moves = self._finish(self.rng.choice(flying))
        self.met["slot came free on a limit"] += deadline_s == self.now and bool(moves)
        granted = [move.ticket for move in moves if move.ticket.state is TicketState.IN_FLIGHT]
        if granted and self.rng.random() < 0.2:
            self.met["granted and given up in one instant"] += 1
            self._finish(granted[0])

    def cool(self) -> None:
        """Someone in flight goes away, and the engine does not know yet; twice changes nothing."""
        flying = self._in_state(TicketState.IN_FLIGHT)
        if self.rng.random() < 0.2:
            flying = [*self.inside.values()]
        if not flying:
            return
        ticket = self.rng.choice(flying)
        if ticket.state is TicketState.QUEUED:
            self.met["cooled while it waited"] += 1
            self._finish(ticket, self.line.cool)
            return
        moves = self.line.cool(ticket, self.now)
        self.cooling[ticket.number] = self.inside.pop(ticket.number)
        self.met["began to cool"] += 1
        self._judge(
            f"cool {ticket.number}",
            moves,
            lambda witness: witness.cools(self.now, ticket.number, Outcome.CLIENT_GONE_STREAMING),
            lambda model: model.cool(ticket.number, self.now),
        )
        if ticket.state is TicketState.COOLING:
            assert not self.line.cool(ticket, self.now), "cooling twice decides nothing"

    def let_go(self) -> None:
        """The engine lets go of someone who cools."""
        if not self.cooling:
            return
        ticket = self.rng.choice(list(self.cooling.values()))
        del self.cooling[ticket.number]
        self.gone.append(ticket)
        moves = self.line.finish(ticket, self.now)
        self._judge(
            f"let go {ticket.number}",
            moves,
            lambda witness: witness.let_go(self.now, ticket.number),
            lambda model: model.finish(ticket.number, self.now),
        )

    def leave_line(self) -> None:
        """Someone who waits goes away."""
        waiting = self.line.waiting()
        if waiting:
            self.met["left the line"] += 1
            self._finish(self.rng.choice(waiting))

    def finish_again(self) -> None:
        """A driver's bug: a ticket is finished a second time."""
        if self.gone:
            before = self.line.duplicate_finishes
            moves = self.line.finish(self.rng.choice(self.gone), self.now)
            assert not moves, "finishing twice decides nothing"
            assert self.line.duplicate_finishes == before + 1, "finishing twice is counted"

    def expire(self) -> None:
        """The timer, or nothing at all."""
        moves = self.line.expire(self.now)
        self._judge("expire", moves, None, lambda model: model.expire(self.now))
        deadline_s = self.line.next_deadline()
        assert deadline_s is None or deadline_s > self.now, "expire leaves nothing for this instant"

    def pause(self) -> None:
        """The engine is not awake any more, or its depth changes."""
        limit_s = self.rng.choice((0.5, 1.0, 3.0, 8.0, inf))
        self.met["pause while paused"] += self.line.paused
        self._judge(
            f"pause {limit_s}",
            self.line.pause(limit_s, self.now),
            lambda witness: witness.paused(self.now, limit_s),
            lambda model: model.pause(limit_s, self.now),
        )

    def resume(self) -> None:
        """The engine is proven awake; where it was not held, nothing happens."""
        if not self.line.paused:
            assert not self.line.resume(self.now)
            return
        self.met["resume with a line"] += bool(self.line.queued)
        self._judge(
            "resume",
            self.line.resume(self.now),
            lambda witness: witness.resumed(self.now),
            lambda model: model.resume(self.now),
        )

    def change_limits(self) -> None:
        """An operator changes the configuration."""
        new = self._draw_limits()
        self.met["limits changed with a line"] += bool(self.line.queued)
        told = (new.cap, new.queue, new.queue_timeout_s)
        cooling_s = new.cooling_limit_s
        self._judge(
            f"change {told}",
            self.line.change_limits(new, self.now),
            lambda witness: witness.limits_changed(self.now, *told, cooling_s),
            lambda model: model.change_limits(*told, self.now, cooling_s),
        )

    def drain(self) -> None:
        """The front door goes away; most walks go on without."""
        if self.rng.random() < 0.3:
            self._judge(
                "drain",
                self.line.drain(self.now),
                lambda witness: witness.drained(self.now),
                lambda model: model.drain(),
            )

    # How

    def _draw_limits(self) -> AdmissionLimits:
        return AdmissionLimits(
            cap=self.rng.choice((1, 1, 2, 3, 6, None)),
            queue=self.rng.choice((0, 1, 2, 4, 8)),
            queue_timeout_s=self.rng.choice((0.5, 1.0, 2.0, 5.0)),
            cooling_limit_s=self.rng.choice((0.0, 0.25, 1.0, 2.0)),
        )

    def _in_state(self, state: TicketState) -> list[Ticket]:
        return [ticket for ticket in self.inside.values() if ticket.state is state]

    def _draw_pause(self) -> float:
        if self.grid_s is None:
            return self.rng.expovariate(2.0)
        return self.grid_s * self.rng.choice((0, 0, 0, 1, 1, 2))

    def _move_on(self, pause_s: float) -> None:
        """Let time pass; a punctual driver stops at each deadline on the way, not at the last."""
        until_s = self.now + pause_s
        while self.punctual:
            deadline_s = self.line.next_deadline()
            if deadline_s is None or deadline_s >= until_s:
                break
            self._tick(deadline_s)
        self.now = until_s

    def _tick(self, deadline_s: float) -> None:
        self.now = max(self.now, deadline_s)
        before = self.line.queued + self.line.cooling
        self.expire()
        assert self.line.queued + self.line.cooling < before, (
            "expire at next_deadline() makes progress"
        )

    def _finish(
        self,
        ticket: Ticket,
        verb: Callable[[Ticket, float], Sequence[AdmissionEvent]] | None = None,
    ) -> Sequence[AdmissionEvent]:
        moves = (verb or self.line.finish)(ticket, self.now)
        self.inside.pop(ticket.number, None)
        self.gone.append(ticket)
        self._judge(
            f"finish {ticket.number}",
            moves,
            lambda witness: witness.ended(self.now, ticket.number, Outcome.SERVED),
            lambda model: model.finish(ticket.number, self.now),
        )
        return moves

    def _judge(
        self,
        event: str,
        moves: Sequence[AdmissionEvent],
        tell: Callable[[QueueWitness], None] | None,
        ask: Callable[[NaiveLine], list[Seen]],
    ) -> None:
        told = seen(moves)
        words = [f"{_word(one)} {one.number}" for one in told]
        self.trace.append(f"{self.now:.9f} {event} -> {', '.join(words) or '-'}")
        for one in told:
            if one.reason is not None:
                self.met[one.reason.value] += 1
                self.gone.append(self.inside.pop(one.number))
            elif one.cooled:
                self.met["cooled by the limit"] += 1
                self.met["cooled, and let somebody in"] += len(told) > 1
                self.gone.append(self.cooling.pop(one.number))
        if self.witness is not None:
            self._ask_witness(self.witness, told, tell)
        if self.model is not None:
            self._compare(self.model, told, ask(self.model))
        line = self.line.waiting()
        assert all(ticket.state is TicketState.QUEUED for ticket in line), "who waits is QUEUED"

    def _ask_witness(
        self,
        witness: QueueWitness,
        told: list[Seen],
        tell: Callable[[QueueWitness], None] | None,
    ) -> None:
        if tell is not None:
            tell(witness)
        for one in told:
            if one.cooled:
                witness.cooled(self.now, one.number)
            elif one.reason is None:
                witness.admitted(self.now, one.number, one.waited_s, one.paused_s)
            else:
                witness.refused(self.now, one.number, one.reason)
        witness.settled(self.now)
        witness.agree(self.line.in_flight, self.line.queued, self.line.cooling)

    def _compare(self, model: NaiveLine, told: list[Seen], right: list[Seen]) -> None:
        assert told == right, f"decided {told}, by the rules it is {right}"
        assert [ticket.number for ticket in self.line.waiting()] == [
            waiter.number for waiter in model.waiting
        ]
        assert self.line.in_flight == model.in_flight
        assert self.line.cooling == model.slots_cooling
        assert self.line.next_deadline() == model.next_deadline()

    def _finish_flights(self) -> None:
        """Finish whoever is in flight, and let time run while it does something."""
        for ticket in self._in_state(TicketState.IN_FLIGHT):
            self._finish(ticket)
        while (deadline_s := self.line.next_deadline()) is not None:
            self._tick(deadline_s)
            for ticket in self._in_state(TicketState.IN_FLIGHT):
                self._finish(ticket)
        for ticket in self._in_state(TicketState.IN_FLIGHT):
            self._finish(ticket)

    def _finish_everything(self) -> None:
        if self.rng.random() < 0.5:
            self.resume()
        self._finish_flights()
        if self.line.queued:  # paused without a limit
            self.resume()
            self._finish_flights()
        left = self.line.in_flight, self.line.cooling, self.line.queued
        assert left == (0, 0, 0), "everything ends"
        if self.witness is not None:
            self.witness.at_rest()


def _word(one: Seen) -> str:
    if one.cooled:
        return "cooled"
    return "admit" if one.reason is None else one.reason.value


if __name__ == "__main__":
    print(digest(line for seed in parse_seeds(sys.argv[1]) for line in Walk(seed).run().trace))
