"""Claude Code itself before the front door: one prompt with a tool call, nothing but loopback.

The client is installed into a folder of its own; it, the front door and a stand-in engine then run
in a network namespace that has no other interface, so that nothing can be asked of, or told to,
anyone else. The stand-in's answer orders a command, the command's output orders the last answer:
what Claude Code prints has been through the engine, the tool and the engine again. Then the same
once more with an engine that dies under the first answer and is back a second later.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.harness import FrontDoor, configuration
from simulator.standin.server import StandIn, StandInOptions
from tryouts.claude_recording import clean

PACKAGE = "@anthropic-ai/claude-code"
VERSION = "2.1.197"
SAID = "The tool has spoken."
OUTPUT = 'stand_in:{"text": "' + SAID + '"}'
COMMAND = f"printf %s '{OUTPUT}'"
THOUGHT, TEXT, PURPOSE = "A tool will do.", "I ask it. ", "Speak"
CALL = {"name": "Bash", "arguments": {"command": COMMAND, "description": PURPOSE}}
ORDER = json.dumps({"reasoning": THOUGHT, "text": TEXT, "tool_calls": [CALL]})
OURS = (SAID, THOUGHT, TEXT, PURPOSE)
PROMPT = f"Ask the tool.\nstand_in:{ORDER}"
Say = Callable[..., None]
"""`say(what, holds=...)` of tryouts/engine.py."""


def try_claude_code(say: Say, version: str, record_to: str | None) -> None:
    """Install the client, then run everything in a namespace without a network."""
    with tempfile.TemporaryDirectory(prefix="tryout-") as name:
        folder = Path(name)
        install(folder, version)
        result = subprocess.run(
            [
                *("unshare", "--net", "--pid", "--fork", "--kill-child"),
                *(() if os.geteuid() == 0 else ("--map-root-user",)),
                *("sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
                *(sys.executable, "-m", "tryouts.claude_code", "--folder", name),
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=180,
        )
        if result.returncode != 0:
            say(f"the run in the namespace ended with {result.returncode}", holds=False)
            return
        say(f"Claude Code {version}")
        first, second = json.loads(result.stdout)
        report(say, first)
        say(f"{first['statuses']}", holds=set(first["statuses"]) == {"200"})
        say("once more, and the engine dies under it:")
        report(say, second)
        say(
            f"{second['statuses']}; {second['outcomes']}",
            holds="upstream_error" in second["outcomes"],
        )
        if record_to:
            calls = [clean(call, OURS) for call in first["calls"]]
            lines = ",\n".join(json.dumps(call) for call in calls)
            Path(record_to).write_text(f"[\n{lines}\n]\n")
            say(f"recorded {len(calls)} calls, cleaned, in {record_to}")


def install(folder: Path, version: str) -> None:
    """Install the client with npm; what it brings runs only in the namespace."""
    subprocess.run(
        [
            *("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"),
            *("--prefix", str(folder), f"{PACKAGE}@{version}"),
        ],
        check=True,
        stdout=sys.stderr,
        timeout=300,
    )


def binary(folder: Path) -> Path:
    """Return the client's program for this platform."""
    (found,) = (folder / "node_modules" / "@anthropic-ai").glob("claude-code-*/claude")
    return found


def report(say: Say, seen: dict[str, Any]) -> None:
    """Say what was seen and what must hold."""
    result = seen["result"]
    calls = seen["calls"]
    kinds = Counter(f"{call['method']} {call['path']}" for call in calls)
    say(f"it sent {dict(kinds)}")
    say(f"it printed {result.get('result')!r}", holds=result.get("result") == SAID)
    say(f"turns: {result.get('num_turns')}", holds=result.get("num_turns") == 2)
    say(f"is_error: {result.get('is_error')}", holds=result.get("is_error") is False)
    bodies = [call["body"] for call in calls if call["body"]]
    streams = [bool(json.loads(body).get("stream")) for body in bodies]
    say(f"bodies of {min(map(len, bodies))} to {max(map(len, bodies))} bytes; to stream: {streams}")
    most = seen["stats"]["max_concurrent"]
    say(f"the engine started {seen['stats']['started']}, at most {most} at once", holds=most <= 6)
    say(f"interfaces in its namespace: {seen['interfaces']}", holds=seen["interfaces"] == ["lo"])


