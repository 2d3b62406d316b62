"""What a gate needs beside its limits where its engine can sleep."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tornado_frontdoor.core.decisions import JournalEntry
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.wake.policy import SleepPolicy
from tornado_frontdoor.engines.base import EngineKind


class GateError(Exception):
    """A bug of the driver: it asks a gate to wake whose engine never sleeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepConfig:
    """What a gate needs where its engine can sleep; `gpus` is shared by all gates."""

    limits: SleepPolicy
    kind: EngineKind
    gpus: GpuLedger = field(default_factory=GpuLedger)
    owner: str = ""
    """Who holds GPUs: the engine's address, which outlives its name; the gate's key if empty."""
    memory: JournalEntry | None = None
    """What an earlier front door wrote down last."""
    learned_s: Mapping[str, float] = field(default_factory=dict)
    """What its `learned_s` gave."""
    learned_gib: Mapping[str, float] = field(default_factory=dict)
    """What its `learned_gib` gave."""
