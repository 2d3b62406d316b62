"""What every kind of engine must keep, whatever it speaks: the wake machine leans on it."""

import json
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.core.wake.sequence import sleep_steps, wake_steps
from tornado_frontdoor.engines import DEFAULT_KIND, kinds, llama_cpp, sglang
from tornado_frontdoor.engines.base import (
    CANARY,
    CANARY_BODIES,
    PROBE,
    PROBE_IDLE,
    STOPPED,
    VERIFY_ASLEEP,
    VERIFY_AWAKE,
    Call,
    EngineKind,
    FirstToken,
    ProcessCall,
    Role,
    Sample,
    Seen,
    StepResult,
    first_token,
)
from tornado_frontdoor.engines.process import Stoppable

KINDS = {
    **kinds(),
    "llama.cpp, of a model": kinds()["llama.cpp"].serving("Qwen/a b&c"),
    **{f"{name}, stoppable": Stoppable(kind, 600.0, 30.0) for name, kind in kinds().items()},
}
VERSIONS = (None, "0.8.5", "0.16.0", "0.24.0", "0.33.0", "nonsense")
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


class Answered(NamedTuple):
    """An answer of an engine."""

    status: int
    body: bytes = b"{}"


def deepest() -> int:
    """How many lists within one another can be read here; what comes then depends on the stack."""
    read, too_many = 1, 1_000_000
    while too_many - read > 1:
        depth = (read + too_many) // 2
        try:
            json.loads(b"[" * depth + b"]" * depth)
            read = depth
        except RecursionError:
            too_many = depth
    return read


def ways_down(kind: EngineKind) -> list[tuple[str | None, int, bool]]:
    return [
        (version, level, asleep)
        for version in VERSIONS
        for level in kind.levels
        for asleep in (False, True)
        if not (asleep and level == 1)
    ]


def test_the_default_is_one_and_each_has_its_own_name() -> None:
    assert DEFAULT_KIND in kinds()
    assert all(kind.name == name for name, kind in kinds().items())


@every_kind
def test_a_fall_is_from_idle_by_one_sleep_to_a_proof(kind: EngineKind) -> None:
    for version, level, asleep in ways_down(kind):
        steps = sleep_steps(kind, version, level, asleep=asleep)
        assert steps[0] is PROBE_IDLE
        assert steps[-2].role is Role.SLEEP
        assert steps[-1] is VERIFY_ASLEEP
        assert [step.role for step in steps].count(Role.SLEEP) == 1
        roles = [step.role for step in steps]
        if Role.WAKE in roles:  # awake for a moment, it may have begun the work of others
            assert PROBE_IDLE in steps[roles.index(Role.WAKE) :]


@pytest.mark.parametrize("canary", [True, False])
@every_kind
def test_a_wake_ends_with_its_proof_and_weights_come_before_the_rest(
    kind: EngineKind, canary: bool
) -> None:
    for version in VERSIONS:
        for level in kind.levels:
            steps = wake_steps(kind, version, level, canary=canary)
            end = (VERIFY_AWAKE, CANARY) if canary else (VERIFY_AWAKE,)
            assert steps[-len(end) :] == end
            roles = [step.role for step in steps[: -len(end)]]
            assert roles
            assert set(roles) <= {Role.WAKE, Role.WAKE_WEIGHTS, Role.LOAD_WEIGHTS, Role.TIDY}
            if Role.WAKE_WEIGHTS in roles:
                assert roles.index(Role.WAKE_WEIGHTS) < roles.index(Role.LOAD_WEIGHTS)


@every_kind
def test_steps_say_what_they_do_and_for_how_long(kind: EngineKind) -> None:
    for version, level, asleep in ways_down(kind):
        for step in (
            *kind.sleep_steps(version, level, asleep=asleep),
            *kind.wake_steps(version, level),
        ):
            assert step.changes
            assert step.label
            assert step.timeout_s > 0
            assert isinstance(step.call, ProcessCall) is (level == STOPPED)
            if isinstance(step.call, Call):
                assert step.call.path.startswith("/")
                assert not step.call.body or json.loads(step.call.body)


@every_kind
def test_only_what_can_be_started_is_stopped(kind: EngineKind) -> None:
    assert (STOPPED in kind.levels) is kind.stops


@every_kind
def test_an_answer_is_a_success_only_with_200(kind: EngineKind) -> None:
    for status in (204, 301, 307, 400, 401, 403, 404, 405, 500, 501, 502, 503):
        assert kind.result(PROBE, Answered(status)) is not StepResult.DONE
        assert kind.result(CANARY, Answered(status)) is not StepResult.DONE
    assert kind.result(CANARY, Answered(200)) is StepResult.DONE
    assert kind.result(PROBE, Answered(404)) is StepResult.UNSUPPORTED


@pytest.mark.parametrize("path", CANARY_BODIES)
@every_kind
def test_a_canary_names_the_model(kind: EngineKind, path: str) -> None:
    call = kind.canary(path, "Served-Name")
    assert (call.method, call.path) == ("POST", path)
    assert json.loads(call.body)["model"] == "Served-Name"


@given(
    st.binary(max_size=200),
    st.binary(max_size=200),
    st.lists(
        st.builds(
            Sample,
            st.sampled_from(sorted({name for kind in KINDS.values() for name in kind.gauges})),
            st.dictionaries(st.just("sleep_state"), st.text(max_size=9), max_size=1),
            st.floats(),
        ),
        max_size=5,
    ),
)
def test_no_answer_of_an_engine_breaks_its_kind(
    state: bytes, beside: bytes, samples: list[Sample]
) -> None:
    for kind in KINDS.values():
        seen = kind.read_state(state, [beside] * len(kind.beside), samples)
        assert isinstance(seen, Seen | str)


