"""LiteLLM as a client of either dialect; which one is the first word of the action."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from told import SHAPE, TOOL, run

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


def plain(address, model, prompt):
    answer = _ask(address, model, prompt)
    return {"said": answer.choices[0].message.content, "usage": bool(answer.usage)}


def stream(address, model, prompt):
    chunks = _ask(address, model, prompt, stream=True)
    pieces = [c.choices[0].delta.content for c in chunks if c.choices[0].delta.content]
    return {"said": "".join(pieces), "pieces": len(pieces)}


def tools(address, model, prompt):
    tool = {"type": "function", "function": TOOL}
    (call,) = _ask(address, model, prompt, tools=[tool]).choices[0].message.tool_calls
    return {"call": [call.function.name, json.loads(call.function.arguments)]}


def structured(address, model, prompt):
    shape = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SHAPE}}
    answer = _ask(address, model, prompt, response_format=shape)
    return {"value": json.loads(answer.choices[0].message.content)}


def leave(address, model, prompt):
    chunks = _ask(address, model, prompt, stream=True)
    next(iter(chunks))
    return {"pieces": 1}


run(
    {
        "plain": plain,
        "stream": stream,
        "tools": tools,
        "structured": structured,
        "leave": leave,
    }
)
