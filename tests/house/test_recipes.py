"""CONTRIBUTING's recipes are true: each is carried out on a copy, and touches what it names.

An edit is the text before which, and the text that, goes into a file; a new file has no anchor.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FRONTDOOR = "tornado_frontdoor"
COPIED = (
    *(FRONTDOOR, "simulator", "loadtests", "bench", "tryouts", "bin", "conf", "docs", "lock"),
    *("tests/house", "tests/config", "tests/conftest.py", "tests/depth.py"),
    "tests/stopwatch.py",
    *("pyproject.toml", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", ".ci"),
)


class Edit(NamedTuple):
    """What goes into a file, and where: before `anchor`, or the file is new."""

    text: str
    anchor: str = ""


class Recipe(NamedTuple):
    """A recipe of the page as it is carried out."""

    edits: Mapping[str, Edit]
    check: str
    """A program of the shell; `python` is the tests' own."""


TOY_DIALECT = '''"""A dialect of one path: the body is a prompt, the answer is the engine's."""

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.surfaces.base import Document, Refused, Route, RouteKind


class ToySurface:
    """`/toy/say`."""

    name = "toy"
    prefixes = ("/toy",)

    def route(self, method, path):
        """Find the one path."""
        if (method, path) != ("POST", "/toy/say"):
            raise Refused(Reason.NOT_FOUND, "only POST /toy/say")
        return Route(RouteKind.ENGINE, path)

    def decode(self, call, catalog):
        """Refuse everybody: enough to be heard in one's own words."""
        raise Refused(Reason.BAD_REQUEST, "nothing to say")

    def models(self, call, listing):
        """List nothing."""
        return Document(200, (), b"")

    def refuse(self, refusal, request_id):
        """Say no."""
        return Document(418, (), f"toy says: {refusal.detail}".encode())
'''

SETTING_OF_THE_DIALECT = {
    f"{FRONTDOOR}/config/settings.py": Edit(
        "    toy: bool = False\n", "    anthropic_overloaded_status: int"
    ),
    f"{FRONTDOOR}/config/schemas.py": Edit(
        "    toy = Flag()\n", "    anthropic_overloaded_status = "
    ),
    "docs/configuration.md": Edit(
        "### `toy = <flag>`\n\nWhether `/toy/*` is served.\n\n"
        "*Default: `false`. True or false.*\n\nFor people who play.\n\n",
        "### `anthropic_overloaded_status",
    ),
    "CHANGELOG.md": Edit("- `/toy`.\n", "- `bin/tryout claude-code`"),
}
SETTINGS_AGREE = """
python -m tornado_frontdoor.cli check --schema > schema
mv schema conf/frontdoor.schema.json
agree="tests/house/test_configuration.py tests/config/test_json_schema.py"
python -m pytest -q -k "not suite" $agree
"""

