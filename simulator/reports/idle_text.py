"""What idle times cost and save, as `tune` tells it: in a sentence, a table and a document."""

from collections.abc import Iterator

from simulator.reports.terminal import number
from simulator.study.idle_times import DAY_H, gpu_hours, host_hours, idle_text
from simulator.study.trials import IdleRow
from simulator.study.tune import Tuned

_WAKES = ("wakes_from_sleeping_per_h", "wakes_from_offloaded_per_h")


def idle_reasons(tuned: Tuned) -> Iterator[str]:
    """Yield why these idle times, where they were looked through."""
    chosen = next((row for row in tuned.idle if row.chosen), None)
    if chosen is None:
        return
    yield (
        f"Idle times: {idle_text(chosen.idle_s)}. Of those with which some limits keep all they "
        f"hold the GPU for the fewest hours, {_numbers(chosen)}; then its weights in the host's "
        "memory for the fewest; then they are the longest. A quarter of an hour a day makes no "
        "difference."
    )
    first = chosen.idle_s[0]
    if (
        first
        and len(tuned.idle) > 1
        and min(filter(None, (row.idle_s[0] for row in tuned.idle))) == first
    ):
        yield f"{first:g} s is the shortest that was looked through; --idle looks further."
    if beside := [_beside(row) for row in tuned.idle if not row.chosen]:
        yield f"Beside them: {'; '.join(beside)}."


def _beside(row: IdleRow) -> str:
    if row.kept:
        return f"{idle_text(row.idle_s)}: {_numbers(row)}"
    binding = row.trial.binding
    missed = "" if binding is None else f", it misses {binding.metric}"
    return f"{idle_text(row.idle_s)} is out{missed}: {_numbers(row)}"


def _numbers(row: IdleRow) -> str:
    wait_s = row.trial.value("wait_p95_s")
    return (
        f"{_gpu_h(row):.3g} h a day with {_starts(row):.3g} cold starts, p95 wait "
        f"{number('wait_p95_s', wait_s)}"
    )


def idle_table(tuned: Tuned) -> Iterator[str]:
    """Yield the idle times beside each other, with the recommended limits, today."""
    if not tuned.idle:
        return
    yield "and idle times, today, by the day:"
    heads = ("GPU held", "RAM held", "wakes", "met cold", "wait p95", "lost", "kept")
    yield f"{'':>1} {'level 1':>8} {'level 2':>8}" + "".join(f" {head:>10}" for head in heads)
    for row in tuned.idle:
        cells = (
            *(f"{hours:.2f} h" for hours in (_gpu_h(row), _host_h(row))),
            f"{_starts(row):.3g}",
            *(number(name, row.trial.value(name)) for name in _SHARES),
            "yes" if row.kept else "no",
        )
        times = "".join(f" {f'{one:g} s' if one else 'never':>8}" for one in row.idle_s)
        yield f"{'>' if row.chosen else ' '}{times}" + "".join(f" {cell:>10}" for cell in cells)


_SHARES = ("cold_share", "wait_p95_s", "lost_share")


def idle_document(tuned: Tuned) -> list[dict[str, object]]:
    """Return the same for scripts."""
    return [
        {
            "idle_sleep_s": row.idle_s[0],
            "idle_offload_s": row.idle_s[1],
            "recommended": row.chosen,
            "keeps_limits": row.kept,
            "gpu_hours_per_day": _gpu_h(row),
            "host_memory_hours_per_day": _host_h(row),
            "cold_starts_per_day": _starts(row),
            **{name: row.trial.value(name) for name in _SHARES},
        }
        for row in tuned.idle
    ]


def _gpu_h(row: IdleRow) -> float:
    assert row.trial.today is not None
    return gpu_hours(row.trial.today)


def _host_h(row: IdleRow) -> float:
    assert row.trial.today is not None
    return host_hours(row.trial.today)


def _starts(row: IdleRow) -> float:
    return DAY_H * sum(row.trial.value(name) or 0.0 for name in _WAKES)
