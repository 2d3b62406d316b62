"""Metrics as the field keeps them: from 0 on, in both formats, without a word of promtool's."""

import asyncio
import gzip
import io
import re
import shutil
import subprocess

import pytest
from doorway import CHAT, doorway
from wire import chat

from tornado_frontdoor.config import Settings
from tornado_frontdoor.core.decisions import EngineState, FellAsleep, Outcome, SleepReason
from tornado_frontdoor.proxy.telemetry import EDGE_REFUSALS, Telemetry


def test_promtool_has_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: the metrics are not linted")

    async def scenario() -> bytes:
        async with doorway() as door:
            await door.call(CHAT, chat())
            return (await door.admin("/metrics")).body

    said = subprocess.run(
        [promtool, "check", "metrics"],
        input=asyncio.run(scenario()),
        capture_output=True,
        check=False,
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, b"", b"")


def test_counters_are_there_before_anything_has_happened() -> None:
    """A rate over a counter that appears with its first failure is blind for that failure."""

    async def scenario() -> None:
        async with doorway() as door:
            page = (await door.admin("/metrics")).body.decode()
            for surface in ("openai", "anthropic"):
                for upstream in ("reasoning", "text"):
                    for outcome in Outcome:
                        labels = (
                            f'outcome="{outcome.label}",surface="{surface}",upstream="{upstream}"'
                        )
                        assert f"frontdoor_requests_total{{{labels}}} 0.0" in page
            assert 'frontdoor_tokens_total{kind="prompt",upstream="text"} 0.0' in page
            for listener, reason in EDGE_REFUSALS:
                labels = f'listener="{listener}",reason="{reason}"'
                assert f"frontdoor_edge_refusals_total{{{labels}}} 0.0" in page
            assert "frontdoor_config_last_reload_successful 1.0" in page
            assert re.search(r'frontdoor_build_info\{python="3[\d.]+",version="[\d.]+"\} 1.0', page)

    asyncio.run(scenario())


def test_openmetrics_and_gzip_for_who_takes_them() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 0.3}) as door:
            await door.call(CHAT, chat())
            reply = await door.admin("/metrics", Accept="application/openmetrics-text")
            assert reply.headers["content-type"].startswith("application/openmetrics-text")
            text = reply.body.decode()
            assert text.endswith("# EOF\n")
            exemplar = re.search(
                r'frontdoor_request_seconds_bucket.*# \{request_id="(\w+)"\}', text
            )
            assert exemplar
            assert exemplar[1] == door.lines[0]["request_id"]
            packed = await door.admin("/metrics", Accept_Encoding="gzip, deflate")
            assert packed.headers["content-encoding"] == "gzip"
            assert b"frontdoor_in_flight" in gzip.decompress(packed.body)
            assert "frontdoor_in_flight" in (await door.admin("/metrics")).body.decode()

    asyncio.run(scenario())


def test_a_file_with_a_fault_is_on_the_dashboard_until_it_is_mended() -> None:
    async def scenario() -> None:
        async with doorway(cap=2) as door:
            for cap, good in (("8", "0.0"), ("3", "1.0")):
                door.reread(cap=cap)
                page = (await door.admin("/metrics")).body.decode()
                assert f"frontdoor_config_last_reload_successful {good}" in page
            assert any("cap" in line for line in door.said)
            door.said.clear()

    asyncio.run(scenario())


def test_a_reload_that_goes_wrong_in_an_unforeseen_way_is_answered() -> None:
    def breaks() -> Settings:
        raise ZeroDivisionError("on purpose")

    async def scenario() -> None:
        async with doorway(cap=2) as door:
            door.app._read_again = breaks
            reply = await door.admin("/admin/reload", "POST")
            assert reply.status == 500
            assert reply.json["reloaded"] is False
            assert "on purpose" in reply.json["error"]
            page = (await door.admin("/metrics")).body.decode()
            assert "frontdoor_config_last_reload_successful 0.0" in page
            assert (await door.call(CHAT, chat())).status == 200
            assert any("could not be read again" in line for line in door.said)
            door.said.clear()

    asyncio.run(scenario())


def test_a_reload_says_what_has_changed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with doorway(cap=2) as door:
            with caplog.at_level("INFO", "frontdoor"):
                door.reread(cap=3)
                door.reread()
            assert "upstreams.reasoning.admission.cap: 2 -> 3" in caplog.text
            assert "nothing has changed" in caplog.text

    asyncio.run(scenario())


def test_sleeps_are_counted_by_depth_and_by_whose_wish() -> None:
    states = EngineState
    telemetry = Telemetry(io.StringIO(), list, (), "1")
    heard: list[str] = []
    telemetry.observers.append(lambda kind, fields: heard.append(f"{kind} {fields['state']}"))
    telemetry.know(["openai"], {"text": True, "code": True}, ["team"])
    told = (states.AWAKE, states.FALLING_ASLEEP, states.SLEEPING, states.OFFLOADED)
    for state in told:
        telemetry.engine_changed("text", state)
    for level, why in [
        (1, SleepReason.IDLE),
        (2, SleepReason.OUT_OF_BAND),
        (1, SleepReason.OPERATOR),
        (2, SleepReason.IDLE),
    ]:
        telemetry.fell_asleep("text", FellAsleep(level, why))
    telemetry.fell_asleep("text", FellAsleep(1, SleepReason.ROOM, "code"))

    async def scrape() -> str:
        return telemetry.scrape()[0].decode()

    page = asyncio.run(scrape())
    for level, reason, count in [
        (1, "idle", 1),
        (2, "out_of_band", 1),
        (1, "operator", 1),
        (2, "idle", 1),
        (1, "room", 1),
        (1, "out_of_band", 0),
    ]:
        labels = f'level="{level}",reason="{reason}",upstream="text"'
        assert f"frontdoor_sleeps_total{{{labels}}} {count}.0" in page
    for zero in (
        'frontdoor_evictions_total{for="text",upstream="code"}',
        'frontdoor_out_of_memory_wakes_total{upstream="text"}',
        'frontdoor_key_requests_total{key="team",outcome="queue_full"}',
    ):
        assert f"{zero} 0.0" in page
    assert 'frontdoor_evictions_total{for="code",upstream="text"} 1.0' in page
    assert heard[:2] == ["engine awake", "engine falling_asleep"]
