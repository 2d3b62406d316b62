"""Instructor over either dialect; which one is the first word of the action."""

import sys

import instructor
from pydantic import BaseModel
from told import run

DIALECT, _, sys.argv[1] = sys.argv[1].partition(":")


class _Weather(BaseModel):
    """The weather in a city."""

    city: str
    degrees: int


def _asked(address, model, prompt, mode):
    messages = [{"role": "user", "content": prompt}]
    if DIALECT == "anthropic":
        from anthropic import Anthropic

        base = Anthropic(base_url=f"{address}/llm", api_key="none")
        client = instructor.from_anthropic(base, mode=mode)
        messages = {"messages": messages, "max_tokens": 256}
    else:
        from openai import OpenAI

        base = OpenAI(base_url=f"{address}/v1", api_key="none")
        client = instructor.from_openai(base, mode=mode)
        messages = {"messages": messages}
    return client.create(model=model, response_model=_Weather, max_retries=0, **messages)


def structured(address, model, prompt):
    mode = instructor.Mode.ANTHROPIC_JSON if DIALECT == "anthropic" else instructor.Mode.JSON
    return {"value": _asked(address, model, prompt, mode).model_dump()}


run(structured)
