"""LangChain over either dialect; which one is the first word of the action."""

import sys

from told import SHAPE, TOOL, run

DIALECT, _, sys.argv[1] = sys.argv[1].partition(":")


def _model(address, model):
    if DIALECT == "anthropic":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(base_url=f"{address}/llm", model=model, api_key="none", max_tokens=256)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(base_url=f"{address}/v1", model=model, api_key="none")


def plain(address, model, prompt):
    answer = _model(address, model).invoke(prompt)
    return {"said": answer.text, "usage": bool(answer.usage_metadata)}


def stream(address, model, prompt):
    pieces = [chunk.text for chunk in _model(address, model).stream(prompt)]
    pieces = [piece for piece in pieces if piece]
    return {"said": "".join(pieces), "pieces": len(pieces)}


def tools(address, model, prompt):
    tool = {"type": "function", "function": TOOL}
    (call,) = _model(address, model).bind_tools([tool]).invoke(prompt).tool_calls
    return {"call": [call["name"], call["args"]]}


def structured(address, model, prompt):
    shape = {"title": "weather", "description": TOOL["description"], **SHAPE}
    asked = _model(address, model).with_structured_output(shape, method="json_schema")
    return {"value": asked.invoke(prompt)}


def leave(address, model, prompt):
    chunks = _model(address, model).stream(prompt)
    for chunk in chunks:
        if chunk.text:
            break
    chunks.close()
    return {"pieces": 1}


run(plain, stream, tools, structured, leave)
