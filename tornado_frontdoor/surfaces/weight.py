"""How many of an engine's sequence slots a request takes, read as the engine reads it.

Engines coerce: to vLLM `"n": " 7 "`, `7.0` and `true` are numbers, and of two equal keys the last
one counts. So what may be a number to an engine is one here, and what cannot be one is refused: a
request is never lighter here than there.

- chat and completions: prompts (with `prompt_embeds`) times the larger of `n` and `best_of`.
- embeddings, scores, reranks: texts, but at most the cap. Engines take such lists in steps of any
  size, so a list longer than the cap is legal and takes all of it.
- everything else: 1. A long recording is cut into pieces by the engine; nobody can tell from here.
"""

from collections.abc import Mapping
from typing import Any

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.surfaces.base import Refused

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
SCORE = "/v1/score"
RERANK = "/v1/rerank"

MOST_SEQUENCES = 1_000_000
"""More than any engine has; a number of a thousand digits would break gauges and log lines."""
CHOICES = ("n", "best_of")

_TEXTS = {
    EMBEDDINGS: ("input", "messages"),
    SCORE: ("data_1", "data_2", "text_1", "text_2", "queries", "documents", "items"),
    RERANK: ("query", "documents"),
}


def weight_of(path: str, fields: Mapping[str, Any], cap: int | None) -> int:
    """Return the weight of a JSON body, at least 1; raises Refused, which names the field."""
    texts = _TEXTS.get(path)
    if texts is not None:
        counted = sum(_inputs(fields.get(name), name) for name in texts)
        return max(1, min(counted, MOST_SEQUENCES if cap is None else cap))
    if path == CHAT:
        return choices_of(fields)
    if path == COMPLETIONS:
        return min(max(1, _prompts(fields)) * choices_of(fields), MOST_SEQUENCES)
    return 1


def choices_of(fields: Mapping[str, Any]) -> int:
    """Return how many answers are asked for to each prompt; a negative number counts as 1."""
    if "n" not in fields and "best_of" not in fields:  # as nearly always
        return 1
    most = max(_number(fields.get(name), name) for name in CHOICES)
    return max(1, min(most, MOST_SEQUENCES))


def _number(value: object, name: str) -> int:
    """Return what an engine may make of a value; its own refusals cost no slot."""
    if value is None:
        return 1
    try:
        if isinstance(value, str):
            return _number_in(value)
        if isinstance(value, int | float) and value == int(value):
            return int(value)
    except (ValueError, OverflowError):  # not a number, not finite, or of a thousand digits
        pass
    raise Refused(Reason.BAD_REQUEST, f"{name} must be a whole number", name)


def _number_in(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if number != int(number):
            raise
        return int(number)


def _prompts(fields: Mapping[str, Any]) -> int:
    prompts = _inputs(fields.get("prompt"), "prompt")
    embeds = fields.get("prompt_embeds")
    if isinstance(embeds, list):
        return prompts + len(embeds)
    if embeds is None or isinstance(embeds, str):
        return prompts + (embeds is not None)
    raise Refused(
        Reason.BAD_REQUEST, "prompt_embeds must be a text or a list of texts", "prompt_embeds"
    )


def _inputs(value: object, name: str) -> int:
    """Return the number of inputs in a value: a list of tokens or of messages is one."""
    match value:
        case None:
            return 0
        case str():
            return 1
        case list():
            first = value[0] if value else None
            if isinstance(first, int | float):
                return 1
            if isinstance(first, dict) and "role" in first:
                return 1
            return sum(map(_parts, value)) if isinstance(first, dict) else len(value)
        case dict() if name not in ("prompt", "messages"):
            return _parts(value)
        case _:
            raise Refused(Reason.BAD_REQUEST, f"{name} must be a text or a list", name)


def _parts(value: object) -> int:
    """Return the number of parts of a multimodal input, each of which may be a sequence."""
    content = value.get("content") if isinstance(value, dict) else None
    return max(1, len(content)) if isinstance(content, list) else 1
