"""Requests that are not to wake an engine: refused at once unless it is awake.

Titles, health pings and helpers of chat programs are worth an answer of an engine that is awake,
and not 80 GB moved for them (open-webui#28413, llama-swap#749). The header says so for one
request: `X-Frontdoor-Wake: if-awake`, or `never`, which means the same; `always` is the default.
"""

from collections.abc import Mapping

from tornado_frontdoor.core.decisions import EngineState, Reason, Refusal, SleepDepth
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.proxy.upstreams import Upstream

HEADER = "x-frontdoor-wake"
_ANSWERS = ("always", "if-awake", "never")


def wake_refusal(headers: Mapping[str, str], upstream: Upstream) -> Refusal | None:
    """Return why a request may not go on; None: it may. `headers` have lower-case names."""
    wanted = headers.get(HEADER, "always").strip().lower()
    if wanted not in _ANSWERS:
        detail = f"X-Frontdoor-Wake must be one of {', '.join(_ANSWERS)}, not {quoted(wanted)}"
        return Refusal(Reason.BAD_REQUEST, detail, param="X-Frontdoor-Wake")
    gate = upstream.keeper.gate
    if wanted == "always" or (gate.state is EngineState.AWAKE and not gate.makes_room):
        return None
    left_s = gate.expected_wait_s(1)
    detail = (
        f"{upstream.settings.key} is not awake ({gate.state.value}), and this request is not to "
        f"wake it (X-Frontdoor-Wake: {wanted})"
    )
    return Refusal(
        Reason.MODEL_WAKING,
        detail,
        upstream.settings.key,
        max(left_s, 1.0),
        gate.sleep_depth or SleepDepth.SLEEPING,
        left_s,
    )
