"""What people see at the end of a run: one table, the laws, and what was predicted."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadtests.harness.laws import Finding
from loadtests.harness.prediction import Row

SHOWN = ("waited", "first_token", "visible", "gap", "total", "added", "lag")


def summary_table(title: str, summary: Mapping[str, Any]) -> Table:
    """Return the table of all groups: how they ended, and exact percentiles in milliseconds."""
    table = Table(title=title, title_justify="left")
    for heading in ("requests", "ended", "value"):
        table.add_column(heading)
    for heading in ("n", "p50 ms", "p95 ms", "p99 ms", "max ms"):
        table.add_column(heading, justify="right")
    groups = dict.fromkeys([*summary["outcomes"], *summary["exact"]])
    for group in groups:
        outcomes = summary["outcomes"].get(group, {})
        ended = "\n".join(f"{count} x {outcome}" for outcome, count in sorted(outcomes.items()))
        values = summary["exact"].get(group, {})
        rows = [(name, values[name]) for name in SHOWN if values.get(name, {}).get("count")]
        columns = [
            "\n".join(name for name, _ in rows),
            "\n".join(str(digest["count"]) for _, digest in rows),
            *(
                "\n".join(f"{digest[key] * 1000:.1f}" for _, digest in rows)
                for key in ("p50", "p95", "p99", "max")
            ),
        ]
        table.add_row(escape(group), escape(ended), *columns, end_section=True)
    return table


def show_laws(console: Console, laws: Iterable[Finding]) -> None:
    """Print each law and whether it held."""
    for law in laws:
        mark = "[green]ok  [/]" if law.holds else "[bold red]FAIL[/]"
        console.print(f"{mark} {escape(law.text)}", highlight=False)


def prediction_table(rows: Iterable[Row]) -> Table:
    """Return the table of measured against predicted."""
    table = Table(title="measured against frontdoor simulate", title_justify="left")
    table.add_column("metric")
    headings = (
        "measured",
        "predicted",
        "standard error",
        "difference in errors",
        "exact, for ever",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        numbers = (row.measured, row.predicted, row.error)
        exact = "" if row.exact is None else f"{row.exact:.6f}"
        cells = (f"{number:.6f}" for number in numbers)
        table.add_row(row.name, *cells, f"{row.errors:+.2f}", exact)
    return table
