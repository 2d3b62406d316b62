"""What is taken from a configuration, what is told, and what `tune` writes into one."""

import dataclasses
import tomllib
from dataclasses import MISSING, replace

import pytest
from scenes import scene

from simulator.cli.option_parser import UsageError
from simulator.cli.options import simulate_of
from simulator.model.scenario import Tiers
from simulator.reports.tune_text import Destination, tables_of
from tornado_frontdoor.cli import taken_settings
from tornado_frontdoor.cli.file_tables import apply, verify_writable
from tornado_frontdoor.cli.taken_settings import NO_SAY, TAKEN, TOLD, WITHOUT_A_GATE, destination
from tornado_frontdoor.cli.tuning import simulated
from tornado_frontdoor.config import load
from tornado_frontdoor.config import settings as all_settings

CONFIG = """\
# ours
[upstreams.two]
replicas = [{ url = "http://a:8000", slots = 4 }, { url = "http://b:8000", slots = 4 }]
[upstreams.two.admission]
cap = 6   # of eight
queue = 64
queue_timeout_s = 30
return_places = 20

[upstreams."one.b"]
url = "http://127.0.0.1:8003"
[upstreams."one.b".sleep]
max_waiting = 8
schedule = [
  "awake mon-fri 08:00-18:00",
]

[upstreams.found]
url = "http://engines:8000"
discover = "dns"
[upstreams.found.admission]
slots = 8
cap = 20
queue = 4
queue_timeout_s = 5

[keys.team-a]
sha256 = "0000000000000000000000000000000000000000000000000000000000000001"
share = 3
[keys.b]
sha256 = "0000000000000000000000000000000000000000000000000000000000000002"

[models.two]
upstream = "two"
[models.one]
upstream = "one.b"
[models.found]
upstream = "found"
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "frontdoor.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


CLASSES = {
    name: cls
    for name, cls in vars(all_settings).items()
    if dataclasses.is_dataclass(cls) and cls.__module__ == all_settings.__name__
}


@pytest.mark.parametrize("name", CLASSES)
def test_each_setting_is_taken_or_told_or_has_no_say(name):
    there = {field.name for field in dataclasses.fields(CLASSES[name])}
    lists = [TAKEN.get(name, frozenset()), frozenset(TOLD.get(name, ())), NO_SAY.get(name, set())]
    assert sum(map(len, lists)) == len(frozenset().union(*lists)), "in two lists"
    assert frozenset().union(*lists) == (set() if name in WITHOUT_A_GATE else there)


OTHER = {
    "engine": "llama.cpp",
    "discover": "dns",
    "pick": "affinity",
    "wake": "never",
    "schedule": ("x",),
}
"""Values of settings that are no numbers and no flags."""


def changed(field):
    """Return a value that is not the default."""
    default = field.default
    if field.name in OTHER:
        return OTHER[field.name]
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int | float) else 3


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    path = tmp_path_factory.mktemp("configuration") / "frontdoor.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return load(path)


TOLD_OF_A_TABLE = [
    (name, field.name)
    for name in ("UpstreamSettings", "AdmissionSettings", "SleepSettings", "ModelSettings")
    for field in dataclasses.fields(CLASSES[name])
    if field.name in TOLD[name]
]


@pytest.mark.parametrize(("name", "key"), TOLD_OF_A_TABLE)
def test_what_is_told_is_told_where_it_is_not_at_its_default(name, key, settings, capsys):
    upstream = settings.upstreams["two"]
    upstream = replace(upstream, sleep=CLASSES["SleepSettings"]())
    part = {"AdmissionSettings": "admission", "SleepSettings": "sleep"}.get(name)
    table = settings.models["two"] if name == "ModelSettings" else upstream
    table = getattr(table, part) if part else table
    (field,) = (each for each in dataclasses.fields(table) if each.name == key)
    assert field.default is not MISSING
    table = replace(table, **{key: changed(field)})
    if name == "ModelSettings":
        settings = replace(settings, models={**settings.models, "two": table})
    else:
        upstream = replace(upstream, **{part: table}) if part else table
    taken_settings.taken(settings, upstream, {}, lambda: None)
    told = capsys.readouterr().err
    assert f"{key}" in told
    assert TOLD[name][key] in told


def scenario(path, upstream, **given):
    """Return the scenario that `simulate --config` comes to."""
    options = {"--config": str(path), "--upstream": upstream, "--rate": "1", "--jobs": "1"}
    return simulate_of(simulated({**options, **given})).scenarios[0]


def with_lines(path, table, lines):
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f"{table}\n", f"{table}\n{lines}\n"), encoding="utf-8")


def test_limits_and_engines_are_those_of_the_configuration(path):
    found = scenario(path, "two")
    assert (found.replicas, found.slots, found.cap, found.queue) == (2, 4, 6, 64)
    assert (found.timeout_s, found.return_places, found.cooling_limit_s) == (30.0, 20, 2.0)
    with_lines(path, "[upstreams.two]", "cooling_limit_s = 0.5")
    assert scenario(path, "two").cooling_limit_s == 0.5
    assert scenario(path, "two", **{"--cooling-limit": "7"}).cooling_limit_s == 7


def test_slots_are_shared_by_the_keys_and_their_shares(path, capsys):
    with_lines(path, "[upstreams.two.admission]", "fair_share = true")
    found = scenario(path, "two", **{"--keys": "team-a=2,b=1"})
    assert found.fair_share
    assert [(key.name, key.part, key.share) for key in found.keys] == [
        ("team-a", 2.0, 3.0),
        ("b", 1.0, 1.0),
    ]
    assert not capsys.readouterr().err
    assert not scenario(path, "two").fair_share
    assert "fair_share (give --keys" in capsys.readouterr().err


def test_who_asks_is_read_from_a_log(path, tmp_path):
    with_lines(path, "[upstreams.two.admission]", "fair_share = true")
    line = (
        '{{"time": "2026-01-05T00:00:{:02d}Z", "upstream": "two", "outcome": "served", '
        '"waited_s": 0, "total_s": 1.0, "weight": 1, "key": "{}"}}\n'
    )
    log = tmp_path / "access.log"
    log.write_text("".join(line.format(at, "team-a" if at % 3 else "b") for at in range(30)))
    found = scenario(path, "two", **{"--log": str(log), "--rate": None})
    assert {key.name: (key.part, key.share) for key in found.keys} == {
        "team-a": (20.0, 3.0),
        "b": (10.0, 1.0),
    }


def test_tiers_holds_and_what_is_told_are_those_of_the_configuration(path):
    with_lines(
        path,
        "[upstreams.two.admission]",
        "[upstreams.two.sleep]\nidle_sleep_s = 60\nidle_offload_s = 600\nhold_sleeping_s = 5\n"
        "retry_after_sleeping_s = 7\n[upstreams.two.admission]",
    )
    text = path.read_text().replace("[upstreams.two.admission]\n", "", 1)
    path.write_text(text, encoding="utf-8")
    assert scenario(path, "two").tiers == Tiers(
        idle_s=(60.0, 600.0), hold_s=(5.0, 180.0), retry_after_s=(7.0, 60.0)
    )
    with_lines(path, "[upstreams.two.sleep]", "pinned = true")
    assert scenario(path, "two").tiers is None


@pytest.mark.parametrize(
    ("kind", "idle_s"), [("vllm", (900.0, 10800.0)), ("llama.cpp", (0.0, 900.0)), ("process", None)]
)
def test_tiers_are_those_that_the_kind_of_engine_knows(kind, idle_s, settings, capsys):
    upstream = replace(
        settings.upstreams["two"], engine=kind, sleep=all_settings.SleepSettings(max_waiting=4)
    )
    options = taken_settings.taken(settings, upstream, {}, lambda: None)
    wanted = None if idle_s is None else "{:g},{:g}".format(*idle_s)
    assert options.get("--sleep") == wanted
    assert ("always awake" in capsys.readouterr().err) == (kind == "process")


def write(path, to, *, tiers=None, cap=5):
    """Write an answer into the file; returns the upstream's table and the text."""
    world = scene(cap=cap, queue=8, timeout_s=2.5, tiers=tiers)
    apply(path, to.upstream, tables_of(world, to))
    text = path.read_text(encoding="utf-8")
    return tomllib.loads(text)["upstreams"][to.upstream], text


