"""The page in a real Chromium: what happens is on it at once, and it can be used by everybody.

Skipped, and said so, where there is no Chromium with its driver (Debian: chromium-driver).
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from doorway import CHAT, Doorway, doorway
from msgspec.structs import replace
from page import Page, chromium, needs_chromium, seen_in
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from wire import chat

from tornado_frontdoor.proxy.admin import what_if
from tornado_frontdoor.proxy.records import AccessLine

pytestmark = needs_chromium

CONTRAST = """
const lum = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
  .map((x) => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
  return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
const back = (e) => { for (; e; e = e.parentElement) {
  const c = getComputedStyle(e).backgroundColor;
  if (!c.endsWith(", 0)")) return c; } return "rgb(255, 255, 255)"; };
return [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.disabled &&
  [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())).map((e) => {
  const [a, b] = [lum(getComputedStyle(e).color), lum(back(e))].sort((x, y) => y - x);
  return [(a + .05) / (b + .05), e.tagName + "." + e.className + ": " + e.textContent.slice(0, 40)];
}).filter(([ratio]) => ratio < 4.5);
"""
NAMELESS = """
const named = (e) => e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") ||
  e.textContent.trim() || (e.labels && e.labels.length);
return [...document.querySelectorAll("button, input, select, [role=img], [role=tabpanel], a")]
  .filter((e) => e.checkVisibility() && !named(e)).map((e) => e.outerHTML);
"""
VIEWS = ("engines", "requests", "history", "whatif", "config", "log")
WIDER = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


@asynccontextmanager
async def looked_at(
    browser: webdriver.Chrome, engine: dict[str, Any] | None = None, **settings: object
) -> AsyncIterator[tuple[Doorway, Page]]:
    """Run a front door whose page is left before it ends."""
    async with doorway(engine, **settings) as door, seen_in(browser, door) as page:  # type: ignore[arg-type]
        yield door, page


def test_a_queue_a_refusal_and_a_story_are_on_the_page(browser: webdriver.Chrome) -> None:
    async def scenario() -> None:
        async with looked_at(browser, {"hold": 2}, cap=1, queue=2) as (door, page):
            await page.open()
            await page.shows("[data-engine=reasoning] [role=img]", "")
            wires = [await door.begin(CHAT, chat(), User_Agent="me/1") for _ in range(3)]
            await door.inside(1, 2)
            await page.shows("[data-engine=reasoning] .small", "1 in flight of a cap of 1", 3)
            await page.shows("[data-engine=reasoning] .small", "2 of 2 places taken", 3)
            told = "document.querySelector('[data-engine=reasoning] .slots')"
            assert "the engine has 8 slots" in await page.script(f"return {told}.ariaLabel")
            assert await page.script(f"return {told}.querySelectorAll('.reserve').length") == 7
            await page.click(".people tbody tr:nth-child(2) button")
            await page.shows("#story-text", "queued at place 2")
            await page.shows("#story-text", "waits at place")
            await page.shows("#story-text dd", "me/1")
            await page.click("#story button")
            assert (await door.call(CHAT, chat())).status == 503
            await page.click("#tab-requests")
            await page.shows("#rows .why", "places in its queue", 3)
            await page.click("#rows button")
            await page.shows(".story", "queue full (PF), status 503")
            assert [(await wire.reply()).status for wire in wires] == [200] * 3
            await page.shows("#rows tr", "served")
            await page.run(lambda b: b.find_element(By.ID, "by-model").send_keys("nobody"))
            await page.shows("#shown", "0 of 4")
            assert await page.complaints() == []

    asyncio.run(scenario())


def test_everybody_can_read_and_use_it(browser: webdriver.Chrome) -> None:
    """Names on everything, contrast in light and dark, arrow keys, and no view wider than it is."""

    async def scenario() -> None:
        async with looked_at(browser, {"hold": 2}, cap=1, queue=2) as (door, page):
            wires = [await door.begin(CHAT, chat()) for _ in range(4)]
            await door.inside(1, 2)
            await page.open()
            for scheme in ("light", "dark"):
                media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
                await page.run(
                    lambda b, m=media: b.execute_cdp_cmd("Emulation.setEmulatedMedia", m)
                )
                for view in VIEWS:
                    await page.click(f"#tab-{view}")
                    await page.script("return new Promise((r) => requestAnimationFrame(r))")
                    assert await page.script(CONTRAST) == [], (scheme, view)
                    assert await page.script(NAMELESS) == [], view
            for width in (360, 768, 1920):
                await page.emulate(
                    "setDeviceMetricsOverride",
                    width=width,
                    height=800,
                    deviceScaleFactor=1,
                    mobile=width < 500,
                )
                for view in VIEWS:
                    await page.click(f"#tab-{view}")
                    assert await page.script(WIDER) <= 0, (width, view)
            await page.emulate("clearDeviceMetricsOverride")
            await page.click("#tab-log")
            await page.script("document.getElementById('tab-log').focus()")
            await page.run(lambda b: b.switch_to.active_element.send_keys(Keys.ARROW_RIGHT))
            assert await page.script("return document.activeElement.id") == "tab-engines"
            assert not await page.script("return document.getElementById('engines').hidden")
            for wire in wires:
                await wire.reply()

    asyncio.run(scenario())


def test_what_clients_say_is_text_and_nothing_else(browser: webdriver.Chrome) -> None:
    evil = "<img src=x onerror=document.title='owned'>"

    async def scenario() -> None:
        async with looked_at(browser) as (door, page):
            await page.open("requests")
            await door.call(CHAT, {"model": evil, "messages": []}, User_Agent=evil)
            await page.shows("#rows .model", evil)
            await page.click("#rows button")
            await page.shows(".story", evil)
            assert await page.script("return document.title") == "frontdoor"
            assert await page.script("return document.querySelectorAll('img').length") == 0

    asyncio.run(scenario())


def test_a_replica_is_drained_from_it_and_used_again(browser: webdriver.Chrome) -> None:
    async def scenario() -> None:
        two = "{ url = 'http://127.0.0.1:1', slots = 4 }, { url = 'http://127.0.0.1:2', slots = 4 }"
        tables = f"""
[upstreams.pair]
replicas = [{two}]
probe_period_s = 0
[upstreams.pair.admission]
cap = 2
queue = 1
queue_timeout_s = 1
[models.pair]
upstream = "pair"
[models.pair.dialect]
max_model_len = 1000
"""
        async with looked_at(browser, tables=tables) as (door, page):
            await page.open()
            await page.shows("[data-engine=pair] .pill", "up")
            await page.click("[aria-label='Drain http://127.0.0.1:2']")
            await page.shows("#ask-what", "Send nobody new to http://127.0.0.1:2?")
            await page.click("#ask-yes")
            await page.shows("[data-engine=pair] .pill", "drained")
            await page.shows("#said", "http://127.0.0.1:2 is drained")
            await page.click("[aria-label='Use http://127.0.0.1:2']")
            await page.click("#ask-yes")
            await page.shows("#said", "is used again")
            assert all(one.available for one in door.app.pool.current["pair"].engines())
            role = {"role": "member", "doors": ["a", "b"], "door": "b", "same_limits": False}
            door.app.admin.cluster = lambda: {**role, "outage": False, "splits": False}
            await page.shows("[aria-label=Cluster] .small", "This front door is b, one of 2: a, b")
            await page.shows("[aria-label=Cluster] .note", "its limits differ")

    asyncio.run(scenario())


SIMULATOR = """
import json, sys
cap = int(sys.argv[sys.argv.index("--cap") + 1])
said = {"served_share": 0.5, "wait_p95_s": 1.0}
metrics = {name: {"mean": value * cap / 3} for name, value in said.items()}
print(json.dumps({"observed": said, "metrics": metrics}))
"""


def test_other_limits_can_be_tried_and_what_is_missing_is_said(
    browser: webdriver.Chrome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if, "_START", SIMULATOR)  # the real one: test_what_if_live.py

    async def scenario() -> None:
        async with looked_at(browser, cap=3, queue=7) as (door, page):
            await page.open("whatif")
            value = "return document.getElementById('if-{}').value"
            await page.shows("#if-upstream option", "reasoning")
            assert [
                await page.script(value.format(one)) for one in ("cap", "queue", "timeout")
            ] == [*("3", "7", "30")]
            await page.click("#if-go")
            await page.shows("#if-said", "0 requests are recorded since the start")
            for _ in range(20):
                await door.call(CHAT, chat())
            await page.script("document.getElementById('if-cap').value = 6")
            await page.click("#if-go")
            await page.shows("#if-result th", "cap 6, queue 7, timeout 30 s")
            row = "return [...document.querySelectorAll('#if-result tbody tr:first-child td')]"
            cells = await page.script(f"{row}.map((one) => one.textContent)")
            assert cells == ["served", "50.0 %", "50.0 %", "100.0 %"]
            await page.shows("#if-said", "20 requests since")

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_thousand_events_a_second_do_not_freeze_it(browser: webdriver.Chrome) -> None:
    async def scenario() -> None:
        async with looked_at(browser) as (door, page):
            await page.open("requests")
            line = AccessLine(**await one_line(door))
            await page.script(
                "window.longest = 0; let last = performance.now(); const tick = () => {"
                "const now = performance.now(); longest = Math.max(longest, now - last);"
                "last = now; requestAnimationFrame(tick); }; tick();"
            )
            for number in range(3000):
                door.app._hub.happened("request", replace(line, request_id=f"r{number}"))
                if number % 50 == 49:
                    await asyncio.sleep(0.05)
            await page.shows("#shown", "100 of 300")
            await page.shows("[data-id=r2999]", "")
            assert await page.script("return longest") < 1500

    asyncio.run(scenario())


async def one_line(door: Doorway) -> dict[str, Any]:
    await door.call(CHAT, chat("text"))
    return door.lines[0]


def test_a_token_is_asked_for_and_kept_for_the_tab(
    browser: webdriver.Chrome, tmp_path: Any
) -> None:
    word = tmp_path / "token"
    word.write_text("secret\n")

    async def scenario() -> None:
        async with looked_at(browser, server=f'admin_token_file = "{word}"') as (door, page):
            await page.run(lambda b: b.get(page.url))
            await page.shows("#live", "a token is needed")
            assert (await door.admin("/admin/events")).status == 401
            await page.run(lambda b: b.find_element(By.ID, "token-word").send_keys("wrong\n"))
            await page.shows("#token-said", "not the token")
            await page.run(lambda b: b.find_element(By.ID, "token-word").clear())
            await page.run(lambda b: b.find_element(By.ID, "token-word").send_keys("secret\n"))
            await page.shows("[data-engine=text]", "text")
            assert not await page.script(
                "return document.getElementById('token').checkVisibility()"
            )

    asyncio.run(scenario())


def test_it_finds_a_front_door_again_that_was_away(browser: webdriver.Chrome) -> None:
    async def scenario() -> None:
        async with looked_at(browser) as (door, page):
            await page.open("requests")
            await door.call(CHAT, chat("text"))
            await page.shows("#rows tr", "served")
            for viewer in [*door.app._hub._viewers]:
                viewer.client.cut()
                door.app._hub._leave(viewer)
            await door.call(CHAT, {"model": "nobody"})
            await page.shows("#rows tr", "nobody")
            assert await page.script("return document.querySelectorAll('#rows tr').length") == 2

    asyncio.run(scenario())
