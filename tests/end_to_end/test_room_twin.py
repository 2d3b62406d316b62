"""The simulator against a whole front door before stand-ins: the same arrivals, the same turns."""

import asyncio
import random
from typing import Any, NamedTuple

import pytest
from naps import House, chat_with, house
from test_room import MODELS, POOL, TABLES

from simulator.model.world import WorldModel, WorldRun
from simulator.study.statistics import estimate
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.proxy.gate_settings import limits_of, wake_limits_of

FALL_S, WAKE_S = 0.2, 0.5
TIMES = {"sleep_s": (FALL_S, FALL_S), "wake_s": (WAKE_S, WAKE_S), "reload_s": WAKE_S}


class Seen(NamedTuple):
    """What came of one run."""

    wait_s: float
    switches: int
    served: int


def arrivals(seed: int, requests: int, within_s: float) -> dict[str, list[tuple[float, float]]]:
    """Return when each model is asked, and how long its engine takes."""
    rng = random.Random(seed)
    found: dict[str, list[tuple[float, float]]] = {key: [] for key in MODELS}
    for at_s in sorted(rng.uniform(0, within_s) for _ in range(requests)):
        found[rng.choice(MODELS)].append((at_s, rng.choice((0.05, 0.1, 0.3))))
    return found


async def live(came: dict[str, list[tuple[float, float]]]) -> tuple[Seen, Seen]:
    """Let them come to a front door, and to the simulator with the same settings."""
    async with house(
        *MODELS, tables=TABLES, pool=POOL, hold_sleeping_s=60, hold_offloaded_s=60, engine=TIMES
    ) as door:
        await door.put_to_sleep(1)

        async def one(key: str, at_s: float, hold_s: float) -> int:
            await asyncio.sleep(at_s)
            reply = await door.call("/v1/chat/completions", chat_with(key, hold_s=hold_s, tokens=0))
            return reply.status

        before = len(door.lines)
        asked = [one(key, *each) for key, of_model in came.items() for each in of_model]
        statuses = await asyncio.gather(*asked)
        waits = [float(line["waited_s"]) for line in door.lines[before:]]
        wakes = sum(door.upstream(key).keeper.gate.wakes_total for key in MODELS)
        seen = Seen(sum(waits) / len(waits), wakes, statuses.count(200))
        return seen, simulate(door, came)


def simulate(door: House, came: dict[str, list[tuple[float, float]]]) -> Seen:
    """Run the simulator with wakes as long as they were here, looks and the disk included."""
    models = []
    learned_s = [door.upstream(key).keeper.gate.learned_s["sleeping"] for key in MODELS]
    wake_s = sum(learned_s) / len(learned_s)
    fall_s = FALL_S + wake_s - WAKE_S  # it has as many looks, and is written down as often
    for key in MODELS:
        settings = door.upstream(key).settings
        policy = wake_limits_of(settings, door.app.settings.gpu)
        assert policy is not None
        models.append(
            WorldModel(
                key=key,
                limits=limits_of(settings),
                policy=policy,
                kind=vllm.KIND,
                arrivals_s=[at_s for at_s, _ in came[key]],
                service_s=[hold_s for _, hold_s in came[key]],
                fall_s=(fall_s, fall_s, fall_s),
                wake_s=(wake_s, wake_s, wake_s),
                level=1,
            )
        )
    run = WorldRun(models, door.app.pool._gpus.limits)
    run.run()
    records = run.records.values()
    waits = [wait_s for one in records for wait_s in one.waits_s]
    wakes = sum(one.wakes for one in records)
    return Seen(sum(waits) / len(waits), wakes, sum(one.ends["served"] for one in records))


def both(seeds: range, requests: int, within_s: float) -> list[tuple[Seen, Seen]]:
    return [asyncio.run(live(arrivals(seed, requests, within_s))) for seed in seeds]


def test_a_handful_of_requests_take_the_same_turns_in_both() -> None:
    ((seen, simulated),) = both(range(1), 8, 1.5)
    assert seen.served == simulated.served == 8
    assert abs(seen.switches - simulated.switches) <= 2


@pytest.mark.slow
def test_waits_and_switches_of_a_front_door_are_those_of_the_simulator() -> None:
    """Within the error of the pairs, or a tenth: answers take some milliseconds, too."""
    pairs = both(range(5), 100, 20.0)
    for name in ("wait_s", "switches"):
        seen: list[Any] = [getattr(one, name) for one, _ in pairs]
        told: list[Any] = [getattr(one, name) for _, one in pairs]
        apart = estimate([a - b for a, b in zip(seen, told, strict=True)])
        assert apart.mean is not None
        assert apart.ci95 is not None
        mean = sum(told) / len(told)
        print(f"{name}: live {sum(seen) / len(seen):.2f}, simulated {mean:.2f}, apart {apart}")
        assert abs(apart.mean) <= max(apart.ci95, mean / 10), (name, seen, told)
    assert all(one.served == two.served == 100 for one, two in pairs)
