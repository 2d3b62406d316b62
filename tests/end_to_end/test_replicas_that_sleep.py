"""Several engines behind one name, each of which sleeps by itself: on real sockets."""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from doorway import Mishaps
from killable import DoorProcess
from naps import CHAT, QUICK, SERVER, SLEEP, House, _lines, broken_laws, chat_with, configuration
from stopwatch import PATIENCE_S

from simulator.standin.server import StandIn, StandInOptions
from tornado_frontdoor.config import ConfigError, load
from tornado_frontdoor.proxy.app import App

NAMES = ("a", "b")


def text_of_file(urls: dict[str, str], slots: int, cap: int, sleep: dict[str, object]) -> str:
    """Return the configuration of one upstream before replicas at these addresses."""
    tables = ", ".join(f'{{ url = "{url}", slots = {slots} }}' for url in urls.values())
    return "\n".join(
        [
            SERVER.format(routes='chat_default = "text"'),
            f"[upstreams.text]\nreplicas = [{tables}]",
            f"[upstreams.text.admission]\ncap = {cap}\nqueue = 40\nqueue_timeout_s = 20",
            f"[upstreams.text.sleep]\n{_lines({**SLEEP, **sleep, 'max_waiting': 64})}",
            '[models.text]\nupstream = "text"',
        ]
    )


class Several(House):
    """A front door before the replicas `a` and `b` of `text`."""

    urls: dict[str, str]

    async def replicas(self) -> dict[str, dict[str, Any]]:
        """Return each replica as the status shows it."""
        shown = {one["url"]: one for one in (await self.status())["replicas"]}
        return {name: shown[url] for name, url in self.urls.items()}

    def states(self) -> str:
        """Return the states of all."""
        return " ".join(one.state.value for one in self.upstream().sleepers)

    async def until_states(self, states: str, within_s: float = PATIENCE_S) -> None:
        """Wait until they are in these states."""
        await self.until(lambda: self.states() == states, within_s)

    async def order(self, path: str, status: int = 200) -> dict[str, Any]:
        """Call the admin listener and return what it answers."""
        reply = await self.admin(f"/admin/{path}", "POST")
        assert reply.status == status, reply.body
        told: dict[str, Any] = reply.json
        return told