def test_replicas_keep_their_slots_and_the_queue_has_room_for_those_who_come_back(path, settings):
    to = destination(settings.upstreams["two"], {"--replicas": "2x4"}, tiers=False)
    found, text = write(path, to)
    admission = {"cap": 5, "queue": 8, "queue_timeout_s": 2.5, "return_places": 8}
    assert found["admission"] == admission
    assert "cap = 5   # of eight\n" in text
    assert text.count("\n") == CONFIG.count("\n")
    again, _ = write(path, to, cap=3)
    assert again["admission"] == {**admission, "cap": 3}
    assert path.with_name("frontdoor.toml.bak").read_text(encoding="utf-8") == CONFIG
    assert path.with_name("frontdoor.toml.bak.1").read_text(encoding="utf-8") == text


def test_slots_that_the_replicas_do_not_have_are_a_fault(settings):
    with pytest.raises(UsageError, match=r"--replicas: two has replicas of 8 slots in all"):
        destination(settings.upstreams["two"], {"--replicas": "3x4"}, tiers=False)


def test_slots_behind_a_name_that_is_looked_up_are_those_of_each(settings):
    to = destination(settings.upstreams["found"], {"--replicas": "3x8"}, tiers=False)
    assert tables_of(scene(cap=21), to)["admission"]["slots"] == 8


