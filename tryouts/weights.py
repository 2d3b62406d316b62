"""Holds what a request weighs here against what vLLM's own request models make of it.

usage: python -m tryouts.weights [BODIES] [SEED]

Run by the Python of an environment that has vLLM (no GPU is needed, no engine is started), with
this checkout in PYTHONPATH. Random bodies for /v1/chat/completions, /v1/completions,
/v1/embeddings, /v1/score and /v1/rerank are read by both. The law: whatever vLLM accepts, it runs
no more sequences for it than the front door counted; and what the front door sends on holds no
steering field.
Prints each body that breaks it, and exits with 1.
"""

import json
import sys
from collections import Counter
from importlib import import_module
from random import Random
from typing import Any

from tornado_frontdoor.core.catalog import Catalog, Target
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.surfaces.base import Refused, Route, RouteKind, SurfaceRequest
from tornado_frontdoor.surfaces.openai import OpenAISurface
from tornado_frontdoor.surfaces.steering import STEERING_FIELDS
from tornado_frontdoor.surfaces.weight import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MOST_SEQUENCES,
    RERANK,
    SCORE,
)

CATALOG = Catalog([Target(model="m", served_name="m", upstream=UpstreamKey("u"))])
PATHS = (CHAT, COMPLETIONS, EMBEDDINGS, SCORE, RERANK)
NUMBERS = (
    *(
        "1",
        "2",
        "7",
        "8.0",
        "3e0",
        "-1",
        "0",
        "true",
        "false",
        "null",
        "7.5",
        "1e999",
        "NaN",
        "9" * 30,
    ),
    *(
        '"7"',
        '" 7 "',
        '"7.0"',
        '"7e0"',
        '"+7"',
        '"7_0"',
        '"0x7"',
        '"\\t7\\n"',
        '"x"',
        '""',
        '"\u0667"',
    ),
    *("[7]", '{"a":7}', '"07"', '"7."', '"-0"', '"1__0"', '"_7"', '"7 7"', '"\\u00a07"', "-0.0"),
)
TEXTS = ('"x"', '""', '"1"', "1", "1.0", "true", "null", "[1]", '["1"]', '["a","b"]', "[[1]]", "[]")
MESSAGE = '{"role":"user","content":"x"}'
PART = '{"type":"text","text":"t"}'


