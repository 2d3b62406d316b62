"""Draws docs/state-machines.md from the code.

    PYTHONPATH=. .venv/bin/python docs/tools/state_tables.py > docs/state-machines.md

The wake machine's table with the comments that stand in it, its events with what they mean, the
steps by release, and the table of a ticket's life. tests/house holds the page against this.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Sequence

from tornado_frontdoor.core import admission
from tornado_frontdoor.core.decisions import EngineState
from tornado_frontdoor.core.wake import machine as wake
from tornado_frontdoor.core.wake import observed
from tornado_frontdoor.core.wake.machine import TABLE
from tornado_frontdoor.core.wake.observed import LONGEST_PATIENCE, EngineEvent
from tornado_frontdoor.core.wake.sequence import CANARIES, sleep_steps, wake_steps
from tornado_frontdoor.engines import vllm
from tornado_frontdoor.engines.base import CANARY, PROBE_STEPS, Step

HEAD = """\
# State machines

Drawn from the code by `docs/tools/state_tables.py`; a test holds this page against it. What the
states mean to an operator is in [operations.md](operations.md#sleeping-engines).

Two machines stand behind each gate. One knows tickets, the other an engine; they are joined in one
place (`core/gate.py`): while the engine is not `awake`, capacity is 0, and the wake machine hears
how many are inside.
"""
RELEASES = ("0.16", "0.23", "0.30", "0.33")


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, *_tickets(), *_engine(), *_steps()]
    return "\n".join(parts)


def _tickets() -> Iterator[str]:
    yield "## A ticket\n"
    rows = [line.strip() for line in (admission.__doc__ or "").splitlines() if " | " in line]
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    yield from _table(cells[0], cells[1:])
    yield (
        "\n`finish` is the one exit, whatever state the ticket is in; for one that cools it is the "
        "engine's sign\nthat it has let go. A drain leaves those that cool alone. "
        "`-`: cannot happen. `TicketError`: a bug of\nthe driver.\n"
    )


def _engine() -> Iterator[str]:
    yield "## An engine\n"
    yield "```mermaid\nstateDiagram-v2\n    [*] --> unknown"
    for state, arrows in TABLE.items():
        for target in dict.fromkeys(arrows.values()):
            if target is not state:
                events = [event.name for event, to in arrows.items() if to is target]
                yield f"    {state.value} --> {target.value}: {', '.join(events).lower()}"
    yield "```\n"
    yield "A pair that is in no row changes nothing.\n"
    reasons = dict(_reasons())
    yield from _table(
        ["state", "event", "next", "note"],
        [
            [f"`{state.value}`", _named(event), f"`{to.value}`", reasons.get((state, event), "")]
            for state, arrows in TABLE.items()
            for event, to in arrows.items()
        ],
    )
    yield "\n### Events\n"
    meanings = _meanings()
    yield from _table(
        ["event", "what happened"], [[_named(e), meanings[e.name]] for e in EngineEvent]
    )
    yield ""


def _named(event: EngineEvent) -> str:
    return f"`{event.name.lower()}`"


def _reasons() -> Iterator[tuple[tuple[EngineState, EngineEvent], str]]:
    """Yield the comments of the table, each with the pair that it stands above or beside."""
    source = inspect.getsource(wake)
    lines = source[source.index("TABLE:") : source.index("FIRST_GAP_S =")].splitlines()
    state, above = None, []
    for line in lines:
        if opened := re.fullmatch(r" +(\w+): \{", line):
            state = EngineState[opened[1]]
        elif comment := re.fullmatch(r" +# (.*)", line):
            above.append(comment[1])
        elif arrow := re.fullmatch(r" +EngineEvent\.(\w+): \w+,(?:  # (.*))?", line):
            assert state is not None
            text = " ".join([*above, *filter(None, [arrow[2]])])
            yield (state, EngineEvent[arrow[1]]), text[:1].upper() + text[1:]
            above = []


def _meanings() -> dict[str, str]:
    """Return what stands under each event in its class."""
    (kind,) = [
        node
        for node in ast.parse(inspect.getsource(observed)).body
        if isinstance(node, ast.ClassDef) and node.name == "EngineEvent"
    ]
    found: dict[str, str] = {}
    for assigned, told in zip(kind.body[1:], kind.body[2:], strict=False):
        if isinstance(assigned, ast.Assign) and isinstance(told, ast.Expr):
            assert isinstance(assigned.targets[0], ast.Name)
            assert isinstance(told.value, ast.Constant)
            found[assigned.targets[0].id] = " ".join(str(told.value.value).split())
    return found


KIND = vllm.KIND
WAYS: dict[str, Callable[[str | None], tuple[Step, ...]]] = {
    "Wake from level 1": lambda version: wake_steps(KIND, version, 1, canary=True),
    "Wake from level 2, or from a level that nobody knows": lambda version: wake_steps(
        KIND, version, 2, canary=True
    ),
    "Sleep at level 1": lambda version: sleep_steps(KIND, version, 1, asleep=False),
    "Sleep at level 2": lambda version: sleep_steps(KIND, version, 2, asleep=False),
    "From level 1 to level 2": lambda version: sleep_steps(KIND, version, 2, asleep=True),
}


def _steps() -> Iterator[str]:
    yield "## Steps\n"
    yield (
        "By release of vLLM. A wake begins with a `probe`, which chooses its steps; a sleep with "
        "one that\nfinds nobody at work (`probe_idle`). A release that is not told is treated with "
        "care.\n"
    )
    versions: dict[str, str | None] = {release: release for release in RELEASES}
    versions["not told"] = None
    for name, way in WAYS.items():
        groups: dict[str, list[str]] = {}
        for release, version in versions.items():
            groups.setdefault(", ".join(_told(step) for step in way(version)), []).append(release)
        yield f"{name}:\n"
        yield from _table(
            ["release", "steps"], [[", ".join(of), way] for way, of in groups.items()]
        )
        yield ""
    limits = {step.label: f"{step.timeout_s:g} s" for step in (*PROBE_STEPS, *vllm.STEPS, CANARY)}
    yield (
        "How long one call may take; then the gate gives it up, and the engine may yet carry it "
        f"out. A probe\nmay take up to {LONGEST_PATIENCE:g} times as long while probes go "
        f"unanswered; canaries are asked up to {CANARIES} times,\neach after a probe.\n"
    )
    yield from _table(["step", "limit"], [[f"`{name}`", limit] for name, limit in limits.items()])
    yield ""


def _told(step: Step) -> str:
    if step.call is None:
        return f"`{step.label}`"
    return f"`{step.call.path} {step.label}`" if step.call.body else f"`{step.call.path}`"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    print(page(), end="")
