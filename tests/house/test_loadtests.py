"""Load tests measure what they say: schedules, exact values, objectives, laws, failures."""

import asyncio
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from loadtests.harness import laws, watch
from loadtests.harness.prediction import Row
from loadtests.harness.scenarios import REASONING, SCENARIOS, StandInEngine
from loadtests.lib import arrivals, dialects, holds, objectives
from loadtests.lib.samples import Samples, digest, percentile

ROOT = Path(__file__).parents[2]

# Schedules


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential_law() -> None:
    times = list(islice(arrivals.poisson(4.0, random.Random(1)), 100_000))
    gaps = [after - before for before, after in pairwise([0.0, *times])]
    mean = math.fsum(gaps) / len(gaps)
    spread = math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(0.25, rel=0.02)
    assert spread / mean == pytest.approx(1.0, abs=0.02)


def test_a_rate_of_zero_never_comes() -> None:
    assert list(arrivals.poisson(0.0, random.Random(1))) == []


def trace_of(text: str, folder: Path, thin: float = 1.0) -> list[float]:
    path = folder / "trace.csv"
    path.write_text(text)
    return list(arrivals.trace(path, thin, random.Random(1)))


@pytest.mark.parametrize(
    "text",
    [
        "10\n10.5\n12\n",
        "arrival_s,tokens\n10,1\n10.5,2\n12,3\n",
        "tokens,timestamp_ms\n1,10000\n2,10500\n3,12000\n",
        "TIMESTAMP,n\n2023-11-16 18:15:10,4\n2023-11-16 18:15:10.5000000,5\n2023-11-16 18:15:12,6",
    ],
)
def test_a_trace_begins_with_its_first_row_in_whatever_unit(text: str, tmp_path: Path) -> None:
    assert trace_of(text, tmp_path) == pytest.approx([0.0, 0.5, 2.0])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("arrival_s\n1\nsoon\n", "line 3: 'soon' is not a time"),
        ("arrival_s\n1\nnan\n", "line 3: 'nan' is not a time"),
        ("n,arrival_s\n1,1\n2\n", "line 3: '2' is not a time"),
        ("arrival_s\n2\n1\n", "line 3: its time is before that of the row above it"),
        ("", "has no rows"),
    ],
)
def test_a_trace_that_cannot_be_played_says_why(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=complaint):
        trace_of(text, tmp_path)


def test_empty_lines_of_a_trace_are_nothing(tmp_path: Path) -> None:
    assert trace_of("arrival_s\n\n1\n2\n\n", tmp_path) == [0.0, 1.0]


@pytest.mark.parametrize("text", ["exp:0", "exp:x", "norm:3", "-1", "", "exp:", "nan", "inf"])
def test_a_hold_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not S or exp:S"):
        holds.parse(text)


def test_holds_are_constant_or_exponential() -> None:
    rng = random.Random(1)
    assert {holds.parse("2")(rng) for _ in range(9)} == {2.0}
    drawn = [holds.parse("exp:2")(rng) for _ in range(20_000)]
    assert math.fsum(drawn) / len(drawn) == pytest.approx(2.0, rel=0.03)


def test_thinning_keeps_its_share(tmp_path: Path) -> None:
    kept = trace_of("\n".join(str(n) for n in range(10_000)), tmp_path, thin=0.3)
    assert len(kept) == pytest.approx(3000, abs=150)


def test_a_load_is_behind_by_the_share_that_did_not_begin() -> None:
    assert arrivals.behind_share(100, 97) == pytest.approx(0.03)
    assert arrivals.behind_share(0, 0) == 0.0


# Values


def test_percentiles_are_values_that_occurred_and_not_rounded() -> None:
    ordered = [n / 1000 for n in range(1, 1001)]
    assert percentile(ordered, 0.95) == 0.95
    assert percentile(ordered, 0.99) == 0.99
    assert percentile([2.449, 2.451], 0.5) == 2.449
    assert math.isnan(percentile([], 0.5))


