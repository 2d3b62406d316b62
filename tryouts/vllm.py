"""Sleep and wake on a real vLLM, through a front door with short idle tiers."""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from bench.harness import configuration
from tryouts.witness import Door, EngineWatch, RealEngine, took, until

SLEEP = """
[upstreams.engine.sleep]
idle_sleep_s = {idle_sleep_s}
idle_offload_s = {idle_offload_s}
hold_restarting_s = 600
"""
IDLE_SLEEP_S, IDLE_OFFLOAD_S = 3, 7
ASLEEP = ("sleeping", "offloaded")
NOTICED_S = 5.0 + 3.0
"""Another hand's doing is seen with the next look, one each 5 s; the rest is for its repair."""
Say = Callable[..., None]
"""`say(what, holds=...)` of tryouts/engine.py."""


class Tryout:
    """All the scenes; each leaves the engine awake or asleep, and no request inside."""

    def __init__(self, say: Say, engine: RealEngine, door: Door, pool: ThreadPoolExecutor) -> None:
        self._say = say
        self._engine = engine
        self._door = door
        self._pool = pool

    def run(self, restart: str | None) -> None:
        """Play all of them."""
        scenes: list[Callable[[], None]] = [
            *(self.canary, self.tiers, self.crowd, self.deep, self.other_hand, self.other_work),
            *(self.blocked, lambda: self.killed("wake"), lambda: self.killed("sleep")),
            lambda: self.restarted(restart),
        ]
        for scene in scenes:
            try:
                scene()
            except OSError as error:
                self._say(f"given up: {error} ({self._door.status()})", holds=False)

    def ask(self, tokens: int = 8) -> "Future[tuple[str, float]]":
        """Begin a request through the front door."""
        return self._pool.submit(self._door.ask, self._engine.model, tokens)

    def asleep(self, level: int) -> None:
        """Have it asleep at a level, by an operator's call."""
        self._door.order("wake/engine?wait=true")
        self._door.order(f"sleep/engine?level={level}")

    def served(self, what: str, answer: tuple[str, float]) -> None:
        """Say how a request ended that must have been served whole."""
        self._say(f"{what}: {answer[0]} after {answer[1]:.2f} s", holds=answer[0] == "length")

    def canary(self) -> None:
        """Awake is what answered a canary, not what says so."""
        before = self._engine.asked()
        awake_s = until(lambda: self._door.state() == "awake", 20)
        until(lambda: self._engine.asked() > before, 3)
        asked = self._engine.asked() - before
        self._say(
            f"found awake {took(awake_s)}, with {asked} canary", holds=bool(awake_s and asked == 1)
        )

    def tiers(self) -> None:
        """Both idle tiers, with nobody there."""
        for state, gauge in (("sleeping", "weights_offloaded"), ("offloaded", "discard_all")):
            before = self._engine.operations()
            slept_s = until(lambda state=state: self._door.state() == state, 15)  # type: ignore[misc]
            sleeps, wakes = (
                now - then for now, then in zip(self._engine.operations(), before, strict=True)
            )
            level = self._engine.level()
            self._say(
                f"idle: {state} {took(slept_s)}; the engine's gauge says {level}, "
                f"it counted {sleeps} sleep, {wakes} wake",
                holds=slept_s is not None and self._engine.sleeping() and level == gauge,
            )

    def crowd(self) -> None:
        """Six at once before a sleeper at level 1: one wake."""
        self.asleep(1)
        before = self._engine.operations()
        asks = [self.ask() for _ in range(6)]
        ends = [one.result() for one in asks]
        wakes = self._engine.operations()[1] - before[1]
        last_s = max(seconds for _, seconds in ends)
        self._say(
            f"6 at once before a sleeper at level 1: {[end for end, _ in ends].count('length')} "
            f"served, the last after {last_s:.2f} s; {wakes} wake",
            holds=all(end == "length" for end, _ in ends) and wakes == 1,
        )

    def deep(self) -> None:
        """A wake from level 2, step by step."""
        self.asleep(2)
        watch = EngineWatch(self._door)
        self.served("a request to a sleeper at level 2", self.ask().result())
        self._say(f"the front door's way: {watch.end()}")

    def other_hand(self) -> None:
        """Somebody else calls /sleep: before a request, during one, and with none."""
        self._engine.call("POST", "/sleep?level=1")
        self.served("slept by another hand, then a request", self.ask().result())
        running = self.ask(1500)
        until(lambda: self._engine.gauges()["num_requests_running"] == 1, 5)
        self._engine.call("POST", "/sleep?level=1")
        self._say(f"another hand's sleep under a stream ends it: {running.result()[0]}")
        self.served("and the next request", self.ask().result())
        self._door.order("wake/engine?wait=true")
        self._engine.call("POST", "/sleep?level=1")
        found_s = until(lambda: self._door.state() in ASLEEP, NOTICED_S)
        self._say(
            f"with nobody there it is noticed {took(found_s)}: {self._door.state()}",
            holds=found_s is not None,
        )

    def other_work(self) -> None:
        """Work that the front door knows nothing of keeps the engine awake."""
        self._door.order("wake/engine?wait=true")
        before = self._engine.operations()[0]
        story = self._pool.submit(self._engine.story, 3000)
        began_s = time.monotonic()
        end = story.result()
        lasted_s = time.monotonic() - began_s
        sleeps = self._engine.operations()[0] - before
        self._say(
            f"another hand's request of {lasted_s:.1f} s with an idle tier of {IDLE_SLEEP_S} s: "
            f"{end}, {sleeps} sleeps",
            holds=end == "length" and sleeps == 0 and lasted_s > IDLE_SLEEP_S,
        )
        slept_s = until(lambda: self._door.state() in ASLEEP, 15)
        self._say(
            f"then it falls asleep {took(slept_s)}: {self._door.state()}",
            holds=slept_s is not None,
        )

    def blocked(self) -> None:
        """A control call of 4 s before a wake, and a longer one under an idle tier."""
        try:
            self._engine.nap(0)
        except OSError:
            self._say("no nap: start vLLM with a worker extension that has `nap(seconds)`")
            return
        for level in (1, 2):
            self.asleep(level)
            before = self._engine.operations()[1]
            nap = self._pool.submit(self._engine.nap, 4)
            time.sleep(0.2)
            watch = EngineWatch(self._door)
            self.served(f"level {level} and blocked for 4 s: a request", self.ask().result())
            nap.result()
            wakes = self._engine.operations()[1] - before
            self._say(f"its way: {watch.end()}; {wakes} wakes", holds=wakes == level)
        nap = self._pool.submit(self._engine.nap, IDLE_SLEEP_S + 4)
        time.sleep(IDLE_SLEEP_S + 2)
        state = self._door.state()
        nap.result()
        slept_s = until(lambda: self._door.state() in ASLEEP, 15)
        self._say(
            f"blocked beyond its idle tier: {state}; asleep {took(slept_s)} from its end",
            holds=state == "awake" and slept_s is not None,
        )

    def killed(self, what: str) -> None:
        """Kill the front door at eight moments of a transition; the next one puts it right."""
        going: list[str] = []
        ends: list[str] = []
        for moment in range(8):
            self.asleep(2) if what == "wake" else self._door.order("wake/engine?wait=true")
            order = "wake/engine" if what == "wake" else "sleep/engine?level=2"
            lost = self._pool.submit(self._door.order, order)
            time.sleep(moment * 0.012)
            self._door.kill()
            going.append(self._door.journal() or "-")
            lost.exception()  # nobody answers any more
            self._door.start()
            end, _ = self.ask().result()
            ends.append(end)
        self._say(
            f"kill -9 at 8 moments of a {what}; the journal said {', '.join(going)}; "
            f"then a request: {ends.count('length')} served",
            holds=ends.count("length") == 8,
        )

    def restarted(self, command: str | None) -> None:
        """The engine goes away and comes back; whoever comes meanwhile waits."""
        if command is None:
            self._say("no restart: --restart CMD would say how")
            return
        before = self._engine.gauges().get("process_start_time_seconds")
        self.asleep(2)
        watch = EngineWatch(self._door)
        subprocess.run(["/bin/sh", "-c", command], check=True)
        down_s = until(lambda: self._door.state() == "down", 30)
        self._say(f"restarted: down {took(down_s)}", holds=down_s is not None)
        self.served("a request that came meanwhile", self.ask().result())
        after = self._engine.gauges().get("process_start_time_seconds")
        self._say(
            f"its way: {watch.end()}; another process: {before != after}", holds=before != after
        )


