"""Front doors whose limits differ are told in which setting, as far as it is known."""

import json
from pathlib import Path

from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.cluster.agreement import SharedLimits, differences, limits_in

FILE = """
[cluster]
redis = "redis://h/0"
[upstreams.a]
url = "http://a:1"
[upstreams.a.admission]
slots = 8
cap = 6
queue = 8
queue_timeout_s = 30
[models.a]
upstream = "a"
"""
TWO = """replicas = [{ url = "http://a:1", slots = 4 }, { url = "http://a:2", slots = 4 }]"""
B = '[upstreams.b]\nurl = "http://b:1"\n[models.b]\nupstream = "b"\n'


def limits(folder: Path, *changed: tuple[str, str], more: str = "") -> SharedLimits:
    path = folder / "frontdoor.toml"
    text = FILE + more
    for old, new in changed:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return limits_in(load(path))


def test_each_setting_that_differs_is_told(tmp_path: Path) -> None:
    sleeps = "[upstreams.a.sleep]\nidle_sleep_s = {}\n"
    theirs, here = limits(tmp_path), limits(tmp_path, ("cap = 6", "cap = 5"))
    assert differences(theirs, here) == ['admission.cap of "http://a:1" is 6 there and 5 here']
    assert differences(here, theirs) == ['admission.cap of "http://a:1" is 5 there and 6 here']
    assert differences(here, here) == []
    assert differences(
        limits(tmp_path, ("[cluster]", "[cluster]\nlease_s = 3"), more=B),
        limits(tmp_path, ("[cluster]", '[cluster]\non_outage = "refuse"'), more=sleeps.format(60)),
    ) == [
        'sleep of "http://a:1" is none there and a table here',
        'the upstream at "http://b:1" is only there',
        "cluster.lease_s is 3 there and 2 here",
        'cluster.on_outage is "split" there and "refuse" here',
    ]
    assert differences(
        limits(tmp_path, more=sleeps.format(60)), limits(tmp_path, more=sleeps.format(70))
    ) == ['sleep.idle_sleep_s of "http://a:1" is 60 there and 70 here']
    two = limits(tmp_path, ('url = "http://a:1"', TWO), ("slots = 8", ""))
    assert differences(theirs, two) == [
        'replicas.http://a:1 of "http://a:1" is none there and 4 here',
        'replicas.http://a:2 of "http://a:1" is none there and 4 here',
    ]


def test_a_setting_that_another_release_does_not_have_is_told_as_absent(tmp_path: Path) -> None:
    here = limits(tmp_path)
    older = json.loads(here.text)
    del older[0]["http://a:1"][0]["fair_share"]
    assert differences(SharedLimits("older", json.dumps(older)), here) == [
        'admission.fair_share of "http://a:1" is none there and false here'
    ]


def test_what_is_not_known_or_makes_no_sense_tells_nothing(tmp_path: Path) -> None:
    here = limits(tmp_path)
    for text in ("", "{", "[]", "7", "[7, 1]", '[{"http://a:1": 3}]', "[" * 100_000):
        assert differences(SharedLimits("theirs", text), here) == []


def test_many_differences_are_told_in_part(tmp_path: Path) -> None:
    theirs = limits(tmp_path)
    shared = json.loads(theirs.text)
    shared[0] |= {f"http://b:{port}": shared[0]["http://a:1"] for port in range(20)}
    told = differences(theirs, SharedLimits("here", json.dumps(shared)))
    assert len(told) == 9
    assert told[-1] == "12 more"
