"""OpenAI's own client for Python."""

import json

from openai import OpenAI
from told import SHAPE, TOOL, run


def _client(address):
    return OpenAI(base_url=f"{address}/v1", api_key="none")


def _ask(address, model, prompt, **more):
    messages = [{"role": "user", "content": prompt}]
    return _client(address).chat.completions.create(model=model, messages=messages, **more)


def plain(address, model, prompt):
    answer = _ask(address, model, prompt)
    return {"said": answer.choices[0].message.content, "usage": bool(answer.usage)}


def stream(address, model, prompt):
    pieces = []
    for chunk in _ask(address, model, prompt, stream=True):
        pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    return {"said": "".join(pieces), "pieces": len(pieces)}


def tools(address, model, prompt):
    tool = {"type": "function", "function": TOOL}
    (call,) = _ask(address, model, prompt, tools=[tool]).choices[0].message.tool_calls
    return {"call": [call.function.name, json.loads(call.function.arguments)]}


def structured(address, model, prompt):
    shape = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SHAPE}}
    answer = _ask(address, model, prompt, response_format=shape)
    return {"value": json.loads(answer.choices[0].message.content)}


def responses(address, model, prompt):
    answer = _client(address).responses.create(model=model, input=prompt)
    return {"said": answer.output_text}


def leave(address, model, prompt):
    with _ask(address, model, prompt, stream=True) as chunks:
        next(iter(chunks))
    return {"pieces": 1}


run(
    {
        "plain": plain,
        "stream": stream,
        "tools": tools,
        "structured": structured,
        "responses": responses,
        "leave": leave,
    }
)
