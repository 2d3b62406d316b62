"""The Anthropic SDK before a real engine, through the front door: translated, then native."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anthropic
from anthropic.types import Message

from bench.harness import FrontDoor, configuration

PROMPT = "Say hello."
Say = Callable[..., None]
"""`say(what, holds=...)` of tryouts/engine.py."""


def try_messages(say: Say, url: str, model: str) -> None:
    """Ask one engine both ways."""
    for way in ("translate", "native"):
        say(f'anthropic = "{way}"')
        text = configuration(
            url,
            model,
            admission=(4, 2, 2, 60),
            surfaces="openai = false",
            upstream=f'anthropic = "{way}"',
            models='aliases = ["claude-local"]',
        )
        with tempfile.TemporaryDirectory() as folder, FrontDoor(Path(folder), text) as door:
            client = anthropic.Anthropic(
                base_url=f"{door.public}/llm", api_key="none", max_retries=0, timeout=120
            )
            with client:
                ask(say, client)


def ask(say: Say, client: anthropic.Anthropic) -> None:
    """One plain and one streamed message, a count, the list, and what cannot be served."""
    messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": PROMPT}]
    plain = client.messages.create(model="claude-local", max_tokens=16, messages=messages)
    Message.model_validate(plain.model_dump())
    say(f"plain: {told(plain)}", holds=plain.model == "claude-local" and whole(plain))
    started = time.monotonic()
    moments, kinds = [], []
    with client.messages.stream(model="claude-local", max_tokens=32, messages=messages) as stream:
        for event in stream:
            moments.append(time.monotonic() - started)
            kinds.append(event.type)
        final = stream.get_final_message()
    Message.model_validate(final.model_dump())
    say(
        f"streamed: {len(moments)} events, first after {moments[0]:.3f} s, last after "
        f"{moments[-1]:.3f} s; {told(final)}",
        holds=kinds[-1] == "message_stop" and whole(final),
    )
    try:
        count = client.messages.count_tokens(model="claude-local", messages=messages).input_tokens
        say(f"counted: {count} tokens; the message was {plain.usage.input_tokens}", holds=count > 0)
    except anthropic.NotFoundError as error:  # llama.cpp's /tokenize knows no messages
        say(f"counted: {message_of(error)}")
    say(f"models: {[model.id for model in client.models.list()]}")
    refusals: list[tuple[type[anthropic.APIStatusError], str, str, int]] = [
        (anthropic.NotFoundError, "an unknown model", "gpt-9", 1),
        (anthropic.BadRequestError, "a prompt of 90 000 words", "claude-local", 90_000),
    ]
    for kind, what, model, words in refusals:
        try:
            client.messages.create(
                model=model,
                max_tokens=16,
                messages=[{"role": "user", "content": "word " * words}],
            )
            say(f"{what}: served", holds=False)
        except anthropic.APIStatusError as error:
            say(f"{what}: {error.status_code} {message_of(error)}", holds=isinstance(error, kind))


def whole(message: Message) -> bool:
    """Tell whether a message is complete, with its counts."""
    usage = message.usage
    return bool(message.stop_reason and message.content and usage.input_tokens)


def told(message: Message) -> str:
    """Return what is worth reading of a message whose text is a random model's."""
    kinds = [block.type for block in message.content]
    usage = message.usage
    return f"{kinds}, {message.stop_reason}, {usage.input_tokens} in, {usage.output_tokens} out"


def message_of(error: anthropic.APIStatusError) -> str:
    """Return an error's own words."""
    body = error.body
    return str(body["error"]["message"]) if isinstance(body, dict) else str(error)
