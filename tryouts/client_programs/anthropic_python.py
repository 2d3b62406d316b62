"""Anthropic's own client for Python."""

import json

from anthropic import Anthropic
from told import SHAPE, TOOL, run


def _ask(address, model, prompt, **more):
    client = Anthropic(base_url=f"{address}/llm", api_key="none")
    messages = [{"role": "user", "content": prompt}]
    return client.messages.create(model=model, max_tokens=256, messages=messages, **more)


def _text(answer):
    return "".join(block.text for block in answer.content if block.type == "text")


def plain(address, model, prompt):
    answer = _ask(address, model, prompt)
    return {"said": _text(answer), "usage": bool(answer.usage.output_tokens)}


def stream(address, model, prompt):
    pieces, kinds = [], []
    for event in _ask(address, model, prompt, stream=True):
        kinds.append(event.type)
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            pieces.append(event.delta.text)
    return {"said": "".join(pieces), "pieces": len(pieces), "last": kinds[-1]}


def tools(address, model, prompt):
    tool = {
        "name": TOOL["name"],
        "description": TOOL["description"],
        "input_schema": TOOL["parameters"],
    }
    blocks = _ask(address, model, prompt, tools=[tool]).content
    (call,) = (block for block in blocks if block.type == "tool_use")
    return {"call": [call.name, call.input]}


def structured(address, model, prompt):
    shape = {"format": {"type": "json_schema", "schema": SHAPE}}
    return {"value": json.loads(_text(_ask(address, model, prompt, output_config=shape)))}


def leave(address, model, prompt):
    with _ask(address, model, prompt, stream=True) as events:
        for event in events:
            if event.type == "content_block_delta":
                break
    return {"pieces": 1}


run(plain, stream, tools, structured, leave)
