"""`tune` looks through idle times: those that hold the GPU for the fewest hours and keep all."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from docopt import docopt
from scenes import scene

from simulator.cli.option_parser import UsageError
from simulator.cli.tune import tune, tune_of
from simulator.cli.usage import USAGE
from simulator.exact.known import exact_metrics
from simulator.model.scenario import Tiers
from simulator.study.experiment import Plan
from simulator.study.idle_times import IdleGrid, IdleSearch, gpu_hours, host_hours, least_of
from simulator.study.sweep import nothing_exact
from simulator.study.trials import FEWEST
from simulator.study.tune import Search
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Rows, Service
from simulator.traffic.workload import Renewal, Replay
from tornado_frontdoor.cli.main import main
from tornado_frontdoor.config import load

TIERS = Tiers(idle_s=(30.0, 0.0), wake_s=(3.0, 20.0), fall_s=(2.0, 0.0), hold_s=(30.0, 180.0))
BURST, PAUSE_S, ROUNDS = 5, 100.0, 40


def pauses():
    """Five requests of a second, 10 s apart, and then a pause of 100 s: forty times."""
    starts = np.arange(ROUNDS) * (BURST * 10.0 + PAUSE_S)
    at_s = (starts[:, None] + np.arange(BURST) * 10.0).ravel() + 1.0
    return Replay(rows=Rows(at_s, service_s=np.ones(len(at_s))))


def of_pauses(grid, slo, wake_s=(3.0, 20.0), **more):
    base = scene(
        arrivals=pauses(),
        service=Service(recorded=True),
        tiers=replace(TIERS, wake_s=wake_s),
        requests=None,
        warmup=0,
    )
    return searched(base, grid, slo, queues=(8,), timeouts_s=(99.0,), caps=(1,), **more)


def searched(base, grid, slo, **more):
    usual = {"plan": Plan(driver="heap"), "headroom": 0.0, "exact": exact_metrics}
    return IdleSearch(search=Search(base=base, slo=slo, **{**usual, **more}), grid=grid)


def idle_of(tuned):
    return tuned.recommended.scenario.tiers.idle_s


def row_of(tuned, idle_s):
    return next(row for row in tuned.idle if row.idle_s == idle_s)


GRID = IdleGrid((5.0, 20.0, 60.0, 150.0, 0.0), (0.0,))


def test_best_idle_time_is_the_one_that_is_reckoned_by_hand():
    # One in five meets a pause of 109 s: a p95 of 3 s is wanted, so the mean of 0.6 s tells. Idle
    # for 5 s all wait 3 s; 20 and 60 s sleep in each pause, 20 s for longer; 150 s never does.
    tuned = of_pauses(GRID, {"wait_mean_s": 1.0}).run()
    assert idle_of(tuned) == (20.0, 0.0)
    shorter, chosen, longer = tuned.idle
    assert (shorter.kept, chosen.kept, longer.kept) == (False, True, True)
    # In each 150 s: a pause of 109 s, of which 20 s awake, 2 s falling and 3 s waking at its end.
    assert gpu_hours(chosen.trial.today) == pytest.approx(24 * (1 - (109 - 20 - 2) / 150), abs=0.4)
    assert gpu_hours(longer.trial.today) == pytest.approx(24 * (1 - (109 - 60 - 2) / 150), abs=0.4)
    wakes = chosen.trial.value("wakes_from_sleeping_per_h")
    assert 24 * wakes == pytest.approx(24 * 3600 / 150, rel=0.05)


def test_wake_that_nobody_can_wait_for_leaves_the_engine_awake():
    tuned = of_pauses(IdleGrid((20.0, 60.0, 0.0), (0.0,)), {"wait_p95_s": 5.0}, (25.0, 0.0)).run()
    assert idle_of(tuned) == (0.0, 0.0)
    assert not row_of(tuned, (60.0, 0.0)).kept
    assert tuned.recommended.value("wait_p95_s") == 0
    assert gpu_hours(row_of(tuned, (0.0, 0.0)).trial.today) == pytest.approx(24.0)


def test_idle_times_that_never_end_are_alike_and_the_longest_is_taken():
    tuned = of_pauses(IdleGrid((150.0, 300.0, 0.0), (0.0,)), {"wait_p95_s": 5.0}).run()
    assert idle_of(tuned) == (0.0, 0.0)


def test_level_2_gives_back_the_host_memory_where_its_wake_can_be_waited_for():
    # It takes a second longer than that of level 1, so its wakes hold the GPU for 10 minutes a day.
    grid, wake_s = IdleGrid((20.0,), (40.0, 80.0, 0.0)), (3.0, 4.0)
    tuned = of_pauses(grid, {"wait_mean_s": 1.0}, wake_s).run()
    assert idle_of(tuned) == (20.0, 40.0)
    held_h = host_hours(row_of(tuned, (20.0, 40.0)).trial.today)
    assert held_h == pytest.approx(24 * (40 - 20 - 2) / 150, abs=0.4)
    assert idle_of(of_pauses(grid, {"wait_mean_s": 0.7}, wake_s).run()) == (20.0, 0.0)


def test_level_2_whose_wakes_hold_the_gpu_for_hours_is_left_out():
    # A wake of 60 s outlasts the five requests, which are served in 41 s where it is awake.
    grid = IdleGrid((20.0,), (40.0, 0.0))
    tuned = of_pauses(grid, {"wait_mean_s": 99.0}, (3.0, 60.0)).run()
    assert idle_of(tuned) == (20.0, 0.0)
    assert row_of(tuned, (20.0, 40.0)).kept


def test_never_asleep_is_what_theory_knows():
    never = replace(TIERS, idle_s=(0.0, 0.0))
    assert exact_metrics(scene(tiers=never)) == exact_metrics(scene())
    assert not exact_metrics(scene(tiers=TIERS))


def random_search(**more):
    base = scene(
        arrivals=Renewal(rate=0.02),
        service=Service(seconds=Distribution("exp", 5.0)),
        tiers=TIERS,
        slots=3,
        requests=60,
        warmup=3,
    )
    grid = IdleGrid((10.0, 40.0, 120.0, 0.0), (80.0, 0.0))
    limits = {"queues": (4,), "timeouts_s": (30.0,), "caps": (2,)}
    return searched(base, grid, {"wait_mean_s": 2.0}, **limits, **more)


def test_all_idle_times_one_by_one_come_to_the_same():
    found = random_search(exact=nothing_exact).run()
    search = random_search(exact=nothing_exact)
    able, results = [], {}
    for idle_s in search.grid.pairs:
        tiers = replace(TIERS, idle_s=idle_s)
        base = search.search.base
        each = replace(search.search, base=replace(base, tiers=tiers), _told=set())
        if (place := each.found()) is not None:
            able.append(idle_s)
            results[idle_s] = each.trials.today(place, FEWEST)
    assert len(able) < len(search.grid.pairs)
    best = least_of(
        able, lambda each: gpu_hours(results[each]), lambda each: host_hours(results[each])
    )
    assert idle_of(found) == best


def given(text):
    return docopt(USAGE["tune"], argv=["tune", *text.split()])


LINE = (
    "--slots 2 --sleep 30,300 --fall 0,0 --queue 4 --timeout 10 --requests 60 --jobs 1 "
    "--headroom 0 --slo wait_p95_s=20 --idle 15,60,none/none"
)


def test_answer_has_the_table_of_sleep_and_why(capsys):
    tune(given(f"--rate 0.02 --service hold:1 {LINE}"))
    told = capsys.readouterr().out
    assert tomllib.loads(told)["upstreams"]["reasoning"]["sleep"] == {
        "idle_sleep_s": 15,
        "idle_offload_s": 0,
    }
    for words in ("# Idle times: level 1 after 15 s, level 2 never.", "cold starts", "GPU held"):
        assert words in told
    assert max(map(len, told.splitlines())) <= 100
    tune(given(f"--rate 0.02 --service hold:1 {LINE} --json"))
    document = json.loads(capsys.readouterr().out)
    (chosen,) = (row for row in document["idle_times"] if row["recommended"])
    assert (chosen["idle_sleep_s"], chosen["keeps_limits"]) == (15, True)
    assert 0 < chosen["gpu_hours_per_day"] < 24


@pytest.mark.parametrize(("wait_s", "chosen"), [(20, "after 15 s"), (2, "never")])
def test_points_of_all_idle_times_are_counted_and_the_page_says_which_it_shows(
    tmp_path, capsys, wait_s, chosen
):
    page = tmp_path / "report.html"
    line = f"--rate 0.02 --service hold:1 {LINE} --html {page}"
    tuned = tune(given(line.replace("wait_p95_s=20", f"wait_p95_s={wait_s}"))).tuned
    *_, told, written = capsys.readouterr().err.splitlines()
    assert told.endswith(f"{tuned.looked_at} points looked at.")
    assert written == f"written: {page}"
    beside = [row for row in tuned.idle if not row.chosen]
    assert tuned.looked_at >= len(tuned.trials) + len(beside)
    told = f"looked at with the idle times that were chosen (level 1 {chosen}, level 2 never)"
    assert told in page.read_text(encoding="utf-8")


def test_points_are_counted_once_though_looked_at_without_the_headroom_too():
    # With twice the traffic nothing is kept; all idle times are searched again without it.
    grid = IdleGrid((5.0, 0.0), (0.0,))
    search = of_pauses(grid, {"wait_mean_s": 0.5}, headroom=30.0)
    tuned = search.run()
    assert not tuned.holds_with_headroom
    assert tuned.looked_at == len(grid.pairs)


CONFIG = """\
[server]
state_dir = "var"