# Inside of the namespace


class Tap:
    """Passes bytes on between a client and the front door, and keeps what the client sent."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sent: list[bytearray] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        sent = bytearray()
        self.sent.append(sent)
        to_door = await asyncio.open_connection("127.0.0.1", self._port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(
                pass_on(reader, to_door[1], sent), pass_on(to_door[0], writer, bytearray())
            )

    def calls(self) -> list[dict[str, Any]]:
        """Return every request that was sent."""
        return [call for sent in self.sent for call in requests_in(bytes(sent))]


async def pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
) -> None:
    """Copy bytes until their end."""
    while data := await reader.read(65536):
        kept += data
        writer.write(data)
        await writer.drain()
    writer.close()


def requests_in(sent: bytes) -> Iterator[dict[str, Any]]:
    """Yield the requests of one connection; all bodies have a Content-Length."""
    while sent:
        head, _, rest = sent.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        method, path, _ = lines[0].split()
        headers = dict(line.split(": ", 1) for line in lines[1:])
        lower = {name.lower(): value for name, value in headers.items()}
        length = int(lower.get("content-length", 0))
        body, sent = rest[:length].decode(), rest[length:]
        yield {"method": method, "path": path, "headers": lower, "body": body}


async def run_client(folder: Path, name: str, port: int) -> dict[str, Any]:
    """Run one prompt; returns the client's own report of it."""
    home, work = folder / name / "home", folder / name / "work"
    home.mkdir(parents=True)
    work.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}/llm",
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    process = await asyncio.create_subprocess_exec(
        *(str(binary(folder)), "-p", PROMPT, "--output-format", "json"),
        *("--model", "claude-local", "--allowedTools", "Bash"),
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        said, _ = await process.communicate()
    try:
        answer = json.loads(said)
    except ValueError:
        return {"result": said.decode(errors="replace"), "is_error": True}
    result: dict[str, Any] = answer[-1] if isinstance(answer, list) else answer
    return result


async def prompt(folder: Path, name: str, faults: str) -> dict[str, Any]:
    """Run engine, front door and client once; returns what was seen."""
    engine = StandIn(StandInOptions(models=("local",), faults=faults, restart_s=1.0))
    url = f"http://127.0.0.1:{engine.listen()}"
    try:
        home = folder / f"door-{name}"
        home.mkdir()
        dialect = "[models.local.dialect]\nmax_model_len = 131072"
        text = configuration(
            url,
            "local",
            admission=(8, 6, 8, 30),
            models=f'aliases = ["claude-*"]\n{dialect}',
        )
        door = FrontDoor(home, text)
        try:
            tap = Tap(door.port)
            server = await asyncio.start_server(tap.serve, "127.0.0.1", 0)
            result = await run_client(folder, name, server.sockets[0].getsockname()[1])
            server.close()
            lines = [
                json.loads(line)
                for line in door.log.read_text().splitlines()
                if line.startswith("{")
            ]
            return {
                "result": result,
                "calls": tap.calls(),
                "statuses": Counter(line["status"] for line in lines),
                "outcomes": Counter(line["outcome"] for line in lines),
                "stats": engine._counters.snapshot(),  # noqa: SLF001 - as GET /stand-in/stats says
                "interfaces": [name for _, name in socket.if_nameindex()],
            }
        finally:
            await asyncio.to_thread(door.stop)  # the engine is on this loop
    finally:
        await engine.close()


async def inside(folder: Path) -> list[dict[str, Any]]:
    """Run the prompt twice: all goes well, and the engine dies."""
    return [await prompt(folder, "well", ""), await prompt(folder, "ill", "chat=die*1")]


def main() -> int:
    """Run the part that belongs into the namespace; prints what was seen as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    print(json.dumps(asyncio.run(inside(parser.parse_args().folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
