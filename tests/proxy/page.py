"""The page in a real Chromium, driven from a thread so that the front door goes on meanwhile."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from doorway import Doorway
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait
from stopwatch import PATIENCE_S

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="NO CHROMIUM AND CHROMEDRIVER HERE: the page is not tested"
)


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Run a browser without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for switch in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page of a front door."""

    def __init__(self, browser: webdriver.Chrome, door: Doorway) -> None:
        self.browser = browser
        self.url = f"http://127.0.0.1:{door.admin_port}/"

    async def run(self, act: Callable[[webdriver.Chrome], Any]) -> Any:
        return await asyncio.to_thread(act, self.browser)

    async def open(self, view: str = "engines") -> None:
        def act(browser: webdriver.Chrome) -> None:
            browser.get("about:blank")
            browser.get(f"{self.url}#/{view}")

        await self.run(act)
        await self.shows("#live", "live")

    async def shows(self, selector: str, text: str, within_s: float = PATIENCE_S) -> None:
        look = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".some((e) => e.textContent.includes(arguments[1]))"
        )

        def there(browser: webdriver.Chrome) -> bool:
            return bool(browser.execute_script(look, selector, text))

        await self.run(lambda browser: WebDriverWait(browser, within_s, 0.05).until(there))

    async def script(self, script: str) -> Any:
        return await self.run(lambda browser: browser.execute_script(script))

    async def emulate(self, what: str, **how: object) -> None:
        await self.run(lambda browser: browser.execute_cdp_cmd(f"Emulation.{what}", how))

    async def click(self, selector: str) -> None:
        click = "document.querySelector(arguments[0]).click()"  # rows are drawn anew at any time
        await self.run(lambda browser: browser.execute_script(click, selector))

    async def complaints(self) -> list[str]:
        logged = await self.run(lambda browser: browser.get_log("browser"))
        return [one["message"] for one in logged if one["level"] == "SEVERE"]


@asynccontextmanager
async def seen_in(browser: webdriver.Chrome, door: Doorway) -> AsyncIterator[Page]:
    """Yield the page of a front door; it is left before that ends."""
    page = Page(browser, door)
    try:
        yield page
    finally:
        await page.run(lambda b: b.get("about:blank"))
