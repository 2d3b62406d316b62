"""What is about to be done is on the disk first; what cannot be written down is not done."""

import pytest
from wake_scenes import Scene, of, transitions

from tornado_frontdoor.core.decisions import Answered, EngineState, JournalEntry, Note, Verdict
from tornado_frontdoor.core.wake.machine import JOURNAL_LIMIT_S


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("level", [1, 2])
def test_an_awake_engine_stays_awake_when_its_sleep_cannot_be_written_down(scene, level):
    """No call was made, its weights were never dropped: it goes on serving."""
    site = scene.site()
    site.disk_full = True
    site.call(lambda: site.gate.sleep_now(level))
    scene.pass_s(1.0)
    assert site.gate.state is EngineState.AWAKE
    assert transitions(site) == []
    (answer,) = of(site, Answered)
    assert (answer.verdict, answer.level) == (Verdict.FAILED, level)
    assert "could not be written down: the disk is full" in answer.detail
    site.arrive(1.0)
    scene.pass_s(1.0)
    assert site.ends["served"] == 1
    assert transitions(site) == []


def test_an_idle_tier_is_tried_again_when_the_disk_has_room(scene):
    site = scene.site(idle_sleep_s=10.0)
    site.disk_full = True
    scene.pass_s(20.0)
    assert site.gate.state is EngineState.AWAKE
    assert transitions(site) == []
    assert any("stays awake" in note.text for note in of(site, Note))
    site.disk_full = False
    scene.wait_for(lambda: site.gate.state is EngineState.SLEEPING, within_s=60.0)


def test_a_wake_waits_out_a_full_disk_and_its_callers_are_served(scene):
    site = scene.site(asleep=2)
    site.disk_full = True
    site.arrive(1.0)
    scene.pass_s(4.0)
    assert transitions(site) == []
    assert any("could not be written down" in note.text for note in of(site, Note))
    site.disk_full = False
    scene.wait_for(lambda: site.ends["served"] == 1, within_s=60.0)
    assert site.gate.state is EngineState.AWAKE


def test_a_disk_that_never_answers_is_given_up(scene):
    site = scene.site(asleep=1)
    site._write_down = lambda _memory, _number: None  # type: ignore[method-assign]
    site.arrive(1.0)
    scene.pass_s(JOURNAL_LIMIT_S + 1.0)
    assert transitions(site) == []
    assert any("no answer" in note.text for note in of(site, Note))


def test_who_comes_while_a_sleep_is_being_written_down_is_served_at_once(scene):
    """And the next front door is not told of a sleep that never was."""
    site = scene.site()
    written = []
    site._write_down = lambda memory, number: written.append((memory, number))  # type: ignore[method-assign]
    site.call(lambda: site.gate.sleep_now(2))
    scene.pass_s(0.5)
    assert written[-1][0] == JournalEntry(EngineState.FALLING_ASLEEP, 2, False, "0")
    site.arrive(1.0)
    scene.pass_s(2.0)
    assert site.ends["served"] == 1
    assert written[-1] == (JournalEntry(None, 0, True, "0"), 0)
    assert transitions(site) == []
    assert of(site, Answered) == [Answered("sleep", Verdict.BUSY, "somebody came", 2)]