@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("vllm", b'{"is_sleeping": true, "version": %b}'),
        ("llama.cpp", b'{"data": [{"id": "Served-Name", "status": %b}]}'),
        ("llama.cpp", b'[{"is_processing": %b}]'),
        ("sglang", b'{"weight_version": "default", "version": %b}'),
        ("process", b'{"choices": [{"text": %b}]}'),
    ],
)
def test_no_nest_of_lists_breaks_a_kind_however_deep(name: str, around: bytes) -> None:
    kind = kinds()[name]
    for depth in range(deepest() - 16, deepest() + 2):
        body = around % (b"[" * depth + b"]" * depth)
        assert isinstance(kind.read_state(body, [body] * len(kind.beside), []), Seen | str)
        for step in (PROBE, VERIFY_AWAKE):
            assert isinstance(kind.result(step, Answered(200, body)), StepResult)
        assert isinstance(first_token(body), FirstToken | None)


@pytest.mark.parametrize("status", ["unloaded", "loading", "failed"])
def test_a_routers_model_is_awake_only_when_it_is_loaded(status: str) -> None:
    kind = llama_cpp.LlamaCpp("small")

    def listed(value: str) -> bytes:
        models = [
            {"id": "big", "status": {"value": "loaded"}},
            {"id": "small-q4", "aliases": ["small"], "status": {"value": value}},
        ]
        return json.dumps({"data": models}).encode()

    idle, busy = b'[{"is_processing": false}]', b'[{"is_processing": true}]'
    assert kind.read_state(listed(status), [b""], []) == Seen(True, 2, 0, 0)
    assert kind.read_state(listed("loaded"), [idle], []) == Seen(False, 0, 0, 0, loaded=True)
    assert kind.read_state(listed("loaded"), [busy], []) == Seen(False, 0, 1, 0, loaded=True)
    assert kind.read_state(listed("loaded"), [b""], []) == Seen(False, 0, None, None, loaded=True)
    assert kind.result(VERIFY_AWAKE, Answered(200, listed("loading"))) is StepResult.BUSY
    assert kind.result(PROBE, Answered(200, listed("loading"))) is StepResult.DONE


def test_a_router_that_lacks_the_model_is_told_apart_from_a_llama_server_that_is_none() -> None:
    kind = llama_cpp.LlamaCpp("small")
    other = b'{"data": [{"id": "big", "status": {"value": "loaded"}}]}'
    assert kind.read_state(other, [b""], []) == "it has no model 'small'; it has: big"
    single = Answered(200, b'{"models": [], "data": [{"id": "small", "object": "model"}]}')
    assert kind.result(PROBE, single) is StepResult.UNSUPPORTED


def test_what_a_router_has_done_already_is_done() -> None:
    kind = llama_cpp.LlamaCpp("small")
    (load,), (unload,) = kind.wake_steps(None, 2), kind.sleep_steps(None, 2, asleep=False)
    running, stopped = b"model is already running", b"model is not running"
    assert kind.result(load, Answered(400, running)) is StepResult.DONE
    assert kind.result(load, Answered(400, stopped)) is StepResult.FAILED
    assert kind.result(unload, Answered(400, stopped)) is StepResult.DONE
    assert kind.result(load, Answered(404)) is StepResult.FAILED


def test_an_sglang_is_marked_before_it_is_released_and_unmarked_after_it_has_its_weights() -> None:
    kind = sglang.KIND
    told = {"enable_memory_saver": True, "model_path": "/m", "weight_version": "step-7"}
    seen = kind.read_state(json.dumps(told).encode(), [b""], [])
    assert isinstance(seen, Seen)
    assert (seen.sleeping, seen.level, seen.loaded) == (False, 0, True)
    mark, release = kind.sleep_steps(seen.version, 2, asleep=False)
    assert isinstance(mark.call, Call)
    assert release is sglang.RELEASE
    marked = json.loads(mark.call.body)
    assert marked == {"new_version": "frontdoor-slept:step-7", "abort_all_requests": False}

    told["weight_version"] = marked["new_version"]
    seen = kind.read_state(json.dumps(told).encode(), [b""], [])
    assert isinstance(seen, Seen)
    assert (seen.sleeping, seen.level, seen.loaded) == (None, None, False)
    *_, reload, cache, unmark = kind.wake_steps(seen.version, 2)
    assert isinstance(reload.call, Call)
    assert isinstance(unmark.call, Call)
    assert json.loads(reload.call.body)["model_path"] == "/m"
    assert cache is sglang.RESUME_KV_CACHE
    assert json.loads(unmark.call.body)["new_version"] == "step-7"


def test_an_sglang_without_its_memory_saver_cannot_sleep() -> None:
    told = Answered(200, b'{"weight_version": "default", "enable_memory_saver": false}')
    assert sglang.KIND.result(PROBE, told) is StepResult.UNSUPPORTED


def test_an_engine_is_known_to_be_idle_only_when_it_tells() -> None:
    told = b'{"weight_version": "default", "enable_memory_saver": true}'
    load = b'{"aggregate": {"total_running_reqs": 2, "total_waiting_reqs": 1}}'
    gauges = [Sample(name, {}, 1.0) for name in sorted(sglang.KIND.gauges)]
    for beside, samples, running in ((load, [], 3), (b"", gauges, 2), (b"", gauges[:1], None)):
        seen = sglang.KIND.read_state(told, [beside], samples)
        assert isinstance(seen, Seen)
        assert seen.running == running