RECIPES = {
    "A setting": Recipe(
        {
            f"{FRONTDOOR}/config/settings.py": Edit(
                "    nap_s: float = 7\n", "    drain_timeout_s: float"
            ),
            f"{FRONTDOOR}/config/schemas.py": Edit(
                "    nap_s = Number(above=0, most=YEAR_S)\n", "    drain_timeout_s = "
            ),
            "docs/configuration.md": Edit(
                "### `nap_s = <seconds>`\n\nHow long it naps.\n\n"
                "*Default: `7`. A number above 0 and at most 31536000.*\n\nThen it wakes.\n\n",
                "### `drain_timeout_s",
            ),
            "CHANGELOG.md": Edit("- `server.nap_s`.\n", "- `bin/tryout claude-code`"),
        },
        SETTINGS_AGREE,
    ),
    "A dialect": Recipe(
        {
            f"{FRONTDOOR}/surfaces/toy.py": Edit(TOY_DIALECT),
            f"{FRONTDOOR}/proxy/dialects.py": Edit(
                "    if settings.surfaces.toy:\n"
                '        toy = import_module("tornado_frontdoor.surfaces.toy")\n'
                "        surfaces.append(toy.ToySurface())\n",
                "    return surfaces\n",
            ),
            "pyproject.toml": Edit(
                '"tornado_frontdoor.surfaces.toy", ', '"tornado_frontdoor.surfaces.openai", "'
            ),
            **SETTING_OF_THE_DIALECT,
        },
        SETTINGS_AGREE
        + """
lint-imports --no-cache > /dev/null
sed -e 's/^listen.*/listen = "127.0.0.1:0"/' -e 's/^admin_listen.*/admin_listen = "127.0.0.1:0"/' \
    -e 's/^\\[surfaces\\]/[surfaces]\\ntoy = true/' conf/frontdoor.toml > conf/toy.toml
python -m tornado_frontdoor.cli serve --config conf/toy.toml > said &
door=$!
trap "kill $door" EXIT
until grep -q admin said; do sleep 0.05; done
url=$(sed -n 's/listening public //p' said)
python - "$url" <<'.'
import sys, urllib.error, urllib.request
for path, words in (("/toy/say", b"toy says: nothing to say"), ("/toy/x", b"toy says: There is")):
    try:
        json = {"Content-Type": "application/json"}
        ask = urllib.request.Request(sys.argv[1] + path, b"{}", json)
        urllib.request.urlopen(ask)
    except urllib.error.HTTPError as answer:
        assert answer.read().startswith(words)
        assert answer.code == 418
.
""",
    ),
    "A refusal": Recipe(
        {
            f"{FRONTDOOR}/core/decisions.py": Edit(
                '    TOO_LATE = ("too_late", "PY")\n', '    MODEL_NOT_FOUND = ("model'
            ),
            f"{FRONTDOOR}/core/decisions.py#reason": Edit(
                '    TOO_LATE = "too_late"\n', '    MODEL_NOT_FOUND = "model_not_found"\n'
            ),
            f"{FRONTDOOR}/core/decisions.py#outcome": Edit(
                "    Reason.TOO_LATE: Outcome.TOO_LATE,\n", "    Reason.MODEL_NOT_FOUND: Outcome"
            ),
            f"{FRONTDOOR}/surfaces/retry_headers.py": Edit(
                "    Reason.TOO_LATE: 400,\n", "    Reason.MODEL_NOT_FOUND: 404"
            ),
            f"{FRONTDOOR}/surfaces/openai.py": Edit(
                '    Reason.TOO_LATE: ("overloaded", "It is too late"),\n',
                "    Reason.MODEL_NOT_FOUND: (",
            ),
            "docs/operations.md": Edit(
                "| `too_late` | `PY` | it was too late | be early |\n", "| `model_not_found` | `PN`"
            ),
        },
        """python -m pytest -q tests/house/test_tidy.py -k "outcome or end_codes or reason"
python - <<'.'
from tornado_frontdoor.core.decisions import Reason, Refusal
from tornado_frontdoor.surfaces.anthropic import AnthropicSurface
from tornado_frontdoor.surfaces.openai import OpenAISurface
for surface in (OpenAISurface(), AnthropicSurface(529, lambda: "x")):
    said = surface.refuse(Refusal(Reason.TOO_LATE, "gone to bed"), "1")
    assert said.status == 400 and b"gone to bed" in said.body, said
.
""",
    ),
    "A metric": Recipe(
        {
            f"{FRONTDOOR}/proxy/telemetry.py": Edit(
                '        Gauge("frontdoor_toys", "Toys", registry=self.registry).set(3)\n',
                "        ProcessCollector(registry",
            ),
            "docs/operations.md": Edit(
                "| `frontdoor_toys` | too many of them |\n", "| `frontdoor_asyncio_tasks`"
            ),
        },
        'python -m pytest -q tests/house/test_tidy.py -k "metric"',
    ),
    "A scenario of load": Recipe(
        {
            "loadtests/knock.py": Edit(
                '"""One chat each."""\n\nfrom loadtests.lib.dialects import ClientCall\n'
                "from loadtests.lib.users import ClosedUser\n\n\n"
                'class Knocker(ClosedUser):\n    """Knocks."""\n\n'
                '    def once(self) -> None:\n        """Knock."""\n'
                '        self.ask(ClientCall(surface="openai", model="reasoning", hold_s=0.05))\n'
            ),
            "loadtests/harness/scenarios.py": Edit(
                '    "knock": LoadScenario(\n'
                '        locustfile="knock.py", engines=(REASONING,), users=2, seconds=5\n    ),\n',
                '    "mixed": LoadScenario(',
            ),
        },
        "python -m loadtests.harness knock --seconds 1 --out out",
    ),
    "A bench": Recipe(
        {
            "bench/nothing.py": Edit(
                '"""What nothing costs."""\n\nimport sys\n\n\ndef main() -> int:\n'
                '    """Measure."""\n    print("nothing: 0 us ok")\n    return 0\n\n\n'
                'if __name__ == "__main__":\n    sys.exit(main())\n'
            ),
            "bin/bench": Edit("nothing ", "gate translate"),
        },
        "bin/bench nothing | grep '0 us'",
    ),
}
LONG = {"A setting", "A dialect", "A scenario of load"}
"""Tens of seconds each."""
CARRIED_OUT_ELSEWHERE = {
    "A kind of engine": "tests/proxy/test_engine_kinds.py",
    "A step of a wake": "tests/house/test_state_tables.py",
    "A law": "tests/core/test_witness.py",
}


