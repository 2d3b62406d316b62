"""Models of a group take turns: waking one puts the other to sleep first, once it is idle."""

import asyncio
from pathlib import Path

import pytest
from naps import configuration, house

from tornado_frontdoor.config import ConfigError, load

BIG = '[groups.big]\nmodels = ["text", "code"]\n'


def test_waking_one_of_a_group_puts_the_other_to_sleep_first_and_leaves_the_rest_alone() -> None:
    async def scenario() -> None:
        async with house("text", "code", "ocr", pool=BIG, hold_sleeping_s=30) as door:
            await door.put_to_sleep(1, "code")
            assert (await door.ask("code")).status == 200
            assert (door.state("text"), door.state("ocr")) == ("sleeping", "awake")
            assert (await door.ask("text")).status == 200
            assert (door.state("code"), door.state("ocr")) == ("sleeping", "awake")
            metrics = (await door.admin("/metrics")).body.decode()
            assert 'frontdoor_evictions_total{for="text",upstream="code"} 1.0' in metrics
            asleep = 'frontdoor_sleeps_total{level="1",reason="room",upstream="code"} 1.0'
            assert asleep in metrics

    asyncio.run(scenario())


def test_one_that_is_busy_ends_its_stream_before_the_other_wakes() -> None:
    async def scenario() -> None:
        pool = BIG + "[gpu]\nmemory_gib = 80\nstay_factor = 0\n"
        async with house("text", "code", pool=pool, hold_sleeping_s=30) as door:
            await door.put_to_sleep(1, "code")
            stream = asyncio.ensure_future(door.ask(stream=True, tokens=20, gap_ms=20))
            await door.until(lambda: door.gate.in_flight == 1)
            other = asyncio.ensure_future(door.ask("code"))
            await door.until(lambda: door.upstream("code").keeper.gate.waits_for is not None)
            told = (await door.admin("/admin/explain/code")).json
            assert told["blocked_by"] == "it waits for room made by text"
            assert (await stream).status == 200
            assert (await other).status == 200
            assert door.state() == "sleeping"

    asyncio.run(scenario())


def test_a_pin_keeps_the_others_of_its_group_out_and_they_are_told_why() -> None:
    async def scenario() -> None:
        async with house("text", "code", pool=BIG, hold_sleeping_s=0.3) as door:
            await door.put_to_sleep(1, "code")
            assert (await door.admin("/admin/pin/text", "POST")).status == 200
            refused = await door.ask("code")
            assert refused.status == 503
            assert "group big has room for one; text stays awake" in refused.json["detail"]
            assert (await door.admin("/admin/unpin/text", "POST")).status == 200

    asyncio.run(scenario())


def test_a_group_comes_goes_and_is_switched_off_with_the_file() -> None:
    async def scenario() -> None:
        async with house("text", "code", hold_sleeping_s=30) as door:
            await door.put_to_sleep(1, "code")
            text = door.path.read_text()
            door.path.write_text(text + BIG + "exclusive = false\n")
            assert door.app.reread()[0]
            assert (await door.ask("code")).status == 200
            assert door.state("text") == "awake"
            door.path.write_text(text + BIG)
            assert door.app.reread()[0]
            await door.put_to_sleep(1, "code")
            assert (await door.ask("code")).status == 200
            assert door.state("text") == "sleeping"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("group", "tables", "fault"),
    [
        ('models = ["text", "kode"]', {}, 'names a model that has no table: "kode"'),
        ('models = ["text"]', {}, "must have at least 2 item"),
        ('models = ["text", "other"]', {}, "one engine excludes nobody"),
        ('models = ["text", "code"]', {"text": {"awake": {}}}, "no sleep table"),
        ('models = ["text", "code"]', {"code": {"sleep": {"pinned": True}}}, "is pinned"),
    ],
)
def test_a_group_that_makes_no_sense_is_a_fault(
    tmp_path: Path, group: str, tables: dict[str, object], fault: str
) -> None:
    urls = {"text": "http://127.0.0.1:1", "code": "http://127.0.0.1:2"}
    path = tmp_path / "frontdoor.toml"
    other = '[models.other]\nupstream = "text"\n'
    path.write_text(configuration(urls, tables, f"{other}[groups.big]\n{group}\n"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as error:
        load(path)
    assert "groups.big.models" in str(error.value)
    assert fault in str(error.value)
