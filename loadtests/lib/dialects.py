"""What is asked in each dialect, and what an event of a streamed answer is.

The only text of a chat is `stand_in:{...}`: an engine stand-in reads from it how long to hold the
request and what to answer, so that the client knows what a request without waiting would have
taken. For a real engine it is a prompt like any other.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

Surface = Literal["openai", "anthropic", "embeddings"]
Event = Literal["token", "thought", "end", "error", "other"]

PATHS: dict[Surface, str] = {
    "openai": "/v1/chat/completions",
    "anthropic": "/llm/v1/messages",
    "embeddings": "/v1/embeddings",
}
# gzip would be asked for otherwise, and nothing may sit between us and the first token.
HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
ANTHROPIC_HEADERS = HEADERS | {"anthropic-version": "2023-06-01", "x-api-key": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCall:
    """One request: what is asked of which model, through which surface."""

    surface: Surface
    model: str
    stream: bool = False
    hold_s: float = 0.0
    tokens: int = 4
    gap_ms: float = 0.0
    thoughts: int = 0
    """Tokens of reasoning before the visible ones."""
    prompt_bytes: int = 0
    """How long all that is asked is to be at least."""

    @property
    def group(self) -> str:
        """What it is counted under."""
        return f"{self.model} {self.surface}{' stream' if self.stream else ''}"

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the body."""
        return ANTHROPIC_HEADERS if self.surface == "anthropic" else HEADERS

    @property
    def engine_s(self) -> float:
        """Seconds that an engine with a free slot takes for it."""
        tokens = 0 if self.surface == "embeddings" else self.tokens + self.thoughts
        return self.hold_s + tokens * self.gap_ms / 1000

    def body(self) -> bytes:
        """The request's body."""
        knobs: dict[str, Any] = {"hold_s": f"{self.hold_s:.6f}", "gap_ms": self.gap_ms}
        if self.thoughts:
            knobs |= {"reasoning": "so " * self.thoughts, "text": "yes " * self.tokens}
        else:
            knobs["tokens"] = self.tokens
        text = "stand_in:" + json.dumps(knobs)
        if self.surface == "embeddings":
            return json.dumps({"model": self.model, "input": "hello", "stand_in": knobs}).encode()
        messages = [{"role": "user", "content": text}]
        if (missing := self.prompt_bytes - len(text)) > 0:
            messages.insert(0, {"role": "user", "content": "x" * missing})
        asked: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "stream": self.stream,
        }
        if self.surface == "anthropic":
            asked["max_tokens"] = 4096
        return json.dumps(asked).encode()


ANSWERS: dict[Surface, str] = {"openai": "choices", "anthropic": "content", "embeddings": "data"}


def is_answer(surface: Surface, body: bytes) -> bool:
    """Tell whether the body of a 200 answers what was asked."""
    try:
        return bool(json.loads(body)[ANSWERS[surface]])
    except (ValueError, KeyError, TypeError):
        return False


def understand(surface: Surface, event: bytes) -> Event:
    """Return what one event of a stream is: a visible token, a thought, the end, an error."""
    data = b"".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
    if not data:
        return "other"  # comments keep the connection alive
    if data == b"[DONE]":
        return "end"
    document = json.loads(data)
    return _anthropic(document) if surface == "anthropic" else _openai(document)


def _openai(document: dict[str, Any]) -> Event:
    if "error" in document:
        return "error"
    delta = (document.get("choices") or [{}])[0].get("delta") or {}
    if delta.get("content"):
        return "token"
    return "thought" if delta.get("reasoning") or delta.get("reasoning_content") else "other"


def _anthropic(document: dict[str, Any]) -> Event:
    match document:
        case {"type": "content_block_delta", "delta": {"type": "text_delta"}}:
            return "token"
        case {"type": "content_block_delta", "delta": {"type": "thinking_delta"}}:
            return "thought"
        case {"type": "message_stop"}:
            return "end"
        case {"type": "error"}:
            return "error"
        case _:
            return "other"


def reason_of(body: bytes) -> str:
    """Return the code (OpenAI) or type (Anthropic) of an error document; `?` without one."""
    try:
        error = json.loads(body)["error"]
        return str(error.get("code") or error["type"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return "?"