[upstreams.reasoning]
url = "http://127.0.0.1:8000"

[upstreams.reasoning.admission]
slots = 2
cap = 1
queue = 64
queue_timeout_s = 30

[upstreams.reasoning.sleep]
idle_sleep_s = 30        # half a minute
idle_offload_s = 0
hold_sleeping_s = 20

[models.reasoning]
upstream = "reasoning"
"""


def test_apply_writes_idle_times_of_a_configuration_that_has_others(tmp_path):
    path = tmp_path / "frontdoor.toml"
    path.write_text(CONFIG, encoding="utf-8")
    line = ["tune", "--rate", "0.02", "--service", "hold:1", "--apply", str(path)]
    line += "--queue 4 --timeout 10 --requests 60 --jobs 1 --headroom 0".split()
    line += "--fall 0,0 --slo wait_p95_s=20".split()
    assert main([*line, "--idle", "fixed"]) == 0
    assert load(path).upstreams["reasoning"].sleep.idle_sleep_s == 30
    assert main([*line, "--idle", "15,60,none"]) == 0
    sleep = load(path).upstreams["reasoning"].sleep
    assert (sleep.idle_sleep_s, sleep.idle_offload_s, sleep.hold_sleeping_s) == (15, 0, 20)
    assert "# half a minute" in path.read_text(encoding="utf-8")
    assert main(["check", "--config", str(path)]) == 0


def grid_of(text):
    return tune_of(given(f"--rate 0.01 {text}")).idle


def test_which_idle_times_are_looked_through():
    assert grid_of("--sleep 900,0") == IdleGrid((100.0, 300.0, 900.0, 2700.0, 8100.0, 0.0), (0.0,))
    assert grid_of("--sleep 900,10800").second_s == (1200, 3600, 10800, 32400, 97200, 0)
    assert grid_of("--sleep 900,10800 --idle 60,none") == IdleGrid((60.0, 0.0), (10800.0,))
    assert grid_of("--sleep 900,10800 --idle 60/600,none") == IdleGrid((60.0,), (600.0, 0.0))
    assert grid_of("--sleep 900,10800 --idle fixed") is None
    assert grid_of("") is None
    assert (60.0, 30.0) not in IdleGrid((60.0,), (30.0, 90.0)).pairs


@pytest.mark.parametrize("rates", [False, True])
def test_idle_times_that_the_length_of_the_traffic_cannot_tell_are_left_out(tmp_path, rates):
    path = tmp_path / "two_days.csv"
    head, more = ("at_s,rate_per_s", ",0.01") if rates else ("at_s", "")
    rows = "\n".join(f"{600 * at}{more}" for at in range(6 * 48 + (not rates)))
    path.write_text(f"{head}\n{rows}\n", encoding="utf-8")

    def of_it(line):
        return tune_of(given(f"--trace {path} {line}")).idle

    found = of_it("--sleep 900,10800")
    assert found == IdleGrid((100, 300, 900, 2700, 8100, 0), (1200, 3600, 10800, 0))
    assert of_it("--sleep 900,80000").second_s == (8890, 80000, 0)  # the present one stays
    assert of_it("--sleep 900,10800 --idle 60/97200,none").second_s == (97200, 0)
    assert of_it("--sleep 900,0 --busiest 36000").first_s == (100, 300, 900, 2700, 0)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--idle 60", "--idle: goes with --sleep"),
        ("--sleep 900,0 --idle 60,x", "--idle: 'x' is not a number"),
        ("--sleep 900,0 --idle 60/30", "no time of level 2 is later"),
        ("--sleep 900,0 --idle 1e9", "must be at most a year"),
    ],
)
def test_idle_times_that_cannot_be_are_named(line, told):
    with pytest.raises(UsageError, match=told):
        grid_of(line)


def test_replications_are_shorter_where_each_request_wakes_the_engine():
    def requests(rate):
        return tune_of(given(f"--rate {rate} --sleep 900,0")).command.scenarios[0].requests

    assert [requests(rate) for rate in (0.001, 0.02, 1)] == [250, 1108, 5000]


def test_recording_keeps_its_pauses(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("at_s\n" + "\n".join(str(at) for at in range(0, 200_000, 20)), encoding="utf-8")

    def block_s(sleep):
        line = f"--trace {path} --sleep {sleep} --idle fixed"
        return tune_of(given(line)).command.scenarios[0].arrivals.bootstrap_s

    assert block_s("900,0") == 3600
    assert block_s("900,90000") == 0  # as it was: no block of it has such a pause
