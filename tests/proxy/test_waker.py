"""The hands of a wake machine: what each step puts on the wire, what it reports of each end."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stopwatch import PATIENCE_S

from tornado_frontdoor.core.decisions import Perform
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import (
    CANARY,
    CANARY_BODIES,
    PROBE,
    PROBE_STEPS,
    Report,
    Seen,
    Step,
    StepResult,
)
from tornado_frontdoor.proxy.engine.control_client import EngineControlClient
from tornado_frontdoor.proxy.engine.prometheus_text import read_samples

METRICS = b"""# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="text"} 2.0
vllm:num_requests_running{engine="1",model_name="text"} 1.0
vllm:num_requests_waiting{engine="0",model_name="text"} 4.0
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0
vllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 0.0
process_start_time_seconds 1.75523e+09
"""

Say = Callable[[str, bytes], bytes | None]


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Bench:
    """A waker before an engine of a few words; `asked` is what it was asked, in order."""

    def __init__(self, waker: EngineControlClient) -> None:
        self.waker = waker
        self.asked: list[tuple[str, bytes]] = []
        self.reports: list[Report] = []
        self._numbers = 0
        self._came = asyncio.Event()

    def take(self, report: Report) -> None:
        self.reports.append(report)
        self._came.set()

    async def perform(self, step: Step, timeout_s: float = 5.0) -> Report:
        """Carry out one step and return its report."""
        self._numbers += 1
        self._came.clear()
        self.waker.perform(Perform(self._numbers, step, timeout_s))
        async with asyncio.timeout(PATIENCE_S):
            await self._came.wait()
        report = self.reports[-1]
        assert report.number == self._numbers
        return report


@contextlib.asynccontextmanager
async def bench(
    kit: Any, say: Say, canary: tuple[str, str] = ("/v1/completions", "text")
) -> AsyncIterator[Bench]:
    """Run a waker; `say` returns the whole answer to a request line, None for silence."""
    made: list[Bench] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await kit.read_request(reader)
            line = head.split(b" HTTP/1.1")[0].decode()
            made[0].asked.append((line, body))
            said = say(line, body)
            if said is None:
                return
            writer.write(said)
            await writer.drain()

    async with kit.engine(handler) as served, kit.client() as upstream:
        reports: list[Report] = []
        waker = EngineControlClient(upstream, served.url, vllm.KIND, canary, reports.append)
        held = Bench(waker)
        waker.report = held.take
        made.append(held)
        try:
            yield held
        finally:
            await waker.close()


def awake(line: str, _body: bytes) -> bytes:
    """Say what an engine says that is awake."""
    if line == "GET /is_sleeping":
        return answer(b'{"is_sleeping": false}')
    if line == "GET /metrics":
        return answer(METRICS)
    return answer(b'{"version": "0.33.0"}')


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [*vllm.STEPS, CANARY])
def test_each_step_is_one_call_with_all_it_means_in_its_line(kit: Any, step: Step) -> None:
    """Level, mode and tag are in the query: vLLM reads no body there."""

    async def scenario() -> None:
        async with bench(kit, lambda _line, _body: answer(b"{}")) as held:
            assert await held.perform(step) == Report(1, StepResult.DONE)
            ((line, body),) = held.asked
            if step.call is None:
                assert line == "POST /v1/completions"
                assert json.loads(body)["max_tokens"] == 1
            else:
                assert line == f"{step.call.method} {step.call.path}"
                assert body == step.call.body.encode()
            if "sleep" in line:
                assert f"level={step.label[-1]}" in line

    run(scenario)


@pytest.mark.parametrize("step", PROBE_STEPS)
def test_a_look_puts_three_answers_together(kit: Any, step: Step) -> None:
    async def scenario() -> None:
        async with bench(kit, awake) as held:
            report = await held.perform(step)
            seen = Seen(
                sleeping=False,
                level=1,
                running=3,
                waiting=4,
                version="0.33.0",
                process="1755230000.00",
            )
            assert report == Report(1, StepResult.DONE, seen)
            assert held.asked[0][0] == "GET /is_sleeping"
            assert {line for line, _ in held.asked[1:]} == {"GET /version", "GET /metrics"}

    run(scenario)


def test_a_look_needs_neither_gauges_nor_version(kit: Any) -> None:
    async def scenario() -> None:
        def say(line: str, _body: bytes) -> bytes:
            if line == "GET /is_sleeping":
                return answer(b'{"is_sleeping": true}')
            return answer(b"no", "404 Not Found")

        async with bench(kit, say) as held:
            assert await held.perform(PROBE) == Report(1, StepResult.DONE, Seen(sleeping=True))

    run(scenario)


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        *((f"{code} No", StepResult.UNSUPPORTED) for code in (404, 405, 501)),
        *((f"{code} No", StepResult.FAILED) for code in (400, 401, 500, 503)),
        ("307 Elsewhere", StepResult.FAILED),
    ],
)
@pytest.mark.parametrize("step", [PROBE, vllm.SLEEP_2, vllm.WAKE, vllm.RELOAD, CANARY])
def test_a_status_is_reported_with_its_words(
    kit: Any, status: str, ending: StepResult, step: Step
) -> None:
    async def scenario() -> None:
        async with bench(kit, lambda _line, _body: answer(b"no luck", status)) as held:
            report = await held.perform(step)
            assert report.ending is ending
            assert report.detail == f"status {status[:3]}: no luck"
            assert report.seen is None
            # A canary is asked once more, without what an engine may not know of.
            assert len(held.asked) == (2 if step is CANARY and "400" in status else 1)

    run(scenario)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b"asleep", b'{"sleeping": true}'])
def test_a_look_that_says_nothing_of_sleep_has_failed(kit: Any, body: bytes) -> None:
    async def scenario() -> None:
        async with bench(kit, lambda _line, _body: answer(body)) as held:
            assert (await held.perform(PROBE)).ending is StepResult.FAILED

    run(scenario)


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        (b'{"success":false}', StepResult.FAILED),
        (b'{"success":true}', StepResult.DONE),
        (b"", StepResult.DONE),
    ],
)
def test_a_reset_that_did_nothing_has_failed_though_it_says_200(
    kit: Any, body: bytes, ending: StepResult
) -> None:
    """V12: blocks are still held, so stale prefixes would be served."""

    async def scenario() -> None:
        async with bench(kit, lambda _line, _body: answer(body)) as held:
            assert (await held.perform(vllm.RESET_PREFIXES)).ending is ending

    run(scenario)


@pytest.mark.parametrize("step", [PROBE, vllm.SLEEP_1, vllm.RELOAD, CANARY])
def test_silence_is_a_time_limit_that_passed(kit: Any, step: Step) -> None:
    """Busy, not gone."""

    async def scenario() -> None:
        async with bench(kit, lambda _line, _body: None) as held:
            assert (await held.perform(step, timeout_s=1.0)).ending is StepResult.TIMED_OUT

    run(scenario)


@pytest.mark.parametrize("step", [PROBE, vllm.SLEEP_1, CANARY])
def test_nobody_there_is_lost(kit: Any, step: Step) -> None:
    async def scenario() -> None:
        async with bench(kit, awake) as held:
            held.waker._url = "http://127.0.0.1:9"
            report = await held.perform(step)
            assert report.ending is StepResult.LOST
            assert report.detail

    run(scenario)


def test_metrics_that_hang_do_not_hold_up_a_look(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tornado_frontdoor.proxy.engine.control_client.BESIDE_S", 0.2)

    async def scenario() -> None:
        def say(line: str, body: bytes) -> bytes | None:
            return None if line == "GET /metrics" else awake(line, body)

        async with bench(kit, say) as held:
            report = await held.perform(PROBE)
            assert report.ending is StepResult.DONE
            assert report.seen == Seen(sleeping=False, version="0.33.0")

    run(scenario)


@pytest.mark.parametrize("path", CANARY_BODIES)
def test_a_canary_asks_for_one_token_of_the_served_model(kit: Any, path: str) -> None:
    async def scenario() -> None:
        async with bench(kit, lambda _line, _body: answer(b"{}"), (path, "Served-Name")) as held:
            await held.perform(CANARY)
            line, body = held.asked[0]
            assert line == f"POST {path}"
            assert json.loads(body)["model"] == "Served-Name"
            assert ("max_tokens" in json.loads(body)) is (path != "/v1/embeddings")

    run(scenario)


def test_what_nobody_foresaw_is_reported_and_logged(
    kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a report the machine would wait for the time limit."""

    async def scenario() -> None:
        async with bench(kit, awake) as held:
            held.waker.canary = ("/nowhere", "text")
            with caplog.at_level(logging.ERROR):
                report = await held.perform(CANARY)
            assert (report.ending, report.detail) == (StepResult.FAILED, "see the log")
            assert "canary" in caplog.text

    run(scenario)


