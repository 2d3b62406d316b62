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
            await page.shows("[data-engine=text] .small", "1 wakes")
            assert await page.complaints() == []

    asyncio.run(scenario())
