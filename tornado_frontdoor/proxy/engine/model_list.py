"""What an engine's `GET /v1/models` says: which names it serves, and how long a context each has.

vLLM and SGLang write `max_model_len` beside each name. llama.cpp writes `meta.n_ctx`, what a slot
of it holds; its `n_ctx_train` is the model's and no promise. An engine that says neither is one
whose length is not known.
"""

import json
from typing import Any

LENGTH_MAX = 100_000_000
"""What is above it is no length but a mistake."""


def read_model_list(body: bytes) -> dict[str, int | None]:
    """Return the length of each name's context, None where it is not told.

    Raises ValueError for what is no list of models.
    """
    try:
        document: Any = json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("no list of models")  # noqa: TRY004 - JSON's own errors are these too
    found: dict[str, int | None] = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            found[entry["id"]] = _length(entry)
    return found


def _length(entry: dict[str, Any]) -> int | None:
    meta = entry.get("meta")
    told = (entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None)
    for value in told:
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LENGTH_MAX:
            return value
    return None
