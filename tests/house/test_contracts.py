"""The arrows of the house: each contract holds, and each is seen to break when somebody crosses it.

Works on a copy of the sources, where violations are planted and taken out again.
"""

import ast
import itertools
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("tornado_frontdoor", "simulator", "loadtests", "bench", "tryouts")
CONTRACTS = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
}

MAY_BE_IMPORTED_BY_CORE = {
    *("dataclasses", "enum", "collections", "typing", "math", "heapq"),
    "bisect",  # lists that stay in order
    "fnmatch",  # names are matched with globs
    "msgspec",  # only for its struct, of the one decision that is made for each request
    "hashlib",  # one key goes to one replica, in every process
    "reprlib",  # values of any size are shown in a line
    "tornado_frontdoor",
}


class Crossing(NamedTuple):
    """A module of ours that imports what it must not, and the contract that says so."""

    contract: str
    importer: str
    imported: str

    def told(self) -> str:
        """Return how it is told by the contract; cycles are told by children of one package."""
        if self.contract == "no-cycles":
            return f".{self.importer.rpartition('.')[2]} -> .{self.imported.rpartition('.')[2]} "
        return f"{self.importer} -> {self.imported} "


PROXY = "tornado_frontdoor.proxy"

CROSSINGS = [
    # Downwards only, and siblings are strangers
    Crossing("layers", "tornado_frontdoor.proxy.app", "tornado_frontdoor.cli.demo"),
    Crossing("layers", "tornado_frontdoor.proxy.telemetry", "tornado_frontdoor.cli.main"),
    Crossing("layers", "simulator.model.invariants", "tornado_frontdoor.cli.demo"),
    Crossing("layers", "tornado_frontdoor.proxy.telemetry", "simulator.model.invariants"),
    Crossing("layers", "tornado_frontdoor.cli.demo", "bench.proxy"),
    Crossing("layers", "bench.proxy", "tryouts.engine"),
    Crossing("layers", "tornado_frontdoor.engines.vllm", "tornado_frontdoor.core.clock"),
    Crossing("layers", "loadtests", "tornado_frontdoor.proxy.telemetry"),
    Crossing("layers", "tornado_frontdoor.surfaces.base", "tornado_frontdoor.proxy.telemetry"),
    Crossing("layers", "tornado_frontdoor.config.settings", "tornado_frontdoor.proxy.telemetry"),
    Crossing("layers", "tornado_frontdoor.surfaces.base", "tornado_frontdoor.config.settings"),
    Crossing("layers", "tornado_frontdoor.config.settings", "tornado_frontdoor.surfaces.base"),
    Crossing("layers", "tornado_frontdoor.core.clock", "tornado_frontdoor.surfaces.base"),
    Crossing("layers", "tornado_frontdoor.core.clock", "tornado_frontdoor.config.settings"),
    Crossing(
        "every-module-has-a-place", "tornado_frontdoor.core.clock", "tornado_frontdoor.cli.main"
    ),
    # Inside the proxy, inside the simulator
    Crossing("proxy-layers", f"{PROXY}.telemetry", f"{PROXY}.routing"),
    Crossing("proxy-layers", f"{PROXY}.curl.handle", f"{PROXY}.telemetry"),
    Crossing(
        "proxy-layers",
        "tornado_frontdoor.proxy.upstreams",
        "tornado_frontdoor.proxy.proxied_request",
    ),
    Crossing(
        "proxy-layers",
        "tornado_frontdoor.proxy.downstream.client",
        "tornado_frontdoor.proxy.curl.client",
    ),
    Crossing("proxy-layers", f"{PROXY}.gate_driver", f"{PROXY}.slots"),
    Crossing("simulator-rooms", "simulator.model.run", "simulator.study.sweep"),
    Crossing("simulator-rooms", "simulator.reports.plot", "simulator.cli.commands"),
    Crossing("simulator-rooms", "simulator.standin.engine", "simulator.model.run"),
    Crossing("simulator-rooms", "simulator.engine_model.replica", "simulator.standin.engine"),
    Crossing("simulator-rooms", "simulator.exact.closed_form", "simulator.reports.plot"),
    Crossing(
        "stand-in-shares-the-batch-model-only",
        "simulator.standin.requests",
        "simulator.traffic.distributions",
    ),
    Crossing("nobody-simulates-with-the-stand-in", "simulator.cli.options", "simulator.standin"),
    # Inside the cluster
    Crossing("layers", "tornado_frontdoor.cluster.link", "tornado_frontdoor.proxy.telemetry"),
    Crossing("layers", "tornado_frontdoor.core.clock", "tornado_frontdoor.cluster.rules"),
    Crossing("layers", "tornado_frontdoor.cluster.rules", "tornado_frontdoor.config.settings"),
    Crossing("cluster-layers", "tornado_frontdoor.cluster.owner", "tornado_frontdoor.cluster.node"),
    Crossing(
        "cluster-layers", "tornado_frontdoor.cluster.alone", "tornado_frontdoor.cluster.owner"
    ),
    # Inside the core
    Crossing("core-layers", "tornado_frontdoor.core.admission", "tornado_frontdoor.core.gate"),
    Crossing(
        "core-layers", "tornado_frontdoor.core.admission", "tornado_frontdoor.core.wake.machine"
    ),
    Crossing(
        "core-layers", "tornado_frontdoor.core.retry_after", "tornado_frontdoor.core.admission"
    ),
    Crossing(
        "core-layers", "tornado_frontdoor.core.decisions", "tornado_frontdoor.core.retry_after"
    ),
    Crossing("core-layers", "tornado_frontdoor.core.catalog", "tornado_frontdoor.core.decisions"),
    Crossing("core-layers", "tornado_frontdoor.core.request", "tornado_frontdoor.core.decisions"),
    Crossing("core-layers", "tornado_frontdoor.core.clock", "tornado_frontdoor.core.request"),
    # What belongs to one room
    Crossing("only-the-stand-in-serves", "simulator.model.invariants", "tornado"),
    Crossing(
        "simulator-knows-core-only", "simulator.model.invariants", "tornado_frontdoor.surfaces"
    ),
    Crossing(
        "one-driver-of-gates",
        "tornado_frontdoor.proxy.telemetry",
        "tornado_frontdoor.core.gate",
    ),
    Crossing("one-driver-of-gates", "simulator.model.invariants", "tornado_frontdoor.core.gate"),
    Crossing(
        "one-owner-of-machines",
        "tornado_frontdoor.proxy.gate_driver",
        "tornado_frontdoor.core.admission",
    ),
    Crossing(
        "one-owner-of-machines",
        "tornado_frontdoor.proxy.gate_driver",
        "tornado_frontdoor.core.wake.machine",
    ),
    Crossing(
        "parts-of-the-wake-machine",
        "simulator.model.invariants",
        "tornado_frontdoor.core.wake.sequence",
    ),
    Crossing(
        "dialects-are-strangers",
        "tornado_frontdoor.surfaces.openai",
        "tornado_frontdoor.surfaces.anthropic",
    ),
    Crossing(
        "dialects-are-strangers",
        "tornado_frontdoor.surfaces.anthropic",
        "tornado_frontdoor.surfaces.openai",
    ),
    Crossing("locust-stays-out", "tornado_frontdoor.proxy.telemetry", "locust"),
    Crossing("locust-stays-out", "simulator.model.invariants", "gevent"),
    Crossing("settings-by-one-library", "tornado_frontdoor.cli.main", "marshmallow"),
    Crossing("settings-by-one-library", "tornado_frontdoor.proxy.telemetry", "marshmallow"),
    Crossing("no-cycles", "tornado_frontdoor.surfaces.base", "tornado_frontdoor.surfaces.openai"),
]


