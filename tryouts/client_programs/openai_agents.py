"""OpenAI's Agents SDK, over chat completions or over responses (the first word of the action)."""

import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from agents import set_tracing_disabled as without_tracing
from openai import AsyncOpenAI
from pydantic import BaseModel
from told import run

KIND, _, sys.argv[1] = sys.argv[1].partition(":")
without_tracing(True)


class _Weather(BaseModel):
    """The weather in a city."""

    city: str
    degrees: int


def _agent(address, model, **more):
    kind = OpenAIResponsesModel if KIND == "responses" else OpenAIChatCompletionsModel
    client = AsyncOpenAI(base_url=f"{address}/v1", api_key="none")
    return Agent(name="tried", model=kind(model=model, openai_client=client), **more)


def plain(address, model, prompt):
    return {"said": Runner.run_sync(_agent(address, model), prompt).final_output}


async def _stream(address, model, prompt, most=None):
    pieces = []
    result = Runner.run_streamed(_agent(address, model), prompt)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            pieces.append(event.data.delta)
            if len(pieces) == most:
                result.cancel()
                break
    return {"said": "".join(pieces), "pieces": len(pieces)}


def stream(address, model, prompt):
    return asyncio.run(_stream(address, model, prompt))


def tools(address, model, prompt):
    called = []

    @function_tool
    def weather(city: str) -> str:
        """Tell the weather in a city."""
        called.append(["weather", {"city": city}])
        return "sunny"

    answer = Runner.run_sync(_agent(address, model, tools=[weather]), prompt)
    return {"call": called[0], "said": answer.final_output}


def structured(address, model, prompt):
    answer = Runner.run_sync(_agent(address, model, output_type=_Weather), prompt)
    return {"value": answer.final_output.model_dump()}


def leave(address, model, prompt):
    return asyncio.run(_stream(address, model, prompt, 1))


run(plain, stream, tools, structured, leave)