def test_tables_that_are_not_there_are_added_and_idle_times_are_written(path, settings):
    to = destination(settings.upstreams["one.b"], {"--slots": "8"}, tiers=True)
    found, text = write(path, to, tiers=Tiers(idle_s=(300.0, 0.0)))
    assert found["admission"] == {"slots": 8, "cap": 5, "queue": 8, "queue_timeout_s": 2.5}
    assert found["sleep"] == {
        "idle_sleep_s": 300,
        "idle_offload_s": 0,
        "max_waiting": 8,
        "schedule": ["awake mon-fri 08:00-18:00"],
    }
    assert '[upstreams."one.b".admission]' in text


def test_lines_end_as_they_did_and_a_link_stays_one(path, tmp_path):
    path.write_bytes(CONFIG.replace("\n", "\r\n").encode())
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    apply(link, "two", {"admission": {"cap": 5}})
    assert link.is_symlink()
    raw = path.read_bytes()
    assert raw.count(b"\r\n") == raw.count(b"\n") == CONFIG.count("\n")
    assert b"cap = 5   # of eight\r\n" in raw


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[upstreams.two.admission]\ncap", "[upstreams.two.admission]\n'cap'"),
        ("[upstreams.two.admission]", "[upstreams.two . 'admission']"),
    ],
)
def test_file_that_cannot_be_changed_is_named_before_the_search(before, after, path):
    text = CONFIG.replace(before, after)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"paste the table yourself"):
        verify_writable(path, "two", {"admission": {"cap": 3}})
    assert path.read_text(encoding="utf-8") == text
    assert len(list(path.parent.iterdir())) == 1


def test_folder_that_cannot_be_written_is_named(path):
    gone = path.parent / "gone" / "frontdoor.toml"
    with pytest.raises(UsageError, match=r"--apply: cannot change .*: No such file or directory"):
        verify_writable(gone, "two", {"admission": {"cap": 3}})


def test_answer_without_a_configuration_has_its_idle_times():
    world = scene(tiers=Tiers(idle_s=(60.0, 600.0)))
    tables = tables_of(world, Destination(upstream="x", slots=8))
    assert tables["sleep"] == {"idle_sleep_s": 60.0, "idle_offload_s": 600.0}
    assert "sleep" not in tables_of(world, Destination(upstream="x", slots=8, tiers=False))