def path_of(tree: Path, module: str) -> Path:
    stem = tree.joinpath(*module.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


class Linted(NamedTuple):
    """What import-linter said of a tree."""

    holds: bool
    text: str
    broken: Mapping[str, str]
    """What it said of each contract that is broken, by its id."""


def lint(tree: Path) -> Linted:
    """Hold a tree to all contracts."""
    found = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"COLUMNS": "1000"},
    )
    text = found.stdout + found.stderr
    assert "Contracts:" in text, text
    told = text.partition("Broken contracts\n")[2].splitlines()
    names = {contract["name"]: key for key, contract in CONTRACTS.items()}
    broken: dict[str, list[str]] = {}
    key = ""
    for line, below in itertools.pairwise([*told, ""]):
        if line in names and below == "-" * len(line):
            key = names[line]
        broken.setdefault(key, []).append(line)
    broken.pop("", None)
    return Linted(found.returncode == 0, text, {k: "\n".join(v) for k, v in broken.items()})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return copy_to(tmp_path)


def copy_to(tree: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tree)
    for package in PACKAGES:
        for source in (ROOT / package).rglob("*.py"):
            target = tree / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return tree


def plant(tree: Path, importer: str, imported: str) -> None:
    path = path_of(tree, importer)
    assert path.exists(), f"{importer} is not there any more: give the crossing another importer"
    with path.open("a", encoding="utf-8") as source:
        source.write(f"\nimport {imported}\n")


