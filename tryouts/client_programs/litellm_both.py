"""LiteLLM as a client of either dialect; which one is the first word of the action."""

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from openai_shape import actions_of
from told import run

DIALECT, _, sys.argv[1] = sys.argv[1].partition(":")


def _ask(address, model, prompt, **more):
    address = f"{address}/llm" if DIALECT == "anthropic" else f"{address}/v1"
    return litellm.completion(
        model=f"{DIALECT}/{model}",
        api_base=address,
        api_key="none",
        messages=[{"role": "user", "content": prompt}],
        num_retries=2,
        max_tokens=256,
        **more,
    )


def leave(address, model, prompt):
    chunks = _ask(address, model, prompt, stream=True)
    next(iter(chunks))
    return {"pieces": 1}


run(*actions_of(_ask), leave)
