"""A front door before engines that sleep: `text`, `ocr` and `embed`, with quick transitions.

At the end of a scene the laws of waking are held against what the engines counted themselves.
"""

import asyncio
import contextlib
import io
import json
import logging
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doorway import Doorway, Mishaps
from stopwatch import PATIENCE_S
from wire import Reply

from simulator.standin.server import StandIn, StandInOptions
from simulator.standin.shared_gpu import GpuPart
from tornado_frontdoor.config import load
from tornado_frontdoor.core.gate import Gate
from tornado_frontdoor.proxy.app import App
from tornado_frontdoor.proxy.gate_settings import limits_of, wake_limits_of
from tornado_frontdoor.proxy.upstreams import Upstream

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
RELEASES = ("0.16", "0.23", "0.30", "0.33")
every_release = pytest.mark.parametrize("version", RELEASES)
first_and_last_release = pytest.mark.parametrize(
    "version",
    [pytest.param(v, marks=() if v in ("0.16", "0.33") else pytest.mark.slow) for v in RELEASES],
)
"""By default the two that differ most; the others are slow."""
last_release = pytest.mark.parametrize(
    "version",
    [pytest.param(v, marks=() if v == "0.33" else pytest.mark.slow) for v in RELEASES],
)

SERVER = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
state_dir = "state"
drain_timeout_s = 5

