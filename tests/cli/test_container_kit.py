"""Dockerfile, compose file and manifests: what they name is there, their configurations load."""

import os
import re
import shutil
import subprocess
import tomllib
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from docopt import docopt

from tornado_frontdoor.cli import main as cli
from tornado_frontdoor.config import Settings, load

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
MANIFESTS = list(
    yaml.safe_load_all((ROOT / "conf/kubernetes/frontdoor.yaml").read_text(encoding="utf-8"))
)
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
CONFIGURATIONS = sorted((ROOT / "conf" / "compose").glob("*.toml"))


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "lock" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+==\S+.*?) \\\n((?:\s+--hash=.*\n?)+)", text, re.MULTILINE))


def test_the_image_pins_what_the_checkout_pins_and_all_that_serving_needs():
    serve, runtime = pins("serve.txt"), pins("runtime.txt")
    assert serve.items() <= runtime.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[><=]", each)[0] for each in project["dependencies"]}
    assert needed <= {pin.partition("==")[0] for pin in serve}


def test_what_the_dockerfile_copies_is_let_through_and_there():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    let_through = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert all((ROOT / path).exists() for path in let_through)
    for path in re.findall(r"^COPY (lock/\S+)", DOCKERFILE, re.MULTILINE):
        assert path in let_through
    # What the wheel is made of: see pyproject.toml.
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= set(let_through)
    assert {"tornado_frontdoor", "simulator", "conf"} <= set(let_through)


def test_the_image_runs_as_nobody_in_particular_and_says_how_it_is():
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last_stage, re.MULTILINE)
    assert "HEALTHCHECK" in last_stage


def commands() -> list[list[str]]:
    """Return what the image is told to run, here and there."""
    lines = re.findall(r"CMD (\[.*\])", DOCKERFILE)
    found: list[list[str]] = [yaml.safe_load(line) for line in lines]
    found = [command[1:] if command[0] == "frontdoor" else command for command in found]
    for service in COMPOSE["services"].values():
        if service["image"] == "frontdoor":
            found.append(service["command"])
    found.extend(c["args"] for c in pod()["containers"])
    return found


def pod() -> dict[str, Any]:
    (deployment,) = (each for each in MANIFESTS if each["kind"] == "Deployment")
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_line_is_one_of_ours(command: list[str]):
    assert docopt(cli.__doc__ or "", argv=command)


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_a_configuration_of_compose_loads_and_names_its_services(path: Path):
    settings = load(path)
    for upstream in settings.upstreams.values():
        engine = urlsplit(upstream.url)
        service = COMPOSE["services"][engine.hostname]
        assert engine.port == 8000
        assert_slots_are_those_of(service, settings, upstream.key)
    assert settings.server.drain_timeout_s < 60  # stop_grace_period


def assert_slots_are_those_of(service: dict[str, Any], settings: Settings, key: str) -> None:
    admission = settings.upstreams[key].admission
    if admission is not None:
        command = service["command"]
        option = "--slots" if service["image"] == "frontdoor" else "--max-num-seqs"
        slots = command[command.index(option) + 1] if option in command else "8"
        assert int(slots) == admission.slots
    if settings.upstreams[key].sleep is not None:
        assert {"--sleep-mode", "--enable-sleep-mode"} & set(service["command"])


def test_compose_starts_stand_ins_alone_unless_it_is_told_otherwise():
    plain = {name for name, each in COMPOSE["services"].items() if "profiles" not in each}
    assert plain == {"frontdoor", "reasoning", "text", "embed"}
    for config in COMPOSE["configs"].values():
        assert (ROOT / re.sub(r"\$\{\w+:-(.*?)\}", r"\1", config["file"])).is_file()


def test_the_manifests_hold_a_configuration_that_loads_and_drain_in_time(tmp_path: Path):
    (config_map,) = (each for each in MANIFESTS if each["kind"] == "ConfigMap")
    path = tmp_path / "frontdoor.toml"
    path.write_text(config_map["data"]["frontdoor.toml"])
    settings = load(path)
    assert settings.server.drain_timeout_s < pod()["terminationGracePeriodSeconds"]
    claims = {
        each["metadata"]["name"] for each in MANIFESTS if each["kind"] == "PersistentVolumeClaim"
    }
    volumes = {each["name"]: each for each in pod()["volumes"]}
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] in claims
    mounts = {mount["mountPath"] for mount in pod()["containers"][0]["volumeMounts"]}
    assert str(settings.server.state_dir) in mounts


@pytest.mark.slow
def test_the_image_builds_serves_and_says_that_it_is_well(tmp_path: Path):
    """With buildah, and a base in FRONTDOOR_IMAGE_BASE; what it needs here in ..._BUILD_OPTIONS."""
    base = os.environ.get("FRONTDOOR_IMAGE_BASE")
    if shutil.which("buildah") is None or base is None:
        pytest.skip("needs buildah and an image of Debian to build on")
    options = os.environ.get("FRONTDOOR_IMAGE_BUILD_OPTIONS", "").split()
    isolated = ["--isolation", "chroot"]
    run = partial(subprocess.run, check=True, capture_output=True, text=True, cwd=ROOT)
    build = ["buildah", "bud", "--format", "docker", *isolated, *options]
    run([*build, "--build-arg", f"BASE={base}", "--tag", "localhost/frontdoor-test", "."])
    container = run(["buildah", "from", "--pull-never", "localhost/frontdoor-test"]).stdout.strip()
    inside = ["buildah", "run", *isolated, "--volume", f"{tmp_path}:/etc/frontdoor:ro", container]
    try:
        assert run([*inside, "--", "id", "--user"]).stdout.strip() == "10001"
        (tmp_path / "frontdoor.toml").write_text(
            '[upstreams.e]\nurl = "http://127.0.0.1:1"\n[models.m]\nupstream = "e"\n'
            '[server]\nstate_dir = "/var/lib/frontdoor"\n'
        )
        tmp_path.chmod(0o755)
        ports = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
        serve = ("serve", "--config", "/etc/frontdoor/frontdoor.toml", *ports)
        with subprocess.Popen(
            [*inside, "--", "frontdoor", *serve], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                public = process.stdout.readline().split()[-1]
                run([*inside, "--", "frontdoor", "health", public])
            finally:
                process.terminate()
    finally:
        run(["buildah", "rm", container])
