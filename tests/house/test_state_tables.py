"""The page of state tables is what the code says, and the code says something of each pair."""

import importlib.util
from pathlib import Path

from tornado_frontdoor.core.decisions import EngineState
from tornado_frontdoor.core.request import TicketState
from tornado_frontdoor.core.wake.machine import TABLE

ROOT = Path(__file__).resolve().parents[2]


def drawn() -> str:
    path = ROOT / "docs" / "tools" / "state_tables.py"
    spec = importlib.util.spec_from_file_location("state_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.page())


def test_the_page_is_the_one_that_the_code_draws() -> None:
    page = (ROOT / "docs" / "state-machines.md").read_text(encoding="utf-8")
    assert page == drawn(), "PYTHONPATH=. .venv/bin/python docs/tools/state_tables.py > docs/…"


def test_every_state_of_both_machines_and_every_arrow_is_on_it() -> None:
    page = drawn()
    for state in TicketState:
        assert f"| {state.name} |" in page
    for state in EngineState:
        for event, target in TABLE[state].items():
            row = f"| `{state.value}` | `{event.name.lower()}` | `{target.value}` |"
            assert row in page


def test_the_surprising_arrows_come_with_their_reasons() -> None:
    """What stands above or beside an arrow in the code stands beside it on the page."""
    rows = [line for line in drawn().splitlines() if line.startswith("| `")]
    (row,) = [row for row in rows if row.startswith("| `offloaded` | `found_doubtful`")]
    assert "without loading its weights" in row
    (row,) = [row for row in rows if row.startswith("| `sleeping` | `found_awake`")]
    assert "out of band" in row.lower()
