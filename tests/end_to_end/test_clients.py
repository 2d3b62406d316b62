"""The heart of the table of real clients, with those that are installed for tests anyway."""

import asyncio
import sys
from pathlib import Path

import pytest

from tryouts.client_table import CLIENTS, COLUMNS, PROGRAMS, Tried, TriedClient, judge, page
from tryouts.clients import cell

OFTEN = (("refused", "anthropic_python.py"), ("dies", "openai_python.py"))
"""Each of them starts for seconds; what SDKs are told is also in the tests of each."""
INSTALLED = [
    client
    for client in CLIENTS
    if client.program in ("openai_python.py", "anthropic_python.py") and "<" not in str(client)
]


@pytest.mark.parametrize(
    ("column", "client"),
    [
        pytest.param(
            column,
            client,
            marks=() if (column, client.program) in OFTEN else pytest.mark.slow,
            id=f"{column}-{client.name}",
        )
        for column in COLUMNS
        for client in INSTALLED
    ],
)
def test_a_client_gets_what_the_table_says(client: TriedClient, column: str) -> None:
    command = [sys.executable, str(PROGRAMS / client.program)]
    assert asyncio.run(cell(client, command, column, None, "reasoning")) == ""


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("plain", {"said": "The quick"}),
        ("plain", {"error": "APIError: 500"}),
        ("stream", {"said": "The quick brown fox.", "pieces": 1}),
        ("tools", {"call": ["weather", {"city": "Rome"}]}),
        ("structured", {"value": {"city": "Oslo"}}),
        ("refused", {"error": "RateLimitError: 503"}),
        ("unknown", {"said": "The quick brown fox."}),
        ("unknown", {"error": "NotFoundError: 404"}),
        ("dies", {"said": "The quick ", "pieces": 2}),
    ],
)
def test_what_is_wrong_is_not_called_right(column: str, told: dict[str, object]) -> None:
    assert judge(column, told, real=False)


def test_the_page_has_a_row_for_each_client_and_a_note_for_what_is_wrong() -> None:
    cells = {**dict.fromkeys(COLUMNS, ""), "dies": "takes the part for the whole", "tools": None}
    text = page([Tried("a client", "1.2", cells)], "the stand-in")
    assert "| a client 1.2 | yes | yes |  | yes | yes | yes | yes | yes | no (1) |" in text
    assert "1. a client, dies: takes the part for the whole" in text


def test_the_table_of_the_docs_has_a_row_for_each_client_and_all_columns() -> None:
    text = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert any(line.endswith(f"| {' | '.join(COLUMNS)} |") for line in table)
    missing = [
        one.name for one in CLIENTS if not any(row.startswith(f"| {one.name} ") for row in table)
    ]
    assert not missing
    explained = [name for name in COLUMNS if f"| `{name}` | " in text]
    assert explained == list(COLUMNS)
