"""What comes of a file without faults: defaults, frozen values, and the catalog."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tornado_frontdoor.config import Address, Settings, load
from tornado_frontdoor.core.catalog import Traits

Write = Callable[[str], Path]


@pytest.fixture
def settings(good: str, write: Write) -> Settings:
    return load(write(good))


def test_defaults_are_those_of_the_contract(settings: Settings) -> None:
    server, surfaces = settings.server, settings.surfaces
    assert server.listen == Address("127.0.0.1", 8080)
    assert server.admin_listen == Address("127.0.0.1", 8010)
    assert (server.max_body_mib, server.max_body_bytes) == (64, 64 * 1024 * 1024)
    assert (server.drain_timeout_s, server.write_stall_timeout_s) == (30, 120)
    assert (surfaces.openai, surfaces.anthropic) == (True, True)
    assert surfaces.anthropic_overloaded_status == 529
    text = settings.upstreams["text"]
    assert (text.connect_timeout_s, text.read_timeout_s, text.chunk_timeout_s) == (5, 900, 120)
    sleep = text.sleep
    assert sleep is not None
    assert (sleep.idle_sleep_s, sleep.idle_offload_s) == (900, 10800)
    assert (sleep.hold_sleeping_s, sleep.hold_offloaded_s, sleep.hold_restarting_s) == (
        30,
        180,
        300,
    )
    assert sleep.retry_after_sleeping_s == 10
    assert sleep.retry_after_offloaded_s == 60
    assert sleep.retry_after_restarting_s == 600
    assert sleep.max_waiting == 64


def test_upstream_without_tables_is_uncapped_and_never_slept(settings: Settings) -> None:
    assert settings.upstreams["text"].admission is None
    assert settings.upstreams["reasoning"].sleep is None
    assert settings.upstreams["reasoning"].gpu is None


def test_model_is_asked_for_by_its_table_name_unless_the_file_says_otherwise(
    good: str, write: Write
) -> None:
    named = good.replace("[models.Text-35B]", '[models.Text-35B]\nserved_name = "org/Text"')
    models = load(write(named)).models
    assert models["reasoning"].served_name == "reasoning"
    assert models["Text-35B"].served_name == "org/Text"


def test_state_folder_starts_at_the_folder_of_the_file(
    good: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(write(good)).server.state_dir == tmp_path / "var"
    write(good.replace("[server]", '[server]\nstate_dir = "../var"'))
    monkeypatch.chdir(tmp_path)
    assert load(Path("frontdoor.toml")).server.state_dir == tmp_path.parent / "var"
    write(good.replace("[server]", '[server]\nstate_dir = "/srv/var"'))
    assert load(Path("frontdoor.toml")).server.state_dir == Path("/srv/var")


def test_url_is_kept_in_one_spelling(good: str, write: Write) -> None:
    odd = good.replace("http://engine-a:8000", "HTTPS://Engine-A:443/")
    assert load(write(odd)).upstreams["reasoning"].url == "https://engine-a:443"


def test_settings_cannot_be_changed(settings: Settings) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.server.drain_timeout_s = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.upstreams["new"] = settings.upstreams["text"]  # type: ignore[index]


def test_same_file_read_twice_gives_equal_settings(good: str, write: Write) -> None:
    path = write(good)
    assert load(path) == load(path)


def test_order_is_that_of_the_file(settings: Settings) -> None:
    assert list(settings.upstreams) == ["reasoning", "text"]
    assert list(settings.models) == ["reasoning", "Text-35B"]


def test_catalog_knows_cap_traits_and_mode_of_each_model(good: str, write: Write) -> None:
    text = good.replace(
        "[models.Text-35B]",
        '[models.Text-35B]\ndialect = { images = "none", effort_map = { max = "high" } }',
    ).replace("[upstreams.text]", '[upstreams.text]\nanthropic = "native"')
    catalog = load(write(text)).catalog()
    reasoning, plain = catalog.resolve("claude-sonnet"), catalog.resolve("TEXT-35b")
    assert reasoning is not None
    assert plain is not None
    assert (reasoning.model, reasoning.max_weight) == ("reasoning", 6)
    assert (reasoning.anthropic, reasoning.traits) == ("translate", Traits())
    assert (plain.model, plain.upstream, plain.max_weight) == ("Text-35B", "text", None)
    assert plain.anthropic == "native"
    assert plain.traits == Traits(images="none", effort_map={"max": "high"})
    assert catalog.routes.chat_default == "text-35b"


def test_capped_upstream_may_sleep_without_max_waiting(good: str, write: Write) -> None:
    text = good.replace("[upstreams.text]", "[upstreams.reasoning.sleep]\n\n[upstreams.text]")
    sleep = load(write(text)).upstreams["reasoning"].sleep
    assert sleep is not None
    assert sleep.max_waiting is None


def test_idle_tiers_may_each_be_switched_off(good: str, write: Write) -> None:
    for tiers in ("idle_sleep_s = 0", "idle_offload_s = 0", "idle_sleep_s = 0\nidle_offload_s = 1"):
        settings = load(write(good.replace("max_waiting = 64", f"max_waiting = 64\n{tiers}")))
        assert settings.upstreams["text"].sleep is not None


def test_name_and_its_own_spellings_may_stand_among_the_aliases(good: str, write: Write) -> None:
    text = good.replace("[models.Text-35B]", '[models.Text-35B]\naliases = ["text-35b", "T", "t"]')
    assert load(write(text)).models["Text-35B"].aliases == ("text-35b", "T", "t")


def test_route_may_name_an_alias_or_match_a_pattern(good: str, write: Write) -> None:
    for name in ("R1", "claude-opus-5"):
        text = good.replace('chat_default = "text-35b"', f'chat_default = "{name}"')
        assert load(write(text)).routes.chat_default == name