@contextlib.contextmanager
def front_door(engine: RealEngine) -> Iterator[Door]:
    """Run a front door before the engine; yields it."""
    with tempfile.TemporaryDirectory() as folder:
        sleep = SLEEP.format(idle_sleep_s=IDLE_SLEEP_S, idle_offload_s=IDLE_OFFLOAD_S)
        text = configuration(
            engine.url,
            engine.model,
            server='state_dir = "state"\ndrain_timeout_s = 5',
            admission=(4, 2, 4, 60),
            upstream=sleep,
        )
        with Door(Path(folder), text) as door:
            try:
                yield door
            except BaseException:
                print(door.log.read_text()[-4000:], file=sys.stderr)
                raise


def try_vllm(say: Say, url: str, model: str, restart: str | None) -> None:
    """Run all of it, and leave the engine awake."""
    engine = RealEngine(url, model)
    try:
        version, asleep = engine.call("GET", "/version")["version"], engine.sleeping()
    except OSError as error:
        say(f"{url}: {error}; is it vLLM with VLLM_SERVER_DEV_MODE=1?", holds=False)
        return
    say(f"vLLM {version} at {url}; asleep: {asleep}")
    if asleep:
        engine.wake()
    with front_door(engine) as door, ThreadPoolExecutor(8) as pool:
        Tryout(say, engine, door, pool).run(restart)
        door.order("wake/engine?wait=true")
        status, code = door.status(), door.stop()
        rest = status["in_flight"], status["queued"], engine.sleeping()
        say(f"at rest, awake, the front door ended with {code}", holds=rest == (0, 0, False))
