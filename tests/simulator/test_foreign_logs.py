"""Logs and results that others write: told by themselves, read, and what was left out is said."""

import json
from pathlib import Path

import numpy as np
import pytest

from simulator.study.calibrate import calibrate
from simulator.traffic.access_log import read_access_log
from simulator.traffic.benchmarks import read_benchmark
from simulator.traffic.service_profiles import ServiceProfile
from simulator.traffic.streams import Streams
from simulator.traffic.tables import TraceError
from simulator.traffic.trace_readers import read_trace
from tornado_frontdoor.cli.main import main


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


CHAT = '"POST /v1/chat/completions HTTP/1.1"'


def nginx(second, status, took_s, request=CHAT):
    when = f"05/Jan/2026:00:00:{second:02d} +0000"
    return f'10.0.0.7 - - [{when}] {request} {status} 512 "-" "openai" {took_s:.3f}'


def test_nginx_log_with_its_request_time_is_read(tmp_path):
    path = written(
        tmp_path,
        nginx(10, 200, 4.0),
        nginx(10, 200, 2.0),
        nginx(11, 503, 0.001),
        nginx(12, 499, 3.0),
        nginx(12, 200, 0.1, '"GET /v1/models HTTP/1.1"'),
        "nginx is starting",
    )
    log = read_access_log(path)
    assert log.format == "nginx's access log"
    assert log.outcomes == ("served", "served", "client_gone_streaming", "queue_full")
    # Ends are whole seconds: those of one second are spread over it, and arrivals lie before.
    assert log.rows.at_s == pytest.approx([0.0, 2.5, 3.25, 5.249])
    assert (log.others, log.skipped) == (1, 1)


def test_nginx_log_as_json_is_read(tmp_path):
    entry = {
        "time_iso8601": "2026-01-05T00:00:10+00:00",
        "request": "POST /v1/completions HTTP/1.1",
        "status": "200",
        "request_time": "2.500",
        "upstream_header_time": "0.250",
    }
    log = read_access_log(written(tmp_path, json.dumps(entry)))
    assert log.outcomes == ("served",)
    assert log.rows.service_s.tolist() == [2.5]
    assert log.first_bytes_s.tolist() == [0.25]


def test_nginx_log_without_its_request_time_is_no_log(tmp_path):
    line = nginx(10, 200, 1.0).rsplit(" ", 1)[0]
    with pytest.raises(TraceError, match="no access line"):
        read_access_log(written(tmp_path, line))


def haproxy(timers, status, end, ms=0):
    when = f"05/Jan/2026:00:00:10.{ms:03d}"
    return (
        f"Jan 5 00:00:10 box haproxy[9]: 10.0.0.7:50312 [{when}] front engines/one {timers} "
        f"{status} 900 - - {end} 9/9/4/4/0 0/0 {CHAT}"
    )


def test_haproxy_log_has_its_queue_and_its_ends(tmp_path):
    path = written(
        tmp_path,
        haproxy("0/1500/1/40/3500", 200, "----"),
        haproxy("0/5000/-1/-1/5000", 503, "sQ--", 100),
        haproxy("0/0/-1/-1/0", 503, "PC--", 200),
        haproxy("0/900/-1/-1/900", -1, "CQ--", 300),
        haproxy("0/0/1/30/2000", 200, "CD--", 400),
    )
    log = read_access_log(path, "engines")
    assert log.format == "HAProxy's HTTP log"
    assert log.outcomes == (
        "served",
        "queue_timeout",
        "queue_full",
        "client_gone_queued",
        "client_gone_streaming",
    )
    assert log.waits_s[0] == 1.5
    assert log.rows.service_s[0] == 2.0
    assert log.rows.patience_s[3] == pytest.approx(0.9)


