"""How a stand-in is to be: the values behind `frontdoor stand-in`."""

from dataclasses import dataclass

from simulator.engine_model.replica import Prefill, Speed
from simulator.standin.faults import Faults
from simulator.standin.releases import profile_of
from simulator.standin.requests import ServiceTime
from simulator.standin.shared_gpu import GpuPart

MOST = 10_000_000
MOST_MS = 86_400_000.0
"""A day: what is longer is no time between two tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInOptions:
    """How a stand-in is; raises ValueError for what makes no sense. Pairs are by level (1, 2)."""

    port: int = 0
    host: str = "127.0.0.1"
    models: tuple[str, ...] = ("stand-in",)
    slots: int = 8
    hold: str | float = 0.0
    """Seconds before an answer, or `exp:SECONDS`, drawn from `seed` in order of arrival."""
    tokens: int = 8
    gap_ms: float = 0.0
    speed: Speed | None = None
    """How fast each of n sequences runs; instead of `slowdown`."""
    prefill: Prefill | None = None
    """What reading prompts costs; a prompt has as many tokens as it has bytes."""
    slowdown: float = 0.0
    """With n sequences running each proceeds at 1 / (1 + slowdown x (n - 1))."""
    sleep_mode: bool = False
    vllm: str = "0.33"
    log: str | None = None
    faults: str = ""
    seed: int = 1
    sleep_s: tuple[float, float] = (0.05, 0.05)
    wake_s: tuple[float, float] = (0.05, 0.05)
    reload_s: float = 0.05
    restart_s: float = 1.0
    notice_ms: float = 0.0
    """Milliseconds until a client's departure is noticed: its sequence runs on meanwhile."""
    max_model_len: int = 131_072
    max_num_queued_reqs: int | None = None
    """vLLM's own bound, on running plus waiting; 503 above it."""
    keep_alive_s: float = 5.0
    """Idle connections are closed after it (vLLM: 5.0)."""

    gpu_part: GpuPart | None = None
    """What it takes of a GPU that other stand-ins of this process share."""

    def __post_init__(self) -> None:
        _check("port", self.port, 0, 65535)
        _check("slots", self.slots, 1, MOST)
        _check("tokens", self.tokens, 0, MOST)
        _check("gap_ms", self.gap_ms, 0, MOST_MS)
        _check("notice_ms", self.notice_ms, 0, MOST_MS)
        _check("slowdown", self.slowdown, 0, MOST)
        if not self.models:
            raise ValueError("a stand-in serves at least one model")
        ServiceTime.parse(self.hold)
        Faults(self.faults)
        profile_of(self.vllm)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # NaN is within nothing
        raise ValueError(f"{name} must be from {least} to {most:.0f}, not {value}")
