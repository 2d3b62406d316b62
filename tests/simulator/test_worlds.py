"""Several models on one GPU, simulated: the same ledger, gates and machines as in serving."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.model.world import WorldModel, WorldReplica, WorldRun
from simulator.study.worlds import ModelTraffic, Turns, World, draw, simulate_world, sweep_world
from simulator.traffic.distributions import Distribution
from tornado_frontdoor.cli import worlds
from tornado_frontdoor.core.gpu_occupant import RoomLimits
from tornado_frontdoor.core.limits import AdmissionLimits
from tornado_frontdoor.core.wake.policy import SleepPolicy
from tornado_frontdoor.engines import llama_cpp, sglang, vllm
from tornado_frontdoor.engines.base import EngineKind
from tornado_frontdoor.engines.process import Process, Stoppable

EXAMPLE = Path(__file__).parents[2] / "conf" / "worlds" / "several-models.toml"
ONE_AT_A_TIME = RoomLimits(device_gib={0: 10.0}, stay_factor=1.0, max_turn_wait_s=30.0)
POLICY = SleepPolicy(
    idle_sleep_s=0,
    idle_offload_s=0,
    hold_sleeping_s=600,
    hold_offloaded_s=600,
    hold_restarting_s=600,
    retry_after_sleeping_s=10,
    retry_after_offloaded_s=60,
    retry_after_restarting_s=600,
    canary=True,
    devices=(0,),
    awake_gib=8.0,
)


def model(key: str, arrivals_s: Sequence[float] = (), **changes: Any) -> WorldModel:
    given: dict[str, Any] = {
        "key": key,
        "limits": AdmissionLimits(cap=4, queue=100, queue_timeout_s=600),
        "policy": POLICY,
        "kind": vllm.KIND,
        "arrivals_s": tuple(arrivals_s),
        "service_s": (1.0,) * len(arrivals_s),
        "fall_s": (2.0, 1.0, 1.0),
        "wake_s": (3.0, 20.0, 40.0),
    }
    return WorldModel(**(given | changes))


def test_two_that_do_not_fit_take_turns_by_the_second():
    """A wakes from level 2 in 20 s; B comes, A serves its own and makes room in 2 s, B wakes."""
    run = WorldRun([model("a", [0.0]), model("b", [5.0])], ONE_AT_A_TIME)
    run.run()
    a, b = run.records["a"], run.records["b"]
    assert a.waits_s == [20.0]
    # B waits for A's wake (20), its second of work (21), its stay, its fall at level 1, and wakes.
    assert b.waits_s[0] == pytest.approx(21.0 + 2.0 + 20.0 - 5.0, abs=45.0)
    assert a.evicted_for == {"b": 1}
    assert (a.wakes, b.wakes) == (1, 1)
    assert run.most_gib[0] <= 10.0


def test_idle_tiers_put_to_sleep_at_the_level_they_say():
    idle = replace(POLICY, idle_sleep_s=10.0, idle_offload_s=100.0)
    run = WorldRun([model("a", [0.0, 300.0, 350.0], policy=idle)], ONE_AT_A_TIME)
    run.run()
    assert run.records["a"].waits_s == [20.0, 20.0, 3.0], "the last from level 1"
    assert run.records["a"].sleeps["idle"] == 3


def test_who_waits_too_long_is_refused_and_does_not_come_back():
    short = replace(POLICY, hold_offloaded_s=5.0, hold_sleeping_s=5.0)
    run = WorldRun([model("a", [0.0], policy=short)], ONE_AT_A_TIME)
    run.run()
    assert run.records["a"].ends == {"model_waking": 1}


KINDS: Sequence[tuple[EngineKind, float]] = [
    (vllm.KIND, 20.0),
    (llama_cpp.KIND, 20.0),
    (sglang.KIND, 20.0),
    (Stoppable(Process(), 100.0, 10.0), 40.0),
    (Stoppable(vllm.KIND, 100.0, 10.0), 40.0),
]


@pytest.mark.parametrize(("kind", "cold_s"), KINDS, ids=lambda value: getattr(value, "name", ""))
def test_every_kind_wakes_from_its_depth_and_makes_room(kind: EngineKind, cold_s: float):
    models = [model("a", [0.0, 200.0], kind=kind), model("b", [100.0, 300.0], kind=kind)]
    run = WorldRun(models, ONE_AT_A_TIME)
    run.run()
    for key in "ab":
        records = run.records[key]
        assert records.ends == {"served": 2}
        assert records.waits_s[0] >= cold_s
        assert records.wakes == 2
    assert run.records["a"].evicted_for["b"] >= 1


def world(**changes: Any) -> World:
    given: dict[str, Any] = {
        "models": (model("a"), model("b")),
        "traffic": {
            "a": ModelTraffic(rate_per_s=0.05, service=Distribution("exp", 2.0)),
            "b": ModelTraffic(rate_per_s=0.02, service=Distribution("exp", 2.0)),
        },
        "room": ONE_AT_A_TIME,
        "duration_s": 900.0,
        "replications": 3,
    }
    return World(**(given | changes))


def test_the_same_seed_gives_the_same_world_and_another_one_another():
    first, again, other = (simulate_world(world(seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_all_that_came_is_accounted_for_and_nothing_exceeds_the_gpu():
    result = simulate_world(world())
    for one in result.models.values():
        assert one.served_share.mean is not None
        left_out = sum(one.refused.values())
        assert one.arrivals * (1 - one.served_share.mean) == pytest.approx(left_out, abs=0.5)
    assert result.most_gib[0] <= 10.0
    assert result.failed_wakes == 0


def test_a_longer_stay_means_fewer_switches():
    quick, slow = (
        simulate_world(world(replications=2), Turns(stay_factor=stay, max_turn_wait_s=600.0))
        for stay in (0.0, 8.0)
    )
    assert quick.switches_per_h.mean > slow.switches_per_h.mean  # type: ignore[operator]


def test_a_sweep_puts_the_best_for_the_worst_off_first():
    grid = {"stay_factor": (0.0, 8.0), "max_turn_wait_s": (30.0, 600.0)}
    results = sweep_world(world(replications=2), grid)
    assert len(results) == 4
    shares = [round(one.worst_share, 1) for one in results]
    assert shares == sorted(shares, reverse=True)


def test_recorded_requests_come_as_they_came():
    traffic = ModelTraffic(recorded_at_s=(0.0, 5.0, 50.0), recorded_s=(1.0, 2.0, 3.0))
    assert draw(traffic, 10.0, np.random.default_rng(1)) == ((0.0, 5.0), (1.0, 2.0))


def test_the_example_file_is_a_world_and_its_report_names_every_model(capsys):
    given = {"--world": str(EXAMPLE), "--duration": "300", "--reps": "1"}
    assert worlds.run(given) == 0
    told = capsys.readouterr().out
    for key in ("chat", "code", "embed", "ocr"):
        assert f"\n{key} " in told
    assert "GPU 0: at most" in told


TOKENS = "[traffic.chat]\nrate = 1\ntokens = 'exp:9'\n"
PROFILED = "[traffic.chat]\nrate = 0.3\nservice = 'profile:dense-32b-2xa100'\n"


def test_a_world_s_engine_runs_out_of_memory_and_tells_what_its_gpus_cost(tmp_path, capsys):
    """Six tokens' room for each that a roomy one has: preempted, waits inside, wakes as before."""
    text = EXAMPLE.read_text().partition("[traffic.chat]")[0]
    path = tmp_path / "world.toml"
    details = "prompt = 'const:900'\noutput = 'const:400'\nspeculate = '3,0.7'\n"
    told = []
    for kv_tokens in (100_000, 4000):
        path.write_text(f"{text}\n{PROFILED}{details}kv_tokens = {kv_tokens}\n")
        given = {"--world": str(path), "--duration": "600", "--reps": "2", "--gpu-cost": "3.6"}
        assert worlds.run({**given, "--json": True}) == 0
        told.append(json.loads(capsys.readouterr().out))
    roomy, short = (one["models"]["chat"] for one in told)
    assert roomy["preemptions_per_request"] == 0 < short["preemptions_per_request"]
    assert roomy["kv_usage_max"] < 0.5 < short["kv_usage_max"]
    assert roomy["arrivals"] == short["arrivals"] > 100
    assert told[0]["cost_per_thousand"]["mean"] == pytest.approx(1000 / 300 * 0.6 / 0.6, rel=0.3)
    assert worlds.run(given) == 0
    assert "preemptions a request" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ("[traffic.nobody]\nrate = 1", "names no model"),
        ("[traffic.chat]\nrat = 1", "traffic.chat.rat is not known"),
        ("[traffic.chat]\nrate = -1", r"traffic.chat.rate: must be at least 0, not -1"),
        ("[traffic.chat]\nrate = inf", "traffic.chat.rate: 'inf' is not a finite number"),
        ("[traffic.chat]\nrate = 1e12", "traffic.chat.rate: must be at most 100000"),
        ("[traffic.chat]\nrate = 1e-300", "traffic.chat.rate: '1e-300' is not within"),
        ("[traffic.chat]\nrate = true", "traffic.chat.rate must be a number, not True"),
        ("[traffic.chat]\nslowdown = inf", "traffic.chat.slowdown: 'inf' is not a finite"),
        ("[traffic.chat]\nslowdown = 1e12", "traffic.chat.slowdown: must be at most 100"),
        (TOKENS + "tokens_per_s = inf", "traffic.chat.tokens_per_s: 'inf' is not a finite"),
        (TOKENS + "tokens_per_s = 1e-300", "traffic.chat.tokens_per_s: '1e-300' is not within"),
        (TOKENS + "tokens_per_s = 1e-9", "chat: tokens_per_s: a request takes 9e.09 s alone"),
        (PROFILED + "output = 'const:1e9'", "traffic.chat: output: a request takes 2.55e.07 s"),
        ("[traffic.chat]\nfall_s = ['a', 1, 2]", "traffic.chat.fall_s must be a number, not 'a'"),
        ("[traffic.chat]\nwake_s = [[1], 2, 3]", r"traffic.chat.wake_s must be a number, not \[1"),
        ("[traffic.chat]\nwake_s = [nan, 2, 3]", "traffic.chat.wake_s: 'nan' is not a finite"),
        ("[traffic.chat]\nwake_s = [1, -1, 3]", "traffic.chat.wake_s: must be at least 0, not -1"),
        ("[traffic.chat]\nfall_s = [1, 2, inf]", "traffic.chat.fall_s: 'inf' is not a finite"),
        ("[traffic.chat]\nservice = 'exp:1'", "needs rate, or log"),
        ("[traffic.chat]\nrate = 1\ntokens = 'exp:9'", "tokens need tokens_per_s"),
        ("[traffic.chat]\nrate = 1\nwake_s = [1, 2]", "three numbers"),
        ("[traffic.chat]\nlog = 'nowhere.log'", "nowhere.log"),
        ("[traffic.chat]\nrate = 1\nkv_tokens = 9000", 'kv_tokens goes with service = "profile:'),
        (PROFILED + "kv_tokens = 0", "traffic.chat.kv_tokens: must be above 0, not 0"),
        (PROFILED + "speculate = '3'", "traffic.chat: speculate: needs DRAFTS,ACCEPTANCE"),
        (PROFILED + "slowdown = 0.1", "slowdown: a profile says that itself"),
        ("", "nothing comes"),
    ],
)
def test_a_wrong_world_says_what_is_wrong_and_where(tmp_path, table, fault):
    text = EXAMPLE.read_text().partition("[traffic.chat]")[0]
    path = tmp_path / "world.toml"
    path.write_text(f"{text}\n{table}\n")
    with pytest.raises(worlds.UsageError, match=fault):
        worlds.read_world(path)


