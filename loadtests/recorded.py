"""Requests of a table, each when it is due and as large as it says: `--trace FILE`.

The table has `at_s`, and `prompt_tokens` and `output_tokens`, or `hold_s`. For a stand-in with
a service profile a token is one unit of work, and a byte of the prompt is a token of it.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from locust.env import Environment

from loadtests.lib.dialects import ClientCall
from loadtests.lib.users import Open

TOKEN_MS = 1000.0
"""One unit of work for each token: how long that takes is the engine's affair."""


class Recorded(Open):
    """The one source: the rows are in order."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._rows = self._read(Path(self.options.trace))

    def arrive(self, due_s: float) -> None:
        """Make the next request of the table."""
        row = next(self._rows)
        tokens = int(float(row.get("output_tokens") or 0))
        self.ask(
            ClientCall(
                surface="openai",
                model="reasoning",
                hold_s=float(row.get("hold_s") or 0.0),
                tokens=tokens,
                gap_ms=TOKEN_MS if tokens else 0.0,
                prompt_bytes=int(float(row.get("prompt_tokens") or 0)),
            ),
            due_s,
        )

    @staticmethod
    def _read(path: Path) -> Iterator[dict[str, str]]:
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)
