"""Scenes: worlds in which nothing is left to chance, for tests of one behaviour each."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeVar

from wake_engines import Manners
from wake_sites import Site
from wake_worlds import World

from simulator.standin.engine_values import ControlCall, Times
from tornado_frontdoor.core.decisions import EngineState, Refusal, Refuse, SleepDepth
from tornado_frontdoor.core.gate import AdmissionLimits, SleepPolicy
from tornado_frontdoor.engines.base import PROBE_STEPS, Step

Kind = TypeVar("Kind")

AT_REST = (EngineState.AWAKE, EngineState.SLEEPING, EngineState.OFFLOADED)
TIMES = Times(sleep_s=(4.0, 0.5), wake_s=(2.0, 3.0), reload_s=20.0, restart_s=60.0)

LIMITS: dict[str, Any] = {
    "idle_sleep_s": 0.0,
    "idle_offload_s": 0.0,
    "hold_sleeping_s": 30.0,
    "hold_offloaded_s": 180.0,
    "hold_restarting_s": 300.0,
    "retry_after_sleeping_s": 10,
    "retry_after_offloaded_s": 60,
    "retry_after_restarting_s": 600,
    "canary": True,
    "devices": (),
}


class Scene(World):
    """A world that is empty until sites are added; it meddles with nothing by itself."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.grid_s = 0.5

    def _build(self) -> None:
        """Sites are added one by one."""

    def site(
        self,
        key: str = "text",
        *,
        cap: int | None = 2,
        queue: int = 20,
        version: str = "0.33",
        asleep: int = 0,
        settled: bool = True,
        manners: dict[str, Any] | None = None,
        **limits: Any,
    ) -> Site:
        """Add an upstream whose engine is awake, or sleeps at level `asleep`, and look at it."""
        about: dict[str, Any] = {"delay_s": 0.0, "times": TIMES, **(manners or {})}
        site = Site(
            self,
            key,
            AdmissionLimits(cap=cap, queue=queue, queue_timeout_s=30.0),
            SleepPolicy(**{**LIMITS, **limits}),
            Manners(version=version, **about),
        )
        self.sites.append(site)
        if asleep:
            self.hand(site, "sleep", level=asleep)
            self.pass_s(TIMES.sleep_s[0])
        site.expire()
        if settled:
            self.wait_for(lambda: site.gate.state in AT_REST)
        site.door.steps.clear()
        site.decisions.clear()
        return site

    def hand(self, site: Site, name: str, **call: Any) -> None:
        """Another hand calls the engine."""
        site.door.collect()
        site.door.engine.call(ControlCall(id=("hand", name), name=name, **call), self.now)
        self._engines()

    def kill(self, site: Site) -> None:
        """The engine's process ends; it is back after a minute."""
        site.door.engine.kill(self.now)
        self._engines()

    def restart(self) -> None:
        """The front door is killed, and another one starts at once."""
        self._restart(self.sites[0])
        self.pass_s(0.0)

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.run_until(self.now + seconds)

    def wait_for(self, what: Callable[[], bool], within_s: float = 1000.0) -> float:
        """Let time pass until something holds; return how long that took."""
        began_s = self.now
        while not what():
            assert self.now - began_s < within_s, "it does not happen"
            self.pass_s(0.25)
        return self.now - began_s


def transitions(site: Site) -> list[str]:
    """Return what the engine was asked for, looks left out."""
    probes = {step.label for step in PROBE_STEPS}
    return [label for label in site.door.steps if label not in probes]


def of(site: Site, kind: type[Kind]) -> list[Kind]:
    """Return the gate's decisions of one kind."""
    return [decision for decision in site.decisions if isinstance(decision, kind)]


def refusals(site: Site) -> list[Refusal]:
    """Return the refusals so far."""
    return [decision.refusal for decision in of(site, Refuse)]


def befalls(site: Site, fault: str, step: Step, times: float = float("inf")) -> None:
    """Let something befall a step, so many times."""
    left = times

    def rule(found: Step) -> str:
        nonlocal left
        if found is not step or left <= 0:
            return ""
        left -= 1
        return fault

    site.door.rule = rule


def depths(refused: Iterable[Refusal]) -> set[SleepDepth | None]:
    """Return the depths that callers were told."""
    return {refusal.sleep_depth for refusal in refused}