def test_what_workers_report_adds_up_to_what_one_process_measures() -> None:
    one, master, workers = Samples(), Samples(), [Samples(), Samples()]
    for number in range(10):
        for samples in (one, workers[number % 2]):
            samples.count("m", "m openai", "failed" if number == 3 else "served", str(number % 3))
            samples.measure("m openai", "total", number / 10)
            samples.offered["due"] += 1
    for worker in workers:
        master.add(json.loads(json.dumps(worker.take())))
        master.add(worker.take())  # taken once, not twice
    assert digest(master.together("total")) == digest(one.together("total"))
    assert master.outcomes == one.outcomes
    assert master.models == one.models
    assert master.failures == one.failures
    assert master.offered == one.offered


def samples_with(served: int, refused: int, waits: list[float]) -> Samples:
    samples = Samples()
    for _ in range(served):
        samples.count("m", "m openai", "served", "200")
    for _ in range(refused):
        samples.count("m", "m openai", "refused", "503 queue_full")
    samples.measure("m openai", "waited", *waits)
    return samples


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("refused_share=0.2", True),
        ("refused_share=0.19", False),
        ("waited_p95_s=2.45", True),
        ("waited_p95_s=2.44", False),
        ("first_token_p50_s=9", False),  # nothing was measured: not met
    ],
)
def test_objectives_are_held_against_exact_values(text: str, met: bool) -> None:
    samples = samples_with(8, 2, [2.445])
    (objective,) = objectives.parse(text)
    assert objectives.judge(objective, samples).met is met


@pytest.mark.parametrize(
    "text", ["waited=1", "waited_p42_s=1", "refused_share", "failed_share=x", "fast_p95_s=1"]
)
def test_an_objective_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not NAME=MOST"):
        objectives.parse(text)


def test_growth_sees_a_leak_and_not_what_comes_and_goes() -> None:
    rng = random.Random(1)
    steady = [50.0, *(70 + 10 * rng.random() for _ in range(300))]
    leaking = [value + 0.1 * number for number, value in enumerate(steady)]
    assert watch.growth(steady) < 1
    assert watch.growth(leaking) > 10


def test_a_difference_counts_in_the_errors_of_one_run() -> None:
    assert Row("x", 0.10, 0.04, 0.02).errors == pytest.approx(3.0)
    assert Row("x", 0.10, 0.04, 0.02).agrees
    assert not Row("x", 0.10, 0.04, 0.01).agrees
    assert Row("x", 0.0, 0.0, 0.0).agrees
    assert not Row("x", 0.1, 0.0, 0.0).agrees


# Laws

AT_REST: dict[str, Any] = {
    "in_flight": 0,
    "waiting": 0,
    "max_concurrent": 6,
    "started": 14,
    "finished": 14,
    "aborted": 0,
    "failed": 0,
    "not_proven_awake": 0,
    "garbage_tokens": 0,
    "control_overlaps": 0,
    "order": [],
}
CLIENTS = {"served": 14, "refused": 26}


def broken(
    engine: StandInEngine, clients: dict[str, int], stats: dict[str, Any], *, leaves: bool = False
) -> int:
    found = laws.at_engine(engine, AT_REST | stats, clients, leaves=leaves, canaries=0)
    return sum(not law.holds for law in found)


def test_a_sound_run_breaks_no_law() -> None:
    assert broken(REASONING, CLIENTS, {}) == 0


@pytest.mark.parametrize(
    "stats",
    [
        {"max_concurrent": 7},
        {"in_flight": 1, "started": 15},
        {"waiting": 1},
        {"aborted": 1, "finished": 13},
        {"failed": 1, "finished": 13},
        {"started": 15, "finished": 15},  # a refused one got through
        {"started": 13, "finished": 13},  # one was answered by nobody
    ],
)
def test_each_fault_at_an_engine_breaks_a_law(stats: dict[str, int]) -> None:
    assert broken(REASONING, CLIENTS, stats) > 0


