"""What a caller is told whom a gate turned away: one refusal for each reason, in no dialect."""

from collections.abc import Callable
from math import inf

from tornado_frontdoor.core.decisions import EngineState, Reason, Refusal, SleepDepth
from tornado_frontdoor.core.limits import AdmissionLimits
from tornado_frontdoor.core.standing import StandingOrder

DRAINING_RETRY_AFTER_S = 5.0
"""A front door that goes away is usually replaced within seconds."""
DOWN_RETRY_AFTER_S = 15.0
"""The three tries of OpenAI's SDKs then span half a minute: a restart of 20 s is survived."""
HELD_RETRY_AFTER_S = 59.0
"""Nobody knows who comes back to an engine that sleeps for hours; the order may be withdrawn."""

_WHAT_IT_DOES = {
    SleepDepth.SLEEPING: "is waking from sleep",
    SleepDepth.OFFLOADED: "is waking from offload",
    SleepDepth.STOPPED: "is starting",
    SleepDepth.RESTARTING: "does not answer, as when it restarts,",
}


def admission_refusal(
    reason: Reason,
    upstream: str,
    weight: int,
    limits: AdmissionLimits,
    retry_after_s: Callable[[], float],
    patience_s: float = inf,
) -> Refusal:
    """Say why a ticket of that weight was turned away.

    `retry_after_s` is called only where the answer depends on the crowd, as it draws a number.
    """
    cap, queue = limits.cap, limits.queue
    match reason:
        case Reason.QUEUE_FULL if cap is None:
            detail = f"All {queue} places to wait for {upstream} are taken"
            return Refusal(reason, detail, upstream, retry_after_s())
        case Reason.QUEUE_FULL:
            detail = (
                f"All {cap} slots of {upstream} are taken and all {queue} places in its queue too"
            )
            return Refusal(reason, detail, upstream, retry_after_s())
        case Reason.QUEUE_TIMEOUT:
            detail = f"No slot of {upstream} came free within {limits.queue_timeout_s:g} s"
            return Refusal(reason, detail, upstream, retry_after_s())
        case Reason.CLIENT_DEADLINE:
            detail = (
                f"The wait for a slot of {upstream} would outlast the client's own time limit "
                f"of {patience_s:g} s"
            )
            return Refusal(reason, detail, upstream, retry_after_s())
        case Reason.DRAINING:
            detail = "The front door is shutting down"
            return Refusal(reason, detail, upstream, DRAINING_RETRY_AFTER_S)
        case _:
            detail = f"The request needs {weight} sequences at once, and {upstream} admits {cap}"
            return Refusal(reason, detail, upstream, param="n")


def waking_refusal(
    depth: SleepDepth,
    upstream: str,
    hold_s: float,
    retry_after_s: float,
    left_s: float | None,
    failed: tuple[str, float] | None,
    what: str | None = None,
) -> Refusal:
    """Say that a hold was in vain, and when to come back.

    `left_s` is what a wake is expected to take yet; `failed`: why the last one did, and when the
    next begins; `what`: what it does, where its depth does not say that.
    """
    what = what or _WHAT_IT_DOES[depth]
    detail = f"{upstream} {what} and was not ready within {hold_s:g} s"
    if failed is not None:
        why, pause_s = failed
        detail += f"; the last try failed ({why}), the next is in {pause_s:.0f} s"
        retry_after_s = max(retry_after_s, pause_s)
    reason = Reason.UPSTREAM_DOWN if depth is SleepDepth.RESTARTING else Reason.MODEL_WAKING
    return Refusal(reason, detail, upstream, retry_after_s, depth, left_s)


def asleep_refusal(upstream: str, state: EngineState, depth: SleepDepth, left_s: float) -> Refusal:
    """Say that an engine is not awake, and that this request is none to wake it for.

    `left_s` is what a wake would take yet, should somebody else want one.
    """
    what = "makes room for another engine" if state is EngineState.AWAKE else f"is {state.value}"
    detail = (
        f"{upstream} {what}, and this request wakes no engine (X-Frontdoor-Wake, or the model's "
        "wake setting)"
    )
    return Refusal(Reason.MODEL_ASLEEP, detail, upstream, max(left_s, 1.0), depth, left_s)


def held_refusal(upstream: str, order: StandingOrder, depth: SleepDepth, left_s: float) -> Refusal:
    """Say that an order keeps an engine asleep, whose, and for how long yet."""
    whose = f"{order.owner.value} ({order.by})" if order.by else f"the {order.owner.value}"
    detail = f"{upstream} is to stay asleep {order.ends or 'for now'}, by {whose}"
    retry_after_s = max(1.0, min(left_s, HELD_RETRY_AFTER_S))
    return Refusal(Reason.MODEL_ASLEEP, detail, upstream, retry_after_s, depth)


def drained_refusal(upstream: str, waited_s: float, retry_after_s: float) -> Refusal:
    """Say that no wake was to come: an operator has drained every replica."""
    detail = f"No slot of {upstream} came free within {waited_s:g} s: every replica is drained"
    return Refusal(Reason.QUEUE_TIMEOUT, detail, upstream, retry_after_s)


def down_refusal(upstream: str, hold_s: float) -> Refusal:
    """Say that nobody answers at the engine's address, or at any of its replicas'."""
    within = f" and was not back within {hold_s:g} s" if hold_s else ""
    detail = f"{upstream} does not answer, as when it restarts{within}"
    depth = SleepDepth.RESTARTING
    return Refusal(Reason.UPSTREAM_DOWN, detail, upstream, DOWN_RETRY_AFTER_S, depth)
