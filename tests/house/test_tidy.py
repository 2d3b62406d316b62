"""The house rules that can be checked are checked."""

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tornado_frontdoor.core.decisions import OUTCOME_OF, Outcome, Reason

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for room in ("tornado_frontdoor", "simulator", "loadtests", "bench", "tryouts", "docs")
    for path in (ROOT / room).rglob("*.py")
)
LONGEST_MODULE = 400
LONGER = {
    "admission.py": 535,
    "invariants.py": 440,
    "machine.py": 900,
    "gate.py": 560,
    "node.py": 420,
    "main.py": 460,
    "settings.py": 450,
    "schemas.py": 450,
}
"""One owner of its state is worth more than two files that write into each other; and a list of all
tables of the configuration is one list."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_its_duty_and_has_only_one(path):
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "no docstring"
    assert len(text.splitlines()) <= LONGER.get(path.name, LONGEST_MODULE), (
        "is there a second duty in it?"
    )


def test_every_outcome_has_its_row_and_its_code_in_the_operators_page():
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    for outcome in Outcome:
        assert f"| `{outcome.label}` | `{outcome.code}` |" in page


def test_end_codes_are_unique():
    assert len({outcome.code for outcome in Outcome}) == len(Outcome)


def test_every_reason_to_refuse_has_an_outcome():
    assert set(OUTCOME_OF) == set(Reason)


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    for page in folder.glob("0*.md"):
        assert f"({page.name})" in index


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_between_pages_lead_somewhere(page):
    for link in links(page):
        if not link.startswith(("http://", "https://")):
            assert (page.parent / link).exists(), link


def test_launchers_are_launchers():
    assert not list((ROOT / "bin").rglob("*.py"))


def test_benches_and_tryouts_start_what_they_need_by_one_harness():
    alone = {
        ROOT / "bench" / "harness.py",
        ROOT / "bench" / "simulate.py",
        ROOT / "tryouts" / "machines.py",
    }  # these two run a command
    for path in SOURCES:
        if path.relative_to(ROOT).parts[0] in ("bench", "tryouts") and path not in alone:
            text = path.read_text(encoding="utf-8")
            assert "tornado_frontdoor.cli" not in text, path
            assert "socket.socket(" not in text, path


def test_what_a_bench_runs_by_name_is_there():
    for path in (ROOT / "bench").glob("*.py"):
        for name in re.findall(
            r'"-m", "((?:bench|tryouts)[.\w]*)"', path.read_text(encoding="utf-8")
        ):
            assert (ROOT / Path(*name.split("."))).with_suffix(".py").is_file(), (path, name)


@pytest.mark.parametrize("script", sorted((ROOT / "bin").iterdir()), ids=lambda path: path.name)
def test_a_command_can_be_run(script):
    if script.is_file() and not script.suffix:
        assert script.stat().st_mode & 0o111
        assert script.read_text(encoding="utf-8").startswith("#!")


def test_shell_scripts_are_well_formed():
    scripts = [path for path in (ROOT / "bin").iterdir() if path.suffix in ("", ".sh")]
    for script in [*(path for path in scripts if path.is_file()), ROOT / ".ci" / "run"]:
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_runtime_and_development_pin_the_same_versions():
    def pins(name: str) -> dict[str, str]:
        text = (ROOT / "lock" / name).read_text(encoding="utf-8")
        return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE))

    development = pins("dev.txt")
    for package, version in pins("runtime.txt").items():
        assert development[package] == version


GLOSSARY = re.findall(
    r"^\| ([^|]+) \| [^|]+ \| [^|]+ \| \[[^\]]+\]\(\.\./([^)]+)\) `(\w+)` \|$",
    (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_the_glossary_has_the_words_that_matter():
    assert 30 <= len(GLOSSARY) <= 48
    words = [word for word, _, _ in GLOSSARY]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(("word", "file", "name"), GLOSSARY, ids=[row[0] for row in GLOSSARY])
def test_a_word_of_the_glossary_stands_where_it_says(word, file, name):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in defined_in(tree), f"{word}: {file} has no {name} any more"


def defined_in(tree: ast.Module) -> set[str]:
    """Return the names that a module gives to classes, functions and values."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


MOST_NAMES_TWICE = 7


def test_a_class_has_a_name_of_its_own():
    """A reader who looks for a name should find one thing."""
    names = Counter(
        node.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    twice = [name for name, count in names.items() if count > 1]
    assert len(twice) <= MOST_NAMES_TWICE, twice


def metrics_of_the_source() -> set[str]:
    """Return the names of all metrics that the front door's source makes."""
    return {
        name
        for path in (ROOT / "tornado_frontdoor" / "proxy").rglob("*.py")
        for name in re.findall(r'"(frontdoor_[a-z_]+)"', path.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize("metric", sorted(metrics_of_the_source()))
def test_a_metric_has_its_row_in_the_operators_page(metric):
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    told = metric.removesuffix("_total")
    assert f"`{told}" in page, f"docs/operations.md says nothing of {metric}"


def test_every_bench_can_be_called():
    script = (ROOT / "bin" / "bench").read_text(encoding="utf-8")
    called = re.search(r'^benches="([^"]+)"', script, re.MULTILINE)
    assert called
    for name in called[1].split():
        assert (ROOT / "bench" / f"{name}.py").exists()
        assert f"bin/bench {name} " in script, "its line of help"