def test_every_contract_holds(tree: Path) -> None:
    linted = lint(tree)
    assert linted.holds, linted.text


def test_each_crossed_arrow_is_caught(tree: Path) -> None:
    """All are planted at once; each is told as itself, under its own contract."""
    for crossing in CROSSINGS:
        plant(tree, crossing.importer, crossing.imported)
    linted = lint(tree)
    missed = [
        crossing
        for crossing in CROSSINGS
        if crossing.told() not in linted.broken[crossing.contract]
    ]
    assert not missed, linted.text


def test_each_forbidden_import_is_caught(tree: Path) -> None:
    places = [
        ("core-is-pure", "tornado_frontdoor.core.clock"),
        ("core-is-pure", "tornado_frontdoor.cluster.rules"),
        ("surfaces-do-no-io", "tornado_frontdoor.surfaces.base"),
        ("simulator-knows-core-only", "simulator.model.invariants"),
        ("locust-stays-out", "simulator.model.invariants"),
    ]
    planted = [
        (contract, importer, module)
        for contract, importer in places
        for module in CONTRACTS[contract]["forbidden_modules"]
    ]
    for _, importer, module in planted:
        plant(tree, importer, module)
    linted = lint(tree)
    missed = [
        (contract, importer, module)
        for contract, importer, module in planted
        if f"{importer} -> {module} " not in linted.broken[contract]
    ]
    assert not missed, linted.text


def test_each_file_that_is_not_on_the_plan_is_caught(tree: Path) -> None:
    strays = [
        ("every-module-has-a-place", "tornado_frontdoor/misc.py"),
        ("proxy-layers", "tornado_frontdoor/proxy/helpers.py"),
        ("simulator-rooms", "simulator/helpers.py"),
        ("core-layers", "tornado_frontdoor/core/helpers.py"),
        ("cluster-layers", "tornado_frontdoor/cluster/helpers.py"),
    ]
    for _, stray in strays:
        (tree / stray).write_text('"""Odds and ends."""\n', encoding="utf-8")
    text = lint(tree).text
    missed = [stray for _, stray in strays if stray[:-3].replace("/", ".") not in text]
    assert not missed, text


def test_no_contract_goes_untested() -> None:
    crossed = {crossing.contract for crossing in CROSSINGS}
    assert set(CONTRACTS) - crossed == {"core-is-pure", "surfaces-do-no-io"}


def imports(package: str) -> Iterator[tuple[str, str]]:
    """Yield each file of a package with the top-level name of each thing it imports."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((path.name, alias.name.partition(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield path.name, (node.module or "").partition(".")[0]


def test_the_core_imports_a_handful_of_things() -> None:
    """Forbidding names one by one is not enough: what is not on the list is out."""
    strange = [
        (file, name)
        for file, name in imports("tornado_frontdoor/core")
        if name not in MAY_BE_IMPORTED_BY_CORE
    ]
    assert not strange


def test_load_tests_import_nothing_of_ours() -> None:
    """They judge from outside, in processes of their own."""
    assert not [(file, name) for file, name in imports("loadtests") if name in PACKAGES[:2]]
