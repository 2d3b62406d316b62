"""The table of real clients: its rows, what a cell asks for, what is right there, and its page."""

import json
from pathlib import Path
from typing import Any, NamedTuple

PROGRAMS = Path(__file__).parent / "client_programs"
SAID = "The quick brown fox."
UNASKED = "w0 w1 w2 w3 w4 w5 w6 w7"
"""What the stand-in says that is ordered nothing."""
VALUE = {"city": "Oslo", "degrees": 7}
CALL = ["weather", {"city": "Oslo"}]
Told = dict[str, Any]


class TriedClient(NamedTuple):
    """One row: a program, the dialect that it is told to speak, and what it is made of."""

    name: str
    program: str
    packages: tuple[str, ...]
    dialect: str = ""
    only: tuple[str, ...] = ()
    structured: str = ""
    """What its engine is ordered to answer for a value by a schema, where that is a tool call."""

    binary: str = ""
    """The command that its packages bring, for a program that only runs one."""

    @property
    def is_node(self) -> bool:
        """Whether it comes from npm."""
        return self.program.endswith(".mjs") or (bool(self.binary) and self.binary != "aider")


TOOL_VALUE = json.dumps({"tool_calls": [{"name": "weather_result", "arguments": VALUE}]})
NODE = "node_both.mjs"
CODER, AGENT = "coder.py", ("plain", "refused", "asleep", "unknown")
CLIENTS = (
    TriedClient("openai (Python)", "openai_python.py", ("openai",)),
    TriedClient("openai (Python), 1.x", "openai_python.py", ("openai<2", "httpx<0.28")),
    TriedClient("anthropic (Python)", "anthropic_python.py", ("anthropic",)),
    TriedClient("openai (Node)", NODE, ("openai",), "openai"),
    TriedClient("openai (Node), 4.x", NODE, ("openai@4",), "openai"),
    TriedClient("anthropic (Node)", NODE, ("@anthropic-ai/sdk",), "anthropic"),
    TriedClient("AI SDK, OpenAI", NODE, ("ai", "@ai-sdk/openai-compatible"), "ai-openai"),
    TriedClient("AI SDK, Anthropic", NODE, ("ai", "@ai-sdk/anthropic"), "ai-anthropic"),
    TriedClient("LangChain, OpenAI", "langchain_both.py", ("langchain-openai",), "openai"),
    TriedClient("LangChain, Anthropic", "langchain_both.py", ("langchain-anthropic",), "anthropic"),
    TriedClient("LlamaIndex", "llamaindex_openai.py", ("llama-index-llms-openai-like",)),
    TriedClient(
        "Pydantic AI, OpenAI", "pydantic_ai_both.py", ("pydantic-ai-slim[openai]",), "openai"
    ),
    TriedClient(
        "Pydantic AI, Anthropic",
        "pydantic_ai_both.py",
        ("pydantic-ai-slim[anthropic]",),
        "anthropic",
        structured=TOOL_VALUE,
    ),
    TriedClient("LiteLLM, OpenAI", "litellm_both.py", ("litellm", "tenacity"), "openai"),
    TriedClient("LiteLLM, Anthropic", "litellm_both.py", ("litellm", "tenacity"), "anthropic"),
    TriedClient("Agents SDK, chat", "openai_agents.py", ("openai-agents",), "chat"),
    TriedClient(
        "Agents SDK, responses",
        "openai_agents.py",
        ("openai-agents",),
        "responses",
        # Where the stand-in speaks of tools, it is in the two other dialects.
        ("plain", "stream", "structured", "refused", "asleep", "unknown", "left", "dies"),
    ),
    TriedClient(
        "Instructor, OpenAI", "instructor_both.py", ("instructor",), "openai", ("structured",)
    ),
    TriedClient(
        "Instructor, Anthropic",
        "instructor_both.py",
        ("instructor", "anthropic"),
        "anthropic",
        ("structured",),
    ),
    TriedClient("Codex CLI", CODER, ("@openai/codex",), "codex", AGENT, binary="codex"),
    TriedClient("opencode", CODER, ("opencode-ai",), "opencode", AGENT, binary="opencode"),
    TriedClient("Qwen Code", CODER, ("@qwen-code/qwen-code",), "qwen", AGENT, binary="qwen"),
    TriedClient("aider", CODER, ("aider-chat",), "aider", AGENT, binary="aider"),
)
COLUMNS = {
    "plain": "an answer in one piece",
    "stream": "an answer in pieces",
    "tools": "a tool call",
    "structured": "a value by a JSON schema",
    "refused": "refused for a full queue, then served by the client's own tries",
    "asleep": "the engine sleeps and is woken",
    "unknown": "a model that there is not: the client's error names it",
    "left": "leaves a stream: the engine is free within a second",
    "dies": "the engine dies under a stream: no client takes the part for the whole",
}
REAL = ("plain", "stream", "structured", "unknown", "left")
"""What can be judged before an engine whose words are its own."""


# What a client says, and whether that is right


def order(**knobs: object) -> str:
    """Return a prompt that orders the stand-in's answer."""
    return f"Say it.\nstand_in:{json.dumps(knobs)}"


def prompt_of(client: TriedClient, column: str) -> str:
    """Return what the client is to ask."""
    if client.binary:  # some wrap it in words, or quotes, of their own
        return "Say it."
    match column:
        case "tools":
            return order(tool_calls=[{"name": CALL[0], "arguments": CALL[1]}])
        case "structured":
            return order(**json.loads(client.structured or json.dumps({"text": json.dumps(VALUE)})))
        case "left":
            return order(tokens=2000, gap_ms=10)
        case "dies":
            return order(text=SAID, gap_ms=10, break_after=2, break_how="die")
        case _:
            return order(text=SAID, gap_ms=2)


def action_of(column: str) -> str:
    """Return what the program is to do."""
    return {
        "refused": "plain",
        "asleep": "plain",
        "unknown": "plain",
        "left": "leave",
        "dies": "stream",
    }.get(column, column)


def judge(column: str, told: Told, real: bool) -> str:
    """Return "" where what the client told is right, else what is wrong, in a few words."""
    error = told.get("error")
    if column == "unknown":
        return "" if error and "nobody" in error else f"the error does not name it: {told}"
    if column == "dies":
        return "" if error else f"takes the part for the whole: {told.get('said')!r}"
    if error:
        return str(error)
    match column:
        case "tools":
            right = told.get("call") == CALL
        case "structured":
            right = set(told["value"]) == set(VALUE) if real else told.get("value") == VALUE
        case "left":
            right = True
        case "stream":
            right = told["pieces"] > 1 and (bool(told["said"]) if real else told["said"] == SAID)
        case _:
            right = bool(told["said"]) if real else told["said"] == SAID
    return "" if right else f"told {told}"


class Tried(NamedTuple):
    """What one client did."""

    client: str
    version: str
    cells: dict[str, str | None]
    """By column: "" is right, None was not tried, else what was wrong."""


def page(rows: list[Tried], before: str) -> str:
    """Return the table and its notes as Markdown."""
    notes: list[str] = []
    heads = list(COLUMNS)
    out = [f"| before {before} | " + " | ".join(heads) + " |", "| --- " * (len(heads) + 1) + "|"]
    for row in rows:
        marks = []
        for column in heads:
            wrong = row.cells[column]
            if wrong:
                notes.append(f"{row.client}, {column}: {wrong}")
            marks.append("" if wrong is None else f"no ({len(notes)})" if wrong else "yes")
        out.append(f"| {row.client} {row.version} | " + " | ".join(marks) + " |")
    out += [""] + [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join(out).rstrip() + "\n"
