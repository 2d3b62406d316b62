"""Answers in the shape of OpenAI chat completions, read in one way for all clients that have it."""

import json

from told import SHAPE, TOOL


def actions_of(ask):
    """Return plain, stream, tools and structured; `ask(address, model, prompt, **more)` asks."""

    def plain(address, model, prompt):
        answer = ask(address, model, prompt)
        return {"said": answer.choices[0].message.content, "usage": bool(answer.usage)}

    def stream(address, model, prompt):
        pieces = []
        for chunk in ask(address, model, prompt, stream=True):
            pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
        return {"said": "".join(pieces), "pieces": len(pieces)}

    def tools(address, model, prompt):
        tool = {"type": "function", "function": TOOL}
        (call,) = ask(address, model, prompt, tools=[tool]).choices[0].message.tool_calls
        return {"call": [call.function.name, json.loads(call.function.arguments)]}

    def structured(address, model, prompt):
        shape = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SHAPE}}
        answer = ask(address, model, prompt, response_format=shape)
        return {"value": json.loads(answer.choices[0].message.content)}

    return plain, stream, tools, structured