@pytest.mark.parametrize("fault", ["not_proven_awake", "garbage_tokens", "control_overlaps"])
def test_a_half_awake_engine_breaks_a_law(fault: str) -> None:
    assert broken(StandInEngine("m", sleeps=True), CLIENTS, {fault: 1}) == 1


def test_who_left_may_have_been_aborted_but_nobody_else() -> None:
    clients = {"served": 10, "left": 6, "refused": 3}
    assert broken(REASONING, clients, {"finished": 11, "aborted": 3}, leaves=True) == 0
    assert broken(REASONING, clients, {"finished": 7, "aborted": 7}, leaves=True) > 0
    assert broken(REASONING, clients, {"finished": 9, "aborted": 5}, leaves=True) > 0


def test_who_left_the_line_does_not_reach_the_engine() -> None:
    clients = {"served": 10, "left": 6, "refused": 3}
    stats = AT_REST | {"finished": 11, "aborted": 3}

    def found(left_in_line: int) -> list[laws.Finding]:
        counts = {"canaries": 0, "left_in_line": left_in_line}
        return list(laws.at_engine(REASONING, stats, clients, leaves=True, **counts))

    assert all(law.holds for law in found(2))
    assert sum(not law.holds for law in found(3)) == 1


def test_overtaking_is_told_by_the_ids_of_the_front_door() -> None:
    ids = [f"{ms:012x}{'0' * 14}" for ms in (1000, 1001, 1500, 1400, 1600)]
    assert laws.overtaken_s(ids) == pytest.approx(0.1)
    assert laws.overtaken_s([*ids[:3], "canary", *ids[4:]]) == 0
    order: dict[str, Any] = {"order": [*ids, f"{1300:012x}{'0' * 14}"]}
    assert broken(REASONING, CLIENTS, order) == 1


def test_a_look_in_vain_breaks_a_law() -> None:
    scenario = SCENARIOS["streaming"]
    assert all(law.holds for law in laws.of_the_looks(scenario, [], 0))
    assert not all(law.holds for law in laws.of_the_looks(scenario, [], 1))


@pytest.mark.parametrize("served", [13, 15])
def test_a_burst_is_served_as_far_as_there_is_room(served: int) -> None:
    scenario = SCENARIOS["verify"]
    right = {"reasoning": {"served": 14, "refused": 26}}
    assert all(law.holds for law in laws.of_the_burst(scenario, 40, right))
    wrong = {"reasoning": {"served": served, "refused": 40 - served}}
    assert not all(law.holds for law in laws.of_the_burst(scenario, 40, wrong))


# Answers


