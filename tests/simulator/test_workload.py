"""Arrivals and sizes: laws as named, one stream for each purpose, nothing clipped or coupled."""

from itertools import islice

import numpy as np
import pytest

from simulator.traffic.distributions import NEVER, Distribution, empirical, unit
from simulator.traffic.service import Rows, Service
from simulator.traffic.streams import Streams
from simulator.traffic.workload import (
    BLOCK,
    Burst,
    Clients,
    Closed,
    Modulated,
    Renewal,
    Replay,
    requests,
)

EXP_2 = Service(seconds=Distribution("exp", 2.0))


def instants(arrivals, count, seed=1, replication=0):
    streams = Streams(seed, replication)
    made = requests(arrivals, EXP_2, NEVER, streams, count)
    return np.array([request[0] for request in made])


@pytest.mark.parametrize("cv", [1.0, 2.0, 0.5])
def test_gaps_have_their_mean_and_their_cv(cv):
    gaps = np.diff(instants(Renewal(rate=2.4, cv=cv), 1_000_000))
    assert gaps.mean() == pytest.approx(1 / 2.4, rel=0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.01)


def test_long_gaps_are_not_clipped():
    gaps = np.diff(instants(Renewal(rate=1.0), 200_000))
    assert (gaps > 3).mean() == pytest.approx(np.exp(-3), rel=0.03)
    assert gaps.max() > 9


def test_modulated_arrivals_have_their_rate_and_are_bursty():
    found = instants(Modulated(rate=2.4, ratio=8, high_s=20, low_s=120), 400_000)
    assert len(found) / found[-1] == pytest.approx(2.4, rel=0.03)
    assert (np.diff(found) >= 0).all()
    per_minute = np.bincount((found // 60).astype(int))
    assert per_minute.var() / per_minute.mean() > 20


def test_counts_of_windows_vary_as_poisson_counts_do():
    per_window = np.bincount((instants(Renewal(rate=2.0), 200_000) // 10).astype(int))[:-1]
    assert per_window.var() / per_window.mean() == pytest.approx(1.0, rel=0.05)


def test_two_services_see_the_same_arrivals_and_two_rates_the_same_work():
    streams = Streams(1, 0)
    slow = Service(seconds=Distribution("exp", 4.0))
    first = list(requests(Renewal(rate=2.4), EXP_2, NEVER, streams, 1000))
    second = list(requests(Renewal(rate=1.2), slow, Distribution("exp", 3.0), streams, 1000))
    assert [2 * row[0] for row in first] == pytest.approx([row[0] for row in second])
    assert [2 * row[1] for row in first] == pytest.approx([row[1] for row in second])


def test_replications_and_seeds_are_different_worlds():
    worlds = {tuple(instants(Renewal(rate=1.0), 3, *key)) for key in [(1, 0), (1, 1), (2, 0)]}
    assert len(worlds) == 3


def test_fewer_requests_are_the_first_of_more():
    few, many = (instants(Renewal(rate=1.0), count) for count in (100, 3 * BLOCK))
    assert (few == many[:100]).all()
    assert len(many) == 3 * BLOCK


def test_prompts_and_outputs_are_independent():
    from simulator.traffic.service_profiles import PROFILES

    service = Service(
        profile=PROFILES["moe-a3b-fast"],
        prompt=Distribution("lognormal", 1000.0, 1.0),
        output=Distribution("lognormal", 300.0, 1.0),
    )
    rows = list(requests(Renewal(rate=1.0), service, NEVER, Streams(1, 0), 50_000))
    output, prompt = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
    assert abs(np.corrcoef(np.log(output), np.log(prompt))[0, 1]) < 0.02
    assert output.mean() == pytest.approx(300, rel=0.03)
    assert prompt.mean() == pytest.approx(1000, rel=0.03)


@pytest.mark.parametrize(
    "law",
    [
        Distribution("const", 2.0),
        Distribution("exp", 2.0),
        Distribution("lognormal", 2.0, 1.0),
        empirical((1.0, 3.0)),
    ],
)
def test_laws_have_their_mean_and_scale(law):
    rng = np.random.default_rng(3)
    assert law.draw(rng, 400_000).mean() == pytest.approx(2.0, rel=0.01)
    assert law.scaled(1.5).draw(rng, 400_000).mean() == pytest.approx(3.0, rel=0.01)


def test_late_numbers_depend_on_their_place_only_and_are_even():
    assert unit(1, 2, 3) == unit(1, 2, 3)
    assert unit(1, 2, 3) != unit(1, 3, 2)
    values = np.array([unit(1, 0, place) for place in range(50_000)])
    assert values.mean() == pytest.approx(0.5, abs=0.005)
    assert np.bincount((values * 10).astype(int), minlength=10).min() > 4_700
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02


def test_burst_is_one_instant():
    assert set(instants(Burst(count=40), 40)) == {0.0}


def recording(count=2000):
    rng = np.random.default_rng(5)
    at_s = np.cumsum(rng.exponential(1.0, count))
    return Rows(at_s, prompt=rng.integers(1, 99, count) * 1.0, output=at_s * 0 + np.arange(count))


def test_thinning_keeps_a_share_and_is_anew_in_each_replication():
    thinned = Replay(rows=recording(), thin=0.3)
    first, second = (list(thinned.blocks(Streams(1, n))) for n in (0, 1))
    assert sum(len(block.at_s) for block in first) == pytest.approx(600, rel=0.1)
    assert not np.array_equal(first[0].at_s[:50], second[0].at_s[:50])
    # Sizes stay with their request.
    assert np.isin(first[0].at_s, recording().at_s).all()
    assert (recording().at_s[first[0].output.astype(int)] == first[0].at_s).all()


def test_stretching_lengthens_time_and_keeps_every_request():
    (block,) = Replay(rows=recording(), stretch=2.0).blocks(Streams(1, 0))
    assert (block.at_s == 2 * recording().at_s).all()


def test_unthinned_recording_is_one_sample_path():
    assert not Replay(rows=recording()).random
    assert Replay(rows=recording(), thin=0.5).random
    assert Replay(rows=recording(), bootstrap_s=60.0).random


def test_bootstrap_reorders_blocks_and_stays_sorted():
    rows = recording()
    blocks = list(Replay(rows=rows, bootstrap_s=60.0).blocks(Streams(1, 0)))
    at_s = np.concatenate([block.at_s for block in blocks])
    assert (np.diff(at_s) >= 0).all()
    assert len(at_s) == pytest.approx(len(rows.at_s), rel=0.2)
    output = np.concatenate([block.output for block in blocks]).astype(int)
    assert at_s % 60 == pytest.approx(rows.at_s[output] % 60, abs=1e-6)
    assert len(set(output)) < len(output)


def test_clients_of_a_closed_loop_do_not_disturb_each_other():
    def thoughts(clients, client):
        crowd = Clients(Closed(clients=clients, think_s=10.0), EXP_2, NEVER, Streams(1, 0))
        return [crowd.after_thought(client)[:2] for _ in range(5)]

    assert thoughts(2, 1) == thoughts(50, 1)
    assert thoughts(2, 0) != thoughts(2, 1)


def test_unknown_recorded_seconds_are_those_of_others():
    rows = Rows(np.arange(4.0), service_s=np.array([1.0, np.nan, 3.0, np.nan]))
    service = Service(recorded=True, seconds_known=empirical((1.0, 3.0)))
    made = list(islice(requests(Replay(rows=rows), service, NEVER, Streams(1, 0), None), 10))
    assert [row[1] for row in made][::2] == [1.0, 3.0]
    assert {row[1] for row in made} <= {1.0, 3.0}
