"""What must hold of front doors that share a gate, and the table of what was seen."""

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from loadtests.harness.cluster import CAP, CLIENTS, DOORS, LEASE_S, SLOTS, FaultCase, FaultSeen
from loadtests.harness.laws import Finding

HEADINGS = (
    *("fault", "most", "at one", "late", "slots lost", "held"),
    *("full again", "lack", "served", "refused", "lost", "cut", "moved"),
)
HELD_S = 5.0
"""After a fault is over, slots with nothing in them are given back within this."""


def of_a_fault(case: FaultCase, seen: FaultSeen) -> Iterator[Finding]:
    """Yield the laws of one fault."""
    name, ended = seen.fault, seen.ended
    yield Finding(
        f"{name}: never more than {CAP} at the engines, {SLOTS} at one "
        f"(most {seen.most}, {seen.most_at_one})",
        seen.most <= CAP and seen.most_at_one <= SLOTS,
    )
    yield Finding(
        f"{name}: in order of arrival, over all doors ({len(seen.late_s)} late)", not seen.late_s
    )
    yield Finding(f"{name}: afterwards {seen.lost_slots} slots are lost", not seen.lost_slots)
    held = "are held for good" if seen.held_s is None else f"are held for {seen.held_s:.1f} s"
    leaks = seen.held_s is None or seen.held_s > HELD_S
    yield Finding(f"{name}: at rest slots {held}", not leaks)
    yield Finding(f"{name}: all slots in use again", seen.full_again_s is not None)
    if case.full_s is not None:
        took = "never" if seen.full_again_s is None else f"{seen.full_again_s:.2f} s"
        yield Finding(
            f"{name}: full use again after {took}, at most {case.full_s:g} s",
            seen.full_again_s is not None and seen.full_again_s <= case.full_s,
        )
    yield Finding(f"{name}: {seen.strays} broke off at doors that were not killed", not seen.strays)
    refused = ended.get("refused", 0)
    yield Finding(f"{name}: {refused} refused", case.outage or not refused)
    if seen.killed:
        broke = sum(ended.get(kind, 0) for kind in ("lost", "cut"))
        yield Finding(f"{name}: {broke} were at a door that was killed", broke > 0)
    if case.graceful:
        others = {kind: n for kind, n in ended.items() if kind != "served"}
        yield Finding(f"{name}: nobody refused, moved or cut {others or ''}".strip(), not others)


def table(rows: Sequence[FaultSeen]) -> Table:
    """Return a row for each fault."""
    title = (
        f"{DOORS} front doors, 2 engines with {SLOTS} slots, cap {CAP}, {CLIENTS} clients, "
        f"lease {LEASE_S:g} s"
    )
    made = Table(title=title, title_justify="left")
    made.add_column("fault", no_wrap=True)
    for heading in HEADINGS[1:]:
        made.add_column(heading, justify="right")
    for row in rows:
        made.add_row(*cells(row))
    return made


def cells(row: FaultSeen) -> list[str]:
    """Return what is shown of one fault."""
    return [
        row.fault,
        str(row.most),
        str(row.most_at_one),
        str(len(row.late_s)),
        str(row.lost_slots),
        "for good" if row.held_s is None else f"{row.held_s:.1f} s",
        "never" if row.full_again_s is None else f"{row.full_again_s:.2f} s",
        f"{row.longest_lack_s:.2f} s",
        *(str(row.ended.get(kind, 0)) for kind in ("served", "refused", "lost", "cut", "moved")),
    ]


def markdown(rows: Iterable[FaultSeen]) -> str:
    """Return the table as it stands in docs/cluster.md."""
    head = ["| " + " | ".join(HEADINGS) + " |", "| --- |" + " ---: |" * (len(HEADINGS) - 1)]
    lines = ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join([*head, *lines]) + "\n"