@pytest.mark.parametrize(
    ("surface", "event", "what"),
    [
        ("openai", b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', "other"),
        ("openai", b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', "token"),
        ("openai", b'data: {"choices":[{"delta":{"reasoning":"a"}}]}\n\n', "thought"),
        ("openai", b'data: {"choices":[],"usage":{}}\n\n', "other"),
        ("openai", b'data: {"error":{"message":"dead"}}\n\n', "error"),
        ("openai", b"data: [DONE]\n\n", "end"),
        ("openai", b": keep-alive\n\n", "other"),
        ("anthropic", b'event: ping\ndata: {"type":"ping"}\n\n', "other"),
        (
            "anthropic",
            b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}\n\n',
            "token",
        ),
        (
            "anthropic",
            b'data: {"type":"content_block_delta","delta":{"type":"thinking_delta"}}\n\n',
            "thought",
        ),
        ("anthropic", b'event: error\ndata: {"type":"error","error":{}}\n\n', "error"),
        ("anthropic", b'data: {"type":"message_stop"}\n\n', "end"),
    ],
)
def test_events_are_told_apart(surface: dialects.Surface, event: bytes, what: str) -> None:
    assert dialects.understand(surface, event) == what


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
PROBLEM = b'{"error":{"type":"overloaded","code":"queue_full"}}'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def refusal(status: bytes, headers: bytes) -> Iterator[bytes]:
    yield b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n" % (status, headers, len(PROBLEM)) + PROBLEM


ANSWERS: dict[str, list[bytes | float]] = {
    "whole": [HEAD, 0.2, chunk(TOKEN), 0.4, chunk(TOKEN), 0.4, chunk(TOKEN + DONE), b"0\r\n\r\n"],
    "without its last event": [HEAD, chunk(TOKEN), b"0\r\n\r\n"],
    "cut": [HEAD, chunk(TOKEN), chunk(TOKEN)[:10]],
    "cut before the head": [],
    "error in band": [HEAD, chunk(TOKEN), chunk(b'data: {"error":{}}\n\n'), b"0\r\n\r\n"],
    "503": [*refusal(b"503 Busy", b"Retry-After: 3\r\n")],
    "529": [*refusal(b"529 Busy", b"Retry-After: 3\r\n")],
    "503 without Retry-After": [*refusal(b"503 Busy", b"")],
    "500": [*refusal(b"500 No", b"Retry-After: 3\r\n")],
}

VISITOR = """
import dataclasses, json, sys
from time import monotonic
from loadtests.lib.dialects import ClientCall
from loadtests.lib.visits import client_of, visit
call = ClientCall(surface="openai", model="m", stream=True)
seen = [visit(client_of(url), call, monotonic()) for url in sys.argv[1:]]
seen.append(visit(client_of(sys.argv[1]), call, monotonic() - 1.0))
print(json.dumps([dataclasses.asdict(one) for one in seen]))
"""


async def visit_all() -> dict[str, dict[str, Any]]:
    """Visit a server for each answer, from a process of its own: gevent stays out of this one."""

    async def serve(
        answer: list[bytes | float], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        await reader.readexactly(int(length))
        for part in answer:
            if isinstance(part, float):
                await asyncio.sleep(part)
            else:
                writer.write(part)
                await writer.drain()
        writer.close()

    servers = []
    for answer in ANSWERS.values():

        async def one(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            answer: list[bytes | float] = answer,
        ) -> None:
            await serve(answer, reader, writer)

        servers.append(await asyncio.start_server(one, "127.0.0.1", 0))
    urls = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", VISITOR, *urls), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    for server in servers:
        server.close()
        await server.wait_closed()
    return dict(zip([*ANSWERS, "whole, due a second ago"], json.loads(out), strict=True))


def test_answers_are_served_refused_or_failed_and_streams_are_timed_by_event() -> None:
    seen = asyncio.run(visit_all())
    late = seen.pop("whole, due a second ago")
    assert late["first_token_s"] >= 1.2, "time runs from when a request was due"
    assert late["total_s"] >= 1.3
    kinds = {name: one["kind"] for name, one in seen.items()}
    assert kinds == dict.fromkeys(ANSWERS, "failed") | {
        "whole": "served",
        "503": "refused",
        "529": "refused",
    }
    assert seen["503"]["outcome"] == "503 queue_full"
    assert seen["503 without Retry-After"]["outcome"] == "503 queue_full without Retry-After"
    whole = seen["whole"]
    assert whole["tokens"] == 3
    assert whole["first_token_s"] >= 0.2
    held_up = "the first token is not held up by those after it"
    assert whole["total_s"] - whole["first_token_s"] > 0.4, held_up
    assert all(gap > 0.2 for gap in whole["gaps_s"])
    assert len(whole["gaps_s"]) == 2


OFFERED = """
import json, sys
from loadtests.lib import run
run.samples.count("m", "m openai", "served", "200")
run.samples.offered.update(due=100, begun=int(sys.argv[1]))
print(json.dumps(run.summarise("")["complaints"]))
"""


@pytest.mark.parametrize(("begun", "complaints"), [(98, 0), (97, 1)])
def test_a_load_more_than_two_per_cent_behind_fails_the_run(begun: int, complaints: int) -> None:
    # In a process of its own, because it imports locust.
    said = subprocess.check_output([sys.executable, "-c", OFFERED, str(begun)], cwd=ROOT, text=True)
    assert len(json.loads(said)) == complaints
