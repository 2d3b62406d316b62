"""Bad input of every kind: one clear line and exit code 2, never a traceback, silence or a hang."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from simulator.traffic.trace_readers import read_trace
from tornado_frontdoor.cli.main import main

GOOD_LINE = {
    "time": "2026-01-05T00:00:10.000Z",
    "upstream": "reasoning",
    "outcome": "served",
    "waited_s": 0.5,
    "total_s": 2.5,
    "first_byte_s": 0.6,
    "weight": 1,
}


def complaint(argv, capsys):
    """Run a command that cannot work; returns what it printed on stderr."""
    assert main(argv) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "Traceback" not in told.err
    return told.err


LIMITS = ["--cap", "4", "--queue", "4", "--timeout", "5"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--dask", "foo"], "--dask: no Dask scheduler at 'foo'"),
        (["--bootstap", "5"], "--bootstap: there is no such option; did you mean --bootstrap?"),
        (["--cap", "5"], "--cap: given twice"),
        (["--rate"], "--rate: needs a value"),
        (["--rep", "5"], "--rep: may mean --replicas or --reps"),
        (["--sleep", "0,0"], "--sleep: 0,0 never sleeps"),
        (["--slo", "speed=3"], "--slo: 'speed' is not one of"),
        (["--slo", "lost_share=0.01,lost_share=0.05"], "--slo: lost_share is given twice"),
        (["--slo", "lost_share=2"], "--slo: lost_share is a share, at most 1, not 2"),
        (["--slo", "utilization=1.1"], "--slo: utilization is a share, at most 1, not 1.1"),
        (["--each", "wait_s=1,wait_s=2"], "--each: wait_s is given twice"),
        (["--headroom", "-1"], "--headroom: must be at least 0"),
        (["--retry", "fixed:0,1000000"], "--retry: '0,1000000': at most 1000 retries"),
        (["--retry", "exp:1e-9,1"], "--retry: '1e-9,1': the pause must be at least 0.001 s"),
        (["--return-places", "1000000"], "--return-places: must be at most 100000"),
        (["--arrivals-law", "mmpp:2,1e-12,1e-12", "--rate", "1"], "it changes 1e+12 times between"),
    ],
)
def test_option_that_cannot_work_is_named(more, told, capsys):
    line = ["sweep", *LIMITS, "--requests", "200", "--reps", "2", "--jobs", "1", *more]
    assert told in complaint(line, capsys)


@pytest.mark.parametrize("more", [["--reps", "9"], ["--driver", "heap"], ["--warmup", "9"]])
def test_tune_takes_no_option_that_it_does_not_heed(more, capsys):
    told = complaint(["tune", "--rate", "1", *more], capsys)
    assert told.startswith(f"frontdoor tune: {more[0]}: there is no such option")
    assert told.count("frontdoor tune: ") == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("tune --burst 1", "--burst: 1 request is too few to tell: wait_p95_s=5 needs at least 20"),
        (
            "tune --burst 40 --slo wait_p99_s=1",
            "--burst: 40 requests are too few to tell: wait_p99_s=1 needs at least 100",
        ),
        (
            "tune --burst 40 --service hold:2",
            "--burst: 40 requests are too few to tell: lost_share=0.01 needs at least 70",
        ),
        (
            "tune --rate 1 --service profile:moe-a3b-fast --tokens 100",
            "--tokens: needs P,O: mean tokens of prompts and answers, not '100'",
        ),
        (
            "tune --rate 1 --service profile:moe-a3b-fast --tokens 9,9 --prompt exp:9",
            "--prompt: --tokens says it already",
        ),
        ("tune --rate 1 --tokens 9,9", "--tokens: goes with a --service profile of tokens only"),
        ("tune --rate 2 --idle 300", "--idle: goes with --sleep or --config or --apply only"),
        ("validate --engine tiny.csv --slots 0", "--slots: must be at least 1, not 0"),
    ],
)
def test_one_mistake_is_one_line(line, told, capsys):
    name, *_ = line.split()
    assert complaint(line.split(), capsys) == f"frontdoor {name}: {told}\n"


@pytest.mark.parametrize(
    ("name", "rows", "told"),
    [
        ("t.csv", "at_s\n1\n", "1 request is too few"),
        ("t.csv", "at_s,rate_per_s\n0,0\n60,0\n120,0\n", "0 requests are too few"),
    ],
)
def test_traffic_too_small_to_tell_is_named_before_a_search(name, rows, told, tmp_path, capsys):
    path = tmp_path / name
    path.write_text(rows, encoding="utf-8")
    line = complaint(["tune", "--trace", str(path)], capsys)
    assert line == f"frontdoor tune: --trace: {told} to tell: wait_p95_s=5 needs at least 20\n"


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ("--cap 4 --queue 1000000000000 --timeout 5", "--queue: must be at most 100000"),
        ("--cap 1..99999999 --queue 4 --timeout 5", "--cap: must be at most 100000"),
        ("--cap 1..7 --queue 0..9999 --timeout 5", "--cap: 70000 points in all, at most 10000"),
    ],
)
def test_grid_that_would_never_end_is_named(limits, told, capsys):
    assert told in complaint(["sweep", *limits.split()], capsys)


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ('{"token_s": NaN}', "NaN is not a number that can be reckoned with"),
        ('{"token_s": Infinity}', "Infinity is not a number"),
        ('{"token_s": 0.02, "token_power": 1e6}', "token_power must be between 0 and 4"),
        ('{"token_s": 1e300}', "token_s must be between 0 and 10000"),
        ('{"seconds": [1, 1e300]}', "larger than any engine's"),
        ('{"seconds": [1], "slowdown": "big"}', "slowdown must be a number"),
        ('{"token_s": 1e-300}', "token_s must be at least 1e-12, not 1e-300"),
        ('{"token_s": 1, "kv_block_tokens": 0.5}', "kv_block_tokens must be a whole number"),
        ('{"token_s": 1, "chunk_tokens": 0.5}', "chunk_tokens must be a whole number, not 0.5"),
        (
            '{"token_s": 1, "draft_tokens": 2.5, "acceptance": 0.5}',
            "draft_tokens must be a whole number, not 2.5",
        ),
        ('{"token_s": 1, "cached_share": 0.5}', "cached_share goes with continued_share only"),
        ('{"token_s": 1, "continued_share": 1}', "continued_share goes with cached_share only"),
        ('{"token_s": 1, "acceptance": 0.5}', "acceptance goes with draft_tokens only"),
        ('{"token_s": 1, "draft_tokens": 3}', "draft_tokens goes with acceptance only"),
        ("[" * 100_000, "is nested too deeply to be a profile"),
    ],
)
def test_profile_that_cannot_be_reckoned_with_is_named(profile, told, tmp_path, capsys):
    path = tmp_path / "p.json"
    path.write_text(profile, encoding="utf-8")
    line = ["simulate", *LIMITS, "--service", f"profile:{path}"]
    assert told in complaint(line, capsys)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("t.csv", "at_s\n1\nnan\n", "line 3, column 1: 'nan' is not a number"),
        ("t.csv", "at_s\n1\n-4\n", "line 3, column 1: '-4' is not a number between 0"),
        ("t.csv", "at_s,prompt_tokens,output_tokens\n1,5,inf\n", "line 2, column 3: 'inf'"),
        ("c_rates.csv", "0,-1,1,Gamma,1,1\n", "line 1: a rate must be between 0"),
        ("c_rates.csv", "0,1,1,Gamma,0,1\n", "line 1: shape 0 and scale 1 are no law"),
        ("c_rates.csv", "0,1,1,Pareto,1,1\n", "must be Gamma or Weibull, not 'Pareto'"),
        ("c_rates.csv", "0,1,1,Gamma,1,nan\n", "line 1: shape 1 and scale nan"),
        ("c_rates.csv", "5,1,1,Gamma,1,1\n5,1,1,Gamma,1,1\n", "must follow each other"),
        ("c_rates.csv", "0,0,,,,\n5,0,,,,\n3,0,,,,\n", "line 3: windows must follow each other"),
        ("c_rates.csv", "0,1,1,Gamma,1,1e-320\n", "line 1: shape 1 and scale 9.99989e-321 are no"),
        ("c_rates.csv", "nan,1,1,Gamma,1,1\n", "line 1: a window cannot begin at nan s"),
        ("c_rates.csv", "0,9e4,1,Gamma,1,1e-4\n9e9,1,1,Gamma,1,1\n", "requests in one window"),
        ("t.csv", "Timestamp,Request tokens\n1,2\n", "header of no trace known here"),
        ("t.csv", "at_s,rate_per_s\n0,1\n1e-6,1\n9e9,1\n", "steps of 1e-06 s, at most 1000000"),
    ],
)
def test_trace_that_cannot_be_replayed_is_named(name, text, told, tmp_path, capsys):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert told in complaint(["simulate", *LIMITS, "--trace", str(path)], capsys)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["simulate", *LIMITS, "--trace", "/dev/zero"], "/dev/zero is a device, which has no end"),
        (["tune", "--rate", "1", "--jobs", "999999999"], "--jobs: must be at most 1024"),
        (["tune", "--log", "/dev/zero"], "--log: /dev/zero is a device"),
        (["replay", "/dev/urandom", "--cap", "4", "--queue", "4"], "/dev/urandom is a device"),
        (["calibrate", "/dev/zero"], "/dev/zero is a device, which has no end"),
        (["simulate", *LIMITS, "--service", "profile:/dev/zero"], "/dev/zero is not JSON"),
    ],
)
def test_what_has_no_end_is_named(line, told, capsys):
    assert told in complaint(line, capsys)


def test_stdin_without_an_end_is_named_by_what_it_begins_with(monkeypatch, capsys):
    with open("/dev/zero", encoding="utf-8") as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        told = complaint(["tune", "--log", "-"], capsys)
    assert told == "frontdoor tune: --log: - is not UTF-8 text\n"


def test_pipe_is_read_once_and_whole(tmp_path):
    path, pipe = tmp_path / "t.csv", tmp_path / "pipe"
    path.write_bytes(gzip.compress(b"at_s\n0\n1\n2.5\n"))
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", str(path), str(pipe)]):
        assert [*read_trace(pipe).rows.at_s] == [0.0, 1.0, 2.5]
        assert [*read_trace(pipe).rows.at_s] == [0.0, 1.0, 2.5]


@pytest.mark.parametrize("blocks", ["[1e400]", "[" * 100_000])
def test_blocks_that_are_no_numbers_are_named(blocks, tmp_path, capsys):
    path = tmp_path / "m.jsonl"
    line = '{"timestamp": 0, "input_length": 9, "output_length": 9, "hash_ids": '
    path.write_text(f"{line}[1]}}\n{line}{blocks}}}\n", encoding="utf-8")
    told = complaint(["simulate", *LIMITS, "--trace", str(path)], capsys)
    assert "line 2 is not a request of Mooncake" in told


def test_slots_beyond_all_bounds_are_named_once(capsys):
    told = complaint(["tune", "--rate", "1", "--slots", "100001"], capsys)
    assert told.count("--slots: must be at most 100000, not 100001") == 1


def test_trace_that_is_missing_is_the_only_thing_named(capsys):
    told = complaint(["simulate", *LIMITS, "--trace", "gone.csv", "--requests", "9"], capsys)
    assert told.startswith("frontdoor simulate: --trace: cannot read gone.csv")
    assert told.count("\n") == 1


def test_lengths_that_cannot_be_read_are_named(tmp_path, capsys):
    (tmp_path / "c_rates.csv").write_text("0,1,1,Gamma,1,1\n", encoding="utf-8")
    (tmp_path / "c_lengths.json").write_text('{"0": {"input_tokens": "{", "output_tokens": "{"}}')
    line = ["simulate", *LIMITS, "--trace", str(tmp_path / "c_rates.csv")]
    assert "does not hold ServeGen's lengths" in complaint(line, capsys)


def test_blocks_too_short_for_a_recording_are_named(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("at_s\n0\n500\n", encoding="utf-8")
    line = ["simulate", *LIMITS, "--trace", str(path), "--bootstrap", "1e-6"]
    assert "--bootstrap: cut 500 s into blocks of at least 0.005 s" in complaint(line, capsys)


@pytest.mark.parametrize(
    "wrong",
    [
        {"waited_s": None},
        {"total_s": "2.5"},
        {"time": None},
        {"time": "soon"},
        {"first_byte_s": "x"},
        {"weight": -1},
        {"outcome": []},
        {"upstream": {}},
    ],
)
def test_log_line_with_no_time_is_left_out_and_counted(wrong, tmp_path):
    from simulator.traffic.access_log import read_access_log

    path = tmp_path / "access.log"
    lines = [GOOD_LINE, {**GOOD_LINE, **wrong}]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    log = read_access_log(path)
    assert (len(log.outcomes), log.skipped) == (1, 1)


def test_trace_that_is_given_as_a_log_is_told_where_it_goes(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("at_s\n0\n500\n", encoding="utf-8")
    assert "that met a gate; a trace is for --trace" in complaint(
        ["tune", "--log", str(path)], capsys
    )


@pytest.mark.parametrize("command", ["calibrate", "replay"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b'{"first_token_ts": 1}\n'])
def test_log_that_cannot_be_read_is_named(command, content, tmp_path, capsys):
    path = tmp_path / "access.log"
    path.write_bytes(content)
    more = ["--cap", "4", "--queue", "4"] if command == "replay" else []
    assert str(path) in complaint([command, str(path), *more], capsys)
