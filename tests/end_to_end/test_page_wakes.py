"""Engines that sleep and wake, as the page shows them and as it lets them be woken."""

import asyncio
from collections.abc import Iterator

import pytest
from naps import house
from page import chromium, needs_chromium, seen_in
from selenium import webdriver

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


def test_sleep_and_wake_are_on_the_page_within_a_second_and_ask_back_first(
    browser: webdriver.Chrome,
) -> None:
    async def scenario() -> None:
        async with house() as door, seen_in(browser, door) as page:
            await page.open()
            await page.shows("[data-engine=text] .pill", "awake")
            await page.click("[aria-label='Sleep text']")
            await page.shows("#ask-what", "Put text to sleep?")
            await page.click("#ask button[value=no]")
            await asyncio.sleep(0.3)
            assert door.app.pool.current["text"].state == "awake"
            await page.click("[aria-label='Sleep text']")
            await page.click("#ask-yes")
            await door.until(lambda: door.app.pool.current["text"].state == "sleeping")
            await page.shows("[data-engine=text] .pill", "sleeping", 1)
            await page.shows("#said", "text is sleeping")
            await page.click("[aria-label='Wake text']")
            await page.click("#ask-yes")
            await door.until(lambda: door.app.pool.current["text"].state == "awake")
            await page.shows("[data-engine=text] .pill", "awake", 1)
            await page.click("[aria-label='Pin text']")
            await page.shows("#ask-length option", "for an hour")
            await page.script("document.getElementById('ask-length').value = '1h'")
            await page.click("#ask-yes")
            await page.shows("[data-engine=text] b", "pinned", 2)
            await page.shows("[data-engine=text] .small", "by operator (127.0.0.1), for 60 min")
            await page.click("[aria-label='Unpin text']")
            await page.click("#ask-yes")
            await page.shows("[data-engine=text] button", "Pin", 2)
            assert door.app.pool.current["text"].sleepers.held() == ()
            await page.shows("[data-engine=text] .small", "1 wake, one takes about")
            assert await page.complaints() == []

    asyncio.run(scenario())


def test_who_is_on_the_gpu_and_who_would_go_for_whom(browser: webdriver.Chrome) -> None:
    each = {"gpu": {"devices": [0], "utilization": 0.6, "weights_gib": 20}}
    tables = {"text": {**each, "sleep": {"pinned": False}}, "ocr": each}
    pool = "[gpu]\nmemory_gib = 80\nstay_factor = 0.0\n"

    async def scenario() -> None:
        async with (
            house("text", "ocr", tables=tables, pool=pool, settle=False) as door,
            seen_in(browser, door) as page,
        ):
            await page.open()
            await door.settled("awake", "text")
            await door.until(lambda: door.state("ocr") == "awake" or door.state("text") == "awake")
            await door.put_to_sleep(1, "ocr")
            await page.shows(".gpus tr", "asleep, level 1", 3)
            await page.shows(".gpus .why", "if asked for: sends text to sleep")
            told = "document.querySelector('.gpu .bar').ariaLabel"
            assert "On GPU 0: text 49" in await page.script(f"return {told}")
            assert (await door.ask("ocr")).status == 200
            await page.shows(".gpus .why", "if asked for: sends ocr to sleep", 3)

    asyncio.run(scenario())
