"""Real clients before the front door, each in an environment of its own, and a page of what came.

Each cell of the table is one process of a client (`tryouts/client_programs/`) that does one thing
before a front door and a stand-in engine, in a network namespace that has nothing but loopback;
before a real engine only what its answers can be judged by is tried. What a client says is written
down as it is; whether that is right is decided here (`judge`).
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import FrontDoor, configuration
from simulator.standin.server import StandIn, StandInOptions
from tryouts.client_table import (
    CLIENTS,
    COLUMNS,
    PROGRAMS,
    REAL,
    SAID,
    UNASKED,
    Told,
    Tried,
    TriedClient,
    action_of,
    judge,
    page,
    prompt_of,
)
from tryouts.llama import ask

PATIENCE_S = 120.0
ARCHITECTURE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), "x64")


# One cell


class Cell:
    """An engine and a front door before it, for one cell."""

    def __init__(self, folder: Path, url: str, engine: StandIn | None, model: str) -> None:
        self.engine = engine
        admission = (8, 1, 0, 30) if engine else (4, 2, 2, 120)
        sleep = "[upstreams.engine.sleep]\nhold_sleeping_s = 30" if engine else ""
        text = configuration(
            url, model, admission=admission, models='aliases = ["tried"]', upstream=""
        )
        self.door = FrontDoor(folder, f"{text}\n{sleep}\n")

    def lines(self) -> list[dict[str, Any]]:
        """Return the access lines so far."""
        lines = [json.loads(x) for x in self.door.log.read_text().splitlines() if x[:1] == "{"]
        return [line for line in lines if "outcome" in line]

    async def until(self, condition: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
        """Wait for something; raises TimeoutError that names it."""
        until_s = asyncio.get_running_loop().time() + limit_s
        while not condition():
            if asyncio.get_running_loop().time() > until_s:
                raise TimeoutError(f"not within {limit_s:g} s: {what}")
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def stage(url: str | None, model: str) -> AsyncIterator[Cell]:
    """Run what one cell needs."""
    engine = None
    if url is None:
        quick = {"sleep_s": (0.1, 0.1), "wake_s": (0.3, 0.3)}
        options = StandInOptions(models=(model,), slots=8, sleep_mode=True, **quick)  # type: ignore[arg-type]
        engine = StandIn(options)
        url = f"http://127.0.0.1:{engine.listen()}"
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        try:
            door = await asyncio.to_thread(Cell, Path(folder), url, engine, model)
            try:
                yield door
            finally:
                await asyncio.to_thread(door.door.stop)
        finally:
            if engine is not None:
                await engine.close()


async def run_client(command: list[str], address: str, cell: tuple[str, str, str]) -> Told:
    """Run the client's process; returns what it told."""
    action, model, prompt = cell
    with tempfile.TemporaryDirectory(prefix="client-") as home:
        process = await asyncio.create_subprocess_exec(
            *command,
            *(action, address, model, prompt),
            env={"PATH": os.environ["PATH"], "HOME": home, "NO_PROXY": "*", "DO_NOT_TRACK": "1"},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                said, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            return {"error": f"no end within {PATIENCE_S:g} s"}
    lines = said.decode(errors="replace").strip().splitlines()
    try:
        told: Told = json.loads(lines[-1])
    except (IndexError, ValueError):
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["nothing was said"]
        told = {"error": f"the program ended: {last[0]}"}
    return told


async def hold_the_slot(door: Cell) -> asyncio.StreamWriter:
    """Take the only slot."""
    host, port = door.door.public.removeprefix("http://").split(":")
    body = json.dumps({"model": "tried", "messages": [], "stand_in": {"hold_s": 600}}).encode()
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    engine = door.engine
    assert engine is not None
    await door.until(lambda: engine._counters.in_flight == 1, "the slot is taken")  # noqa: SLF001
    return writer


async def let_go(writer: asyncio.StreamWriter) -> None:
    """Leave, and give the slot back by that."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def put_to_sleep(door: Cell) -> None:
    """Have an operator put the engine to sleep."""
    for _ in range(100):  # it is known only once it was looked at
        status, said = await asyncio.to_thread(ask, f"{door.door.admin}/admin/sleep/engine", {})
        if status == 200:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"it would not sleep: {said!r}")


async def cell(
    client: TriedClient, command: list[str], column: str, url: str | None, model: str
) -> str:
    """Try one thing with one client; returns "" or what was wrong."""
    asked = "nobody" if column == "unknown" else "tried"
    prompt = prompt_of(client, column) if url is None else "Tell a story about a city."
    action = action_of(column)
    action = f"{client.dialect}:{action}" if client.dialect else action
    async with stage(url, model) as door:
        running = partial(run_client, command, door.door.public, (action, asked, prompt))
        if column == "refused":
            writer = await hold_the_slot(door)
            async with asyncio.TaskGroup() as group:
                trying = group.create_task(running())
                over = partial(refused_or_done, door, trying)
                await door.until(over, "a refusal", PATIENCE_S)
                await let_go(writer)
            told = trying.result()
        else:
            if column == "asleep":
                await put_to_sleep(door)
            told = await running()
        wrong = judge(column, told, url is not None)
        engine = door.engine
        if column == "left" and not wrong and engine is not None:
            counters = engine._counters  # noqa: SLF001
            try:
                await door.until(lambda: counters.in_flight == 0, "the engine is free", 1.0)
            except TimeoutError as error:
                wrong = str(error)
        if column == "refused" and not wrong and not was_refused(door):
            wrong = "was not refused"
        return wrong


def was_refused(door: Cell) -> bool:
    """Tell whether somebody found the queue full."""
    return any(line["outcome"] == "queue_full" for line in door.lines())


def refused_or_done(door: Cell, trying: asyncio.Task[Told]) -> bool:
    """Tell whether there is no need to wait for a refusal any longer."""
    return was_refused(door) or trying.done()


# Environments


def install(client: TriedClient, folder: Path) -> list[str]:
    """Install what a client is made of; returns its command. Raises CalledProcessError."""
    kind = "node" if client.is_node else "python"
    home = folder / re.sub(r"\W+", "-", " ".join((kind, *client.packages)))
    if client.is_node:
        program = home / client.program
        if not home.exists():
            home.mkdir(parents=True)
            subprocess.run(
                [
                    *("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"),
                    *("--prefix", str(home), *client.packages),
                ],
                check=True,
                stdout=sys.stderr,
                timeout=600,
            )
        if client.binary:
            return agent(client, home / "node_modules" / ".bin")
        program.write_text((PROGRAMS / client.program).read_text())
        return ["node", str(program)]
    python = home / "bin" / "python"
    if not home.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=120)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *client.packages],
            check=True,
            stdout=sys.stderr,
            timeout=900,
        )
    if client.binary:
        return agent(client, home / "bin")
    return [str(python), str(PROGRAMS / client.program)]


def agent(client: TriedClient, folder: Path) -> list[str]:
    """Return the command that lets our program run a command of the client's."""
    # Its package would put the program for this platform there by a script, which does not run.
    platforms = folder.parent.glob(f"{client.binary}-linux-{ARCHITECTURE}/bin/{client.binary}")
    binary = next(platforms, folder / client.binary)
    told = (f"CODER={binary}", f"CODER_SAYS={UNASKED}", f"CODER_TOLD={SAID}")
    return ["env", *told, sys.executable, str(PROGRAMS / client.program)]


def version_of(client: TriedClient, command: list[str]) -> str:
    """Return the version of the client's first package."""
    package = re.split(r"[<=\[]|(?<=.)@", client.packages[0])[0]
    if client.binary:
        program = Path(command[1].removeprefix("CODER="))
        home = next(
            one
            for one in program.parents
            if (one / "bin" / "python").exists() or (one / "node_modules").exists()
        )
        command = ["node", str(home / "x")] if client.is_node else [str(home / "bin" / "python")]
    if client.is_node:
        found = Path(command[1]).parent / "node_modules" / package / "package.json"
        return str(json.loads(found.read_text())["version"])
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([command[0], "-c", asked], capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def try_rows(
    commands: dict[str, list[str]], url: str | None, model: str, say: Callable[[str], None]
) -> list[Tried]:
    """Try each client that there is a command for."""
    rows = []
    for client in CLIENTS:
        if client.name not in commands:
            continue
        command = commands[client.name]
        version = version_of(client, command)
        cells: dict[str, str | None] = dict.fromkeys(COLUMNS)
        for column in COLUMNS if url is None else REAL:
            if client.only and column not in client.only:
                continue
            try:
                cells[column] = await cell(client, command, column, url, model)
            except (TimeoutError, OSError, AssertionError, SystemExit) as error:
                cells[column] = f"{type(error).__name__}: {error}"
            say(f"{client.name}: {column}: {cells[column] or 'right'}")
        rows.append(Tried(client.name, version, cells))
    return rows


def try_clients(
    say: Callable[..., None],
    url: str | None,
    model: str,
    folder: str | None,
    only: str | None,
    write: str | None,
) -> None:
    """Install the clients in FOLDER (kept), then try them where there is no network."""
    with contextlib.ExitStack() as stack:
        home = Path(folder or stack.enter_context(tempfile.TemporaryDirectory())).resolve()
        commands = {}
        for client in CLIENTS:
            if only and only.lower() not in client.name.lower():
                continue
            try:
                commands[client.name] = install(client, home)
            except (subprocess.SubprocessError, OSError) as error:
                say(f"{client.name} could not be installed: {error}", holds=False)
        task = json.dumps({"commands": commands, "url": url, "model": model})
        alone = (
            *("unshare", "--net", "--pid", "--fork", "--kill-child"),
            *(() if os.geteuid() == 0 else ("--map-root-user",)),
            *("sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
        )
        result = subprocess.run(
            [*(() if url else alone), sys.executable, "-m", "tryouts.clients", "--task", task],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            say(f"the run ended with {result.returncode}", holds=False)
            return
        rows = [Tried(*row) for row in json.loads(result.stdout)]
    for row in rows:
        for column, wrong in row.cells.items():
            if wrong is not None:
                say(f"{row.client} {row.version}: {column}: {wrong or 'right'}", holds=not wrong)
    if write:
        Path(write).write_text(page(rows, (url and "a real engine") or "the stand-in"))
        say(f"the table is in {write}")


def main() -> int:
    """Run the part that belongs into the namespace; prints its rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True)
    task = json.loads(parser.parse_args().task)
    say = partial(print, file=sys.stderr, flush=True)
    rows = asyncio.run(try_rows(task["commands"], task["url"], task["model"], say))
    print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
