"""A slot of a gate for the length of a block, in any asyncio program: the library's way in.

The front door itself holds leases and no task for each request; a program of one's own mostly has
the task already, and this is what it writes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tornado_frontdoor.core.decisions import Admit, Outcome, Refusal
from tornado_frontdoor.proxy.gate_driver import GateDriver, Lease


class Refused(Exception):  # noqa: N818 - a decision, not a fault
    """The gate let nobody in; `refusal` says why and when to come back."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


@asynccontextmanager
async def slot(gate: GateDriver, weight: int = 1) -> AsyncIterator[Admit]:
    """Hold `weight` slots inside the block; raises Refused where there are none in time.

    A task that is cancelled while it waits has left the queue; one that is cancelled, or fails,
    inside the block has given its slots back by the time this is left.
    """
    lease = gate.enter(weight)
    outcome = Outcome.CLIENT_GONE_QUEUED
    try:
        decision = lease.decision or await _decided(lease)
        if isinstance(decision, Refusal):
            raise Refused(decision)
        outcome = Outcome.CLIENT_GONE_STREAMING
        yield decision
        outcome = Outcome.SERVED
    finally:
        lease.close(outcome)


async def _decided(lease: Lease) -> Admit | Refusal:
    future: asyncio.Future[Admit | Refusal] = asyncio.get_running_loop().create_future()

    def tell(decision: Admit | Refusal) -> None:
        if not future.done():  # cancelled in the turn in which the gate decided
            future.set_result(decision)

    lease.on_decision = tell
    return await future
