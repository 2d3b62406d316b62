"""Who is turned away from a wake comes back when it is over: clients as they are, their own tries.

By default with a wake of about a second; a wake of 40 s, and the clients for Node, are slow.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import anthropic
import openai
import pytest
from naps import WORDS, House, house

NODE_CLIENTS = """
import OpenAI from 'openai';
import Anthropic from '@anthropic-ai/sdk';
const [port, which] = process.argv.slice(2);
const messages = [{role: 'user', content: 'hi'}];
if (which === 'openai') {
  const sdk = new OpenAI({baseURL: `http://127.0.0.1:${port}/v1`, apiKey: 'none'});
  const answer = await sdk.chat.completions.create({model: 'text', messages});
  console.log(JSON.stringify(answer.choices[0].message.content));
} else {
  const sdk = new Anthropic({baseURL: `http://127.0.0.1:${port}/llm`, apiKey: 'none'});
  const answer = await sdk.messages.create({model: 'text', max_tokens: 64, messages});
  console.log(JSON.stringify(answer.content[0].text));
}
"""
Client = Callable[[House], Awaitable[str]]


async def openai_plain(door: House) -> str:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{door.port}/v1", api_key="-") as sdk:
        answer = await sdk.chat.completions.create(
            model="text", messages=[{"role": "user", "content": "hi"}]
        )
        return answer.choices[0].message.content or ""


async def openai_stream(door: House) -> str:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{door.port}/v1", api_key="-") as sdk:
        stream = await sdk.chat.completions.create(
            model="text", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        parts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
        return "".join(parts)


async def anthropic_plain(door: House) -> str:
    base_url = f"http://127.0.0.1:{door.port}/llm"
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="-") as sdk:
        answer = await sdk.messages.create(
            model="text", max_tokens=64, messages=[{"role": "user", "content": "hi"}]
        )
        (block,) = answer.content
        assert block.type == "text"
        return block.text


PYTHON: tuple[Client, ...] = (openai_plain, openai_stream, anthropic_plain)


def in_node(folder: Path, which: str) -> Client:
    async def client(door: House) -> str:
        process = await asyncio.create_subprocess_exec(
            *("node", str(folder / "client.mjs"), str(door.port), which),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        return str(json.loads(out))

    return client


async def served_by_their_own_tries(wake_s: float, hold_s: float, clients: tuple[Client, ...]):
    """Learn the wake once, then let each client come to a sleeping engine, all at once."""
    engine = {"wake_s": (wake_s, wake_s)}
    async with house(engine=engine, hold_sleeping_s=hold_s) as door:
        await door.put_to_sleep(1)
        await door.admin("/admin/wake/text", "POST")
        await door.settled("awake", within_s=wake_s + 20)
        await door.put_to_sleep(1)
        answers = await asyncio.gather(*(client(door) for client in clients))
        assert answers == [WORDS] * len(clients)
        refused = door.outcomes.count("model_waking")
        assert len(clients) <= refused <= 2 * len(clients), "two tries more, and not all needed"


def test_clients_of_python_are_served_by_their_default_tries() -> None:
    asyncio.run(served_by_their_own_tries(1.3, 0.1, PYTHON))


@pytest.mark.slow
def test_clients_of_python_and_of_node_are_served_after_40_s(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not there, which brings the clients for Node")

    async def scenario() -> None:
        npm = await asyncio.create_subprocess_exec(
            *("npm", "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path)),
            *("openai@^6", "@anthropic-ai/sdk@^0.71"),
            stdout=asyncio.subprocess.DEVNULL,
            env=os.environ | {"npm_config_cache": str(tmp_path / "cache")},
        )
        assert await npm.wait() == 0
        (tmp_path / "client.mjs").write_text(NODE_CLIENTS)
        node = (in_node(tmp_path, "openai"), in_node(tmp_path, "anthropic"))
        await served_by_their_own_tries(40.0, 1.0, (*PYTHON, *node))

    asyncio.run(scenario())


def test_fifty_callers_are_told_fifty_instants() -> None:
    async def scenario() -> None:
        async with house(hold_sleeping_s=0.2) as door:
            await door.put_to_sleep(1)
            door.misfortune("wake_up=hang*1")
            replies = await asyncio.gather(*(door.ask() for _ in range(50)))
            told = {int(reply.headers["retry-after-ms"]) for reply in replies}
            assert {reply.status for reply in replies} == {503}
            assert len(told) == 50
            assert max(told) <= 59_000
            door.release()
            await door.settled("awake")

    asyncio.run(scenario())
