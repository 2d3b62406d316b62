"""Pydantic AI over either dialect; which one is the first word of the action."""

import asyncio
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from told import run

DIALECT, _, sys.argv[1] = sys.argv[1].partition(":")


class _Weather(BaseModel):
    """The weather in a city."""

    city: str
    degrees: int


def _model(address, model):
    if DIALECT == "anthropic":
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        client = AsyncAnthropic(base_url=f"{address}/llm", api_key="none")
        return AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client))
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{address}/v1", api_key="none")
    return OpenAIChatModel(model, provider=provider)


def plain(address, model, prompt):
    answer = Agent(_model(address, model)).run_sync(prompt)
    return {"said": answer.output}


async def _stream(address, model, prompt, most=None):
    pieces = []
    async with Agent(_model(address, model)).run_stream(prompt) as answer:
        async for piece in answer.stream_text(delta=True, debounce_by=None):
            pieces.append(piece)
            if len(pieces) == most:
                break
    return {"said": "".join(pieces), "pieces": len(pieces)}


def stream(address, model, prompt):
    return asyncio.run(_stream(address, model, prompt))


def tools(address, model, prompt):
    called = []
    agent = Agent(_model(address, model))

    @agent.tool_plain
    def weather(city: str) -> str:
        """Tell the weather in a city."""
        called.append(["weather", {"city": city}])
        return "sunny"

    answer = agent.run_sync(prompt)
    return {"call": called[0], "said": answer.output}


def structured(address, model, prompt):
    by_tool = DIALECT == "anthropic"
    shape = ToolOutput(_Weather, name="weather_result") if by_tool else NativeOutput(_Weather)
    answer = Agent(_model(address, model), output_type=shape).run_sync(prompt)
    return {"value": answer.output.model_dump()}


def leave(address, model, prompt):
    return asyncio.run(_stream(address, model, prompt, 1))


run(plain, stream, tools, structured, leave)
