"""The wheel is whole, and what needs no extra works where no extra is installed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BARRED = ("simpy", "numpy", "scipy", "matplotlib", "redis", "opentelemetry", "distributed")
BAR = f"""
import sys

class Bar:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BARRED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Bar())
"""
ANY_PORTS = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of what git knows and what is new here, in a copy."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, tree],
        capture_output=True,
        check=True,
        timeout=120,
    )
    (built,) = folder.glob("*.whl")
    return built


class Installed:
    """The wheel's files in a folder, run from another one, with every extra's library barred."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.site, self.elsewhere = folder / "site", folder / "elsewhere"
        self.elsewhere.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)
        (self.site / "sitecustomize.py").write_text(BAR)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FRONTDOOR")}
        self.environment = environment | {"PYTHONPATH": str(self.site)}

    def command(self, *arguments: str) -> Sequence[str]:
        return [sys.executable, "-W", "error", "-m", "tornado_frontdoor.cli", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.elsewhere,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel, tmp_path_factory.mktemp("installed"))


def test_examples_trace_and_types_are_in_the_wheel_and_nothing_of_the_workshop(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    for path in (ROOT / "conf").glob("*.toml"):
        assert f"tornado_frontdoor/conf/{path.name}" in names
    for path in (ROOT / "tornado_frontdoor" / "proxy" / "admin" / "page").iterdir():
        assert str(path.relative_to(ROOT)) in names
    assert "simulator/data/sample_trace.csv" in names
    assert "tornado_frontdoor/py.typed" in names
    tops = {name.split("/")[0].partition("-")[0] for name in names}
    assert tops == {"simulator", "tornado_frontdoor"}


def test_every_package_with_code_is_in_the_wheel(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    for room in ("tornado_frontdoor", "simulator"):
        for path in (ROOT / room).rglob("*.py"):
            assert str(path.relative_to(ROOT)) in names


def test_check_finds_the_packaged_configuration_from_any_folder(installed: Installed):
    done = installed.run("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{installed.site}/tornado_frontdoor/var" in done.stdout  # beside its conf
    assert "model reasoning from reasoning" in done.stdout


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_command_that_serves_needs_no_extra(installed: Installed, command: str):
    with subprocess.Popen(
        installed.command(command, *ANY_PORTS),
        cwd=installed.elsewhere,
        env=installed.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline() for _ in range(2)]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert [line.split()[:2] for line in lines] == [["listening", "public"], ["listening", "admin"]]
    assert process.returncode in (0, 130)
    assert "Traceback" not in errors


@pytest.mark.parametrize("command", ["simulate", "sweep", "validate", "replay", "calibrate"])
def test_a_missing_extra_is_one_line_that_names_it(installed: Installed, command: str):
    needed = {
        "simulate": ("--cap", "6", "--queue", "8"),
        "sweep": ("--cap", "4..6", "--queue", "8", "--timeout", "5"),
        "validate": (),
        "replay": ("some.log", "--cap", "6", "--queue", "8"),
        "calibrate": ("some.log",),
    }[command]
    done = installed.run(command, *needed)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"frontdoor {command}: needs ")
    assert "pip install 'tornado-frontdoor[simulator]'" in line


def test_spans_that_cannot_be_sent_keep_it_from_serving_and_say_why(
    installed: Installed, tmp_path: Path
):
    config = tmp_path / "frontdoor.toml"
    config.write_text(
        '[upstreams.a]\nurl = "http://127.0.0.1:9"\n[models.a]\nupstream = "a"\n'
        '[otel]\nendpoint = "http://127.0.0.1:9"\n'
    )
    done = installed.run("serve", "--config", str(config), *ANY_PORTS)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("frontdoor serve: needs opentelemetry")
    assert "pip install 'tornado-frontdoor[otel]'" in line


def test_help_needs_no_extra(installed: Installed):
    done = installed.run("simulate", "--help")
    assert done.returncode == 0
    assert "--cap" in done.stdout


def test_what_is_installed_speaks_of_the_command_on_the_path(installed: Installed):
    source = "from tornado_frontdoor.cli.demo import COMMAND; print(COMMAND)"
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=installed.elsewhere,
        env=installed.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "frontdoor\n"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_pip_installs_it_into_a_fresh_environment(wheel: Path, tmp_path: Path, version: str):
    python = shutil.which(f"python{version}")
    works = python and subprocess.run([python, "-c", ""], check=False, capture_output=True)
    if not works or works.returncode:
        pytest.skip(f"there is no Python {version} here")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    binaries = tmp_path / "venv" / "bin"
    for extra, code in (("", 1), ("[simulator]", 0)):
        subprocess.run(
            [binaries / "pip", "install", "--quiet", f"{wheel}{extra}"], check=True, timeout=500
        )
        small = ("--requests", "500", "--reps", "2", "--jobs", "1", "--json")
        done = subprocess.run(
            [binaries / "frontdoor", "simulate", "--cap", "6", "--queue", "8", *small],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == code, done.stderr
    done = subprocess.run([binaries / "frontdoor", "check"], cwd=tmp_path, check=True)


COUNTED = f"""
import sys

calls = 0

def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")

class SaidBoth:
    lines = 0

    def write(self, text):
        self.lines += text.count("\\n")
        if self.lines == 2:
            sys.setprofile(None)
            raise SystemExit(f"{{calls}} calls")

    def flush(self):
        pass

sys.setprofile(count)
if "serve" in sys.argv:
    sys.stdout = SaidBoth()
    from tornado_frontdoor.cli.main import main
    main(["serve", *{ANY_PORTS}])
else:
    import asyncio, ssl, tornado.httpserver, tornado.web
    import marshmallow, msgspec, prometheus_client, pycurl
sys.setprofile(None)
sys.exit(f"{{calls}} calls")
"""


def calls_of(what: str, compiled: Path) -> int:
    """Return how many calls, of Python's and of C's, a new process makes."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(compiled)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, what],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return int(re.findall(r"(\d+) calls$", done.stderr, re.MULTILINE)[-1])


def test_a_start_makes_few_calls_beside_those_that_import_its_libraries(tmp_path: Path):
    # Calls, not seconds: what else runs on a machine does not change them. `bin/bench start` has
    # the seconds. The first of either compiles its modules.
    libraries, serve = ([calls_of(what, tmp_path) for _ in range(2)][1] for what in ("", "serve"))
    assert serve < 2.25 * libraries
