"""Recommendations: below the slots, with room for more traffic, and honest about doubt."""

import functools
import json
import random
from dataclasses import replace
from math import inf

import pytest
from docopt import docopt
from scenes import scene

from simulator.cli.commands import COMMANDS
from simulator.cli.options import simulate_of, sweep_of
from simulator.cli.usage import USAGE
from simulator.exact.known import exact_metrics
from simulator.model.records import metric_names
from simulator.study.capacity import load_of
from simulator.study.experiment import Plan, Replication, Result, executor, experiment
from simulator.study.limits import judge
from simulator.study.spending import Spending
from simulator.study.sweep import choose
from simulator.traffic.distributions import Distribution
from simulator.traffic.service import Service
from simulator.traffic.service_profiles import PROFILES
from simulator.traffic.workload import Renewal


def result(**metrics):
    """A result of three replications with these values each."""
    rows = zip(*metrics.values(), strict=True)
    made = (dict(zip(metrics, row, strict=True)) for row in rows)
    return Result(tuple(Replication({"offered": 5000}, values, []) for values in made))


def point(lost, wait=(1.0, 1.1, 0.9)):
    return result(lost_share=lost, wait_p95_s=wait, latency_p95_s=(3.0, 3.1, 2.9))


FINE, POOR = point((0.001, 0.0012, 0.0011)), point((0.2, 0.21, 0.2))
NEAR = point((0.0095, 0.0101, 0.0100))
SLO = {"lost_share": 0.01}


def choice_of(points, slo=SLO, **more):
    return choose([world for world, _ in points], [made for _, made in points], slo, **more)


def test_cap_that_check_refuses_is_never_recommended_nor_in_the_pareto_set():
    choice = choice_of([(scene(cap=7), POOR), (scene(cap=8), FINE), (scene(cap=9), FINE)])
    assert choice.recommended is None
    assert [made.pareto for made in choice.points] == [True, False, False]
    assert [made.allowed for made in choice.points] == [True, False, False]


def test_recommended_point_must_bear_the_headroom():
    points = [(scene(cap=5), FINE), (scene(cap=6), FINE), (scene(cap=7), FINE)]
    asked = []

    def stress(worlds):
        asked.extend(worlds)
        return [FINE if world.cap >= 6 else POOR for world in worlds]

    choice = choice_of(points, stress=stress, headroom=0.2)
    assert choice.recommended.scenario.cap == 6
    assert choice.holds_with_headroom is True
    assert [world.arrivals.rate for world in asked] == [pytest.approx(2.4 * 1.2)] * 3


def test_where_nothing_bears_the_headroom_it_says_so():
    choice = choice_of(
        [(scene(cap=5), FINE)], stress=lambda worlds: [POOR for _ in worlds], headroom=0.2
    )
    assert choice.recommended.scenario.cap == 5
    assert choice.holds_with_headroom is False
    assert "does not keep them with 20% more traffic" in choice.why


def test_smaller_point_that_may_keep_the_limits_is_told():
    choice = choice_of([(scene(cap=5), point((0.0099, 0.0104, 0.0101))), (scene(cap=6), FINE)])
    assert choice.recommended.scenario.cap == 6
    assert choice.uncertain
    assert "a smaller one may keep them too: cap 5" in choice.why


def test_recommended_point_that_may_miss_a_limit_is_told():
    choice = choice_of([(scene(cap=6), NEAR)])
    assert choice.uncertain
    assert choice.confidence < 0.9
    assert "the chance that it keeps its limits is" in choice.why


def test_loss_that_was_never_seen_is_not_taken_for_none():
    (surely,) = judge(point((0.0, 0.0, 0.0)), {"lost_share": 0.01}, {})
    (hardly,) = judge(point((0.0, 0.0, 0.0)), {"lost_share": 1e-5}, {})
    assert surely.chance > 0.99
    assert hardly.chance < 0.3


