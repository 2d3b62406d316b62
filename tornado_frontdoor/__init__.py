r"""The front door before self-hosted LLM engines, as a command and as a library.

The command is `frontdoor`. The library is the names below, each loaded when it is first asked for,
so that a program that only wants a gate loads neither the proxy nor its libraries. Two tasks at
once, four in the queue, the rest told when to come back, around any awaitable of one's own:

    import asyncio, random
    from tornado_frontdoor import AdmissionLimits, GateDriver, Refused, UpstreamKey, slot

    async def one(gate: GateDriver, number: int) -> str:
        try:
            async with slot(gate):
                await asyncio.sleep(0.1)  # whatever must not run more than twice at once
                return f"{number}: served"
        except Refused as refused:
            return f"{number}: {refused.refusal.detail}"

    async def main() -> None:
        limits = AdmissionLimits(cap=2, queue=4, queue_timeout_s=30)
        gate = GateDriver(UpstreamKey("gpu"), limits, random.Random())
        print(*await asyncio.gather(*(one(gate, n) for n in range(8))), sep="\n")

    asyncio.run(main())

| names | what they are |
| --- | --- |
| `slot`, `Refused`, `GateDriver`, `Lease`, `MonotonicClock` | a gate in one's own asyncio program |
| `Gate`, `AdmissionLimits`, `SleepConfig`, `SleepPolicy` | one upstream's decisions, no I/O |
| `AdmissionController`, `WakeStateMachine` | the two machines that a gate joins |
| `Ticket`, `UpstreamKey`, `Clock`, `ManualClock` | what they are given |
| `Admit`, `Refuse`, `Refusal`, `Reason`, `Outcome` | what they answer |
| `load`, `Settings`, `ConfigError` | a configuration file as frozen values |
| `App` | the whole front door on a loop of one's own: `start`, then `run` |

Rooms, whose imports only point down: `cli`, then `proxy` (all I/O), then `surfaces` (dialects) and
`config` (settings), then `core` (every decision, no I/O), then `engines` (dialects of engines).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tornado_frontdoor.config import ConfigError, Settings, load
    from tornado_frontdoor.core.admission import AdmissionController
    from tornado_frontdoor.core.clock import Clock, ManualClock
    from tornado_frontdoor.core.decisions import Admit, Outcome, Reason, Refusal, Refuse
    from tornado_frontdoor.core.gate import AdmissionLimits, Gate, SleepConfig, SleepPolicy
    from tornado_frontdoor.core.request import Ticket, UpstreamKey
    from tornado_frontdoor.core.wake.machine import WakeStateMachine
    from tornado_frontdoor.proxy.app import App
    from tornado_frontdoor.proxy.gate_driver import GateDriver, Lease, MonotonicClock
    from tornado_frontdoor.proxy.slots import Refused, slot

__version__ = "0.1.0"

__all__ = [
    "AdmissionController",
    "AdmissionLimits",
    "Admit",
    "App",
    "Clock",
    "ConfigError",
    "Gate",
    "GateDriver",
    "Lease",
    "ManualClock",
    "MonotonicClock",
    "Outcome",
    "Reason",
    "Refusal",
    "Refuse",
    "Refused",
    "Settings",
    "SleepConfig",
    "SleepPolicy",
    "Ticket",
    "UpstreamKey",
    "WakeStateMachine",
    "__version__",
    "load",
    "slot",
]

_ROOMS = {
    "config": "ConfigError Settings load",
    "core.admission": "AdmissionController",
    "core.clock": "Clock ManualClock",
    "core.decisions": "Admit Outcome Reason Refusal Refuse",
    "core.gate": "AdmissionLimits Gate SleepConfig SleepPolicy",
    "core.request": "Ticket UpstreamKey",
    "core.wake.machine": "WakeStateMachine",
    "proxy.app": "App",
    "proxy.gate_driver": "GateDriver Lease MonotonicClock",
    "proxy.slots": "Refused slot",
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name from its room, once."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
