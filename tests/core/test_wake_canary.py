"""A canary that nobody answers: in doubt the engine is looked at, and asked again."""

from random import Random

from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import Decision, EngineState, Perform
from tornado_frontdoor.core.gate import AdmissionLimits, Gate, SleepConfig, SleepPolicy
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.core.wake.sequence import CANARIES
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import (
    CANARY,
    PROBE,
    VERIFY_AWAKE,
    Report,
    Seen,
    Step,
    StepResult,
)

LIMITS = SleepPolicy(
    idle_sleep_s=0,
    idle_offload_s=0,
    hold_sleeping_s=30,
    hold_offloaded_s=180,
    hold_restarting_s=300,
    retry_after_sleeping_s=10,
    retry_after_offloaded_s=60,
    retry_after_restarting_s=600,
    canary=True,
)
AWAKE = Seen(sleeping=False, level=0, running=0, waiting=0, version="0.33.0", process="1")
ASLEEP = AWAKE._replace(sleeping=True, level=1)


class Hand:
    """Drives a gate by hand; `asked` is the call that is under way."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        limits = AdmissionLimits(cap=2, queue=2, queue_timeout_s=30)
        self.gate = Gate(
            UpstreamKey("text"),
            limits,
            self.clock,
            Random(1),
            SleepConfig(kind=vllm.KIND, limits=LIMITS),
        )
        self.asked: Perform | None = None
        self.pass_time()

    def take(self, decisions: list[Decision]) -> None:
        """Remember the newest call."""
        for decision in decisions:
            if isinstance(decision, Perform):
                self.asked = decision

    def pass_time(self) -> None:
        """Go to the next deadline."""
        deadline_s = self.gate.next_deadline()
        assert deadline_s is not None
        self.clock.advance(deadline_s - self.clock.now())
        self.take([*self.gate.expire()])

    def answer(self, step: Step, seen: Seen | None = None) -> None:
        """Let the call under way, which must be this one, end well."""
        assert self.asked is not None
        assert self.asked.step is step
        report = Report(self.asked.number, StepResult.DONE, seen)
        self.asked = None
        self.take([*self.gate.report(report)])

    def go_on(self) -> Step:
        """Let time pass until there is another call, and return it."""
        before = self.asked
        while self.asked is before:
            self.pass_time()
        assert self.asked is not None
        return self.asked.step


def at_its_canary() -> Hand:
    hand = Hand()
    hand.answer(PROBE, AWAKE)
    assert hand.asked is not None
    assert hand.asked.step is CANARY
    return hand


def test_a_slow_first_token_is_waited_for_with_a_look_in_between() -> None:
    hand = at_its_canary()
    assert hand.go_on() is VERIFY_AWAKE
    hand.answer(VERIFY_AWAKE, AWAKE)
    hand.answer(CANARY)
    assert hand.gate.state is EngineState.AWAKE


def test_an_engine_that_another_hand_put_to_sleep_under_its_canary_is_soon_known_to_sleep() -> None:
    hand = at_its_canary()
    hand.go_on()
    hand.answer(VERIFY_AWAKE, ASLEEP)
    assert hand.go_on() is VERIFY_AWAKE
    hand.answer(VERIFY_AWAKE, ASLEEP)
    assert hand.go_on() is PROBE
    hand.answer(PROBE, ASLEEP)
    assert hand.gate.state is EngineState.SLEEPING
    assert hand.clock.now() < 15


def test_an_engine_that_never_answers_its_canaries_is_given_up() -> None:
    hand = at_its_canary()
    for _ in range(CANARIES - 1):
        assert hand.go_on() is VERIFY_AWAKE
        hand.answer(VERIFY_AWAKE, AWAKE)
        assert hand.asked is not None
        assert hand.asked.step is CANARY
    assert hand.go_on() is PROBE
    assert hand.gate.state is EngineState.UNKNOWN
    assert 60 <= hand.clock.now() < 65


def test_a_canary_that_fails_is_asked_once_more() -> None:
    hand = at_its_canary()
    following = CANARY
    for _ in range(2):
        assert hand.asked is not None
        assert following is CANARY
        hand.take([*hand.gate.report(Report(hand.asked.number, StepResult.FAILED))])
        following = hand.go_on()
    assert following is PROBE
    assert hand.gate.state is EngineState.UNKNOWN