def test_exact_value_decides_where_theory_has_one():
    choice = choice_of([(scene(cap=6), NEAR)], exact=lambda _: {"lost_share": 0.02})
    assert choice.recommended is None
    assert "Uncertain" not in choice.why


def test_usual_limits_bound_the_wait_and_ask_for_headroom():
    given = {"--cap": "4..8", "--queue": "0,4", "--timeout": "5", "--jobs": "1"}
    command = sweep_of(given)
    assert command.slo == {"lost_share": 0.01, "wait_p95_s": 5.0}
    assert command.headroom == 0.2


def run(text, capsys):
    words = text.split()
    code = COMMANDS[words[0]](docopt(USAGE[words[0]], argv=words))
    return code, capsys.readouterr().out


SMALL = "--requests 1500 --reps 3 --jobs 1"


def test_overload_is_said_with_both_rates(capsys):
    profile = "--service profile:dense-32b-2xa100 --rate 3.13 --timeout 10"
    _, page = run(f"simulate --cap 6 --queue 8 {profile} {SMALL}", capsys)
    told = " ".join(page.split())
    assert "overloaded: at cap 6 this engine serves at most" in told
    assert "3.13 are offered" in told
    _, printed = run(f"simulate --cap 6 --queue 8 {profile} {SMALL} --json", capsys)
    load = json.loads(printed)["load"]
    assert load["overloaded"] is True
    assert load["offered_per_s"] == 3.13


def test_limit_outside_the_usual_columns_is_shown(capsys):
    line = f"sweep --cap 6 --queue 8 --timeout 5 --slo latency_of_all_p95_s=20 {SMALL}"
    _, page = run(line, capsys)
    assert "infinite" in " ".join(page.split())


def test_names_of_metrics_are_those_of_a_run():
    tokens = scene(service=Service(profile=PROFILES["moe-a3b-fast"]))
    for world in (scene(), tokens):
        (made,) = experiment([world], Plan(driver="heap", replications=1))
        assert metric_names(world) == tuple(made.replications[0].metrics)


@pytest.mark.parametrize(
    "service",
    [
        Service(seconds=Distribution("exp", 2.0)),
        Service(seconds=Distribution("exp", 2.0), slowdown=0.2),
        Service(
            profile=PROFILES["dense-32b-2xa100"],
            prompt=Distribution("exp", 1024.0),
            output=Distribution("exp", 256.0),
        ),
        Service(
            profile=PROFILES["moe-a3b-a100"],
            prompt=Distribution("exp", 8000.0),
            output=Distribution("exp", 100.0),
        ),
    ],
)
@pytest.mark.parametrize("cap", [2, 6])
def test_capacity_is_what_a_flooded_engine_serves(service, cap):
    world = scene(cap=cap, queue=50, service=service, requests=6000, warmup=300)
    most = load_of(world).served_at_most_per_s
    flooded = scene(
        cap=cap,
        queue=50,
        service=service,
        requests=6000,
        warmup=300,
        arrivals=Renewal(rate=3 * most),
    )
    (made,) = experiment([flooded], Plan(driver="heap", replications=2))
    assert made.estimate("goodput_per_s").mean == pytest.approx(most, rel=0.06)


def test_load_of_one_is_saturation_with_tokens_too():
    given = {"--cap": "6", "--queue": "8", "--jobs": "1"}
    command = simulate_of({**given, "--rho": "1", "--service": "profile:dense-32b-2xa100"})
    assert load_of(command.scenarios[0]).share == pytest.approx(1.0)
    command = simulate_of({**given, "--rate": "3.13", "--service": "profile:dense-32b-2xa100"})
    assert command.traffic["rho"] == pytest.approx(load_of(command.scenarios[0]).share)


GRID = [
    scene(cap=cap, queue=queue, timeout_s=timeout_s, requests=5000, warmup=500)
    for cap in range(4, 8)
    for queue in (0, 4, 8, 16)
    for timeout_s in (5.0, inf)
]
known = functools.cache(exact_metrics)


