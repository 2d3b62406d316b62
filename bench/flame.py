"""Draws where the CPU time of a request or of a relayed chunk goes, by function, as a flame.

    python -m bench.flame request docs/pictures/request.svg [--tree FOLDER] [--seconds N]

Widths are shares of the time of the front door's process under the load of `bin/bench proxy`; what
C does, libcurl and the kernel too, counts for the function that called it. `--tree`: of another
tree of this program, as it was before a change.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from bench.harness import (
    ENVIRONMENT,
    PEERS,
    ROOT,
    FrontDoor,
    configuration,
    fine_cpu_s,
    running,
    start_engine,
)
from bench.proxy import CHUNKS, load

WIDTH, LINE, LETTER, MARGIN = 1200.0, 17, 6.1, 26
LEAST_SHARE = 0.003
"""What is narrower is left out."""
ROOT_FUNCTION = "base_events.BaseEventLoop._run_once"
"""What is below it is how a program starts."""
COLOURS = {
    "proxy/curl": "#f0b48a",
    "proxy/downstream": "#9cc4ea",
    "proxy": "#f2d27c",
    "surfaces": "#9fd3b3",
    "core": "#c3b3e6",
    "tornado": "#e3d7b0",
    "asyncio": "#c9c9c9",
}
"""By the room of a function, the narrower one first; white is Python's own."""
WRITE_S = 20.0


class Tree:
    """A function with what it called, by how often each was seen."""

    def __init__(self) -> None:
        self.count = 0
        self.below: dict[str, Tree] = {}

    def add(self, stack: list[str], count: int) -> None:
        """Count a stack, outermost function first."""
        self.count += count
        if stack:
            self.below.setdefault(stack[0], Tree()).add(stack[1:], count)


class Box(NamedTuple):
    """One function as it is drawn, in shares of the whole width."""

    name: str
    depth: int
    left: float
    width: float


def boxes(tree: Tree, total: int, left: float = 0.0, depth: int = 0) -> Iterator[Box]:
    """Yield what is above a function, the widest first."""
    for name, above in sorted(tree.below.items(), key=lambda item: -item[1].count):
        width = above.count / total
        if width >= LEAST_SHARE:
            yield Box(name, depth, left, width)
            yield from boxes(above, total, left, depth + 1)
        left += width


def draw(tree: Tree, title: str) -> str:
    """Return the flame, outermost function at the top."""
    drawn = [*boxes(tree, tree.count)]
    height = MARGIN + LINE * (1 + max(box.depth for box in drawn))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height}">',
        "<style>text{font:10px monospace}</style>",
        f'<rect width="100%" height="100%" fill="#fff"/><text x="4" y="17">{escape(title)}</text>',
    ]
    for name, depth, left, width in drawn:
        room, _, function = name.partition(":")
        colour = next((COLOURS[key] for key in COLOURS if key in room), "#f4f4f4")
        x, y, wide = left * WIDTH, MARGIN + depth * LINE, width * WIDTH
        _, _, label = function.partition(".")  # the module shows by the colour, and when pointed at
        shown = escape(label[: int((wide - 4) / LETTER)]) if wide > 4 * LETTER else ""
        lines.append(
            f'<rect x="{x:.1f}" y="{y}" width="{max(wide - 0.5, 0.5):.1f}" height="{LINE - 1}"'
            f' fill="{colour}"><title>{escape(name)} {width:.1%}</title></rect>'
        )
        if shown:
            lines.append(f'<text x="{x + 2:.1f}" y="{y + 12}">{shown}</text>')
    return "\n".join([*lines, "</svg>\n"])


def sampled(kind: str, tree: Path, seconds: float) -> tuple[Tree, float]:
    """Return what was seen of a front door under load, and its microseconds a request or chunk."""
    with tempfile.TemporaryDirectory() as name, running() as processes:
        folded = Path(name) / "folded"
        engine, engine_port = start_engine(CHUNKS, 4)
        processes.append(engine)
        text = configuration(
            f"http://127.0.0.1:{engine_port}",
            admission=(65, 64, 64, 30),
            surfaces="anthropic = false",
        )
        within = (str(PEERS / "sampled.py"), str(folded))
        environment = ENVIRONMENT | {"PYTHONPATH": str(tree)}
        door = FrontDoor(Path(name), text, environment, within)
        processes.append(door.process)
        asyncio.run(load(door.port, 8, 100, stream=False))  # warm up
        asyncio.run(load(door.port, 8, 1, stream=True))
        door.process.send_signal(signal.SIGUSR1)
        done, began_s, used_s = 0, time.monotonic(), fine_cpu_s(door.process)
        while time.monotonic() < began_s + seconds:
            if kind == "request":
                asyncio.run(load(door.port, 8, 500, stream=False))
                done += 8 * 500
            else:
                asyncio.run(load(door.port, 24, 2, stream=True))
                done += 24 * 2 * CHUNKS
        each_us = (fine_cpu_s(door.process) - used_s) / done * 1e6
        door.process.send_signal(signal.SIGUSR1)
        return read_folded(folded), each_us


def read_folded(path: Path) -> Tree:
    """Return what was seen, once it is written."""
    deadline_s = time.monotonic() + WRITE_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise SystemExit("the sampled front door has written nothing")
        time.sleep(0.05)
    tree = Tree()
    for line in path.read_text(encoding="utf-8").splitlines():
        stack, _, count = line.rpartition(" ")
        functions = stack.split(";")
        begin = next((at for at, name in enumerate(functions) if name.endswith(ROOT_FUNCTION)), 0)
        tree.add(functions[begin:], int(count))
    return tree


def main() -> int:
    """Sample and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.flame", description=__doc__)
    parser.add_argument("kind", choices=("request", "chunk"))
    parser.add_argument("picture", type=Path)
    parser.add_argument("--tree", type=Path, default=ROOT, help="of another tree")
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    tree, each_us = sampled(options.kind, options.tree, options.seconds)
    title = f"CPU of a {options.kind}: {each_us:.0f} us when sampled, {tree.count} samples"
    options.picture.write_text(draw(tree, title), encoding="utf-8")
    print(title)
    return 0


if __name__ == "__main__":
    sys.exit(main())
