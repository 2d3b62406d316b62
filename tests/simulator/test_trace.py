"""Readers of recorded traffic: what they accept, what they refuse, and facts of public traces."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from scenes import scene

from simulator.study.experiment import Plan, experiment
from simulator.traffic.access_log import read_access_log
from simulator.traffic.service import Service
from simulator.traffic.streams import Streams
from simulator.traffic.tables import TraceError
from simulator.traffic.trace_readers import read_trace
from simulator.traffic.workload import Replay

SAMPLE = Path(__file__).parents[2] / "simulator" / "data" / "sample_trace.csv"


def rows_of(path):
    trace = read_trace(path)
    assert isinstance(trace, Replay)
    return trace.rows


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_azure_trace_with_seven_digits_and_no_last_newline(tmp_path):
    path = written(
        tmp_path / "trace.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109",
    )
    rows = rows_of(path)
    assert rows.at_s == pytest.approx([0, 4.314579])
    assert rows.prompt.tolist() == [374, 396]
    assert rows.output.tolist() == [44, 109]


def test_requests_are_sorted_and_keep_their_sizes(tmp_path):
    path = written(tmp_path / "t.csv", "at_s,prompt_tokens,output_tokens\n5,1,10\n2,2,20\n3,3,30\n")
    rows = rows_of(path)
    assert rows.at_s.tolist() == [0, 1, 3]
    assert rows.output.tolist() == [20, 30, 10]


def test_mooncake_ticks_are_spread_over_their_step(tmp_path):
    lines = "".join(f"{tick},100,10,0\n" for tick in [0] * 10 + [3000] * 10)
    header = "timestamp_ms,input_length,output_length,prefix_hit_tokens\n"
    rows = rows_of(written(tmp_path / "t.csv", header + lines))
    assert np.diff(rows.at_s) == pytest.approx(np.full(19, 0.3))


def test_mooncake_tells_how_much_a_prefix_cache_would_have(tmp_path):
    """Two of four go on with a conversation; 4,048 of 8,000 prompt tokens were there before."""
    blocks = ([1, 2, 3], [1, 9, 8], [1, 2, 3, 4], [1, 2, 3, 4])
    lines = "".join(
        json.dumps({"timestamp": at, "input_length": 2000, "output_length": 9, "hash_ids": ids})
        + "\n"
        for at, ids in enumerate(blocks)
    )
    published = read_trace(written(tmp_path / "t.jsonl", lines)).told
    header = "timestamp_ms,input_length,output_length,prefix_hit_tokens\n"
    hits = (0, 512, 1536, 2000)
    rows = "".join(f"{at},2000,9,{hit}\n" for at, hit in enumerate(hits))
    columns = read_trace(written(tmp_path / "t.csv", header + rows)).told
    assert published == columns
    assert "51% of the prompt tokens, about --prefix-cache 0.5,1" in columns


def test_servegen_windows_without_traffic_stay_empty(tmp_path):
    path = written(
        tmp_path / "c_rates.csv",
        "0,0.5,1.0,Gamma,1.0,2.0\n600,0,,,,\n1200,0.5,1.0,Weibull,1.0,2.0\n",
    )
    lengths = {"0": {"input_tokens": "{7: 0.5, 9: 0.5}", "output_tokens": "{3: 1.0}"}, "600": {}}
    written(tmp_path / "c_lengths.json", json.dumps(lengths))
    blocks = list(read_trace(path).blocks(Streams(1, 0)))
    at_s = np.concatenate([block.at_s for block in blocks])
    assert not ((at_s >= 600) & (at_s < 1200)).any()
    assert len(at_s) == pytest.approx(600, rel=0.15)
    assert set(np.concatenate([block.prompt for block in blocks])) == {7, 9}
    counts = [len(next(iter(read_trace(path).blocks(Streams(1, n)))).at_s) for n in range(20)]
    assert len(set(counts)) > 5  # windows are not rescaled to their exact rate


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "line 1 is the header of no trace"),
        ("at_s,colour\n1,2\n", "unknown column colour"),
        ("at_s\n", "no requests"),
        ("at_s\nsoon\n", "column 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "TIMESTAMP"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1\n",
            "line 2 has 2 columns",
        ),
        ("0,1,1,Gamma,x,2\n", "line 1 is not a window"),
    ],
)
def test_fault_of_a_trace_is_named(tmp_path, text, complaint):
    with pytest.raises(TraceError, match=complaint):
        read_trace(written(tmp_path / "t.csv", text))


def test_missing_trace_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"cannot read .*nowhere"):
        read_trace(tmp_path / "nowhere.csv")


def test_our_sample_can_be_replayed():
    rows = rows_of(SAMPLE)
    assert len(rows.at_s) == 1000
    assert (np.diff(rows.at_s) >= 0).all()
    thinned = Replay(rows=rows, thin=0.5)
    world = scene(arrivals=thinned, requests=None, warmup=0)
    (result,) = experiment([world], Plan(driver="heap", replications=3, check=True))
    offered = [replication.counts["offered"] for replication in result.replications]
    assert len(set(offered)) > 1
    assert sum(offered) == pytest.approx(1500, rel=0.1)


# Facts of public traces, where they are at hand: FRONTDOOR_TRACES names their folder.

TRACES = Path(os.environ.get("FRONTDOOR_TRACES", "nowhere"))
at_hand = pytest.mark.skipif(not TRACES.is_dir(), reason="FRONTDOOR_TRACES names no folder")


@at_hand
@pytest.mark.parametrize(
    ("name", "count", "span_s", "cv", "worst", "prompt", "output"),
    [
        ("azure_llm_2023_conv", 19_366, 3502, 1.094, 9.80, (1155, 1020), (211.1, 129)),
        ("azure_llm_2023_code", 8_819, 3436, 13.151, 32.70, (2048, 1469), (27.9, 13)),
    ],
)
def test_azure_traces_have_their_published_facts(name, count, span_s, cv, worst, prompt, output):
    rows = rows_of(TRACES / f"{name}.csv")
    gaps = np.diff(rows.at_s)
    assert len(rows.at_s) == count
    assert rows.at_s[-1] == pytest.approx(span_s, abs=0.5)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=5e-4)
    assert np.bincount((rows.at_s // 10).astype(int)).max() / 10 == pytest.approx(worst)
    assert (round(rows.prompt.mean()), np.median(rows.prompt)) == prompt
    assert (round(rows.output.mean(), 1), np.median(rows.output)) == output


@at_hand
def test_mooncake_trace_has_its_published_facts():
    rows = rows_of(TRACES / "mooncake_fast25_conversation.csv")
    assert len(rows.at_s) == 12_031
    assert round(rows.prompt.mean()) == 12_035
    assert np.diff(rows.at_s).max() < 6
    assert np.bincount((rows.at_s // 10).astype(int)).max() < 67  # no batches that never were


@at_hand
def test_servegen_client_has_its_published_rate():
    trace = read_trace(TRACES / "servegen_reason_client1_rates.csv")
    counts = [sum(len(b.at_s) for b in trace.blocks(Streams(1, n))) for n in range(5)]
    assert np.mean(counts) / 86_400 == pytest.approx(0.125, rel=0.03)


@at_hand
def test_thinned_azure_conversation_runs_at_its_load():
    from simulator.traffic.service_profiles import PROFILES

    rows = rows_of(TRACES / "azure_llm_2023_conv.csv")
    service = Service(profile=PROFILES["dense-32b-2xa100"])
    world = scene(
        arrivals=Replay(rows=rows, thin=0.16),
        service=service,
        timeout_s=30.0,
        requests=None,
        warmup=0,
    )
    (result,) = experiment([world], Plan(driver="heap", replications=4, check=True))
    assert result.estimate("utilization").mean == pytest.approx(0.8, abs=0.1)


# The front door's own log


def line(at_s, *, waited_s=0.0, service_s=2.0, outcome="served", **more):
    end = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(seconds=at_s + waited_s + service_s)
    return json.dumps(
        {
            "time": end.isoformat(timespec="milliseconds"),
            "request_id": "r",
            "upstream": "reasoning",
            "outcome": outcome,
            "waited_s": waited_s,
            "first_byte_s": waited_s + 0.5,
            "total_s": waited_s + service_s,
            "weight": 1,
            **more,
        }
    )


def test_access_log_gives_arrivals_and_seconds(tmp_path):
    lines = [
        "2026-01-05 00:00:00,000 INFO listening",
        line(10.0, waited_s=1.5),
        line(3.0, service_s=4.0, weight=2),
        '{"message": "not an access line"}',
        line(11.0, service_s=0.001, outcome="queue_full"),
        line(12.0, waited_s=2.0, service_s=0.0, outcome="client_gone_queued"),
        line(13.0, service_s=0.5, outcome="client_gone_streaming"),
    ]
    log = read_access_log(written(tmp_path / "access.log", "\n".join(lines)))
    assert log.rows.at_s == pytest.approx([0, 7, 8, 9, 10], abs=0.002)
    assert log.rows.service_s == pytest.approx([4, 2, np.nan, np.nan, 0.5], nan_ok=True)
    assert log.rows.weight.tolist() == [2, 1, 1, 1, 1]
    assert log.rows.patience_s.tolist() == [np.inf, np.inf, np.inf, 2.0, np.inf]
    assert log.skipped == 2


def test_access_log_leaves_out_what_never_met_the_gate(tmp_path):
    lines = [
        line(1.0),
        line(2.0, outcome="model_not_found", upstream=None),
        line(3.0, outcome="bad_request", weight=0),
        line(4.0, weight=0),
        line(5.0, upstream="text"),
    ]
    path = written(tmp_path / "access.log", "\n".join(lines))
    log = read_access_log(path, "reasoning")
    assert (len(log.outcomes), log.others) == (1, 4)
    with pytest.raises(TraceError, match="reasoning, text"):
        read_access_log(path)
    with pytest.raises(TraceError, match="no access line of a request of ocr that met a gate"):
        read_access_log(path, "ocr")


def test_log_without_access_lines_is_named(tmp_path):
    with pytest.raises(TraceError, match="no access line"):
        read_access_log(written(tmp_path / "access.log", "hello\n"))