def objectives(count, seed=20):
    """Random limits on a grid where theory knows all, each with the truly best point."""
    rng = random.Random(seed)
    for _ in range(count):
        slo = {"lost_share": 10 ** rng.uniform(-4, -0.7), "wait_p95_s": rng.uniform(0.3, 8.0)}
        order = sorted(GRID, key=lambda world: (world.cap, world.queue, world.timeout_s))
        yield slo, next((world for world in order if keeps(known(world), slo)), None)


def keeps(exact, slo):
    return all(exact[metric] <= limit for metric, limit in slo.items())


def scenario_of(choice):
    return choice.recommended and choice.recommended.scenario


@pytest.mark.parametrize(
    ("count", "seed"), [(100, 20), pytest.param(300, 21, marks=pytest.mark.slow)]
)
def test_where_theory_knows_all_the_true_winner_is_found(count, seed):
    made = experiment([scene(requests=60, warmup=0)], Plan(driver="heap", replications=2)) * len(
        GRID
    )
    for slo, truth in objectives(count, seed):
        found = choose(GRID, made, slo, exact=known)
        assert scenario_of(found) == truth
        assert not found.uncertain


class Shared:
    """Further replications for many objectives on one grid: none is computed twice."""

    def __init__(self, grid, first, pool=None):
        self.pool = pool
        self.plan = Plan(driver="heap", replications=first, jobs=1 if pool is None else 2)
        self.made = dict(zip(grid, experiment(grid, self.plan, pool=pool), strict=True))

    def at_first(self, grid):
        first = self.plan.replications
        return [Result(self.made[world].replications[:first]) for world in grid]

    def further(self, world, first, count):
        known = self.made[world].replications
        if len(known) < first + count:
            plan = replace(self.plan, replications=first + count - len(known))
            (more,) = experiment([world], plan, pool=self.pool, first=len(known))
            self.made[world] = Result((*known, *more.replications))
        return Result(self.made[world].replications[first : first + count])


def test_doubtful_points_get_more_replications_until_it_is_clear():
    """Cap 6 and queue 8 lose 1.87 %: ten short replications cannot tell that from 2.2 %."""
    (grid,) = [[world for world in GRID if (world.cap, world.queue) == (6, 8)]]
    shared = Shared([replace(world, requests=600, warmup=50) for world in grid], 10)
    worlds, slo = list(shared.made), {"lost_share": 0.024}
    doubtful = choose(worlds, shared.at_first(worlds), slo)
    assert doubtful.uncertain
    spending = Spending(shared.further, budget=600)
    found = choose(worlds, shared.at_first(worlds), slo, spending=spending)
    assert not found.uncertain
    assert scenario_of(found).timeout_s == 5.0
    assert len(found.points[0].result.replications) > 10
    assert len(found.points[1].result.replications) == 10


@pytest.mark.slow
def test_four_hundred_objectives_are_right_or_flagged_without_theory():
    """The choice from simulation alone is held to theory; doubts may cost as much again.

    Three to eight processor minutes. A quarter of the requests that `sweep` takes unless told
    otherwise: what is flagged and wrong hangs on losses of 0.01 to 0.04 %, of which seed 1 has a
    fifth too few.
    """
    right = flagged = silent = 0
    with executor(Plan(jobs=2), 2) as pool:
        shared = Shared(GRID, 20, pool)
        for slo, truth in objectives(400):
            spending = Spending(shared.further, budget=20 * len(GRID))
            found = choose(GRID, shared.at_first(GRID), slo, spending=spending)
            if scenario_of(found) == truth:
                right += 1
            elif found.uncertain or "Uncertain" in found.why:
                flagged += 1
            else:
                silent += 1
    print(f"right {right}, flagged {flagged}, wrong without a word {silent}")
    assert silent == 0
    assert right >= 365
