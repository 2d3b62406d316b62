"""The compose file of several front doors: what it names is there, and it all fits together."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from docopt import docopt

from tornado_frontdoor.cli import main as cli
from tornado_frontdoor.config import load

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
COMPOSE = yaml.safe_load((CONF / "cluster-compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
HAPROXY = (CONF / "cluster-haproxy.cfg").read_text(encoding="utf-8")
SETTINGS = load(CONF / "cluster.toml")
DOORS = {name: one for name, one in SERVICES.items() if name.startswith("door-")}


def test_the_configuration_passes_frontdoor_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--config", str(CONF / "cluster.toml")]) == 0
    assert "admission  28 of 32 slots" in capsys.readouterr().out


def test_all_that_is_mounted_is_there_or_a_volume_that_is_declared() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (CONF / source).is_file(), (name, source)
            else:
                assert source in COMPOSE["volumes"], (name, source)
        if "build" in service:
            assert (CONF / service["build"] / "Dockerfile").is_file()
        for other in service.get("depends_on", ()):
            assert other in SERVICES, (name, other)


def test_every_command_line_of_ours_is_one() -> None:
    ours = {name: one for name, one in SERVICES.items() if one["image"] == "frontdoor"}
    assert {*ours} == {*DOORS, "stand-in-a", "stand-in-b"}
    for service in ours.values():
        assert docopt(cli.__doc__ or "", argv=service["command"])
    config = DOORS["door-a"]["command"][-1]
    assert any(volume.split(":")[1] == config for volume in DOORS["door-a"]["volumes"])
    for door in DOORS.values():
        [state] = door["tmpfs"]
        assert state.split(":")[0] == str(SETTINGS.server.state_dir)


@pytest.mark.parametrize(
    ("profile", "option"), [("stand-ins", "--slots"), ("vllm", "--max-num-seqs")]
)
def test_each_profile_has_the_engines_with_the_slots_and_the_name(
    profile: str, option: str
) -> None:
    [upstream] = SETTINGS.upstreams.values()
    [model] = SETTINGS.models.values()
    engines = {
        alias: service["command"]
        for service in SERVICES.values()
        if service.get("profiles") == [profile]
        for alias in service["networks"]["default"]["aliases"]
    }
    assert {urlsplit(one.url).hostname for one in upstream.replicas} == {*engines}
    for one in upstream.replicas:
        command = engines[str(urlsplit(one.url).hostname)]
        assert int(command[command.index(option) + 1]) == one.slots
        assert model.served_name in command
        assert urlsplit(one.url).port == 8000


def test_the_balancer_knows_all_doors_and_hears_in_time_of_one_that_stops() -> None:
    listen = urlsplit(f"//{SETTINGS.server.listen}")
    servers = re.findall(r"^ +server \w+ (\S+):(\d+)$", HAPROXY, re.MULTILINE)
    assert servers == [(name, str(listen.port)) for name in DOORS]
    [looks_ms] = re.findall(r"inter (\d+)ms fall 1 ", HAPROXY)
    assert SETTINGS.server.lame_duck_s >= 2 * int(looks_ms) / 1000
    public = SERVICES["balancer"]["ports"][0].rpartition(":")[2]
    assert f"bind :{public}\n" in HAPROXY
    for door in DOORS.values():
        patience_s = int(door["stop_grace_period"].removesuffix("s"))
        assert patience_s > SETTINGS.server.lame_duck_s + SETTINGS.server.drain_timeout_s


def test_redis_is_where_the_doors_look_for_it_and_keeps_what_must_survive() -> None:
    assert SETTINGS.cluster is not None
    redis = SERVICES[str(urlsplit(SETTINGS.cluster.redis).hostname)]
    assert redis["command"] == ["redis-server", "--appendonly", "yes"]
    assert all("redis" in door["depends_on"] for door in DOORS.values())


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_haproxy_takes_its_configuration() -> None:
    command = ["haproxy", "-c", "-f", str(CONF / "cluster-haproxy.cfg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ALERT" not in done.stderr