def recipes_of_the_page() -> dict[str, str]:
    section = PAGE.partition("## Recipes")[2].partition("\n## ")[0]
    return dict(re.findall(r"\*\*([^*]+)\.\*\* (.*?)(?=\n\n|\Z)", section, re.DOTALL))


def test_every_recipe_of_the_page_is_carried_out_somewhere() -> None:
    assert set(recipes_of_the_page()) == {*RECIPES, *CARRIED_OUT_ELSEWHERE}
    for path in CARRIED_OUT_ELSEWHERE.values():
        assert (ROOT / path).exists()


@pytest.mark.parametrize("name", recipes_of_the_page())
def test_what_a_recipe_names_exists(name: str) -> None:
    for path in re.findall(r"`([\w/.]+(?:/|\.\w+))`", recipes_of_the_page()[name]):
        assert any((ROOT / room / path).exists() for room in ("", FRONTDOOR)), path


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_names_every_file_that_it_touches(name: str) -> None:
    told = recipes_of_the_page()[name]
    if "a setting" in told:
        told += recipes_of_the_page()["A setting"]
    for path in RECIPES[name].edits:
        plain = path.partition("#")[0].removeprefix(f"{FRONTDOOR}/")
        folder = plain.rpartition("/")[0] + "/"
        assert f"`{plain}`" in told or f"`{folder}`" in told, plain


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in RECIPES]
)
def test_a_recipe_works(name: str, tmp_path: Path) -> None:
    carry_out(RECIPES[name], tmp_path)


def carry_out(recipe: Recipe, tree: Path) -> None:
    """Make the edits on a copy of the tree and let the recipe's check judge them."""
    environment = Path(sys.executable).parents[1]
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tree / name)
    (tree / ".venv").symlink_to(environment)
    for name, edit in recipe.edits.items():
        path = tree / name.partition("#")[0]
        if not edit.anchor:
            path.write_text(edit.text, encoding="utf-8")
            continue
        text = path.read_text(encoding="utf-8")
        assert edit.anchor in text, f"{name} has no {edit.anchor!r} any more"
        path.write_text(text.replace(edit.anchor, edit.text + edit.anchor, 1), encoding="utf-8")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", recipe.check],
        cwd=tree,
        env={"PYTHONPATH": str(tree), "PATH": f"{environment}/bin:/usr/bin:/bin", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