def test_line_with_a_day_that_never_was_is_left_out(tmp_path):
    good = haproxy("0/1500/1/40/3500", 200, "----")
    log = read_access_log(written(tmp_path, good, good.replace("[05/Jan", "[00/Jan")))
    assert (len(log.outcomes), log.skipped) == (1, 1)
    entry = {"request": "POST /v1/responses HTTP/1.1", "status": 200, "msec": 5}
    lines = [json.dumps({**entry, "request_time": took}) for took in ("2.5", "nan", "-1", "inf")]
    log = read_access_log(written(tmp_path, *lines))
    assert (len(log.outcomes), log.skipped) == (1, 3)


def spend(second, took_s, **more):
    ends_s = second + took_s
    return {
        "request_id": f"r{second}",
        "call_type": "acompletion",
        "startTime": f"2026-01-05T00:00:{second:06.3f}Z",
        "endTime": f"2026-01-05T00:00:{ends_s:06.3f}Z",
        "completionStartTime": f"2026-01-05T00:00:{second + 0.2:06.3f}Z",
        "prompt_tokens": 100,
        "completion_tokens": 40,
        "model_group": "reasoning",
        "status": "success",
        "cache_hit": "False",
        **more,
    }


SPENT = [
    spend(1, 2.0),
    spend(2, 1.0, status="failure"),
    spend(3, 0.01, cache_hit="True"),
    spend(4, 0.1, call_type="aembedding"),
]


def test_litellm_spend_log_is_read_as_lines_as_a_list_and_as_a_table(tmp_path):
    names = list(SPENT[0])
    table = [",".join(names), *(",".join(str(row[name]) for name in names) for row in SPENT)]
    forms = (
        list(map(json.dumps, SPENT)),
        [json.dumps(SPENT)],
        [json.dumps(SPENT, indent=1)],
        table,
    )
    for lines in forms:
        log = read_access_log(written(tmp_path, *lines))
        assert log.format == "LiteLLM's spend log"
        assert log.outcomes == ("served", "upstream_error")
        assert log.rows.at_s == pytest.approx([0.0, 1.0])
        assert log.rows.output.tolist() == [40.0, 40.0]
        assert log.first_bytes_s[0] == pytest.approx(0.2)
        assert log.others == 2


def vllm_result(count=40, token_s=0.02, **more):
    """What `vllm bench serve --save-detailed` saves, of a made-up engine, one request at a time."""
    starts = [1000.0 + 3.0 * number for number in range(count)]
    lens = [20 + number % 30 for number in range(count)]
    return {
        "endpoint_type": "openai-chat",
        "request_throughput": 1.0,
        "input_lens": [100 + 7 * (number % 20) for number in range(count)],
        "output_lens": lens,
        "start_times": starts,
        "ttfts": [0.05 + 0.0001 * (100 + 7 * (number % 20)) for number in range(count)],
        "itls": [[token_s] * (length - 1) for length in lens],
        "errors": [""] * count,
        **more,
    }


def test_result_of_vllm_bench_serve_is_fitted_and_replayed(tmp_path):
    result = vllm_result()
    result["errors"][3], result["ttfts"][3] = "timed out", 0.0
    path = written(tmp_path, json.dumps(result))
    fit = calibrate([path], "mine", None)
    assert isinstance(fit.profile, ServiceProfile)
    assert fit.profile.token.at(1) == pytest.approx(0.02, rel=0.02)
    assert fit.profile.prompt_token_s == pytest.approx(0.0001, rel=0.1)
    trace = read_trace(path)
    assert len(trace.rows.at_s) == 39
    assert "39 requests of `vllm bench serve`; left out: 1" in trace.told


def test_result_of_an_older_vllm_says_what_it_lacks(tmp_path):
    result = vllm_result()
    del result["start_times"]
    with pytest.raises(TraceError, match="--save-detailed"):
        read_benchmark(written(tmp_path, json.dumps(result)))


def test_runs_appended_to_one_file_do_not_overlap(tmp_path):
    read = read_benchmark(written(tmp_path, *(json.dumps(vllm_result()) for _ in range(2))))
    assert read is not None
    assert np.diff(read.timings.scheduled_s).min() > 0
    assert len(read.timings.prompt) == 80


