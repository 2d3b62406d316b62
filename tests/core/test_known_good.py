"""A first token that is compared with what it was while the engine was known to be good."""

import json
from random import Random

import pytest
from test_wake_canary import ASLEEP, AWAKE, LIMITS, Hand

from tornado_frontdoor.core.decisions import (
    Decision,
    EngineState,
    JournalEntry,
    Remember,
    SleepDepth,
)
from tornado_frontdoor.core.gate import AdmissionLimits, Gate, SleepConfig
from tornado_frontdoor.core.request import Ticket, UpstreamKey
from tornado_frontdoor.core.wake.known_good import CanaryResult, KnownGood, differs
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import (
    CANARY,
    PROBE,
    Call,
    FirstToken,
    Report,
    StepResult,
    first_token,
    without_logprobs,
)

FOUR = FirstToken(" 4", -0.05)


@pytest.mark.parametrize(
    ("now", "other"),
    [
        (FOUR, False),
        (FirstToken(" 4", -0.2), False),
        (FirstToken(" 4", -0.9), True),
        (FirstToken("!", -0.05), True),
        (FirstToken("!", -11.0), True),
        (FirstToken(" 4"), False),
        (FirstToken("!"), True),
    ],
)
def test_another_token_or_a_very_different_probability_is_of_other_weights(now, other):
    assert differs(FOUR, now) is other


def test_of_two_that_are_as_likely_either_may_come_first():
    assert not differs(FirstToken(" 4", -0.9), FirstToken(" 5", -0.95))


def heard(known: KnownGood, token: FirstToken | None, *, fresh: bool) -> KnownGood:
    return known.heard(Report(1, StepResult.DONE, token=token), fresh=fresh)


def test_it_is_recorded_once_and_only_of_weights_that_nobody_has_touched():
    after_a_wake = heard(KnownGood(), FOUR, fresh=False)
    assert (after_a_wake.token, after_a_wake.result) == (None, CanaryResult.UNPROVEN)
    recorded = heard(after_a_wake, FOUR, fresh=True)
    assert (recorded.token, recorded.result) == (FOUR, CanaryResult.RECORDED)
    again = heard(recorded, FirstToken(" 4", -0.1), fresh=True)
    assert (again.token, again.result) == (FOUR, CanaryResult.MATCHED)
    garbage = heard(again, FirstToken("!", -9.0), fresh=True)
    assert (garbage.token, garbage.quarantined) == (FOUR, True)
    assert "its first token is '!' (-9.00), and was ' 4' (-0.05)" in garbage.detail


def test_an_answer_without_a_token_proves_nothing():
    assert heard(KnownGood(token=FOUR), None, fresh=False).result is CanaryResult.UNPROVEN


LOGPROBS = {"tokens": [" 4"], "token_logprobs": [-0.05]}
CONTENT = {"content": [{"token": " 4", "logprob": -0.05}]}


@pytest.mark.parametrize(
    ("body", "token"),
    [
        ({"choices": [{"text": " 4", "logprobs": LOGPROBS}]}, FOUR),
        ({"choices": [{"text": " 4", "logprobs": CONTENT}]}, FOUR),
        ({"choices": [{"message": {"content": None}, "logprobs": CONTENT}]}, FOUR),
        ({"choices": [{"text": " 4", "logprobs": None}]}, FirstToken(" 4")),
        ({"choices": [{"message": {"content": " 4"}}]}, FirstToken(" 4")),
        ({"object": "list", "data": [{"embedding": [0.25, 1.0]}]}, FirstToken("", 0.25)),
        ({"choices": [{"text": "", "logprobs": None}]}, None),
        ({"choices": []}, None),
        ({}, None),
        ([], None),
        (3, None),
        ({"object": "list", "data": [{"embedding": "AAAA"}]}, None),
    ],
)
def test_the_first_token_is_read_in_every_form(body, token):
    assert first_token(json.dumps(body).encode()) == token


def test_an_engine_without_log_probabilities_is_asked_without():
    plain = without_logprobs(Call("POST", "/", '{"logprobs": 1, "max_tokens": 1}'))
    assert plain is not None
    assert json.loads(plain.body) == {"max_tokens": 1}
    assert without_logprobs(plain) is None