@pytest.mark.parametrize("flags", [{}, {"--json": True}, {"--turns": True}])
def test_a_world_to_which_nobody_comes_has_a_report(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(worlds, "GRID", {"stay_factor": (1.0,)})
    text = EXAMPLE.read_text().partition("[traffic.chat]")[0]
    path = tmp_path / "world.toml"
    path.write_text(f"{text}\n[traffic.chat]\nrate = 0\n")
    given = {"--world": str(path), "--duration": "1", "--reps": "2", "--gpu-cost": "3"}
    assert worlds.run({**given, **flags}) == 0
    told = capsys.readouterr().out
    if "--json" in flags:
        found = json.loads(told)
        assert found["switches_per_h"]["mean"] is None
        assert found["models"]["chat"]["arrivals"] == 0


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"--duration": "1e12"}, "--duration: must be at most 1e.07"),
        ({"--duration": "1e7"}, "--duration: 1.16e.07 requests come in 1e.07 s"),
    ],
)
def test_a_world_of_more_requests_than_a_run_can_hold_is_not_begun(more, fault):
    with pytest.raises(worlds.UsageError, match=fault):
        worlds.run({"--world": str(EXAMPLE), **more})


def test_replicas_on_gpus_of_their_own_wake_each_as_it_is_needed():
    """One request wakes one; a crowd the other, too, as soon as its GPU's neighbour has left."""
    room = RoomLimits(device_gib={0: 10.0, 1: 10.0}, stay_factor=1.0, max_turn_wait_s=30.0)
    two = (WorldReplica("http://x", 2, (0,)), WorldReplica("http://y", 2, (1,)))
    limits = AdmissionLimits(cap=3, queue=100, queue_timeout_s=600)
    beside = replace(POLICY, devices=(1,))
    comes_s = [30.0, *[100.0] * 5]
    long = {"service_s": (1.0, *[60.0] * 5), "limits": limits, "replicas": two}
    run = WorldRun(
        [
            model("several", comes_s, **long),
            model("beside", [0.0], policy=beside),
        ],
        room,
    )
    run.run()
    several, neighbour = run.records["several"], run.records["beside"]
    assert several.waits_s[0] == 20.0
    assert (several.ends["served"], several.wakes) == (6, 2)
    assert neighbour.sleeps == {"room": 1}
    assert neighbour.evicted_for == {"several at y": 1}
    assert max(run.most_gib.values()) <= 10.0


def test_a_file_with_replicas_that_sleep_is_a_world(tmp_path):
    path = tmp_path / "world.toml"
    path.write_text(
        """
[gpu]
memory_gib = 80
[upstreams.text]
replicas = [
  { url = "http://a:1", slots = 4, devices = [0] },
  { url = "http://b:1", slots = 4, devices = [1] },
]
[upstreams.text.admission]
cap = 7
queue = 20
queue_timeout_s = 60
[upstreams.text.sleep]
[upstreams.text.gpu]
devices = [0]
utilization = 0.9
[models.text]
upstream = "text"
[traffic.text]
rate = 0.05
service = "exp:20"
"""
    )
    world = worlds.read_world(path)
    (one,) = world.models
    assert [(each.name, each.slots, each.devices) for each in one.replicas] == [
        ("http://a:1", 4, (0,)),
        ("http://b:1", 4, (1,)),
    ]
    result = simulate_world(replace(world, duration_s=600.0, replications=1))
    assert result.models["text"].served_share.mean == 1.0