def test_guidellm_report_is_read_in_both_of_its_forms(tmp_path):
    timings = {"request_start": 10.0, "first_token_iteration": 10.2, "last_token_iteration": 11.2}
    newer = {"prompt_tokens": 64, "output_tokens": 51, "info": {"timings": timings}}
    older = {
        "prompt_tokens": 64,
        "output_tokens": 51,
        "start_time": 12.0,
        "first_token_time": 12.2,
        "last_token_time": 13.2,
    }
    report = {"benchmarks": [{"requests": {"successful": [newer, older, {}], "errored": [{}]}}]}
    read = read_benchmark(written(tmp_path, json.dumps(report, indent=2)))
    assert read is not None
    assert (read.timings.last_s - read.timings.first_s) == pytest.approx([1.0, 1.0])
    assert "2 requests of GuideLLM's report; left out: 2" in read.told


def matrix(*series):
    result = [{"metric": metric, "values": values} for metric, values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def arrivals_by_window(path, windows, step_s):
    blocks = [block.at_s for block in read_trace(path).blocks(Streams(1, 0))]
    at_s = np.concatenate(blocks)
    return [int(((at_s >= n * step_s) & (at_s < (n + 1) * step_s)).sum()) for n in range(windows)]


def test_range_query_of_rates_gives_rates_by_time(tmp_path):
    points = [[1000, "2"], [1300, "0"], [1600, "4"]]
    path = written(tmp_path, matrix(({"upstream": "a"}, points), ({"upstream": "b"}, points)))
    counts = arrivals_by_window(path, 3, 300)
    assert counts[1] == 0
    assert counts[0] == pytest.approx(1200, rel=0.15)
    assert counts[2] == pytest.approx(2400, rel=0.15)


def test_range_query_of_the_counter_gives_its_rise_also_over_a_restart(tmp_path):
    counter = {"__name__": "frontdoor_requests_total"}
    path = written(tmp_path, matrix((counter, [[0, "50"], [60, "110"], [120, "30"], [180, "30"]])))
    windows = read_trace(path).windows
    assert [round(window.rate, 6) for window in windows] == [1.0, 0.5, 0.0]


def test_rates_by_time_of_day_in_a_plain_table(tmp_path):
    path = written(tmp_path, "at_s,rate_per_s", "0,1.5", "3600,0", "7200,3")
    trace = read_trace(path)
    assert [window.rate for window in trace.windows] == [1.5, 0.0, 3.0]
    assert "3 rates by time" in trace.told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"data": {"resultType": "vector", "result": []}}', "not a range query's answer"),
        (matrix(({}, [[0, "1"]])), "needs two points at least"),
        (matrix(({}, [[0, "1"], [60, "NaN"]])), "the rate is nan"),
        ("at_s,rate_per_s\n0,1\n0,2", "steps must follow each other"),
        ("at_s,rate_per_s\n0,-1\n5,2", "line 2, column 2: '-1'"),
        (matrix(({}, [[0, "1"], [1e308, "2"]])), "an instant is not between"),
        (matrix(({"__name__": "frontdoor_requests_total"}, [[5, "1"], [5, "2"]])), "not a range"),
        ('{"benchmarks": [{"requests": {}}]}', "holds no request with its times"),
        ('{"benchmarks": [{"requests": {"successful": ["x"]}}]}', "its requests are no lists"),
        (json.dumps(vllm_result(output_lens=[1e300] * 40)), "its tokens or times cannot be"),
        ('{"request_throughput": 1, "ttfts": [1', "holds no JSON"),
        (json.dumps(vllm_result(output_lens=[1])), "do not match"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_code_2(text, told, tmp_path, capsys):
    path = written(tmp_path, text)
    line = ["simulate", "--cap", "4", "--queue", "4", "--timeout", "5", "--trace", str(path)]
    assert main(line) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_tune_says_what_was_read_of_a_foreign_log(tmp_path, capsys):
    lines = [nginx(at % 60, 200, 1.0 + at % 3) for at in range(60)]
    path = written(tmp_path, *lines)
    main(["tune", "--log", str(path), "--slots", "4", "--jobs", "1", "--requests", "50"])
    assert "read 60 requests" in capsys.readouterr().err
