"""The production gate on simulated time: before one engine, or several that it knows of."""

from random import Random

from simulator.model.event_loop import EventLoop
from simulator.model.gate_like import wake_limits
from simulator.model.replicas import engines_of
from simulator.model.scenario import Scenario
from simulator.traffic.streams import Purpose, Streams
from tornado_frontdoor.core.gate import AdmissionLimits, Gate, SleepConfig
from tornado_frontdoor.core.replica_gate import ReplicaGate
from tornado_frontdoor.core.replicas import Replicas
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.engines.vllm import KIND

SIMULATED = UpstreamKey("simulated")


def new_gate(scenario: Scenario, loop: EventLoop, streams: Streams) -> Gate:
    """Return the production gate on simulated time."""
    limits = AdmissionLimits(
        cap=scenario.cap,
        queue=scenario.queue,
        queue_timeout_s=scenario.timeout_s,
        return_places=scenario.places_for_returns,
        fair_share=scenario.fair_share,
        heeds_patience=scenario.patience_told == "heeded",
        cooling_limit_s=scenario.cooling_limit_s,
    )
    pacing = Random(int(streams.of(Purpose.PACING).integers(1 << 62)))
    nap = (
        None
        if scenario.tiers is None
        else SleepConfig(limits=wake_limits(scenario.tiers), kind=KIND)
    )
    several = engines_of(scenario)
    if nap is not None and several is not None:
        return ReplicaGate(
            SIMULATED, limits, loop, pacing, several, dict.fromkeys(several.slots, nap)
        )
    return Gate(SIMULATED, limits, loop, pacing, nap, several and Replicas(several, loop.now()))