def main() -> int:
    """Compare, and print what was found."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    rng = Random(seed)
    readers = vllm_readers()
    surface = OpenAISurface()
    seen: Counter[str] = Counter()
    broken = 0
    for _ in range(count):
        path = rng.choice(PATHS)
        body = random_body(rng, path)
        weight, sent = weigh(surface, path, body)
        runs = readers[path](sent or body)
        seen[
            f"{path}: {'accepted' if runs is not None else 'refused'} by vLLM, "
            f"{'refused' if weight is None else 'weighed'} here"
        ] += 1
        if weight is not None and runs is not None and min(runs, MOST_SEQUENCES) > weight:
            broken += 1
            print(f"BROKEN {path} runs {runs}, weighs {weight}: {body.decode()}")
        if sent is not None and not STEERING_FIELDS.isdisjoint(json.loads(sent)):
            broken += 1
            print(f"BROKEN {path} is steered: {body.decode()}")
    for line, times in sorted(seen.items()):
        print(f"{times:8} {line}")
    print(f"{count} bodies, seed {seed}: {broken} broke the law")
    return 1 if broken else 0


def weigh(surface: OpenAISurface, path: str, body: bytes) -> tuple[int | None, bytes | None]:
    """Return weight and body as the front door sends it on; None, None where it refuses."""
    call = SurfaceRequest(Route(RouteKind.ENGINE, path), "", {}, body, "id")
    try:
        request = surface.decode(call, CATALOG).request
    except Refused:
        return None, None
    assert isinstance(request.body, bytes)
    return request.weight, request.body


def vllm_readers() -> dict[str, Any]:
    """Return, by path, a function from a body to the sequences that vLLM runs; None: refused."""
    models = {
        CHAT: _model("openai.chat_completion.protocol", "ChatCompletionRequest"),
        COMPLETIONS: _model("openai.completion.protocol", "CompletionRequest"),
        EMBEDDINGS: _model("pooling.embed.protocol", "EmbeddingRequest"),
        SCORE: _model("pooling.scoring.protocol", "ScoreRequest"),
        RERANK: _model("pooling.scoring.protocol", "RerankRequest"),
    }
    prompts_of = import_module("vllm.renderers.inputs.preprocess").prompt_to_seq
    talks_of = import_module("vllm.renderers.inputs.preprocess").conversation_to_seq
    adapter = import_module("pydantic").TypeAdapter

    def listed(value: Any) -> int:
        return len(value) if isinstance(value, list) else 1

    def chat(request: Any) -> int:
        return int(request.n or 1)

    def completion(request: Any) -> int:
        prompts = [
            prompt
            for given in (request.prompt_embeds, request.prompt)
            if given is not None
            for prompt in prompts_of(given)
        ]
        return len(prompts) * int(request.n)

    def embedding(request: Any) -> int:
        talks = getattr(request, "messages", None)
        return len(talks_of(talks)) if talks is not None else len(prompts_of(request.input))

    def score(request: Any) -> int:
        return listed(request.data_1) + listed(request.data_2)

    def rerank(request: Any) -> int:
        return 1 + listed(request.documents)

    counts = {
        CHAT: chat,
        COMPLETIONS: completion,
        EMBEDDINGS: embedding,
        SCORE: score,
        RERANK: rerank,
    }

    def reader(path: str) -> Any:
        validate = adapter(models[path]).validate_python
        count = counts[path]

        def read(body: bytes) -> int | None:
            try:
                return max(0, count(validate(json.loads(body))))
            except Exception:  # noqa: BLE001 - whatever it is, vLLM answers it with an error
                return None

        return read

    return {path: reader(path) for path in PATHS}


def _model(module: str, name: str) -> Any:
    return getattr(import_module(f"vllm.entrypoints.{module}"), name)


def random_body(rng: Random, path: str) -> bytes:
    """Return a body whose fields are usual, odd, doubled or nonsense."""
    members = ['"model":"m"', *_inputs(rng, path)]
    if path in (CHAT, COMPLETIONS):
        chosen = [name for name in ("n", "best_of", "n") if rng.random() < 0.5]
        members += [f'"{name}":{rng.choice(NUMBERS)}' for name in chosen]
    if rng.random() < 0.2:
        members.append(f'"{rng.choice(sorted(STEERING_FIELDS))}":{rng.choice(NUMBERS)}')
    if rng.random() < 0.1:
        members.append(rng.choice(members))
    rng.shuffle(members)
    return ("{" + ",".join(members) + "}").encode()


def _inputs(rng: Random, path: str) -> list[str]:
    """Return the members of a body that say what is to be worked on."""
    if path == CHAT:
        return [f'"messages":[{MESSAGE}]']
    if path == COMPLETIONS:
        names = ("prompt", "prompt_embeds") if rng.random() < 0.3 else ("prompt",)
        return [f'"{name}":{_some(rng, TEXTS)}' for name in names]
    if path == EMBEDDINGS:
        name = rng.choice(("input", "input", "input", "messages"))
        shapes: tuple[tuple[str, ...], ...] = (TEXTS, (MESSAGE,), (f"[{MESSAGE}]",))
        return [f'"{name}":{_some(rng, rng.choice(shapes))}']
    kinds = (*TEXTS[:2], _parts(rng))
    if path == SCORE:
        pairs = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"))
        return [f'"{name}":{_some(rng, kinds)}' for name in rng.choice(pairs)]
    return [f'"query":{rng.choice(kinds)}', f'"documents":{_some(rng, kinds)}']


def _some(rng: Random, kinds: tuple[str, ...]) -> str:
    """Return one value, or a list of some: of one kind mostly, sometimes of several."""
    if rng.random() < 0.3:
        return rng.choice(kinds)
    length = rng.choice((0, 1, 2, 3, 9))
    chosen = rng.choice(kinds)
    mixed = rng.random() < 0.2
    return "[" + ",".join(rng.choice(kinds) if mixed else chosen for _ in range(length)) + "]"


def _parts(rng: Random) -> str:
    return '{"content":[' + ",".join([PART] * rng.choice((1, 1, 3))) + "]}"


if __name__ == "__main__":
    sys.exit(main())
