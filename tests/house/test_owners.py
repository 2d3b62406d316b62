"""Who owns state writes it: in the core no function changes what another object has.

The rule, for every file of `core/`: an assignment to `x.y`, or a call like `x.y.append(...)`, is
allowed where `x` is `self`, was made in the same function by a call, or is a draft: an object of a
private class of the same file, which its functions fill in turn and nobody else sees. The one
exception is a ticket, whose state is the AdmissionController's alone to write.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "tornado_frontdoor" / "core"
MUTATORS = frozenset(
    "add append appendleft clear discard extend insert pop popitem remove setdefault update".split()
)
TICKETS = {"admission.py": {"ticket", "waiter", "head"}, "replicas.py": {"ticket"}}
"""What the controller, and what picks an engine for it, call the tickets that they write to."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def made_here(function: Function) -> set[str]:
    """Return the names that are bound to a new object in the function."""
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call | ast.List | ast.Dict)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def drafts(function: Function) -> set[str]:
    """Return the parameters that are of a private class."""
    return {
        argument.arg
        for argument in [*function.args.args, *function.args.kwonlyargs]
        if isinstance(argument.annotation, ast.Name) and argument.annotation.id.startswith("_")
    }


def written(function: Function) -> Iterator[tuple[ast.expr, int]]:
    """Yield each object of which an attribute is changed, with the line."""
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr in MUTATORS and isinstance(owner, ast.Attribute):
                yield owner.value, node.lineno
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            for part in parts:
                inner = part.value if isinstance(part, ast.Subscript) else part
                if isinstance(inner, ast.Attribute):
                    yield inner.value, node.lineno


def foreign_writes(source: str, tickets: set[str]) -> list[int]:
    """Return the lines that write to what is another's."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, Function):
            own = {"self", *made_here(function), *drafts(function), *tickets}
            for owner, line in written(function):
                if not (isinstance(owner, ast.Name) and owner.id in own):
                    found.append(line)
    return found


@pytest.mark.parametrize(
    "path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE))
)
def test_nothing_in_the_core_writes_to_what_is_anothers(path: Path) -> None:
    lines = foreign_writes(path.read_text(encoding="utf-8"), TICKETS.get(path.name, set()))
    assert not lines, f"{path.name}, lines {lines}: return a value, and let the owner take it"


@pytest.mark.parametrize(
    "line",
    [
        "other.x = 1",
        "self.part.x = 1",
        "self.part.x += 1",
        "self.part.orders.append(1)",
        "other.orders.append(1)",
        "self.part.table[1] = 2",
        "del other.x",
        "a, other.x = 1, 2",
    ],
)
def test_each_way_to_write_is_seen(line: str) -> None:
    assert foreign_writes(f"def f(self, other):\n    {line}\n", set()) == [2]
    assert foreign_writes("def f(self):\n    self.x = 1\n    self.y.append(2)\n", set()) == []
