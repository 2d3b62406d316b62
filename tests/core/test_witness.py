"""The witnesses of the laws are believed only because each of them was seen to speak up."""

from collections.abc import Callable

import pytest

from simulator.model.engine_invariants import EngineWitness, judge_engine_counters
from simulator.model.invariants import LawError, QueueWitness, digest
from tornado_frontdoor.core.decisions import Outcome, Reason

Story = Callable[[QueueWitness], None]


def full(witness: QueueWitness) -> None:
    """One in flight and one in the line: all that a cap and a queue of one can take."""
    for number in (1, 2):
        witness.arrived(0.0, number)
        if number == 1:
            witness.admitted(0.0, 1, 0.0, 0.0)
        witness.settled(0.0)


def told(*calls: tuple[object, ...]) -> Story:
    def story(witness: QueueWitness) -> None:
        for name, *arguments in calls:
            getattr(witness, str(name))(*arguments)

    return story


@pytest.mark.parametrize(
    ("law", "story"),
    [
        (1, told(("ended", 0.0, 2, Outcome.SERVED), ("arrived", 0.0, 3), ("admitted", 0.0, 3))),
        (1, told(("arrived", 0.0, 3), ("settled", 0.0))),
        (
            2,
            told(
                ("arrived", 0.0, 3),
                ("ended", 1.0, 1, Outcome.SERVED),
                ("admitted", 1.0, 3),
            ),
        ),
        (1, told(("cools", 1.0, 1, Outcome.SERVED), ("admitted", 1.0, 2))),
        (3, told(("cools", 1.0, 1, Outcome.SERVED), ("let_go", 1.0, 1), ("settled", 1.0))),
        (4, told(("cools", 1.0, 2, Outcome.SERVED))),
        (4, told(("cools", 1.0, 1, Outcome.SERVED), ("arrived", 1.0, 1))),
        (4, told(("cools", 1.0, 1, Outcome.SERVED), ("agree", 1, 1))),
        (4, told(("let_go", 1.0, 1))),
        (4, told(("cooled", 1.0, 1))),
        (5, told(("cools", 0.5, 1, Outcome.SERVED), ("cooled", 1.0, 1))),
        (5, told(("cools", 0.5, 1, Outcome.SERVED), ("settled", 1.75))),
        (
            5,
            told(
                ("cools", 1.0, 1, Outcome.SERVED),
                ("refused", 2.0, 2, Reason.QUEUE_TIMEOUT),
                ("cooled", 2.0, 1),
            ),
        ),
        (
            5,
            told(
                ("cools", 1.0, 1, Outcome.SERVED),
                ("cooled", 2.0, 1),
                ("refused", 2.0, 2, Reason.QUEUE_TIMEOUT),
            ),
        ),
        (
            6,
            told(
                ("ended", 1.0, 2, Outcome.SERVED),
                ("cools", 1.0, 1, Outcome.SERVED),
                ("at_rest",),
            ),
        ),
        (3, told(("ended", 1.0, 1, Outcome.SERVED), ("settled", 1.0))),
        (
            3,
            told(
                ("ended", 1.0, 2, Outcome.SERVED),
                ("settled", 1.0),
                ("arrived", 1.0, 3),
                ("refused", 1.0, 3, Reason.QUEUE_FULL),
            ),
        ),
        (4, told(("ended", 1.0, 3, Outcome.SERVED))),
        (4, told(("refused", 1.0, 1, Reason.QUEUE_TIMEOUT))),
        (4, told(("admitted", 1.0, 1))),
        (4, told(("arrived", 1.0, 1))),
        (4, told(("refused", 1.0, 2, Reason.QUEUE_FULL))),
        (4, told(("refused", 1.0, 2, Reason.DRAINING))),
        (4, told(("refused", 1.0, 2, Reason.BAD_REQUEST))),
        (4, told(("drained", 1.0), ("settled", 1.0))),
        (4, told(("agree", 1, 0))),
        (5, told(("settled", 2.5))),
        (5, told(("refused", 1.5, 2, Reason.QUEUE_TIMEOUT))),
        (5, told(("paused", 1.0, 1.0), ("refused", 1.5, 2, Reason.MODEL_WAKING))),
        (5, told(("ended", 2.5, 1, Outcome.SERVED), ("admitted", 2.5, 2))),
        (5, told(("ended", 1.0, 1, Outcome.SERVED), ("admitted", 1.0, 2, 0.5, 0.0))),
        (5, told(("ended", 2.0, 1, Outcome.SERVED), ("refused", 2.0, 2, Reason.QUEUE_TIMEOUT))),
        (5, told(("paused", 2.5, 9.0), ("settled", 2.5))),
        (6, told(("at_rest",))),
        (7, told(("paused", 1.0, 9.0), ("ended", 1.0, 1, Outcome.SERVED), ("admitted", 1.0, 2))),
        (8, told(("engine_saw", 2))),
    ],
)
def test_a_broken_law_is_noticed(law: int, story: Story) -> None:
    witness = QueueWitness(1, 1, 2.0, cooling_limit_s=1.0)
    full(witness)
    with pytest.raises(LawError) as broken:
        story(witness)
    assert broken.value.law == law
    assert str(broken.value).startswith(f"law {law}: ")


