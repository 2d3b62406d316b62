"""Pictures of the page for eyes: every view, light and dark, wide and as on a phone.

    FRONTDOOR_PICTURES=FOLDER pytest -m slow tests/end_to_end/test_page_pictures.py

keeps them; the one in docs/pictures is `engines-light.png`.
"""

import asyncio
import json
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
from naps import chat_with, house
from page import Page, chromium, needs_chromium, seen_in
from selenium import webdriver

from tornado_frontdoor.proxy.admin.history import FILE

pytestmark = [needs_chromium, pytest.mark.slow]

CHAT = "/v1/chat/completions"
VIEWS = ("engines", "requests", "history", "whatif", "config", "log")
POOL = "[gpu]\nmemory_gib = 80\nlimit = 0.88\n\n[host]\nram_gib = 96\n"
LEAST_BYTES = 12_000
"""Of a picture that shows something."""


def gpu(utilization: float, weights_gib: float, **sleep: object) -> dict[str, Any]:
    room = {"devices": [0], "utilization": utilization, "weights_gib": weights_gib}
    return {"gpu": room, "sleep": sleep}


TABLES: dict[str, Any] = {
    "reasoning": {
        "awake": True,
        "admission": {"slots": 8, "cap": 6, "queue": 8, "queue_timeout_s": 300},
    },
    "chat": gpu(0.45, 30),
    "code": gpu(0.40, 26),
    "embed": gpu(0.10, 6, pinned=True),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


def write_history(folder: Path) -> None:
    """Write down four hours in which more and less came, with ten minutes that nobody saw."""
    now = time_ns() // 60_000_000_000
    with closing(sqlite3.connect(folder / FILE)) as store, store:
        store.execute("create table minutes (minute integer primary key, j)")
        for ago in [*range(240, 100, -1), *range(90, 0, -1)]:
            arrivals = round(40 + 25 * math.sin(ago / 30) + 5 * math.sin(ago * 7))
            refused = max(0, arrivals - 52)
            minute = {"minute": now - ago, "arrivals": arrivals, "left": int(ago % 41 == 0)}
            minute |= {"served": arrivals - refused, "refused": refused, "sleeps": ago % 60 == 7}
            minute["wait_p50_s"] = max(0, arrivals - 35) / 30
            minute["wait_p95_s"] = max(0, arrivals - 30) / 9
            minute |= {"in_flight": min(6, arrivals // 8), "queued": max(0, arrivals // 8 - 4)}
            store.execute(
                "insert into minutes values (?, ?)", (minute["minute"], json.dumps(minute))
            )


async def photograph(page: Page, folder: Path) -> None:
    """Keep a picture of every view."""
    for view in VIEWS:
        await page.click(f"#tab-{view}")
        if view == "requests":
            await page.click("#rows tr:nth-child(2) button")
        for name, width, height, scheme in (
            *(("light", 1280, 900, "light"), ("dark", 1280, 900, "dark")),
            ("phone", 390, 844, "light"),
        ):
            size = {"width": width, "height": height, "deviceScaleFactor": 1}
            await page.emulate("setDeviceMetricsOverride", **size, mobile=width < 500)
            media = [{"name": "prefers-color-scheme", "value": scheme}]
            await page.emulate("setEmulatedMedia", features=media)
            await page.script("return new Promise((done) => setTimeout(done, 300))")
            file = folder / f"{view}-{name}.png"
            await page.run(lambda browser, file=file: browser.save_screenshot(str(file)))
            assert file.stat().st_size > LEAST_BYTES, file
    await page.emulate("clearDeviceMetricsOverride")


def test_every_view_has_its_picture(browser: webdriver.Chrome, tmp_path: Path) -> None:
    kept = os.environ.get("FRONTDOOR_PICTURES")
    folder = Path(kept) if kept else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    state = tmp_path / "state"
    state.mkdir()
    write_history(state)

    async def scenario() -> None:
        async with (
            house(*TABLES, tables=TABLES, pool=POOL, state_dir=state, settle=False) as door,
            seen_in(browser, door) as page,
        ):
            await door.settled("awake", "chat", "embed")
            await door.put_to_sleep(1, "code")
            for _ in range(3):
                await door.ask("reasoning")
            await door.ask("nobody")
            crowd = [await door.begin(CHAT, chat_with("reasoning", hold_s=600)) for _ in range(12)]
            await door.ask("embed")
            await page.open()
            # Its streams keep `chat` from making room for the one that waits.
            crowd.append(await door.begin(CHAT, chat_with("chat", hold_s=600)))
            crowd.append(await door.begin(CHAT, chat_with("code")))
            await page.shows(".gpus .why", "turn 1: waits")
            await photograph(page, folder)
            assert await page.complaints() == []
            for wire in crowd:
                wire.leave()

    asyncio.run(scenario())
