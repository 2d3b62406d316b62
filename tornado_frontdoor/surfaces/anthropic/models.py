"""The model list, page by page: `GET /llm/v1/models`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.core.printable import quoted
from tornado_frontdoor.surfaces.anthropic.fields import Json, encode, invalid, to_bytes
from tornado_frontdoor.surfaces.base import ListedModel, Refused

_PAGE, _LONGEST_PAGE = 20, 1000


def one_model(listing: Sequence[ListedModel], wanted: str) -> bytes:
    """Return one model by its name in any case; raises Refused for an unknown one."""
    for model in listing:
        if model.name.lower() == wanted.lower():
            return to_bytes(encode(_entry(model)))
    raise Refused(Reason.MODEL_NOT_FOUND, f"model: {wanted}", "model")


def model_page(listing: Sequence[ListedModel], query: str) -> bytes:
    """Return the page that `query` asks for. Raises Refused for a bad query."""
    asked = parse_qsl(query, keep_blank_values=True)
    parameters = dict(asked)
    limit = _limit(parameters.get("limit"))
    lifecycles = [value for name, value in asked if name in ("lifecycle[]", "lifecycle")]
    entries = list(listing) if not lifecycles or "active" in lifecycles else []
    names = [model.name for model in entries]
    after, before = parameters.get("after_id"), parameters.get("before_id")
    if after is not None and before is not None:
        raise invalid("before_id", "may not be given together with after_id")
    if before is not None:
        end = _place(names, before, "before_id")
        start = max(0, end - limit)
        page, more = entries[start:end], start > 0
    else:
        start = 0 if after is None else _place(names, after, "after_id") + 1
        page, more = entries[start : start + limit], len(entries) > start + limit
    body: dict[str, Any] = {
        "data": [_entry(model) for model in page],
        "first_id": page[0].name if page else None,
        "last_id": page[-1].name if page else None,
        "has_more": more,
    }
    return to_bytes(encode(body))


def _limit(raw: str | None) -> int:
    if raw is None:
        return _PAGE
    if not (raw.isascii() and raw.isdecimal() and 1 <= int(raw[:6]) <= _LONGEST_PAGE):
        raise invalid("limit", f"must be from 1 to {_LONGEST_PAGE}")
    return int(raw)


def _place(names: list[str], name: str, parameter: str) -> int:
    if name not in names:
        raise invalid(parameter, f"there is no model {quoted(name)}")
    return names.index(name)


def _entry(model: ListedModel) -> Json:
    traits = model.target.traits
    created = datetime.fromtimestamp(model.created_s, UTC)
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": traits.max_model_len,
        "max_tokens": traits.max_output_tokens or traits.max_model_len,
        "capabilities": None,
    }
