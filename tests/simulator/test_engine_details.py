"""What an engine does besides, as a user asks for it: memory, cached prefixes, drafts."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scenes import burst, result_of, scene

from simulator.cli.option_parser import UsageError
from simulator.cli.options import simulate_of
from simulator.model.scenario import Scenario
from simulator.study.capacity import capacity_per_s, held_mean, kv_binds_at
from simulator.traffic.distributions import Distribution
from simulator.traffic.engine_details import (
    Chances,
    EngineDetails,
    PrefixCache,
    Speculation,
)
from simulator.traffic.service import Service
from simulator.traffic.service_profiles import (
    ServiceProfile,
    TokenTimes,
    profile_document,
    read_profile,
)
from simulator.traffic.streams import Streams
from simulator.traffic.workload import Burst, Renewal
from tornado_frontdoor.cli.main import main

ENGINE = ServiceProfile(
    name="one", source="made up", token=TokenTimes(first_s=0.02), prompt_token_s=0.0001
)
SIZES = {"prompt": Distribution("const", 400.0), "output": Distribution("const", 101.0)}


def world(rate: float = 0.5, cap: int = 6, **details: Any) -> Scenario:
    """Prompts of 400 tokens, answers of 101, two seconds alone."""
    profile = replace(ENGINE, details=EngineDetails(**details))
    service = Service(profile=profile, **SIZES)
    return scene(cap=cap, arrivals=Renewal(rate=rate), service=service, requests=600, warmup=60)


def test_short_memory_preempts_and_hides_waits_and_is_told_only_where_it_is_known():
    roomy, short = (
        result_of(world(rate=2.5, kv_tokens=tokens), replications=3) for tokens in (1e6, 1800)
    )
    assert roomy.estimate("preemptions_per_request").mean == 0.0
    assert roomy.estimate("hidden_wait_mean_s").mean == pytest.approx(0.0)
    assert short.estimate("preemptions_per_request").mean > 0.02
    assert short.estimate("hidden_wait_mean_s").mean > 0.1
    assert 0.4 < short.estimate("kv_usage_mean").mean < 1
    assert short.estimate("kv_usage_max").mean == pytest.approx(1.0, abs=0.02)
    assert short.estimate("latency_p95_s").mean > roomy.estimate("latency_p95_s").mean
    assert "kv_usage_mean" not in result_of(world(), replications=1).estimates()


def test_wait_after_a_preemption_is_hidden_as_one_before_a_start_is():
    """Ten tokens a second each; full after 4 s, then the second waits for 2 s until it fits."""
    details = EngineDetails(kv_tokens=100.0, kv_block_tokens=0)
    profile = ServiceProfile(
        name="ten", source="made up", token=TokenTimes(first_s=0.1), details=details
    )
    laws = {"prompt": Distribution("const", 10.0), "output": Distribution("const", 60.0)}
    result = result_of(burst(arrivals=Burst(count=2), service=Service(profile=profile, **laws)))
    assert result.estimate("hidden_wait_mean_s").mean == pytest.approx((0 + 2) / 2)
    assert result.estimate("preemptions_per_request").mean == 0.5
    assert result.estimate("latency_p99_s").mean == pytest.approx(8.0)


def test_mean_usage_is_what_little_s_law_says():
    """Held by one request over its time: its prompt, half a block, and an answer that grows."""
    result = result_of(world(rate=0.3, kv_tokens=20_000.0), replications=4)
    held_seconds = (400 + 8) * (0.04 + 2.02) + 2.02 * 101 / 2
    usage = result.estimate("kv_usage_mean")
    assert usage.mean == pytest.approx(0.3 * held_seconds / 20_000, rel=0.08)


@pytest.mark.parametrize("driver", ["heap", "simpy"])
def test_either_driver_and_every_seed_come_to_the_same(driver: str):
    details = {
        "kv_tokens": 2000.0,
        "prefix": PrefixCache(continued=0.5, cached=0.7),
        "speculation": Speculation(drafts=3, acceptance=0.6, deviation=0.1),
    }
    told = result_of(world(rate=2.0, **details), replications=1, driver=driver)
    again = result_of(world(rate=2.0, **details), replications=1, driver="heap")
    assert told == again


def test_a_cached_prefix_saves_its_share_of_reading_in_whole_blocks():
    chances = Chances(EngineDetails(prefix=PrefixCache(continued=0.25, cached=0.5)), Streams(1, 0))
    cached = [chances.cached(index, 100.0) for index in range(4000)]
    assert set(cached) == {0.0, 48.0}
    assert cached.count(48.0) / 4000 == pytest.approx(0.25, abs=0.03)
    whole = Chances(EngineDetails(prefix=PrefixCache(continued=1.0, cached=1.0)), Streams(1, 0))
    assert whole.cached(0, 64.0) == 48.0  # the last token is always read
    rare = world(rate=0.01, prefix=PrefixCache(continued=1.0, cached=0.75))
    first_s = result_of(rare, replications=1).estimate("first_token_p50_s").mean
    assert first_s == pytest.approx(0.02 + 0.0001 * (400 - 288))


def test_drafts_make_as_many_tokens_a_step_as_leviathan_and_others_say():
    """(1 - a^(k+1)) / (1 - a): equation 1 of arXiv 2211.17192."""
    for drafts, acceptance, made in ((5, 0.8, 3.69), (3, 0.6, 2.18), (1, 0.5, 1.5)):
        law = Speculation(drafts=drafts, acceptance=acceptance)
        assert law.tokens_a_step == pytest.approx(made, abs=0.005)
        steps = law.steps(100_000, np.random.default_rng(1))
        assert 100_000 / steps == pytest.approx(made, rel=0.01)


def test_drafts_scatter_lengths_and_leave_their_mean():
    streams = Streams(1, 0)
    spreads = []
    for deviation in (0.0, 0.15):
        law = Speculation(drafts=4, acceptance=0.7, deviation=deviation)
        chances = Chances(EngineDetails(speculation=law), streams)
        work = np.array([chances.work(index, 200.0) for index in range(2000)])
        assert work.mean() == pytest.approx(200.0, rel=0.02)
        spreads.append(work.std() / work.mean())
    # Of independent steps alone: deviation of a step / mean, by the root of how many there are.
    made = np.minimum(np.random.default_rng(0).geometric(0.3, 100_000) - 1, 4) + 1
    assert spreads[0] == pytest.approx(
        made.std() / made.mean() / (200 / made.mean()) ** 0.5, rel=0.1
    )
    assert spreads[1] > 2 * spreads[0]
    assert chances.work(0, 0.0) == 0.0


def test_what_chance_gives_a_request_is_the_same_at_every_cap():
    law = Speculation(drafts=4, acceptance=0.7, deviation=0.1)
    lone, crowded = (
        result_of(world(rate=0.001, cap=cap, speculation=law), replications=2, seed=9)
        for cap in (1, 6)
    )
    name = "latency_p95_s"
    assert lone.estimate(name) == crowded.estimate(name)
    assert lone.estimate(name).mean > lone.estimate("latency_p50_s").mean


def test_memory_bounds_what_an_engine_serves_and_says_at_which_cap():
    roomy = world(cap=7)
    assert kv_binds_at(roomy) is None
    assert held_mean(roomy) == pytest.approx(400 + 101 / 2)
    short = world(cap=7, kv_tokens=4 * (400 + 101 / 2 + 8))
    assert kv_binds_at(short) == 4
    assert kv_binds_at(world(cap=7, kv_tokens=1e5)) is None
    assert capacity_per_s(short) == pytest.approx(capacity_per_s(replace(roomy, cap=4)))
    cached = world(cap=7, prefix=PrefixCache(continued=1.0, cached=0.5))
    assert capacity_per_s(cached) > 1.02 * capacity_per_s(roomy)


def test_who_answers_at_length_counts_by_the_time_it_runs():
    """For exponential answers that run for as long as they are: E[o^2] / 2 E[o] is their mean."""
    laws = {"prompt": Distribution("const", 100.0), "output": Distribution("exp", 300.0)}
    profile = replace(ENGINE, details=EngineDetails(kv_tokens=1e4))
    told = replace(world(), service=Service(profile=profile, **laws))
    assert held_mean(told) == pytest.approx(400.0, rel=0.01)


OPTIONS = {"--cap": "4", "--queue": "4", "--service": "profile:dense-32b-2xa100", "--rate": "0.1"}


def details_of(**given: str) -> ServiceProfile:
    options = {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    profile = simulate_of({**OPTIONS, **options}).scenarios[0].service.profile
    assert profile is not None
    return profile


def test_options_say_what_the_engine_does():
    told = details_of(
        kv_tokens="50000",
        prefix_cache="0.6,0.8",
        speculate="4,0.7,0.1",
        max_num_batched_tokens="512",
    )
    assert told.chunk_tokens == 512
    assert told.details == EngineDetails(
        kv_tokens=50000.0,
        prefix=PrefixCache(continued=0.6, cached=0.8),
        speculation=Speculation(drafts=4, acceptance=0.7, deviation=0.1),
    )
    assert not details_of(kv_tokens="9000", prefix_cache="off").details.prefix_caching
    assert details_of().details.plain


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv_tokens": "0"}, "--kv-tokens: must be above 0, not 0"),
        ({"prefix_cache": "1.2,0.5"}, "--prefix-cache: needs two shares, or off, not '1.2,0.5'"),
        ({"prefix_cache": "0.5"}, "--prefix-cache: needs two numbers and a comma, not '0.5'"),
        ({"prefix_cache": "off"}, "--prefix-cache: off says what a preemption costs"),
        ({"speculate": "4"}, "--speculate: needs DRAFTS,ACCEPTANCE"),
        ({"speculate": "4,1.5"}, "--speculate: the acceptance must be at most 1, not 1.5"),
        ({"speculate": "4,0.9,0.4"}, "--speculate: no shares have a mean of 0.9 and a deviation"),
        ({"speculate": "0,0.5"}, "--speculate: must be at least 1, not 0"),
        ({"max_num_batched_tokens": "0"}, "--max-num-batched-tokens: must be at least 1, not 0"),
        ({"kv_tokens": "9000", "service": "exp:2"}, "--kv-tokens: goes with a --service profile"),
    ],
)
def test_options_that_cannot_be_are_told(given: dict[str, str], said: str):
    with pytest.raises(UsageError, match=re.escape(said)):
        details_of(**given)


def test_a_profile_keeps_them(tmp_path: Path):
    file = tmp_path / "mine.json"
    profile = details_of(kv_tokens="50000", prefix_cache="0.6,0.8", speculate="4,0.7,0.1")
    file.write_text(json.dumps(profile_document(profile)))
    told = read_profile(file)
    assert isinstance(told, ServiceProfile)
    assert told.details == profile.details
    for key, value, said in (
        ("prefix_caching", 1, "prefix_caching must be true or false, not 1"),
        ("kv_block_tokens", 0, "kv_block_tokens must be above 0"),
        ("acceptance", 2, "acceptance must be between 0 and 1, not 2"),
        ("acceptance_deviation", 0.5, "no shares have a mean of 0.7 and a deviation of 0.5"),
    ):
        file.write_text(json.dumps({**profile_document(profile), key: value}))
        with pytest.raises(ValueError, match=re.escape(said)):
            read_profile(file)


def test_tune_says_where_memory_binds_and_shows_what_it_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = [
        *("tune", "--slots", "8", "--service", "profile:dense-32b-2xa100", "--rate", "0.2"),
        *("--kv-tokens", "6000", "--tokens", "1024,256", "--requests", "300", "--jobs", "1"),
        *("--queue", "8,16", "--timeout", "60", "--slo", "lost_share=0.2", "--headroom", "0"),
    ]
    page = tmp_path / "report.html"
    assert main([*command, "--gpu-cost", "3.6", "--html", str(page)]) == 0
    drawn = page.read_text()
    assert "KV memory binds at cap 5" in drawn
    assert re.search(r"preempted 0\.\d+, cost/1000 \d", drawn)
    assert "cost of a thousand served" in drawn
    told = " ".join(capsys.readouterr().out.replace("#", "").split())
    assert "KV memory binds at cap 5: a running request of this traffic holds 1,28" in told
    assert told.count("KV memory binds") == 1
    for column in ("hidden wait", "preempted", "cost/1000"):
        assert column in told
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["load"]["kv_binds_at_cap"] == 5
    assert document["parameters"]["kv_tokens"] == 6000.0


def test_sweep_shows_cost_and_memory_beside_each_point(capsys: pytest.CaptureFixture[str]):
    command = [
        *("sweep", "--cap", "2,6", "--queue", "4", "--timeout", "30", "--rate", "0.2"),
        *("--service", "profile:dense-32b-2xa100", "--kv-tokens", "6000", "--gpu-cost", "3.6"),
        *("--requests", "300", "--reps", "2", "--jobs", "1", "--headroom", "0"),
    ]
    assert main(command) == 0
    told = capsys.readouterr().out
    for column in ("preempted", "cost/1000", "KV memory binds at cap 5"):
        assert column in told
