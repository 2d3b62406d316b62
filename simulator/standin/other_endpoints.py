"""vLLM's other answers: pooled vectors and scores, tokens, the model list, metrics.

The tokenizer is one byte, one token: counts are exact and `/detokenize` gives the text back.
"""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.standin.encoders import dumps
from simulator.standin.engine import EngineModel
from simulator.standin.requests import Ask, prompt_text

VECTOR_LENGTH = 8


def pooled(ask: Ask, request_id: str, created_s: int, *, garbage: bool) -> bytes:
    """Return the answer to embeddings, score or rerank: a pure function of the texts."""
    total = {"prompt_tokens": ask.prompt_tokens, "total_tokens": ask.prompt_tokens}
    usage = {**total, "completion_tokens": 0, "prompt_tokens_details": None}
    head = {"object": "list", "created": created_s, "model": ask.model}
    if ask.dialect == "embeddings":
        texts = _several(ask.body.get("input"))
        plain = ask.body.get("encoding_format") != "base64"
        data = [
            {"index": n, "object": "embedding", "embedding": _vector(text, plain, garbage)}
            for n, text in enumerate(texts)
        ]
        return dumps({"id": f"embd-{request_id}", **head, "data": data, "usage": usage})
    if ask.dialect == "score":
        texts = _several(ask.body.get("text_2", ask.body.get("documents")))
        scores = [
            {"index": n, "object": "score", "score": 0.0 if garbage else _score(text)}
            for n, text in enumerate(texts)
        ]
        return dumps({"id": f"score-{request_id}", **head, "data": scores, "usage": usage})
    results = [
        {
            "index": n,
            "document": {"text": text, "multi_modal": None},
            "relevance_score": 0.0 if garbage else _score(text),
        }
        for n, text in enumerate(_several(ask.body.get("documents")))
    ]
    results.sort(key=lambda result: -float(str(result["relevance_score"])))
    return dumps(
        {"id": f"rerank-{request_id}", "model": ask.model, "usage": usage, "results": results}
    )


def tokenized(body: Mapping[str, Any], max_model_len: int) -> bytes:
    """Return the answer to `/tokenize`, of a prompt or of messages."""
    text = prompt_text("chat" if "messages" in body else "completions", body)
    tokens = list(text.encode())
    counts = {"count": len(tokens), "max_model_len": max_model_len}
    return dumps({**counts, "tokens": tokens, "token_strs": None})


def detokenized(body: Mapping[str, Any]) -> bytes:
    """Return the answer to `/detokenize`."""
    return dumps({"prompt": bytes(body.get("tokens") or ()).decode(errors="replace")})


def models(names: Sequence[str], created_s: int, max_model_len: int) -> bytes:
    """Return the answer to `/v1/models`: one engine under several names."""
    shared = {"object": "model", "created": created_s, "owned_by": "vllm", "root": names[0]}
    end: dict[str, Any] = {"parent": None, "max_model_len": max_model_len, "permission": []}
    data = [{"id": name, **shared, **end} for name in names]
    return dumps({"object": "list", "data": data})


def metrics(
    engine: EngineModel, model: str, requests: Mapping[str, int], started_s: float
) -> bytes:
    """Return Prometheus text with vLLM's names, true or not."""
    running, waiting = engine.reported_load
    label = f'engine="0",model_name="{model}"'
    lines = [
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {started_s:.2f}",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{label}}} {running}.0",
        "# TYPE vllm:num_requests_waiting gauge",
        f"vllm:num_requests_waiting{{{label}}} {waiting}.0",
        "# TYPE vllm:request_success_total counter",
    ]
    lines += [
        f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {count}.0'
        for reason, count in requests.items()
    ]
    if engine.profile.gauge:
        lines.append("# TYPE vllm:engine_sleep_state gauge")
        lines += [
            f'vllm:engine_sleep_state{{{label},sleep_state="{state}"}} {value}.0'
            for state, value in engine.memory.gauge.items()
        ]
    if engine.profile.counts_operations:
        name = "vllm:sleep_mode_operation_duration_seconds"
        lines.append(f"# TYPE {name} histogram")
        lines += [
            f'{name}_count{{operation="{operation}"}} {count}.0'
            for operation, count in engine.operations.items()
        ]
    return ("\n".join(lines) + "\n").encode()


def _several(texts: object) -> list[str]:
    many = texts if isinstance(texts, list) and not _is_tokens(texts) else [texts]
    return [str(text) for text in many]


def _is_tokens(texts: list[Any]) -> bool:
    return bool(texts) and isinstance(texts[0], int)


def _score(text: str) -> float:
    return round(zlib.crc32(text.encode()) / 2**32, 6)


def _vector(text: str, plain: bool, garbage: bool) -> list[float] | str:
    seeds = range(VECTOR_LENGTH)
    vector = [0.0 if garbage else _score(f"{seed}{text}") for seed in seeds]
    if plain:
        return vector
    return base64.b64encode(struct.pack(f"<{VECTOR_LENGTH}f", *vector)).decode()
