"""Switching dialects: one that is off is not even loaded, a new one needs nothing below it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from doorway import CHAT, doorway
from llm import (
    COUNT_TOKENS,
    MESSAGES,
    ask,
    events,
    hold_to_the_grammar,
    hold_to_the_types,
    kinds,
)
from wire import Cut, chat

from tornado_frontdoor.core.catalog import Catalog
from tornado_frontdoor.core.decisions import Outcome, Reason, Refusal
from tornado_frontdoor.core.request import CanonicalRequest
from tornado_frontdoor.surfaces.base import (
    DecodedRequest,
    Document,
    Ending,
    Head,
    Headers,
    ListedModel,
    Refused,
    Route,
    RouteKind,
    SurfaceRequest,
)
from tornado_frontdoor.surfaces.last_pieces import LastPieces

ROOT = Path(__file__).resolve().parents[2]
OFF = "anthropic = false"


def test_a_dialect_that_is_off_is_not_found_on_any_path() -> None:
    async def scenario() -> None:
        async with doorway(surfaces=OFF) as door:
            for path in (MESSAGES, COUNT_TOKENS, "/llm", "/llm/", "/llm/v1/models"):
                for method in ("POST", "GET", "HEAD"):
                    body = ask() if method == "POST" else None
                    reply = await door.call(path, body, method)
                    assert reply.status == 404
            assert (await door.call(CHAT, chat())).status == 200
            assert door.stats()["started"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(("switch", "loaded"), [(OFF, False), ("", True)])
def test_a_dialect_that_is_off_is_not_even_loaded(
    tmp_path: Path, switch: str, loaded: bool
) -> None:
    path = tmp_path / "frontdoor.toml"
    path.write_text(
        f"""[surfaces]
{switch}
[upstreams.a]
url = "http://127.0.0.1:1"
[models.a]
upstream = "a"
"""
    )
    program = f"""
import sys
import tornado_frontdoor.cli.main
from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.dialects import make_surfaces
make_surfaces(load(__import__("pathlib").Path({str(path)!r})))
print(any(name.startswith("tornado_frontdoor.surfaces.anthropic") for name in sys.modules))
"""
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == str(loaded)


def test_paths_of_the_dialect_answer_in_its_words() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            for path in ("/llm", "/llm/"):
                for method in ("HEAD", "GET"):
                    reply = await door.call(path, None, method)
                    assert (reply.status, reply.body) == (200, b"")
            for path in ("/llm/v1/complete", "/llm/v1/messages/batches", "/llm/v1/files", "/llm/x"):
                reply = await door.call(path, {})
                assert reply.status == 404
                assert reply.json["error"]["type"] == "not_found_error"
            reply = await door.call(MESSAGES, None, "GET")
            assert reply.status == 405
            assert reply.json["error"]["type"] == "invalid_request_error"
            assert door.stats()["started"] == 0

    asyncio.run(scenario())


# A third dialect: plain text in, plain text out


class Words:
    """A relay that keeps only the words of an answer."""

    ending: Ending | None = None
    verbatim: LastPieces | None = None
    body = b""

    def head(self, status: int, headers: Headers) -> Head | None:  # noqa: ARG002
        return None

    def data(self, chunk: bytes) -> bytes:
        self.body += chunk
        return b""

    def end(self) -> Ending:
        words = json.loads(self.body)["choices"][0]["message"]["content"]
        return Ending(Outcome.SERVED, document=Document(200, (), words.encode()))

    def broken(self, reason: Reason, detail: str) -> bytes:  # noqa: ARG002
        return b""

    def keep_alive(self) -> bytes:
        return b""

    def note(self, text: str) -> bytes:  # noqa: ARG002
        return b""

    def as_event(self, document: Document) -> bytes:  # noqa: ARG002
        return b""


class Telegram:
    """A surface of a dozen lines."""

    name = "telegram"
    prefixes = ("/telegram",)

    def route(self, method: str, path: str) -> Route:  # noqa: ARG002
        return Route(RouteKind.ENGINE, path)

    def decode(self, call: SurfaceRequest, catalog: Catalog) -> DecodedRequest:
        target = catalog.resolve(call.route.path.rpartition("/")[2])
        if target is None:
            raise Refused(Reason.MODEL_NOT_FOUND, "NO SUCH MODEL STOP")
        asked = {"messages": [{"role": "user", "content": call.body.decode()}]}
        request = CanonicalRequest(
            surface=self.name,
            model=target.model,
            upstream=target.upstream,
            path=CHAT,
            body=json.dumps(asked).encode(),
            content_type="application/json",
            stream=False,
        )
        return DecodedRequest(request, target, Words())

    def models(self, call: SurfaceRequest, listing: Sequence[ListedModel]) -> Document:  # noqa: ARG002
        return Document(200, (), b"")

    def refuse(self, refusal: Refusal, request_id: str) -> Document:  # noqa: ARG002
        return Document(418, (), f"{refusal.reason.name} STOP".encode())


def test_a_third_dialect_needs_nothing_below_the_surfaces() -> None:
    """It shares the cap and the line, leaves its own access line, and refuses in its own words."""

    async def scenario() -> None:
        async with doorway({"hold": 0.3}, cap=1, queue=1) as door:
            door.app.door._routes.prefixes.append(("/telegram", Telegram()))
            path, text = "/telegram/reasoning", b'hi\nstand_in:{"text": "ALL WELL STOP"}'
            first = await door.begin(MESSAGES, ask())
            await door.inside(1)
            second = await door.begin(path, text)
            await door.inside(1, 1)
            third = await door.call(path, text)
            assert (third.status, third.body) == (418, b"QUEUE_FULL STOP")
            assert (await first.reply()).status == 200
            reply = await second.reply()
            assert (reply.status, reply.body) == (200, b"ALL WELL STOP")
            assert (await door.call("/telegram/nobody", b"")).body == b"MODEL_NOT_FOUND STOP"
            assert door.stats()["max_concurrent"] == 1
            assert [line["surface"] for line in door.lines].count("telegram") == 3

    asyncio.run(scenario())


# Native


def test_an_engine_that_speaks_the_dialect_itself_is_asked_in_it() -> None:
    """Frame for frame, under the name that was asked for, behind the same gate."""

    async def scenario() -> None:
        async with doorway(cap=1, queue=0, upstream='anthropic = "native"') as door:
            reply = await door.call(MESSAGES, ask("claude-opus", text="so it is"))
            hold_to_the_types(reply.json)
            assert reply.json["model"] == "claude-opus"
            assert reply.json["content"] == [{"type": "text", "text": "so it is"}]
            reply = await door.call(MESSAGES, ask("claude-opus", stream=True, text="so it is"))
            assert kinds(reply.body)[-1] == "message_stop"
            assert events(reply.body)[0]["message"]["model"] == "claude-opus"
            hold_to_the_grammar(reply.body)
            counted = await door.call(COUNT_TOKENS, ask())
            assert counted.json["input_tokens"] > 0
            missing = await door.call(MESSAGES, ask("nobody"))
            assert missing.json["error"]["type"] == "not_found_error"
            wire = await door.begin(MESSAGES, ask(stream=True, tokens=9, break_after=2))
            with pytest.raises(Cut) as cut:
                await wire.reply()
            assert kinds(cut.value.body)[-1] == "error"
            assert door.outcomes[-1] == "upstream_error"

    asyncio.run(scenario())
