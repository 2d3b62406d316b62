"""The library: its example runs as it is printed, its names are there, and it loads little."""

import ast
import asyncio
import contextlib
import io
import random
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import FunctionType

import pytest

import tornado_frontdoor
from tornado_frontdoor import AdmissionLimits, GateDriver, Reason, Refused, UpstreamKey, slot

ROOT = Path(__file__).parents[2]
HEAVY = ("tornado", "pycurl", "marshmallow", "rich", "simpy", "numpy", "scipy", "matplotlib")


def python(code: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=60,
    )
    return done.stdout


def test_the_example_serves_two_at_once_and_refuses_who_finds_the_queue_full():
    text = tornado_frontdoor.__doc__ or ""
    found = re.search(r"^ {4}import asyncio.*^ {4}asyncio\.run.*?$", text, re.MULTILINE | re.DOTALL)
    assert found
    said = python(textwrap.dedent(found[0])).splitlines()
    assert [line.split(": ")[1] for line in said[:6]] == ["served"] * 6
    assert len(said) == 8
    assert all("2 slots of gpu are taken" in line for line in said[6:])


def blocks() -> dict[str, str]:
    """Return every Python block of the pages, by its page and number."""
    pages = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    return {
        f"{page.relative_to(ROOT)} {number}": found[1]
        for page in pages
        for number, found in enumerate(
            re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        )
    }


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=name, marks=[pytest.mark.slow] if "simulator" in code else [])
        for name, code in blocks().items()
    ],
)
def test_a_python_block_of_the_pages_runs_as_it_is_printed(code: str) -> None:
    code = code.replace("20_000", "500").replace("1_000", "50").replace("20,", "2,")
    made = compile(code, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(io.StringIO()):

        async def run() -> None:
            waiting = FunctionType(made, {})()
            if waiting is not None:
                await waiting

        asyncio.run(run())


def test_there_are_python_blocks_to_run() -> None:
    assert {"README.md 0", "docs/simulation.md 0"} <= set(blocks())


def test_every_public_name_is_there_and_stands_in_the_docstring():
    for name in tornado_frontdoor.__all__:
        assert getattr(tornado_frontdoor, name) is not None
        assert name in dir(tornado_frontdoor)
        assert name == "__version__" or f"`{name}`" in (tornado_frontdoor.__doc__ or "")


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        _ = tornado_frontdoor.nothing_of_ours


def test_the_package_is_marked_as_typed():
    assert (Path(tornado_frontdoor.__file__).parent / "py.typed").is_file()


def test_importing_the_library_loads_nothing_heavy_and_takes_little():
    said = python(
        "import sys, time; began = time.process_time(); import tornado_frontdoor;"
        "spent = time.process_time() - began;"
        f"print(spent, *(m for m in {HEAVY} if m in sys.modules))"
    )
    spent_s, *loaded = said.split()
    assert not loaded
    assert float(spent_s) < 0.1


def test_a_gate_in_ones_own_program_needs_neither_the_proxy_nor_its_libraries():
    said = python(
        "import sys; from tornado_frontdoor import GateDriver, slot;"
        f"print(*(m for m in {HEAVY} if m in sys.modules))"
    )
    assert not said.split()


# A slot for the length of a block


def gate(cap: int = 1, queue: int = 4, queue_timeout_s: float = 30.0) -> GateDriver:
    limits = AdmissionLimits(cap=cap, queue=queue, queue_timeout_s=queue_timeout_s)
    return GateDriver(UpstreamKey("one"), limits, random.Random(1))


def test_never_more_than_the_cap_are_inside_and_all_of_the_queue_are_served():
    async def scene() -> None:
        driver, inside, most = gate(cap=2, queue=20), 0, 0

        async def one() -> None:
            nonlocal inside, most
            async with slot(driver):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(one() for _ in range(20)))
        assert most == 2
        assert (driver.gate.in_flight, driver.gate.queued) == (0, 0)

    asyncio.run(scene())


def test_who_waits_too_long_is_refused_with_the_reason_and_when_to_come_back():
    async def scene() -> None:
        driver = gate(queue_timeout_s=0.02)
        async with slot(driver):
            with pytest.raises(Refused) as refused:
                async with slot(driver):
                    pytest.fail("two inside a cap of one")
        assert refused.value.refusal.reason is Reason.QUEUE_TIMEOUT
        assert refused.value.refusal.retry_after_s
        assert (driver.gate.in_flight, driver.gate.queued) == (0, 0)

    asyncio.run(scene())


@pytest.mark.parametrize("turns", range(4))
def test_a_task_cancelled_at_any_turn_around_its_grant_leaves_no_slot_behind(turns: int):
    async def scene() -> None:
        driver = gate()

        async def one() -> None:
            async with slot(driver):
                await asyncio.sleep(30)

        async with slot(driver):
            waiting = asyncio.create_task(one())  # noqa: TID251 - kept
            await asyncio.sleep(0)
            assert driver.gate.queued == 1
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        assert (driver.gate.in_flight, driver.gate.queued) == (0, 0)

    asyncio.run(scene())


def test_a_block_that_fails_gives_its_slot_back():
    async def scene() -> None:
        driver = gate()
        with pytest.raises(ZeroDivisionError):
            async with slot(driver):
                _ = 1 / 0
        async with slot(driver) as admitted:
            assert admitted.waited_s == 0

    asyncio.run(scene())
