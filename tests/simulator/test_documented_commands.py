"""Every command and option of the simulator that the documentation shows is one that works."""

import json
import re
import shlex
from pathlib import Path

import pytest
from docopt import docopt

from simulator.cli.engine_validation import engine_options
from simulator.cli.option_parser import OptionParser
from simulator.cli.options import replay_of, simulate_of, sweep_of
from simulator.cli.tune import tune_of
from simulator.cli.usage import USAGE
from simulator.cli.words import faults_of
from tornado_frontdoor.cli.main import main
from tornado_frontdoor.cli.tuning import simulated
from tornado_frontdoor.cli.worlds import read_world

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(rf"(?:bin/)?frontdoor ((?:{'|'.join(USAGE)}) .*)", re.DOTALL)


def shown(page):
    """Yield what a page shows as code: lines of blocks and spans of text, which may be folded."""
    text = page.read_text(encoding="utf-8")
    for block in FENCE.findall(text):
        yield from (line.removeprefix("$ ").partition("#")[0] for line in block.splitlines())
    yield from (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", text)))


def commands():
    found = {}
    for page in PAGES:
        for span in shown(page):
            if whole := COMMAND.fullmatch(span.strip()):
                line = re.sub(r"\[[^\]]*\]|…|\.\.\.$", "", whole[1])
                found[" ".join(line.split())] = page.name
    return found


def options():
    """Return what is shown of options with values that can be given as they are."""
    page = ROOT / "docs" / "simulation.md"
    spans = {span for span in shown(page) if re.match(r"--(?!pace)[a-z]", span)}  # of a tryout
    return sorted(span for span in spans if " " in span and not re.search(r"[A-Z|\[…]", span))


LINE = {"outcome": "served", "waited_s": 0.1, "first_byte_s": 0.5, "weight": 1}


def access_log(folder, name):
    lines = [
        {"time": f"2026-01-05T00:{at // 60:02d}:{at % 60:02d}Z", "upstream": "reasoning", **LINE}
        | {"total_s": 1.0 + at % 7}
        for at in range(300)
    ]
    (folder / name).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


def benchmark(folder, name):
    names = ("input_toks", "output_toks", "scheduled_ts", "first_token_ts", "last_token_ts")
    lines = []
    for at in range(120):
        prompt, output = 50 + at % 9 * 100, 20 + at % 7 * 10
        first_s = at + 0.05 + 0.0002 * prompt
        row = (prompt, output, float(at), first_s, first_s + 0.02 * (output - 1))
        lines.append(json.dumps(dict(zip(names, row, strict=True))))
    (folder / name).write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Go to a folder that has the files of which the documentation speaks."""
    for name in (
        "access.log",
        "other.log",
        "cap2.log",
        "cap6.log",
        "LOG",
        "RESULT",
        "yesterday.log",
    ):
        access_log(tmp_path, name)
    benchmark(tmp_path, "RESULT")
    for name in ("my.toml", "conf/frontdoor.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(CONFIG, encoding="utf-8")
    world = (ROOT / "conf" / "worlds" / "several-models.toml").read_text(encoding="utf-8")
    (tmp_path / "my-world.toml").write_text(world, encoding="utf-8")
    (tmp_path / "conf" / "worlds").mkdir()
    (tmp_path / "conf" / "worlds" / "several-models.toml").write_text(world, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


CONFIG = """\
[upstreams.reasoning]
url = "http://127.0.0.1:8000"
[upstreams.reasoning.admission]
slots = 8
cap = 6
queue = 8
queue_timeout_s = 30
[models.reasoning]
upstream = "reasoning"
"""


def argv_of(line):
    """Return a command's words, with numbers in place of those that stand for them."""
    stand_for = {"N": "8", "KEY": "reasoning", "FILE": "my-world.toml"}
    return [stand_for.get(word, word) for word in shlex.split(line)]


def test_there_are_some():
    assert len(commands()) >= 12
    assert len(options()) >= 10


@pytest.mark.parametrize("line", commands())
def test_command_is_understood(line, folder):
    name, *rest = argv_of(line)
    assert faults_of(USAGE[name], rest) == []
    given = docopt(USAGE[name], argv=[name, *rest])
    match name:
        case "simulate" if given["--world"]:
            assert read_world(folder / given["--world"]).models
        case "simulate":
            assert simulate_of(simulated(given)).scenarios
        case "sweep":
            assert sweep_of(given).scenarios
        case "tune":
            assert tune_of(given)[0].scenarios
        case "replay":
            assert replay_of(given).scenarios
        case "validate":
            options = OptionParser(given)
            engine_options(options)
            options.done()
        case "calibrate":
            assert all(Path(path).is_file() for path in given["LOG"]) or given["--probe"]


@pytest.mark.parametrize("line", options())
def test_option_is_understood(line):
    words = shlex.split(line)
    assert any(not faults_of(text, words) for text in USAGE.values())


def brief(line):
    """Return a command that says the same of less."""
    name, *rest = argv_of(line)
    endless = not {"--burst", "--world", "--probe"} & {*rest} and name != "calibrate"
    more = ["--jobs", "1"] if endless else []
    if name == "validate" and "--engine" not in rest:
        return [name, *rest, *more, "--requests", "1000", "--reps", "5"]
    if endless and name != "validate":
        more += ["--requests", "300"]
        more += ["--reps", "4"] if name != "tune" else []
    return [name, *rest, *more] if "--full" not in rest else [name, "--help"]


@pytest.mark.slow
@pytest.mark.parametrize("line", [each for each in commands() if "--probe" not in each])
@pytest.mark.usefixtures("folder")
def test_command_answers(line, capsys):
    name = line.split()[0]
    code = main(brief(line))
    told = capsys.readouterr()
    assert code in ({0, 1} if name in {"tune", "validate"} else {0}), told.err
    assert told.out