def test_what_is_abandoned_reports_nothing(kit: Any) -> None:
    async def scenario() -> None:
        async with bench(kit, lambda _line, _body: None) as held:
            held.waker.perform(Perform(1, vllm.WAKE, 60.0))
            async with asyncio.timeout(PATIENCE_S):
                while not held.asked:  # noqa: ASYNC110 - the engine has no event for it
                    await asyncio.sleep(0.002)
            await held.waker.close()
            assert held.reports == []

    run(scenario)


# Reading


def read_look(*, sleeping: bool, version: bytes, metrics: bytes) -> Seen:
    """Return what a probe that brought this has seen."""
    state = json.dumps({"is_sleeping": sleeping}).encode()
    samples = read_samples(metrics, vllm.KIND.gauges)
    seen = vllm.KIND.read_state(state, [version], samples)
    assert isinstance(seen, Seen)
    return seen


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_answer_of_an_engine_breaks_a_look(version: bytes, metrics: bytes) -> None:
    seen = read_look(sleeping=True, version=version, metrics=metrics)
    assert seen.sleeping
    assert seen.level in (None, 0, 1, 2)


@given(st.text(alphabet='vllm:num_requests_running{}"=, \n01.eE+-Na', max_size=200))
def test_odd_gauges_say_nothing_or_a_number(text: str) -> None:
    seen: Any = read_look(sleeping=False, version=b"", metrics=text.encode())
    assert seen.running is None or isinstance(seen.running, int)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_gauge_that_is_no_number_says_nothing(value: str) -> None:
    text = f"vllm:num_requests_running {value}\nprocess_start_time_seconds {value}\n"
    seen = read_look(sleeping=False, version=b"{}", metrics=text.encode())
    assert (seen.running, seen.process) == (None, None)


@pytest.mark.parametrize("end", ["\n", "\r\n", " 1395066363000\n", "\n\n# EOF\n"])
def test_gauges_are_read_however_a_line_is_written(end: str) -> None:
    """A label may hold a brace, a sample a time, a line the end of another system."""
    name = 'vllm:num_requests_running{engine="0",model_name="a}b,c=\\"d\\""} 3'
    lines = (
        f"garbage{{ 1\n{name}{end}vllm:num_requests_running_total 9\nvllm:num_requests_waiting 0\n"
    )
    seen = read_look(sleeping=False, version=b"", metrics=lines.encode())
    assert (seen.running, seen.waiting) == (3, 0)