[routes]
{routes}
"""
POOL = """[gpu]
memory_gib = 80
"""
ROUTES = {"chat_default": "text", "multipart_chat_default": "ocr", "embeddings": "embed"}
SLEEP: Mapping[str, object] = {
    "idle_sleep_s": 0,
    "idle_offload_s": 0,
    "hold_sleeping_s": 10,
    "hold_offloaded_s": 10,
    "hold_restarting_s": 10,
    "max_waiting": 64,
}
QUICK: Mapping[str, Any] = {
    "sleep_s": (0.01, 0.01),
    "wake_s": (0.01, 0.01),
    "reload_s": 0.01,
    "restart_s": 0.3,
}
TRANSITIONS = ("sleep", "wake_up", "collective_rpc", "reset_prefix_cache")

Tables = Mapping[str, Mapping[str, object]]


def configuration(urls: Mapping[str, str], tables: Mapping[str, Tables], pool: str = POOL) -> str:
    """Return a configuration for engines at `urls`; `tables[engine]["sleep"]` adds to SLEEP.

    An engine whose `sleep` is {} of purpose still sleeps; `{"awake": ...}` has no sleep table.
    """
    routes = [f'{key} = "{name}"' for key, name in ROUTES.items() if name in urls]
    parts = [SERVER.format(routes="\n".join(routes))]
    for key, url in urls.items():
        own = tables.get(key, {})
        parts.append(f'[upstreams.{key}]\nurl = "{url}"\n{_lines(own.get("upstream", {}))}')
        sleep = {**SLEEP, **own.get("sleep", {})}
        if key == "embed":
            sleep["canary_path"] = EMBEDDINGS
        if "awake" not in own:
            parts.append(f"[upstreams.{key}.sleep]\n{_lines(sleep)}")
        if "admission" in own:
            parts.append(f"[upstreams.{key}.admission]\n{_lines(own['admission'])}")
        if "gpu" in own:
            parts.append(f"[upstreams.{key}.gpu]\n{_lines({'utilization': 0.1, **own['gpu']})}")
        parts.append(f'[models.{key}]\nupstream = "{key}"\naliases = ["{key}-*"]')
    return "\n\n".join([*parts, pool])


def _lines(values: Mapping[str, object]) -> str:
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())


class House(Doorway):
    """A running front door, and the engines behind it by the names of their upstreams."""

    engines: dict[str, StandIn]

    @property
    def gate(self) -> Gate:
        """The gate of the first engine."""
        return self.upstream().keeper.gate

    def upstream(self, key: str = "text") -> Upstream:
        """Return an upstream as the proxy holds it."""
        return self.app.pool.current[key]

    def state(self, key: str = "text") -> str:
        """Return what the front door believes of an engine."""
        return self.upstream(key).state

    def seen(self, key: str = "text") -> dict[str, Any]:
        """Return what an engine has counted."""
        engine = self.engines[key]
        engine.now()
        engine.pump()
        return engine._counters.snapshot()

    def depth(self, key: str = "text") -> int:
        """Return how deep an engine truly sleeps."""
        return self.engines[key]._engine.memory.depth

    def deaths(self, key: str = "text") -> int:
        """Return how often an engine has died."""
        return self.engines[key]._engine.deaths

    def misfortune(self, spec: str, key: str = "text") -> None:
        """Let calls to an engine go wrong from now on."""
        self.engines[key]._faults.add(spec)

    def fortune(self, key: str = "text") -> None:
        """Let nothing go wrong any more."""
        self.engines[key]._faults.clear()

    async def occupied(self, call: str, key: str = "text") -> None:
        """Wait until an engine is busy with a control call."""
        await self.until(lambda: self.engines[key]._engine.busy == call)

    def release(self, key: str = "text") -> None:
        """Let the call come through that an engine is busy with, however long it was to take."""
        engine = self.engines[key]
        now = engine.now()
        assert engine._engine.busy is not None
        engine._engine._busy_until_s = now
        engine.pump()

    def boot(self, key: str = "text") -> None:
        """Let a dead engine be back now, whenever it was to be."""
        engine = self.engines[key]
        engine._engine._restart_at_s = engine.now()
        engine.pump()

    async def kill(
        self,
        restart_s: float = 1e6,
        key: str = "text",
        *,
        abrupt: bool = False,
        accept_s: float = 0,
    ) -> None:
        """Let an engine die, and wait until nobody listens there any more."""
        engine = self.engines[key]
        engine.kill(restart_s, abrupt=abrupt, accept_s=accept_s)
        assert engine._closing is not None
        await engine._closing

    def calls(self, key: str = "text", since: int = 0) -> list[str]:
        """Return the transitions that an engine was asked for, in order, e.g. `sleep level=1`."""
        return [said(call) for call in self.transitions(key)[since:]]

    def transitions(self, key: str = "text") -> list[dict[str, Any]]:
        """Return the engine's own book of them."""
        return [c for c in self.seen(key)["control_calls"] if c["call"] in TRANSITIONS]

    async def settled(self, state: str = "awake", *keys: str, within_s: float = PATIENCE_S) -> None:
        """Wait until engines (all of them) are in a state."""
        wanted = keys or tuple(self.engines)
        await self.until(lambda: all(self.state(key) == state for key in wanted), within_s)

    async def put_to_sleep(self, level: int = 1, *keys: str) -> None:
        """Have engines (all of them) asleep, by an operator's call."""
        for key in keys or tuple(self.engines):
            await self.settled("awake", key)
            reply = await self.admin(f"/admin/sleep/{key}?level={level}", "POST")
            assert reply.status == 200, reply.body
            assert self.depth(key) == level

    async def ask(self, model: str = "text", **more: Any) -> Reply:
        """Ask for a chat with a model and return the answer."""
        return await self.call(CHAT, chat_with(model, **more))

    async def status(self, key: str = "text") -> dict[str, Any]:
        """Return an upstream's part of `/admin/status`."""
        found: dict[str, Any] = (await self.admin("/admin/status")).json["upstreams"][key]
        return found

    def hold_for(self, seconds: float) -> None:
        """Have those who come from now on wait so long for `text` to wake from level 1."""
        self._change_wake("text", hold_sleeping_s=seconds)

    def _change_wake(self, key: str, **changes: Any) -> Upstream:
        upstream = self.upstream(key)
        wake = wake_limits_of(upstream.settings, None, self.app.settings.groups_of(key))
        assert wake is not None
        upstream.keeper.change_limits(limits_of(upstream.settings), replace(wake, **changes))
        return upstream

    def look_every(self, seconds: float, *keys: str) -> None:
        """Have the gates look at resting engines more often than every 5 s, which is no setting."""
        for key in keys or tuple(self.engines):
            upstream = self._change_wake(key, probe_period_s=seconds)
            wake_machine = upstream.keeper.gate._wake
            assert wake_machine is not None
            wake_machine.next_s = min(
                wake_machine.next_s, asyncio.get_running_loop().time() + seconds
            )
            upstream.keeper._carry_out(upstream.keeper.gate.expire())

    def remains(self) -> dict[str, int]:
        """Return everything that must be 0 at rest."""
        upstreams = self.app.pool.everyone()
        gates = [gate for u in upstreams for gate in (u.keeper.gate, u.side_door.gate)]
        return {
            "in_flight": sum(gate.in_flight for gate in gates),
            "queued": sum(gate.queued for gate in gates),
            "duplicate_finishes": sum(getattr(gate, "duplicate_finishes", 0) for gate in gates),
            "leases": sum(len(getattr(u.keeper, "_waiting", ())) for u in upstreams),
            "watched": len(self.app._departures),
            "passages": len(self.app.door.under_way),
            "engines": sum(self.seen(key)["in_flight"] for key in self.engines),
        }

    def hold_to_the_laws(self, lawless: Iterable[str] = ()) -> None:
        """Fail where an engine has seen what no engine should; `lawless`: laws not to look at."""
        for key in self.engines:
            broken = broken_laws(self.seen(key), self.deaths(key))
            assert not broken.keys() - set(lawless), (key, broken)