@contextlib.asynccontextmanager
async def several(
    *, slots: int = 4, cap: int = 7, engine: dict[str, Any] | None = None, **sleep: object
) -> AsyncIterator[Several]:
    """Run a front door before two replicas; at the end all is at rest and the laws are kept."""
    mishaps = Mishaps()
    logging.getLogger().addHandler(mishaps)
    options = {"models": ("text",), "sleep_mode": True, **QUICK, "slots": slots, **(engine or {})}
    engines = {name: StandIn(StandInOptions(**options)) for name in NAMES}
    urls = {name: f"http://127.0.0.1:{made.listen()}" for name, made in engines.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frontdoor.toml"
        text = text_of_file(urls, slots, cap, sleep)
        path.write_text(text)
        log = StringIO()
        app = App(load(path), lambda: load(path), log)
        door = Several(app, text, path, log)
        door.engines, door.urls = engines, urls
        try:
            await door.until_states("awake awake")
            yield door
            await door.leave()
            await door.at_rest()
            door.hold_to_the_laws()
            for name in NAMES:
                assert door.seen(name)["max_concurrent"] <= slots
        finally:
            await door.leave()
            await app.close()
            for made in engines.values():
                await made.close()
            logging.getLogger().removeHandler(mishaps)
    assert not mishaps.seen, "\n".join(mishaps.seen)


def test_a_request_wakes_one_and_a_crowd_as_many_as_it_needs() -> None:
    async def scenario() -> None:
        async with several() as door:
            await door.order("sleep/text?level=1")
            assert door.states() == "sleeping sleeping"
            assert (await door.status())["state"] == "sleeping"
            assert (await door.ask()).status == 200
            assert door.states() == "awake sleeping"
            shown = await door.replicas()
            assert [shown[name]["state"] for name in NAMES] == ["awake", "sleeping"]
            assert [shown[name]["wakes_total"] for name in NAMES] == [1, 0]
            health = (await door.get("/health")).json["upstreams"]["text"]
            assert (health["state"], health["sleep_depth"]) == ("awake", None)
            for _ in range(6):
                await door.begin(CHAT, chat_with(stream=True, tokens=500, gap_ms=20))
            await door.until_states("awake awake")
            await door.until(lambda: (door.gate.in_flight, door.gate.queued) == (6, 0))
            metrics = (await door.admin("/metrics")).body.decode()
            label = f'replica="{door.urls["b"]}",state="awake",upstream="text"'
            assert f"frontdoor_replica_state{{{label}}} 1.0" in metrics
            woken = 'frontdoor_wakes_total{depth="sleeping",result="succeeded",upstream="text"}'
            assert f"{woken} 2.0" in metrics

    asyncio.run(scenario())


def test_idle_ones_fall_asleep_each_by_itself_and_never_with_a_slot_held() -> None:
    async def scenario() -> None:
        async with several(idle_sleep_s=0.3) as door:
            stream = asyncio.ensure_future(door.ask(stream=True, tokens=60, gap_ms=20))
            await door.until(lambda: door.gate.in_flight == 1)
            await door.until_states("awake sleeping")
            assert not stream.done()
            assert (await stream).status == 200
            await door.until_states("sleeping sleeping")
            assert (await door.status())["sleep_depth"] == "sleeping"
            metrics = (await door.admin("/metrics")).body.decode()
            assert 'frontdoor_sleeps_total{level="1",reason="idle",upstream="text"} 2.0' in metrics

    asyncio.run(scenario())


def test_operators_speak_to_one_replica_or_to_all() -> None:
    async def scenario() -> None:
        async with several(idle_sleep_s=0.3) as door:
            first, second = (door.urls[name] for name in NAMES)
            told = await door.order(f"pin/text?replica={second}&by=alice")
            assert [(one["kind"], one["replica"]) for one in told["orders"]] == [("pin", second)]
            await door.until_states("sleeping awake")
            await door.order(f"unpin/text?replica={first}", 409)
            await door.order(f"unpin/text?replica={second}")
            await door.until_states("sleeping sleeping")
            told = await door.order(f"wake/text?wait=true&replica={first}")
            assert (told["state"], door.states()) == ("awake", "awake sleeping")
            await door.order(f"sleep/text?level=2&replica={first}")
            assert door.depth("a") == 2
            told = await door.order(f"sleep/text?for=1h&replica={first}")
            assert (await door.ask()).status == 200
            assert door.states().split()[0] in ("offloaded", "sleeping")
            for verb in ("wake", "sleep", "pin", "drain", "believe"):
                told = await door.order(f"{verb}/text?replica=http://nobody:1", 404)
                assert first in told["error"]

    asyncio.run(scenario())


def test_one_that_is_drained_gets_nobody_and_is_woken_for_nobody() -> None:
    async def scenario() -> None:
        async with several(idle_sleep_s=0.3) as door:
            await door.order(f"drain/text?replica={door.urls['a']}")
            assert (await door.replicas())["a"]["state"] == "drained"
            before = door.seen("a")["started"]
            for _ in range(3):
                assert (await door.ask()).status == 200
            assert door.seen("a")["started"] == before
            await door.until(lambda: door.states().startswith("sleeping"))
            shown = (await door.replicas())["a"]
            assert (shown["state"], shown["drained"]) == ("sleeping", True)
            await door.order(f"drain/text?replica={door.urls['b']}")
            for awake_too in (True, False):
                if not awake_too:
                    await door.until_states("sleeping sleeping")
                told = (await door.admin("/admin/explain/text")).json
                assert "every replica is drained by hand" in told["what"]
                assert told["blocked_by"] == (
                    "every replica is drained by hand: nobody new is sent there and none is woken "
                    "until `frontdoor drain text --replica URL --undo`"
                )
                assert told["a_request_now"] == (
                    "would wait for a replica that is used again for at most 20 s, at place 1, "
                    "then 503"
                )
                assert told["expected_wait_s"] == 0.0
            await door.order(f"drain/text?replica={door.urls['b']}&undo=true")
            assert (
                "would wake it" in (await door.admin("/admin/explain/text")).json["a_request_now"]
            )

    asyncio.run(scenario())


def test_a_request_that_finds_one_dead_wakes_the_other() -> None:
    async def scenario() -> None:
        async with several() as door:
            await door.order(f"sleep/text?replica={door.urls['b']}")
            await door.kill(key="a")
            assert (await door.ask()).status == 200
            assert door.states() == "down awake"
            (line,) = [line for line in door.lines if line["outcome"] == "served"]
            assert line["replica"] == door.urls["b"]
            door.boot("a")
            await door.until(lambda: door.states() == "awake awake")
            door.engines["a"]._engine.deaths = 0  # that was ours

    asyncio.run(scenario())


def test_other_replicas_come_with_the_next_start_and_slots_at_once() -> None:
    async def scenario() -> None:
        async with several() as door:
            text = door.path.read_text()
            door.path.write_text(text.replace("slots = 4", "slots = 5"))
            assert door.app.reread()[0]
            assert [one["slots"] for one in (await door.replicas()).values()] == [5, 5]
            third = ', { url = "http://127.0.0.1:9", slots = 4 }]'
            door.path.write_text(text.replace("}]", "}" + third))
            (note,) = (await door.order("reload"))["notes"]
            assert note.endswith("until then http://127.0.0.1:9 is not used")
            assert len((await door.status())["replicas"]) == 2
            assert (await door.ask()).status == 200
            gone = f', {{ url = "{door.urls["b"]}", slots = 4 }}]'
            assert gone in text
            door.path.write_text(text.replace(gone, "]").replace("cap = 7", "cap = 3"))
            (note,) = (await door.order("reload"))["notes"]
            assert note.startswith("upstreams.text.replicas: which engines there are changes with")
            assert note.endswith(f"of SIGUSR2): until then {door.urls['b']} stays")
            assert len((await door.status())["replicas"]) == 2

    asyncio.run(scenario())


class Killable(DoorProcess):
    """A front door before replicas that is a process of its own."""

    async def until_states(self, *wanted: str) -> None:
        """Wait until the replicas are in these states."""
        for _ in range(400):
            states = [one["state"] for one in (await self.status())["replicas"]]
            if states == [*wanted]:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{states}: {self.log()[-2000:]}")


async def happened(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what is watched has no event
            await asyncio.sleep(0.002)


async def interrupted(door: Killable, engine: StandIn, url: str, during: str) -> None:
    """Have a sleep or a wake of one replica under way, kill the front door, start the next."""
    if during == "wake":
        slept = await door.admin(f"/admin/sleep/text?level=2&replica={url}", "POST")
        assert slept.status == 200, slept.body
        engine._faults.add("reload_weights=hang*1")
        await door.admin(f"/admin/wake/text?replica={url}", "POST")
        await happened(lambda: engine._faults.injected["reload_weights=hang"] == 1)
    else:
        engine._faults.add("sleep=mute*1")
        await door.begin(f"/admin/sleep/text?level=2&replica={url}", None, admin=True)
        await happened(lambda: engine._faults.injected["sleep=mute"] == 1)
        await happened(lambda: engine._engine.busy is None)
    await door.end()
    await door.start()
    if engine._engine.busy is not None:
        await happened(lambda: len(engine._engine._loop) > 0)
        engine._engine._busy_until_s = engine.now()
        engine.pump()


@pytest.mark.parametrize("during", ["sleep", "wake"])
def test_what_is_known_of_each_outlives_a_kill_of_the_front_door(
    tmp_path: Path, during: str
) -> None:
    async def scenario() -> None:
        options = {"models": ("text",), "sleep_mode": True, **QUICK, "hold": 0.5}
        engines = [StandIn(StandInOptions(**options)) for _ in NAMES]
        urls = [f"http://127.0.0.1:{made.listen()}" for made in engines]
        path = tmp_path / "frontdoor.toml"
        path.write_text(text_of_file(dict(zip(NAMES, urls, strict=True)), 4, 7, {}))
        door = Killable(path)
        try:
            await door.start()
            await door.until_states("awake", "awake")
            await interrupted(door, engines[1], urls[1], during)
            await door.until_states("awake", "awake" if during == "wake" else "offloaded")
            wires = [await door.begin(CHAT, chat_with()) for _ in range(6)]
            assert [(await wire.reply()).status for wire in wires] == [200] * 6
            await door.until_states("awake", "awake")
            for made in engines:
                assert not broken_laws(made._counters.snapshot(), made._engine.deaths)
        finally:
            await door.end()
            for made in engines:
                await made.close()

    asyncio.run(scenario())


def test_check_says_what_cannot_stand_beside_replicas_that_sleep(tmp_path: Path) -> None:
    urls = {"a": "http://127.0.0.1:1", "b": "http://127.0.0.1:2"}
    path = tmp_path / "frontdoor.toml"
    text = text_of_file(urls, 4, 7, {})
    group = '\n[groups.turns]\nmodels = ["text", "other"]\n'
    other = configuration({"other": "http://127.0.0.1:3"}, {}, "").partition("[upstreams")[2]
    path.write_text(f"{text}\n[upstreams{other}{group}")
    with pytest.raises(ConfigError, match='is of "text", which has replicas'):
        load(path)
    path.write_text(text.replace("slots = 4 }", "slots = 4, devices = [0] }", 1))
    with pytest.raises(ConfigError, match=r"replicas\[0\].devices: needs a gpu table"):
        load(path)
    path.write_text(f'{text}\n[upstreams.text.process]\ncommand = ["x"]\n')
    with pytest.raises(ConfigError, match="process: cannot stand beside replicas"):
        load(path)
