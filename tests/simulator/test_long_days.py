"""`tune` judges a day of rates by all of it, or by its busiest stretch; not by how it begins."""

import re
from dataclasses import replace

import numpy as np
import pytest
from docopt import docopt
from scenes import scene

from simulator.cli.option_parser import UsageError
from simulator.cli.tune import tune, tune_of
from simulator.cli.usage import USAGE
from simulator.exact.closed_form import BoundedQueue
from simulator.model.scenario import Tiers
from simulator.study.experiment import Plan, experiment
from simulator.study.samples import PAUSES, at_the_peak, sampled
from simulator.traffic.service import Rows
from simulator.traffic.streams import Purpose, Streams
from simulator.traffic.stretches import busiest
from simulator.traffic.workload import Replay

NIGHT_S, PEAK_S = 21_600, 3600
"""6,480 requests at night, then 9,000 in an hour, then night again."""
LINE = "--slots 8 --queue 4,16 --timeout 5 --headroom 0 --jobs 1 --requests 4000"


@pytest.fixture
def day(tmp_path):
    path = tmp_path / "day.csv"
    rates = [0.3] * (NIGHT_S // 600) + [2.5] * (PEAK_S // 600) + [0.3] * 6
    rows = "\n".join(f"{600 * at},{rate}" for at, rate in enumerate(rates))
    path.write_text(f"at_s,rate_per_s\n{rows}\n", encoding="utf-8")
    return path


def given(text):
    return docopt(USAGE["tune"], argv=["tune", *text.split()])


def met(best, arrivals):
    """Return what the recommended limits come to with all of some traffic."""
    made = Plan(driver="heap", replications=3, seed=7)
    (result,) = experiment([replace(best, arrivals=arrivals)], made)
    return {name: result.estimate(name).mean for name in ("lost_share", "wait_p95_s")}


def test_recommendation_holds_over_a_day_whose_peak_comes_late(day, capsys):
    found = tune(given(f"--trace {day} {LINE} --slo lost_share=0.02,wait_p95_s=5"))
    whole = met(found.tuned.recommended.scenario, tune_of(given(f"--trace {day}")).whole)
    assert whole["lost_share"] < 0.02
    assert whole["wait_p95_s"] < 5
    told = " ".join(capsys.readouterr().out.replace("# ", "").split())
    assert "Judged by blocks of 240 s from all over 8 h, about" in told
    peak = (
        r"In the busiest hour, from 6 h on with 2.5 requests a second: [\d.]+ % ± [\d.]+ % lost, "
    )
    assert re.search(peak + r"p95 wait [\d.]+ s ± [\d.]+ s \(95 % intervals\)", told)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_busiest_hour_loses_what_theory_says_within_its_interval(day, seed):
    whole = tune_of(given(f"--trace {day}")).whole
    best = scene(cap=7, queue=12, timeout_s=5.0, requests=None, warmup=0)
    peak = at_the_peak(whole, best, Plan(driver="heap", seed=seed), None)
    assert peak is not None
    lost = peak.result.estimate("lost_share")
    exact = 1 - BoundedQueue(7, 12, 2.5, 2.0, 5.0).served
    assert lost.mean == pytest.approx(exact, abs=2 * lost.ci95)
    assert 0 < lost.ci95 < exact


def test_recording_has_no_second_busiest_hour():
    recorded = Replay(rows=Rows(np.arange(0.0, 30_000.0, 20.0)))
    assert at_the_peak(recorded, scene(), Plan(driver="heap"), None) is None


@pytest.mark.parametrize("stretch", [0.25, 1.0, 8.0])
def test_blocks_of_a_recording_outlast_the_idle_times_however_it_is_stretched(stretch):
    recorded = Replay(rows=Rows(np.arange(0.0, 300_000.0, 20.0)), stretch=stretch)
    idle_s = 900.0
    world = scene(arrivals=recorded, tiers=Tiers(idle_s=(idle_s, 0.0)), requests=None)
    part, told = sampled(world)
    assert part.arrivals.bootstrap_s == max(600.0, PAUSES * idle_s / stretch)
    assert f"blocks of {part.arrivals.bootstrap_s:g} s of the recording" in told


def test_recommendation_for_the_busiest_hour_holds_in_it(day, capsys):
    line = f"--trace {day} {LINE} --slo lost_share=0.02,wait_p95_s=3"
    found = tune(given(f"{line} --busiest 3600"))
    peak = busiest(tune_of(given(f"--trace {day}")).whole, PEAK_S)
    in_it = met(found.tuned.recommended.scenario, peak.arrivals)
    assert in_it["lost_share"] < 0.02
    assert in_it["wait_p95_s"] < 3
    assert "busiest_s 3600" in capsys.readouterr().out
    over_all = tune(given(line)).tuned.recommended.scenario
    assert over_all.cap <= found.tuned.recommended.scenario.cap


@pytest.mark.parametrize(("asked_s", "judged_s"), [(60, 600), (1000, 1200), (3600, 3600)])
def test_busiest_windows_of_rates_are_told_as_long_as_they_are(day, asked_s, judged_s):
    command = tune_of(given(f"--trace {day} --busiest {asked_s}")).command
    assert command.scenarios[0].arrivals.span_s == judged_s
    assert command.traffic["busiest_s"] == judged_s
    told = f"the busiest {judged_s} s, as rates come in windows of 600 s (--busiest asked for"
    assert command.judged.startswith(told) == (asked_s != judged_s)
    assert "in each replication" in command.judged


def test_busiest_stretch_that_is_longer_than_the_traffic_is_named(day, tmp_path):
    recorded = tmp_path / "t.csv"
    recorded.write_text("at_s\n0\n50\n99\n", encoding="utf-8")
    for path, span_s in ((day, 28_800), (recorded, 99)):
        told = f"--busiest: is 28801 s, but the traffic lasts {span_s} s"
        with pytest.raises(UsageError, match=told):
            tune_of(given(f"--trace {path} --busiest 28801"))


def test_replications_have_each_block_of_a_day_once(day):
    (base,) = tune_of(given(f"--trace {day} {LINE}")).command.scenarios
    rates = base.arrivals
    assert (rates.parts, rates.block_s, base.requests) == (5, 240.0, None)
    drawn = [np.concatenate([r.at_s for r in rates.blocks(Streams(1, n))]) for n in range(5)]
    assert sum(map(len, drawn)) == pytest.approx(rates.expected, rel=0.03)
    for at_s in drawn:
        assert (np.diff(at_s) >= 0).all()
        assert at_s[-1] < rates.span_s / rates.parts + rates.block_s
    picked = np.array([Streams(1, n).parts(Purpose.THINNING, 6, 5) for n in range(5, 10)])
    assert (np.sort(picked, axis=0) == np.arange(5)[:, None]).all()


def test_busiest_stretch_is_the_one_with_the_most_requests(day):
    whole = tune_of(given(f"--trace {day}")).whole
    found = busiest(whole, PEAK_S)
    assert (found.start_s, found.rate) == (NIGHT_S, pytest.approx(2.5))
    at_s = np.concatenate([rows.at_s for rows in found.arrivals.blocks(Streams(1, 0))])
    assert 0 < at_s[0] < at_s[-1] < PEAK_S
    recorded = Replay(rows=Rows(np.array([0.0, 50.0, 99.0, 100.0, 101.0, 300.0])), stretch=2.0)
    found = busiest(recorded, 10.0)
    assert (found.start_s, found.requests) == (198.0, 3)
    assert found.arrivals.rows.at_s.tolist() == [0.0, 1.0, 2.0]


def test_short_day_is_taken_whole(tmp_path):
    path = tmp_path / "hour.csv"
    path.write_text("at_s,rate_per_s\n0,0.1\n1800,0.2\n", encoding="utf-8")
    command = tune_of(given(f"--trace {path}")).command
    assert command.judged == "all 540 requests of 1 h in each replication"
    assert command.scenarios[0].arrivals.parts == 1
