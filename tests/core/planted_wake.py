"""Bugs that the wake machine must never have, as patches of its methods: the tests are tested.

Each names the test of this room that catches it. They come from published faults of engines and of
those who put them to sleep, from what went wrong on the way here, and from reading `core/wake/`.
"""

import importlib
import inspect
import textwrap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tornado_frontdoor.core.gate import Gate
from tornado_frontdoor.core.gpu_sizes import GpuSizes
from tornado_frontdoor.core.wake.known_good import KnownGood
from tornado_frontdoor.core.wake.machine import WakeStateMachine as Machine
from tornado_frontdoor.core.wake.observed import ObservedEngine as Engine
from tornado_frontdoor.core.wake.operator_requests import OperatorRequests as Requests
from tornado_frontdoor.core.wake.policy import Backoff, Idleness, SleepPolicy
from tornado_frontdoor.core.wake.sequence import Transition


class Patch(NamedTuple):
    """What stands once in one method, what is put in its place, and who notices."""

    owner: type[Any]
    method: str
    old: str
    new: str
    caught_by: str


PLANTED: Mapping[str, Patch] = MappingProxyType(
    {
        # What is taken for proof
        "awake without a canary": Patch(
            Machine,
            "_wake_up",
            "canary=self.policy.canary",
            "canary=False",
            "test_wake_canary.test_a_canary_that_fails_is_asked_once_more",
        ),
        "canary forgotten after a wake": Patch(
            Machine,
            "_done",
            "canary=self.policy.canary",
            "canary=False",
            "test_wake_waking.test_how_long_a_wake_took_is_told_and_learned",
        ),
        "a silent canary counts": Patch(
            Transition,
            "_judge_canary",
            "if report.ending in (StepResult.DONE, StepResult.UNSUPPORTED)",
            "if report.ending is not StepResult.FAILED",
            "test_wake_canary.test_an_engine_that_another_hand_put_to_sleep_under_its_canary_is_soon_known_to_sleep",
        ),
        "garbage is let pass": Patch(
            Transition,
            "_judge_canary",
            "if proof.quarantined:",
            "if False:",
            "test_known_good.TestMachine.test_garbage_after_a_wake_is_no_wake_and_the_weights_are_read_again",
        ),
        "garbage is recorded as good": Patch(
            KnownGood,
            "heard",
            "return self._compared(self.token, token)",
            "return KnownGood(token=token, result=CanaryResult.MATCHED)",
            "test_known_good.test_it_is_recorded_once_and_only_of_weights_that_nobody_has_touched",
        ),
        "what a wake has left is recorded as good": Patch(
            KnownGood,
            "heard",
            "if not fresh:",
            "if False:",
            "test_known_good.test_it_is_recorded_once_and_only_of_weights_that_nobody_has_touched",
        ),
        "weights are trusted that answer with garbage": Patch(
            Engine,
            "heard",
            "self.trusted and not (proof.quarantined and reloads)",
            "self.trusted",
            "test_known_good.TestMachine.test_garbage_after_a_wake_is_no_wake_and_the_weights_are_read_again",
        ),
        "another process is held to the answers of the first": Patch(
            Engine,
            "_understand",
            "0, True, False, NOTHING_KNOWN",
            "0, True, False, self.proof",
            "test_known_good.TestMachine.test_another_process_is_recorded_anew",
        ),
        "a full GPU teaches nothing": Patch(
            GpuSizes,
            "ran_out",
            "return replace(self, needs_gib=needs_gib, counted_gib=set_gib)",
            "return self",
            "test_gpu_sizes.test_the_next_wake_makes_one_more_go",
        ),
        "a full GPU teaches also where nobody can go": Patch(
            GpuSizes,
            "ran_out",
            "if short_gib <= 0:",
            "if False:",
            "test_gpu_sizes.test_nothing_is_learned_where_nobody_else_could_make_room",
        ),
        "what was learned outlives its settings": Patch(
            GpuSizes,
            "awake_gib",
            "if self.counted_gib == set_gib",
            "if True",
            "test_gpu_sizes.test_another_number_in_the_settings_is_believed",
        ),
        "a canary is asked once": Patch(
            Transition,
            "_judge_canary",
            "if silences == CANARIES",
            "if silences == 1",
            "test_wake_canary.test_an_engine_that_another_hand_put_to_sleep_under_its_canary_is_soon_known_to_sleep",
        ),
        "canaries for ever": Patch(
            Transition,
            "_judge_canary",
            "if silences == CANARIES",
            "if False",
            "test_wake_canary.test_an_engine_that_never_answers_its_canaries_is_given_up",
        ),
        "asked again without a probe": Patch(
            Transition,
            "_judge_canary",
            "VERIFY_AWAKE, CANARY",
            "CANARY",
            "test_wake_canary.test_an_engine_that_another_hand_put_to_sleep_under_its_canary_is_soon_known_to_sleep",
        ),
        "a failed canary counts": Patch(
            Transition,
            "_judge_canary",
            "return self._once_more(report)",
            "return Judgement(self, NextAction.NEXT)",
            "test_wake_canary.test_a_canary_that_fails_is_asked_once_more",
        ),
        "awake is taken at its word": Patch(
            Engine,
            "_understand",
            "if trusted else EngineEvent.FOUND_DOUBTFUL",
            "if True else EngineEvent.FOUND_DOUBTFUL",
            "test_wake_table.test_a_proof_is_none_for_weights_that_nobody_has_loaded",
        ),
        "dropped weights are trusted": Patch(
            Engine,
            "falling",
            "trusted=self.trusted and level != 2",
            "trusted=self.trusted",
            "test_wake_table.test_what_is_about_to_be_done_is_written_down_before_it_is_done",
        ),
        "loaded weights are not trusted": Patch(
            Engine,
            "loaded",
            "trusted=True",
            "trusted=self.trusted",
            "test_wake_waking.test_an_operators_wake_takes_the_same_way",
        ),
        "a new process is the old one": Patch(
            Engine,
            "_understand",
            "if self.process is not None and process != self.process",
            "if False",
            "test_wake_trouble.TestFailures.test_weights_that_cannot_be_loaded_keep_level_2_out_of_use",
        ),
        "the gauge is believed": Patch(
            Engine,
            "_understand",
            "if told == 1 and trusted",
            "if told == 1",
            "test_wake_trouble.TestOtherHands.test_a_gauge_that_believes_a_sleep_that_did_nothing_is_not_believed",
        ),
        "level 2 is taken for 1": Patch(
            Engine,
            "_understand",
            "level, trusted, event = 2, False",
            "level, trusted, event = 1, False",
            "test_wake_table.test_what_is_about_to_be_done_is_written_down_before_it_is_done",
        ),
        "one error closes": Patch(
            Engine,
            "_puzzled",
            "known.failures < 2",
            "known.failures < 1",
            "test_wake_doubts.test_one_error_of_its_state_is_chance",
        ),
        "errors never close": Patch(
            Engine,
            "_puzzled",
            "known.failures < 2 or in_use",
            "True",
            "test_wake_doubts.test_an_idle_engine_whose_state_is_an_error_twice_is_not_taken_for_awake",
        ),
        "errors close an engine in use": Patch(
            Engine,
            "_puzzled",
            " or in_use",
            "",
            "test_wake_doubts.test_an_engine_that_serves_us_is_not_closed_over_errors_of_its_state",
        ),
        "complaints are not heard": Patch(
            Machine,
            "suspect",
            "self._suspected = True",
            "pass",
            "test_wake_doubts.test_errors_of_its_state_count_once_a_caller_has_complained",
        ),
        "a probe by the way": Patch(
            Machine,
            "suspect",
            "self.next_s = now",
            "pass",
            "test_wake_trouble.TestOtherHands.test_an_end_that_a_sleep_would_explain_is_looked_into_at_once",
        ),
        # Calls
        "late reports count": Patch(
            Machine,
            "report",
            "report.number == call.number",
            "report.number <= call.number",
            "test_wake_doubts.test_what_comes_of_an_earlier_call_is_not_that_of_the_one_under_way",
        ),
        "no patience": Patch(
            Engine,
            "_impatient",
            "min(self.patience * 2, LONGEST_PATIENCE)",
            "self.patience",
            "test_wake_doubts.test_a_probe_without_answer_is_told_once",
        ),
        "busy counts as a failure": Patch(
            Transition,
            "_judge_probe",
            "return Judgement(self, NextAction.AGAIN)",
            "return self._once_more(report=Report(0, StepResult.FAILED))",
            "test_wake_doubts.test_an_engine_that_is_busy_when_it_is_to_prove_itself_has_not_failed",
        ),
        "no second try": Patch(
            Transition,
            "_once_more",
            "if tried.tries < limit",
            "if False",
            "test_wake_canary.test_a_canary_that_fails_is_asked_once_more",
        ),
        "tries without end": Patch(
            Transition,
            "_once_more",
            "if tried.tries < limit",
            "if True",
            "test_wake_canary.test_a_canary_that_fails_is_asked_once_more",
        ),
        "a call that timed out is repeated": Patch(
            Transition,
            "judge",
            "if ending is not StepResult.FAILED or final",
            "if final",
            "test_wake_trouble.TestFailures.test_a_step_that_times_out_is_not_repeated_before_a_look_was_answered",
        ),
        "an old release wakes twice": Patch(
            Transition,
            "judge",
            "or final",
            "",
            "test_wake_doubts.test_a_release_that_a_second_wake_can_kill_is_looked_at_first",
        ),
        "a hung call is forgotten": Patch(
            Machine,
            "_ended",
            "elif blind and step.changes:\n        self._unsure = True",
            "elif False:\n        pass",
            "test_wake_trouble.TestNeighbours.test_a_neighbour_that_hangs_keeps_its_gpu_and_nothing_else",
        ),
        "a dropped call is forgotten": Patch(
            Machine,
            "_end",
            "self._unsure |= call.step.changes",
            "pass",
            "test_wake_doubts.test_a_gpu_is_kept_while_a_call_may_have_its_effect_that_was_given_up",
        ),
        "the GPU is kept for ever": Patch(
            Machine,
            "_ended",
            "self._unsure = self._starting = False  # it",
            "pass  # it",
            "test_wake_doubts.test_a_gpu_is_kept_while_a_call_may_have_its_effect_that_was_given_up",
        ),
        "the GPU is not asked for": Patch(
            Machine,
            "_begin",
            "if self._gpu is Lock.GRANTED",
            "if True",
            "test_gate_wake.TestGpus.test_news_of_a_gpu_that_was_given_back_meanwhile_begins_nothing",
        ),
        # Sleeping
        "asleep with callers inside": Patch(
            Machine,
            "_reconsider",
            "if not run.wakes and (self._wanted or self._draining)",
            "if False",
            "test_wake_sleeping.TestOperators.test_a_caller_who_comes_first_wins",
        ),
        "callers count when they end": Patch(
            Machine,
            "demand",
            "self._inside = inside",
            "self._inside = max(self._inside - 1, 0)",
            "test_wake_table.test_a_proof_is_none_for_weights_that_nobody_has_loaded",
        ),
        "work of others is cut off": Patch(
            Transition,
            "_judge_idleness",
            "if work == 0",
            "if True",
            "test_wake_sleeping.test_work_of_another_hand_keeps_it_awake_until_it_is_done",
        ),
        "gauges that do not tell mean idle": Patch(
            Transition,
            "_judge_idleness",
            "if self.reason is SleepReason.OPERATOR",
            "if True",
            "test_wake_sleeping.test_an_engine_that_does_not_show_its_work_is_put_to_sleep_by_operators_only",
        ),
        "operators are asked for gauges": Patch(
            Transition,
            "_judge_idleness",
            "if self.reason is SleepReason.OPERATOR",
            "if False",
            "test_wake_sleeping.test_an_engine_that_does_not_show_its_work_is_put_to_sleep_by_operators_only",
        ),
        "idleness runs from the start": Patch(
            Idleness,
            "used",
            "Idleness(now, self.keep)",
            "self",
            "test_wake_sleeping.test_an_idle_time_shorter_than_the_wake_puts_nobody_to_sleep_again",
        ),
        "idleness runs during a wake": Patch(
            Machine,
            "_awake",
            "self.touch(now)",
            "pass",
            "test_wake_sleeping.test_a_sleep_that_fails_is_tried_once_more_and_then_not_at_once",
        ),
        "never deeper than level 1": Patch(
            SleepPolicy,
            "tiers",
            "and to > level",
            "and to > level and level == 0",
            "test_wake_sleeping.test_who_comes_on_the_way_down_turns_it_around_before_the_weights_are_gone",
        ),
        "the deeper tier is skipped": Patch(
            Idleness,
            "due",
            "max(reached",
            "min(reached",
            "test_wake_sleeping.test_both_tiers_at_once_go_straight_to_the_deeper",
        ),
        "a level that does not come back is used": Patch(
            Machine,
            "usable_levels",
            "if engine.reload_fault is None",
            "if True",
            "test_wake_trouble.TestFailures.test_weights_that_cannot_be_loaded_keep_level_2_out_of_use",
        ),
        "a sleep that failed is tried at once": Patch(
            Machine,
            "_fall_out",
            "self.sleep_backoff = self.sleep_backoff.failed(now)",
            "pass",
            "test_wake_doubts.test_a_sleep_that_keeps_failing_is_tried_ever_more_rarely",
        ),
        # What stands for longer than a request
        "a pin is no pin": Patch(
            Machine,
            "_due",
            "if self.pinned or self.standing.kept",
            "if self.standing.kept",
            "test_standing.test_a_pin_keeps_idle_tiers_away_and_its_end_gives_them_back",
        ),
        "a keep is none": Patch(
            Machine,
            "_due",
            "if self.pinned or self.standing.kept",
            "if self.pinned",
            "test_standing.test_a_keep_does_so_too",
        ),
        "a pin comes too late for a fall that has not begun": Patch(
            Machine,
            "stand",
            "if undone and",
            "if False and",
            "test_standing.test_a_pin_that_comes_in_time_calls_a_fall_off",
        ),
        "a pin makes room all the same": Patch(
            Machine,
            "room_refused",
            "unable or self.pinned",
            "unable",
            "test_standing.test_another_makes_room_in_the_place_of_one_that_is_pinned_meanwhile",
        ),
        "the file's pin outranks an operator's sleep": Patch(
            Machine,
            "_due",
            "if order is not None and self.state is AWAKE",
            "if order is not None and not self.pinned and False",
            "test_standing.test_an_order_to_sleep_outranks_a_pin_of_the_configuration",
        ),
        "a queue waits for one that is to sleep on": Patch(
            Gate,
            "stand",
            "if standing.asleep is not None",
            "if False",
            "test_standing.test_one_that_is_busy_lets_its_requests_end_and_refuses_its_queue",
        ),
        "newcomers are let in to one that is to sleep": Patch(
            Gate,
            "_match_capacity",
            "self.makes_room or wake.standing.asleep",
            "self.makes_room",
            "test_standing.test_one_that_is_busy_lets_its_requests_end_and_refuses_its_queue",
        ),
        "who is not worth a wake waits for one": Patch(
            Gate,
            "_bar",
            "not terms.wakes",
            "False",
            "test_wake_terms.test_a_stray_request_does_not_wait_for_a_wake_of_others",
        ),
        "what does not count keeps awake by what it says": Patch(
            Machine,
            "served",
            "if terms is None or terms.counts",
            "if True",
            "test_wake_terms.test_never_does_not_keep_an_engine_awake_by_what_it_says",
        ),
        "the last caller's keep_alive holds for those after": Patch(
            Idleness,
            "used",
            "Idleness(now, self.keep)",
            "Idleness(now, self.keep, self.last_word)",
            "test_wake_terms.test_who_comes_after_has_all_of_the_idle_tier",
        ),
        "anybody may shorten what another wanted": Patch(
            Idleness,
            "ended",
            "before.by != terms.by",
            "False",
            "test_wake_terms.test_of_two_callers_the_longer_wish_counts_and_only_its_owner_shortens_it",
        ),
        # Waking
        "a wake that failed is tried at once": Patch(
            Machine,
            "_fall_out",
            "self.wake_backoff = self.wake_backoff.failed(now, first_s=0.0 if learned else None)",
            "pass",
            "test_wake_doubts.test_a_release_that_a_second_wake_can_kill_is_looked_at_first",
        ),
        "the pause never ends": Patch(
            Machine,
            "_awake",
            "self.wake_backoff = Backoff()",
            "pass",
            "test_wake_doubts.test_a_release_that_a_second_wake_can_kill_is_looked_at_first",
        ),
        "pauses do not grow": Patch(
            Backoff,
            "failed",
            "self.failures + 1",
            "self.failures",
            "test_wake_trouble.TestFailures.test_the_pause_doubles_up_to_its_longest",
        ),
        "an operator waits for the pause": Patch(
            Machine,
            "wake",
            "self.wake_backoff = Backoff()",
            "pass",
            "test_wake_doubts.test_an_operator_need_not_wait_for_the_end_of_a_pause",
        ),
        "a wake that nobody wants goes on": Patch(
            Machine,
            "_reconsider",
            "elif run.optional and",
            "elif False and",
            "test_gate_wake.TestGpus.test_news_of_a_gpu_that_was_given_back_meanwhile_begins_nothing",
        ),
        "an unfinished wake is forgotten": Patch(
            Machine,
            "__init__",
            "OperatorRequests(wake=memory.going is WAKING)",
            "OperatorRequests()",
            "test_wake_trouble.TestRestarts.test_a_wake_that_had_begun_is_finished_also_if_nobody_waits",
        ),
        "a wake's time has its wait for the GPU": Patch(
            Machine,
            "granted",
            "self.transition = replace(run, began_s=now)",
            "pass",
            "test_wake_doubts.test_a_gpu_is_kept_while_a_call_may_have_its_effect_that_was_given_up",
        ),
        # What is written down
        "done before it is written": Patch(
            Transition,
            "must_be_written",
            "self.step.role is Role.SLEEP or (self.begins and self.moves_memory)",
            "False",
            "test_wake_table.test_what_is_about_to_be_done_is_written_down_before_it_is_done",
        ),
        "done though it is not written": Patch(
            Machine,
            "_after_writing",
            "if report.ending is not StepResult.DONE",
            "if False",
            "test_wake_journal.test_a_disk_that_never_answers_is_given_up",
        ),
        "weights count as dropped too soon": Patch(
            Machine,
            "_write_down",
            "engine = self.engine\n",
            "engine = self.engine = self.engine.falling(2)\n",
            "test_wake_table.test_what_is_about_to_be_done_is_written_down_before_it_is_done",
        ),
        "a dropped sleep stays written down": Patch(
            Machine,
            "_end",
            "self._remember(None)",
            "pass",
            "test_wake_journal.test_who_comes_while_a_sleep_is_being_written_down_is_served_at_once",
        ),
        "rest is not written down": Patch(
            Machine,
            "_rest",
            "self._remember(None)",
            "pass",
            "test_wake_trouble.TestRestarts.test_what_was_learned_is_known_again",
        ),
        # Operators
        "one answer for two operators": Patch(
            Machine,
            "sleep",
            "self._orders.append(answer)",
            "self._answer_sleep(answer.verdict, answer.detail)",
            "test_wake_doubts.test_busy_names_what_it_is_busy_with",
        ),
        "who is overruled is not told": Patch(
            Machine,
            "sleep",
            "if self._requests.sleep not in (None, level)",
            "if False",
            "test_wake_doubts.test_an_operator_who_is_overruled_is_told_so",
        ),
        "asleep is answered too soon": Patch(
            Requests,
            "after",
            "not falling",
            "True",
            "test_wake_sleeping.TestOperators.test_sleep_is_answered_when_it_sleeps",
        ),
        "a failed wake is not told": Patch(
            Requests,
            "after",
            "elif self.wake and event in _BROKEN",
            "elif False",
            "test_wake_sleeping.TestOperators.test_a_wake_that_fails_is_answered_too",
        ),
    }
)


def broken(patch: Patch) -> Any:
    """Return the method with the bug; raises ValueError when its place is not found once."""
    found = inspect.getattr_static(patch.owner, patch.method)
    function = found.fget if isinstance(found, property) else found
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(patch.old) != 1:
        raise ValueError(f"not found once in {patch.method}: {patch.old}")
    module = importlib.import_module(patch.owner.__module__)
    namespace = dict(vars(module))
    code = compile(source.replace(patch.old, patch.new), f"<{patch.method}>", "exec")
    exec(code, namespace)  # noqa: S102 - our own source
    return namespace[patch.method]