def broken_laws(seen: Mapping[str, Any], deaths: int) -> dict[str, object]:
    """Return which laws of waking an engine has seen broken, and how."""
    sleeps = [call for call in seen["control_calls"] if call["call"] == "sleep"]
    found = {
        "a request met an engine that was not proven awake": seen["not_proven_awake"],
        "garbage": seen["garbage_tokens"],
        "two sequences at once": seen["control_overlaps"],
        "a sleep with somebody inside": sum(call["in_flight"] for call in sleeps),
        "deaths": deaths,
    }
    return {law: value for law, value in found.items() if value}


def said(call: Mapping[str, Any]) -> str:
    """Return an engine's entry of a call in one line."""
    if call["call"] == "collective_rpc":
        return str(json.loads(call["body"])["method"])
    query = " ".join(f"{key}={','.join(values)}" for key, values in call["query"].items())
    return f"{call['call']} {query}".strip().removesuffix(" mode=abort")


def chat_with(model: str | None = "text", *, stream: bool = False, **knobs: object) -> Any:
    """Return a chat's body, with `knobs` for a stand-in; without a model: none is named."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    if model is not None:
        body["model"] = model
    if stream:
        body["stream"] = True
    if knobs:
        body["stand_in"] = knobs
    return body


def text_of(reply: Reply) -> str:
    """Return what a chat says, streamed or not."""
    if "text/event-stream" not in reply.headers["content-type"]:
        return str(reply.json["choices"][0]["message"]["content"])
    assert "data: [DONE]" in reply.body.decode().splitlines()
    return reply.text


WORDS = "w0 w1 w2 w3 w4 w5 w6 w7 "
"""What a stand-in says when its weights are loaded."""


@contextlib.asynccontextmanager
async def house(
    *keys: str,
    version: str = "0.33",
    engine: Mapping[str, Any] | None = None,
    tables: Mapping[str, Tables] | None = None,
    lawless: Iterable[str] = (),
    state_dir: Path | None = None,
    settle: bool = True,
    mishaps_allowed: bool = False,
    pool: str = POOL,
    parts: Mapping[str, GpuPart] | None = None,
    **sleep: object,
) -> AsyncIterator[House]:
    """Run a front door before stand-ins of that release; `sleep` goes into every sleep table.

    At the end all must be at rest, no error logged, no task left, and the laws kept but for those
    named in `lawless`.
    """
    keys = keys or ("text",)
    mishaps = Mishaps()
    logging.getLogger().addHandler(mishaps)
    before = asyncio.all_tasks()
    options = {"sleep_mode": True, "vllm": version, **QUICK, **(engine or {})}
    own = {key: {"models": (key,), "gpu_part": (parts or {}).get(key), **options} for key in keys}
    engines = {key: StandIn(StandInOptions(**own[key])) for key in keys}
    urls = {key: f"http://127.0.0.1:{made.listen()}" for key, made in engines.items()}
    whole = {
        key: {
            **(tables or {}).get(key, {}),
            "sleep": {**sleep, **(tables or {}).get(key, {}).get("sleep", {})},
        }
        for key in keys
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frontdoor.toml"
        text = configuration(urls, whole, pool)
        if state_dir is not None:
            text = text.replace('"state"', json.dumps(str(state_dir)))
        path.write_text(text)
        log = io.StringIO()
        app = App(load(path), lambda: load(path), log)
        door = House(app, text, path, log)
        door.engines = engines
        try:
            if settle:
                await door.settled()
            yield door
            await door.leave()
            await door.at_rest()
            door.hold_to_the_laws(lawless)
        except BaseException:
            print("\n".join(mishaps.seen))
            raise
        finally:
            await door.leave()
            await app.close()
            for made in engines.values():
                await made.close()
            logging.getLogger().removeHandler(mishaps)
    assert mishaps_allowed or not mishaps.seen, "\n".join(mishaps.seen)
    async with asyncio.timeout(PATIENCE_S):
        while asyncio.all_tasks() - before:  # noqa: ASYNC110 - tasks that end by themselves
            await asyncio.sleep(0.002)
