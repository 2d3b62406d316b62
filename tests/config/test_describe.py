"""`frontdoor check` says what a configuration means."""

import json
from collections.abc import Callable
from pathlib import Path

from tornado_frontdoor.config import load
from tornado_frontdoor.config.describe import describe, describe_json, find_warnings

Write = Callable[[str], Path]
PEM = Path(__file__).parents[1] / "security/certificates/one.pem"


def test_text_has_listeners_caps_models_and_routes(good: str, write: Write) -> None:
    text = describe(load(write(good)))
    assert "public listener  127.0.0.1:8080 for /v1 and /llm" in text
    assert "admin listener   127.0.0.1:8010\n" in text
    assert "upstream reasoning at http://engine-a:8000" in text
    assert "6 of 8 slots (2 left to operators), 8 queued for at most 30 s" in text
    assert "admission  uncapped" in text
    assert "level 1 after 900 s idle, level 2 after 10800 s idle" in text
    assert "model reasoning from reasoning, also as r1, claude-*" in text
    assert "chat_default goes to text-35b" in text
    assert "warning" not in text
    assert not text.endswith("\n")


def test_json_has_the_same_as_values(good: str, write: Write) -> None:
    path = write(good)
    told = json.loads(describe_json(load(path)))
    assert told["file"] == str(path)
    assert told["listeners"] == {"public": "127.0.0.1:8080", "admin": "127.0.0.1:8010"}
    assert told["surfaces"] == ["/v1", "/llm"]
    reasoning = told["upstreams"]["reasoning"]
    assert (reasoning["slots"], reasoning["cap"], reasoning["headroom"]) == (8, 6, 2)
    assert (reasoning["queue"], reasoning["queue_timeout_s"]) == (8, 30)
    assert told["upstreams"]["text"]["cap"] is None
    assert told["upstreams"]["text"]["max_waiting"] == 64
    assert told["models"]["reasoning"]["aliases"] == ["r1", "claude-*"]
    assert told["routes"] == {"chat_default": "text-35b"}
    assert told["warnings"] == []


def test_what_is_legal_but_odd_is_a_warning(good: str, write: Write) -> None:
    text = (
        good.replace("[models.Text-35B]", "[models.reasoning2]")
        .replace(
            '[models.reasoning]\nupstream = "reasoning"', '[models.text]\nupstream = "reasoning"'
        )
        .replace('[models.reasoning2]\nupstream = "text"', '[models.x]\nupstream = "reasoning"')
        .replace('chat_default = "text-35b"', "")
        .replace("max_waiting = 64", "max_waiting = 64\nidle_sleep_s = 0\nidle_offload_s = 0")
        .replace(
            "[upstreams.text]", "[upstreams.reasoning.sleep]\nmax_waiting = 2\n[upstreams.text]"
        )
    )
    assert find_warnings(load(write(text))) == [
        "upstreams.text: no model names it, so nothing can reach it",
        "upstreams.reasoning.sleep.max_waiting: has no effect beside an admission table",
        "upstreams.text.sleep: both idle tiers are 0, so only an admin call puts it to sleep",
        "models.text: is served by reasoning, while admin calls for it mean the upstream text",
    ]


def test_what_holds_an_engine_awake_or_asleep_is_told(good: str, write: Write) -> None:
    more = """max_waiting = 64
preload = true
schedule = ["awake mon-fri 08:00-18:00"]
time_zone = "Europe/Berlin"
"""
    model = '[models.Text-35B]\nupstream = "text"'
    text = good.replace("max_waiting = 64", more).replace(model, f'{model}\nwake = "never"')
    settings = load(write(text))
    told = describe(settings)
    assert "; awake mon-fri 08:00-18:00 (Europe/Berlin); woken at the start; callers" in told
    assert "model Text-35B from text" in told
    assert ", wakes nobody, is no use" in told
    values = json.loads(describe_json(settings))
    assert values["upstreams"]["text"]["schedule"] == ["awake mon-fri 08:00-18:00"]
    assert values["upstreams"]["text"]["preload"] is True
    assert values["models"]["Text-35B"]["wake"] == "never"


def engines(write: Write, rest: str) -> list[str]:
    """Return the warnings for two engines on one GPU that are preloaded, and `rest`."""
    tables = [
        f'[upstreams.{name}]\nurl = "http://{name}:8000"\n'
        f"[upstreams.{name}.sleep]\npreload = true\nmax_waiting = 4\n"
        f"[upstreams.{name}.gpu]\ndevices = [0]\nutilization = {share}\n"
        f'[models.{name}]\nupstream = "{name}"\n'
        for name, share in (("a", 0.6), ("b", 0.2))
    ]
    return find_warnings(load(write("\n".join([*tables, "[gpu]\nmemory_gib = 80", rest]))))


def test_what_cannot_be_preloaded_together_is_a_warning(write: Write) -> None:
    assert engines(write, "") == []
    (group,) = engines(write, '[groups.big]\nmodels = ["a", "b"]')
    assert group == "groups.big: a and b are preloaded, and only one stays awake"
    warnings = engines(write, "limit = 0.7")
    assert "gpu: a and b are preloaded and do not fit into GPU 0 together" in warnings


def test_a_fair_share_without_keys_is_a_warning(good: str, write: Write) -> None:
    text = good.replace("queue_timeout_s = 30", "queue_timeout_s = 30\nfair_share = true")
    path = "upstreams.reasoning.admission.fair_share"
    assert find_warnings(load(write(text))) == [
        f"{path}: has no effect without [keys.NAME]: all are alike"
    ]
    digits = "0" * 64
    assert find_warnings(load(write(f'{text}\n[keys.a]\nsha256 = "{digits}"\nshare = 2\n'))) == []


def test_half_of_a_queue_is_kept_for_returns_unless_it_is_said(good: str, write: Write) -> None:
    def places(more: str) -> object:
        told = json.loads(describe_json(load(write(good.replace("queue_timeout_s = 30", more)))))
        return told["upstreams"]["reasoning"]["return_places"]

    assert places("queue_timeout_s = 30") == 4
    assert places("queue_timeout_s = 30\nreturn_places = 0") == 0


def test_engines_that_are_looked_up_have_slots_at_each_address(good: str, write: Write) -> None:
    own = 'url = "http://engine-a:8000"'
    more = f'{own}\ndiscover = "dns"'
    settings = load(write(good.replace(own, more).replace("slots = 8", "slots = 4")))
    text = describe(settings)
    assert "discover   the addresses of its name by dns, every 10 s" in text
    assert "6 at once, 4 slots at each address, 8 queued" in text
    told = json.loads(describe_json(settings))["upstreams"]["reasoning"]
    assert (told["discover"], told["discover_every_s"], told["headroom"]) == ("dns", 10, None)


def test_the_files_for_engines_behind_tls_are_told(good: str, write: Write) -> None:
    own = 'url = "http://engine-a:8000"'
    more = f'url = "https://engine-a:8000"\nca_file = "{PEM}"\nclient_cert = "{PEM}"\n'
    more += f'client_key = "{PEM.with_suffix(".key")}"'
    settings = load(write(good.replace(own, more)))
    assert f"tls        trusted by ca_file {PEM}, shown client_cert {PEM}" in describe(settings)
    told = json.loads(describe_json(settings))["upstreams"]
    assert (told["reasoning"]["ca_file"], told["reasoning"]["client_cert"]) == (str(PEM), str(PEM))
    assert told["text"]["ca_file"] is None
