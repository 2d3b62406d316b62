"""The transition table and the machine are one: each state with each event, and with each input."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tornado_frontdoor.core.decisions import (
    Changed,
    EngineState,
    JournalEntry,
    Perform,
    Remember,
    SleepDepth,
)
from tornado_frontdoor.core.wake.machine import TABLE, Gpu, WakeOrder, WakeStateMachine
from tornado_frontdoor.core.wake.observed import EngineEvent
from tornado_frontdoor.core.wake.policy import SleepPolicy
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import (
    CANARY,
    VERIFY_AWAKE,
    EngineKind,
    ProcessCall,
    Report,
    Seen,
    Step,
    StepResult,
)
from tornado_frontdoor.engines.process import Stoppable

LIMITS = SleepPolicy(
    idle_sleep_s=100.0,
    idle_offload_s=1000.0,
    hold_sleeping_s=30.0,
    hold_offloaded_s=180.0,
    hold_restarting_s=300.0,
    retry_after_sleeping_s=10,
    retry_after_offloaded_s=60,
    retry_after_restarting_s=600,
    canary=True,
)
AWAKE = Seen(False, 0, 0, 0, "0.33.0", "p1")
LEVEL_1 = Seen(True, 1, 0, 0, "0.33.0", "p1")
LEVEL_2 = Seen(True, 2, 0, 0, "0.33.0", "p1")


class Bench:
    """A machine alone, whose GPU is always free."""

    def __init__(self, memory: JournalEntry | None = None, kind: EngineKind = vllm.KIND) -> None:
        self.now = 0.0
        self.machine = WakeStateMachine(LIMITS, 0.0, kind, memory)
        self.orders: list[WakeOrder] = []
        self.take(self.machine.tick(0.0))

    def take(self, orders: Sequence[WakeOrder]) -> None:
        for order in orders:
            self.orders.append(order)
            if order is Gpu.ASK:
                self.take(self.machine.granted(self.now))
            elif isinstance(order, Remember) and order.number:
                self.take(self.machine.report(Report(order.number, StepResult.DONE), self.now))

    @property
    def last(self) -> Perform:
        return next(order for order in reversed(self.orders) if isinstance(order, Perform))

    def report(self, ending: StepResult = StepResult.DONE, seen: Seen | None = None) -> "Bench":
        self.take(self.machine.report(Report(self.last.number, ending, seen), self.now))
        return self

    def at(self, now: float) -> "Bench":
        self.now = now
        self.take(self.machine.tick(now))
        return self


def unknown() -> Bench:
    return Bench()


def awake() -> Bench:
    return Bench().report(seen=AWAKE).report()


def sleeping() -> Bench:
    return Bench().report(seen=LEVEL_1)


def offloaded() -> Bench:
    return Bench().report(seen=LEVEL_2)


def down() -> Bench:
    return Bench().report(StepResult.LOST)


def stopped() -> Bench:
    return Bench(kind=Stoppable(vllm.KIND, 600.0, 30.0)).report(StepResult.LOST)


def waking() -> Bench:
    bench = sleeping()
    bench.take(bench.machine.demand(1, bench.now))
    return bench.report(seen=LEVEL_1)


def falling_asleep() -> Bench:
    bench = awake().at(100.0).report(seen=AWAKE)
    assert bench.last.step is vllm.SLEEP_1
    return bench


IN: dict[EngineState, Callable[[], Bench]] = {
    EngineState.UNKNOWN: unknown,
    EngineState.AWAKE: awake,
    EngineState.FALLING_ASLEEP: falling_asleep,
    EngineState.SLEEPING: sleeping,
    EngineState.OFFLOADED: offloaded,
    EngineState.STOPPED: stopped,
    EngineState.WAKING: waking,
    EngineState.DOWN: down,
}


def snapshot(machine: WakeStateMachine) -> dict[str, Any]:
    """Return all of its state: what is not plain is a value, too."""
    return {key: value for key, value in vars(machine).items() if key != "_orders"}


def test_every_state_has_its_row_and_can_be_reached():
    assert set(TABLE) == set(EngineState) == set(IN)
    for state, reach in IN.items():
        assert reach().machine.state is state


@pytest.mark.parametrize("state", EngineState)
@pytest.mark.parametrize("event", EngineEvent)
def test_every_pair_is_either_in_the_table_or_without_effect(state, event):
    machine = IN[state]().machine
    before = snapshot(machine)
    machine._happen(event, 2000.0)
    if event in TABLE[state]:
        assert machine.state is TABLE[state][event]
    else:
        assert snapshot(machine) == before
        assert not machine._orders


def test_every_state_has_a_way_out_and_a_way_in():
    for state in EngineState:
        assert set(TABLE[state].values()) - {state}
        assert any(
            state in TABLE[other].values() for other in EngineState if other is not state
        ) or (state is EngineState.UNKNOWN)


def test_awake_is_entered_by_proof_alone():
    ways = [event for row in TABLE.values() for event, to in row.items() if to is EngineState.AWAKE]
    assert set(ways) == {EngineEvent.PROVEN} | {
        event for event, to in TABLE[EngineState.AWAKE].items() if to is EngineState.AWAKE
    }


def test_nothing_wakes_into_a_sleep_that_is_under_way():
    bench = falling_asleep()
    bench.take(bench.machine.demand(3, bench.now))
    bench.take(bench.machine.wake(bench.now))
    assert bench.machine.state is EngineState.FALLING_ASLEEP
    assert bench.last.step is vllm.SLEEP_1


LOOKS = [AWAKE, LEVEL_1, LEVEL_2, AWAKE._replace(running=2), AWAKE._replace(process="p2")]
INPUTS: dict[str, Callable[[Bench], Sequence[WakeOrder]]] = {
    "come": lambda b: b.machine.demand(1, b.now),
    "go": lambda b: b.machine.demand(0, b.now),
    "tick": lambda b: b.machine.tick(b.now),
    "deadline": lambda b: b.machine.tick(max(b.now, b.machine.next_deadline())),
    "much later": lambda b: b.machine.tick(b.now + 5000.0),
    "granted": lambda b: b.machine.granted(b.now),
    "lost": lambda b: b.machine.lost(b.now),
    "suspect": lambda b: b.machine.suspect(b.now),
    "drain": lambda b: b.machine.drain(b.now),
    "wake": lambda b: b.machine.wake(b.now),
    "sleep 1": lambda b: b.machine.sleep(1, b.now),
    "sleep 2": lambda b: b.machine.sleep(2, b.now),
    **{
        ending.value: lambda b, ending=ending: b.machine.report(
            Report(b.last.number, ending), b.now
        )
        for ending in StepResult
    },
    **{
        f"saw {seen}": lambda b, seen=seen: b.machine.report(
            Report(b.last.number, StepResult.DONE, seen), b.now
        )
        for seen in LOOKS
    },
}


@pytest.mark.parametrize("state", EngineState)
@pytest.mark.parametrize("first", INPUTS)
def test_whatever_comes_the_state_moves_along_the_arrows(state, first):
    """Each input in each state, and after it each other input."""
    for second in INPUTS:
        bench = IN[state]()
        bench.orders = [bench.last]
        for name in (first, second):
            bench.take(INPUTS[name](bench))
        now = state
        for order in bench.orders:
            if isinstance(order, Changed):
                assert order.state in TABLE[now].values(), f"{now} to {order.state} by {second}"
                now = order.state
        assert bench.machine.state is now


@pytest.mark.parametrize("state", EngineState)
@pytest.mark.parametrize("ending", StepResult)
def test_a_report_that_nobody_waits_for_has_no_effect(state, ending):
    bench = IN[state]()
    before = snapshot(bench.machine)
    for number in (0, bench.last.number - 1, bench.last.number + 1):
        assert not bench.machine.report(Report(number, ending, AWAKE), bench.now)
    bench.take(bench.machine.report(Report(bench.last.number, StepResult.LOST), bench.now))
    after = snapshot(bench.machine)
    if bench.machine._call is None:
        assert not bench.machine.report(Report(bench.last.number, ending, AWAKE), bench.now)
        assert snapshot(bench.machine) == after
    assert before["state"] is state


def remembered(bench: Bench, step: Step) -> JournalEntry:
    """Return what was written down last before a step was to be performed."""
    index = max(
        index
        for index, order in enumerate(bench.orders)
        if isinstance(order, Perform) and order.step is step
    )
    return [order for order in bench.orders[:index] if isinstance(order, Remember)][-1].memory


def test_what_is_about_to_be_done_is_written_down_before_it_is_done():
    assert remembered(falling_asleep(), vllm.SLEEP_1) == JournalEntry(
        EngineState.FALLING_ASLEEP, 1, True, "p1"
    )
    bench = awake()
    bench.take(bench.machine.sleep(2, bench.now))
    bench.report(seen=AWAKE)
    assert remembered(bench, vllm.SLEEP_2) == JournalEntry(
        EngineState.FALLING_ASLEEP, 2, False, "p1"
    )
    assert remembered(waking(), vllm.WAKE) == JournalEntry(EngineState.WAKING, 1, True, "p1")
    bench = offloaded()
    bench.take(bench.machine.demand(1, bench.now))
    bench.report(seen=LEVEL_2)
    assert remembered(bench, vllm.WAKE_WEIGHTS) == JournalEntry(EngineState.WAKING, 2, False, "p1")


def test_a_proof_is_none_for_weights_that_nobody_has_loaded():
    """The wake was one from level 1; then the engine was seen at level 2, and then awake."""
    bench = waking().report().report(seen=LEVEL_2)
    bench.at(bench.machine.next_deadline()).report(seen=AWAKE)
    assert bench.machine.state is EngineState.UNKNOWN


@pytest.mark.parametrize("state", EngineState)
def test_a_tick_leaves_nothing_for_its_instant(state):
    bench = IN[state]()
    for _ in range(50):
        deadline_s = bench.machine.next_deadline()
        if deadline_s == float("inf"):
            break
        assert deadline_s > bench.now or not bench.orders
        bench.at(max(deadline_s, bench.now))
        assert bench.machine.next_deadline() > bench.now


def test_an_engine_that_can_be_started_is_stopped_where_nobody_answers():
    """And started from there, not merely waited for; what comes up is proven as ever."""
    bench = stopped()
    assert bench.machine.depth is SleepDepth.STOPPED
    bench.take(bench.machine.demand(1, bench.now))
    bench.report(StepResult.LOST)
    assert bench.last.step.call is ProcessCall.START
    bench.report()
    assert bench.last.step is VERIFY_AWAKE
    bench.report(seen=AWAKE._replace(process="p2"))
    assert bench.last.step is CANARY
    bench.report()
    assert bench.machine.state is EngineState.AWAKE


def test_a_start_that_crashes_is_a_wake_that_failed():
    bench = stopped()
    bench.take(bench.machine.demand(1, bench.now))
    bench.report(StepResult.LOST).report().report(StepResult.LOST)
    bench.at(bench.machine.next_deadline()).report(StepResult.LOST)
    assert bench.machine.state is EngineState.UNKNOWN
    bench.at(bench.machine.next_deadline()).report(StepResult.LOST)
    assert bench.machine.state is EngineState.STOPPED
    assert bench.machine.wake_backoff.failures == 1


def test_the_deepest_tier_stops_whatever_sleeps_already():
    kind = Stoppable(vllm.KIND, 600.0, 30.0)
    bench = Bench(kind=kind).report(seen=LEVEL_2)
    bench.machine.change_policy(replace(LIMITS, idle_stop_s=2000.0))
    bench.at(2000.0).report(seen=LEVEL_2)
    assert bench.last.step.call is ProcessCall.STOP
    bench.report().report(StepResult.LOST)
    assert bench.machine.state is EngineState.STOPPED
