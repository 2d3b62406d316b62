"""Logs and traces as people have them: collected by whatever, packed, from a pipe, of others."""

import gzip
import io
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from simulator.study.observed import observed_metrics
from simulator.traffic import tables
from simulator.traffic.access_log import read_access_log
from simulator.traffic.tables import TraceError
from simulator.traffic.trace_readers import read_trace


def line(second, outcome="served", **more):
    return json.dumps(
        {
            "time": f"2026-01-05T00:00:{second:02d}.000Z",
            "upstream": "reasoning",
            "outcome": outcome,
            "waited_s": 0.5,
            "total_s": 2.5,
            "first_byte_s": 0.6,
            "weight": 1,
            **more,
        }
    )


LINES = [line(10), line(12), line(13, "queue_full"), line(15, "client_gone_streaming")]


@pytest.mark.parametrize(
    "collected",
    [
        lambda text: f"frontdoor-1  | {text}",
        lambda text: json.dumps({"log": text + "\n", "stream": "stdout", "time": "2026-01-05"}),
        lambda text: f"2026-01-05T00:00:10.123456789Z stdout F {text}",
        lambda text: f"Jan 05 00:00:10 box frontdoor[712]: {text}",
        lambda text: json.dumps({"MESSAGE": text, "_PID": "712"}),
    ],
    ids=["compose", "json-file", "containerd", "journald", "journald-json"],
)
def test_access_log_is_read_however_it_was_collected(collected, tmp_path):
    path = tmp_path / "log"
    path.write_text("\n".join(["starting", *map(collected, LINES)]), encoding="utf-8")
    log = read_access_log(path)
    assert log.outcomes == ("served", "served", "queue_full", "client_gone_streaming")
    assert log.skipped == 1
    assert len(read_trace(path).rows.at_s) == 4


def test_packed_log_is_unpacked_and_half_of_one_is_named(tmp_path):
    path = tmp_path / "log.gz"
    packed = gzip.compress("\n".join(LINES).encode())
    path.write_bytes(packed)
    assert len(read_access_log(path).outcomes) == 4
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TraceError, match="cannot be unpacked"):
        read_access_log(path)


def test_log_comes_from_a_pipe_too():
    done = subprocess.run(
        [sys.executable, "-m", "tornado_frontdoor.cli", "calibrate", "-", "--json"],
        input="\n".join(LINES * 10).encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["facts"]["served"] == 20


def test_pipe_is_read_once(monkeypatch):
    tables._spooled.cache_clear()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(LINES[0].encode())))
    from pathlib import Path

    assert [list(tables.lines_of(Path("-"))) for _ in range(2)] == [[LINES[0]]] * 2
    tables._spooled.cache_clear()


def test_who_held_a_slot_is_in_no_row_lost_and_in_another_served(tmp_path):
    path = tmp_path / "log"
    path.write_text("\n".join(LINES), encoding="utf-8")
    log = read_access_log(path)
    observed = observed_metrics(log)
    assert observed["served_share"] == 0.75
    assert observed["lost_share"] == observed["rejected_share"] == 0.25
    # The replay has as many that run: the others have no seconds of their own.
    assert int((~np.isnan(log.rows.service_s)).sum()) == 3


@pytest.mark.parametrize(
    ("text", "at_s"),
    [
        (
            (
                "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01.009930+00:00,2399,6\n"
            ),
            [0.0, 1.0],
        ),
        (
            (
                "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n"
            ),
            [0.0, 40.0],
        ),
        (
            (
                '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
                '{"timestamp": 3000, "input_length": 7322, "output_length": 490, "hash_ids": [0]}\n'
            ),
            [0.0, 3.0],
        ),
    ],
    ids=["azure-2024", "burstgpt", "mooncake"],
)
def test_traces_of_others_are_told_by_their_first_line(text, at_s, tmp_path):
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    rows = read_trace(path).rows
    assert rows.at_s == pytest.approx(at_s)
    assert rows.prompt.min() > 400
    assert rows.output.min() >= 5