def test_a_head_that_can_never_run_is_noticed() -> None:
    witness = QueueWitness(2, 1, 2.0)
    witness.arrived(0.0, 1, 2)
    witness.admitted(0.0, 1)
    witness.settled(0.0)
    witness.arrived(0.0, 2, 2)
    witness.settled(0.0)
    witness.limits_changed(0.0, 1, 1, 2.0)
    with pytest.raises(LawError, match="can never run"):
        witness.settled(0.0)


def test_a_lawful_life_passes_and_is_counted() -> None:
    witness = QueueWitness(1, 1, 2.0, cooling_limit_s=1.0)
    full(witness)
    witness.arrived(0.5, 3)
    witness.refused(0.5, 3, Reason.QUEUE_FULL)
    witness.settled(0.5)
    witness.paused(1.0, 30.0)
    witness.settled(1.0)
    witness.ended(5.0, 1, Outcome.UPSTREAM_ERROR)
    witness.settled(5.0)
    witness.resumed(6.0)
    witness.admitted(6.0, 2, 6.0, 5.0)
    witness.settled(6.0)
    witness.engine_saw(2)
    witness.agree(1, 0)
    witness.ended(7.0, 2, Outcome.SERVED)
    witness.settled(7.0)
    witness.at_rest()
    assert witness.arrivals == 3
    assert witness.ends == {
        Outcome.QUEUE_FULL: 1,
        Outcome.UPSTREAM_ERROR: 1,
        Outcome.SERVED: 1,
    }
    assert (witness.in_flight_max, witness.queued_max) == (1, 1)


def test_a_clock_that_is_a_little_off_is_forgiven_as_far_as_told() -> None:
    witness = QueueWitness(1, 1, 2.0, tolerance_s=0.01)
    full(witness)
    witness.settled(2.005)
    witness.refused(2.005, 2, Reason.QUEUE_TIMEOUT)
    with pytest.raises(ValueError, match="backwards"):
        witness.settled(1.0)


@pytest.mark.parametrize(
    "story",
    [
        lambda witness: witness.saw_request(),
        lambda witness: (witness.wake_began(), witness.wake_began()),
        lambda witness: witness.wake_ended(proven=True),
        lambda witness: witness.sleep_began(inside=1),
        lambda witness: (witness.wake_began(), witness.sleep_began(inside=0)),
        lambda witness: (
            witness.wake_began(),
            witness.wake_ended(proven=False),
            witness.saw_request(),
        ),
        lambda witness: (
            witness.wake_began(),
            witness.wake_ended(proven=True),
            witness.lost(),
            witness.saw_request(),
        ),
    ],
)
def test_an_engine_that_is_not_proven_awake_sees_nothing(
    story: Callable[[EngineWitness], object],
) -> None:
    with pytest.raises(LawError, match="law 7"):
        story(EngineWitness())


def test_a_proven_engine_serves_until_it_sleeps() -> None:
    witness = EngineWitness(proven=True)
    witness.saw_request()
    witness.sleep_began(inside=0)
    witness.wake_began()
    witness.wake_ended(proven=True)
    witness.saw_request()
    assert witness.wakes == 1


COUNTERS = {"in_flight": 0, "waiting": 0, "max_concurrent": 2, "order": ["a", "c"]}


def test_counters_of_an_engine_that_was_treated_well_pass() -> None:
    judge_engine_counters(COUNTERS, 2, ["a", "b", "c"])
    judge_engine_counters(COUNTERS | {"order": ["c", "a"]}, 2, ["a", "c"], in_order=False)
    judge_engine_counters(COUNTERS | {"in_flight": 1}, 2, ["a", "b", "c"], at_rest=False)


@pytest.mark.parametrize(
    ("law", "counters"),
    [
        (1, {"max_concurrent": 3}),
        (2, {"order": ["c", "a"]}),
        (6, {"in_flight": 1}),
        (6, {"waiting": 1}),
        (8, {"order": ["a", "x"]}),
    ],
)
def test_counters_of_an_engine_that_was_not_do_not(law: int, counters: dict[str, object]) -> None:
    with pytest.raises(LawError) as broken:
        judge_engine_counters(COUNTERS | counters, 2, ["a", "b", "c"])
    assert broken.value.law == law


def test_a_digest_depends_on_every_line_and_their_order() -> None:
    assert digest(["a", "b"]) == digest(iter(["a", "b"]))
    assert len({digest(lines) for lines in (["a", "b"], ["b", "a"], ["ab"], [], ["a\nb"])}) == 4
