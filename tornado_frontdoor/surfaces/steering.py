"""Fields of a body that steer the engine past the front door, and what becomes of them.

They are to bodies what `headers.STEERING` is to headers: they jump the engine's own queue, pin a
rank or a slot, let two requests share one id, or hand it caches of other requests.
"""

from collections.abc import Collection
from typing import Literal

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.surfaces.base import Refused
from tornado_frontdoor.surfaces.bodies import JsonBody, read_json, without_fields

STEERING_FIELDS = frozenset(
    {
        *("request_id", "priority", "session_id"),
        *("data_parallel_rank", "kv_transfer_params", "ec_transfer_params"),  # vLLM
        *("rid", "routed_dp_rank", "disagg_prefill_dp_rank"),  # SGLang
        *("bootstrap_host", "bootstrap_port", "bootstrap_room"),  # SGLang
        "id_slot",  # llama.cpp
    }
)
_EXTRA = "vllm_xargs"
"""vLLM hands its members on beside those of `kv_transfer_params`, under whatever name they have."""

Steering = Literal["remove", "refuse", "pass"]


def unsteered(parsed: JsonBody, steering: Steering) -> JsonBody:
    """Return the body without its steering fields; raises Refused where they are refused."""
    found = STEERING_FIELDS.intersection(parsed.fields)
    extra = parsed.fields.get(_EXTRA)
    if isinstance(extra, dict) and not STEERING_FIELDS.isdisjoint(extra):
        found |= {_EXTRA}
    if not found or steering == "pass":
        return parsed
    if steering == "refuse":
        raise refusal_of(found)
    return read_json(without_fields(parsed, found))


def refusal_of(found: Collection[str]) -> Refused:
    """Return the refusal of steering fields; it names one of them."""
    name = min(found)
    return Refused(Reason.BAD_REQUEST, f"{name} is not for clients of this front door", name)