class Door(Hand):
    """A hand that writes down what it is told to."""

    def take(self, decisions: list[Decision]) -> None:
        super().take(decisions)
        for decision in decisions:
            if isinstance(decision, Remember) and decision.number:
                written = Report(decision.number, StepResult.DONE)
                super().take([*self.gate.report(written)])


class TestMachine:
    """What a mismatch means for an engine."""

    def awake(self) -> Door:
        hand = Door()
        hand.answer(PROBE, AWAKE)
        self.say(hand, FOUR)
        assert hand.gate.state is EngineState.AWAKE
        return hand

    @staticmethod
    def say(hand: Hand, token: FirstToken) -> None:
        assert hand.asked is not None
        assert hand.asked.step is CANARY
        report = Report(hand.asked.number, StepResult.DONE, token=token)
        hand.asked = None
        hand.take([*hand.gate.report(report)])

    def garbage_after_a_wake(self) -> Door:
        hand = self.awake()
        assert hand.go_on() is PROBE
        hand.answer(PROBE, ASLEEP)
        hand.take([*hand.gate.wake_now()])
        for _ in range(6):
            if hand.asked is None:
                hand.pass_time()
            assert hand.asked is not None
            step = hand.asked.step
            if step is CANARY:
                break
            hand.answer(step, ASLEEP if step is PROBE else AWAKE)
        self.say(hand, FirstToken("!", -9.0))
        return hand

    def test_garbage_after_a_wake_is_no_wake_and_the_weights_are_read_again(self):
        hand = self.garbage_after_a_wake()
        assert hand.gate.state is not EngineState.AWAKE
        proof = hand.gate.proof
        assert proof is not None
        assert proof["quarantined"]
        labels = []
        while hand.gate.state is not EngineState.AWAKE:
            if hand.asked is None:
                hand.pass_time()
                continue
            step = hand.asked.step
            labels.append(step.label)
            if step is CANARY:
                self.say(hand, FOUR)
            else:
                hand.answer(step, AWAKE if step.probes else None)
        assert labels.index("reload_weights") < labels.index("canary")
        assert hand.gate.proof == proof | {"last": "matched", "detail": None, "quarantined": False}

    @pytest.mark.parametrize("comes", ["before the next try", "in the next try"])
    def test_nobody_is_held_for_longer_as_a_garbage_engine_is_tried_with_new_weights(self, comes):
        hand, caller = self.garbage_after_a_wake(), Ticket()
        if comes == "before the next try":
            hand.take([*hand.gate.arrive(caller)])
        while hand.gate.sleep_depth is not SleepDepth.OFFLOADED:
            if hand.asked is None:
                hand.pass_time()
            else:
                hand.answer(hand.asked.step, AWAKE)
        if comes == "in the next try":
            hand.take([*hand.gate.arrive(caller)])
        assert hand.gate.queued == 1
        assert caller.promised_s == LIMITS.hold_sleeping_s

    def test_who_came_before_the_first_canary_after_a_start_is_held_for_no_longer_by_garbage(self):
        hand, caller = self.awake(), Ticket()
        memory = JournalEntry(None, 0, True, AWAKE.process, FOUR)
        nap = SleepConfig(kind=vllm.KIND, limits=LIMITS, memory=memory)
        limits = AdmissionLimits(cap=2, queue=2, queue_timeout_s=30)
        hand.gate = Gate(UpstreamKey("text"), limits, hand.clock, Random(1), nap)
        hand.take([*hand.gate.arrive(caller)])
        hand.pass_time()
        hand.answer(PROBE, AWAKE)
        self.say(hand, FirstToken("!", -9.0))
        assert hand.gate.sleep_depth is SleepDepth.OFFLOADED
        assert caller.promised_s == LIMITS.hold_sleeping_s

    def test_an_operator_may_say_that_it_is_right_as_it_is(self):
        hand = self.garbage_after_a_wake()
        hand.take([*hand.gate.believe()])
        if hand.asked is None:
            hand.pass_time()
        hand.answer(PROBE, AWAKE)
        self.say(hand, FirstToken("!", -9.0))
        assert hand.gate.state is EngineState.AWAKE
        assert hand.gate.proof is not None
        assert hand.gate.proof["last"] == "recorded"

    def test_another_process_is_recorded_anew(self):
        hand = self.awake()
        assert hand.go_on() is PROBE
        hand.answer(PROBE, ASLEEP._replace(process="2"))
        assert hand.gate.proof is not None
        assert hand.gate.proof["known_good"] is None
