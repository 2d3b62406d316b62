"""Results for people: tables and bars in the terminal, and what to keep in mind beside them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from simulator.exact.known import exact_metrics
from simulator.model.records import Metrics
from simulator.model.scenario import Scenario
from simulator.reports.json_document import parameters
from simulator.study.capacity import held_mean, kv_binds_at, load_of
from simulator.study.experiment import Result
from simulator.study.request import StudyRequest
from simulator.study.statistics import Estimate
from simulator.study.sweep import Choice, Point
from simulator.traffic.workload import Replay

BAR = 40
SHARES = (
    ("served", "served_share", "green"),
    ("refused: queue full", "rejected_share", "red"),
    ("refused: waited in vain", "timed_out_share", "yellow"),
    ("left", "left_share", "magenta"),
)
ROWS = (
    ("served", "served_share"),
    ("refused: queue full", "rejected_share"),
    ("refused: waited in vain", "timed_out_share"),
    ("lost in all", "lost_share"),
    ("served per second", "goodput_per_s"),
    ("slots taken (of the cap)", "utilization"),
    ("queue, mean length", "queue_length_mean"),
    ("wait of the served, mean", "wait_mean_s"),
    ("  p50", "wait_p50_s"),
    ("  p95", "wait_p95_s"),
    ("  p99", "wait_p99_s"),
    ("latency of the served, p50", "latency_p50_s"),
    ("  p95", "latency_p95_s"),
    ("  p99", "latency_p99_s"),
    ("latency, lost ones as infinite, p95", "latency_of_all_p95_s"),
    ("hidden wait in the engine, mean", "hidden_wait_mean_s"),
    ("KV cache taken, mean", "kv_usage_mean"),
    ("  at most", "kv_usage_max"),
    ("preemptions a request", "preemptions_per_request"),
    ("first token, p50", "first_token_p50_s"),
    ("  p95", "first_token_p95_s"),
    ("  p99", "first_token_p99_s"),
    ("each further token, p50", "tpot_p50_s"),
    ("  p95", "tpot_p95_s"),
    ("got what each is to get", "kept_share"),
    ("  per second", "kept_per_s"),
    ("cost of a thousand served", "cost_per_thousand"),
    ("in flight, highest", "in_flight_max"),
    ("queue, longest", "queue_depth_max"),
    ("attempts per request", "attempts_per_request"),
    ("left", "left_share"),
    ("engine awake", "awake_share"),
    ("  asleep at level 1", "sleeping_share"),
    ("  offloaded at level 2", "offloaded_share"),
    ("  falling or waking", "in_transition_share"),
    ("wakes from level 1 per hour", "wakes_from_sleeping_per_h"),
    ("wakes from level 2 per hour", "wakes_from_offloaded_per_h"),
    ("met an engine not awake", "cold_share"),
)


def number(name: str, value: float | None) -> str:
    """Return a metric's value with its unit."""
    if value is None:
        return "-"
    if name.endswith("_share") or name == "utilization" or name.startswith("kv_usage_"):
        return f"{100 * value:.2f} %"
    if name.endswith("_per_s"):
        return f"{value:.3f} /s"
    if name.endswith("_s"):
        return f"{value:.3f} s"
    return f"{value:.4g}"


def interval(name: str, value: Estimate) -> str:
    """Return the half-width of a metric's interval with its unit, or its ends where lopsided."""
    if value.ends is not None:
        low, high = (number(name, end) for end in value.ends)
        return f"{low.removesuffix(' s').removesuffix(' %')} to {high}"
    return "" if value.ci95 is None else f"± {number(name, value.ci95)}"


def simulate_page(
    console: Console, command: StudyRequest, result: Result, stress: Sequence[tuple[str, Result]]
) -> None:
    """Print what `simulate` prints for people."""
    scenario = command.scenarios[0]
    console.print(_parameters(scenario, command))
    exact = exact_metrics(scenario)
    table = Table(title="What came of it", title_justify="left", show_edge=False)
    for column in ("", "mean", "95 %", *(("exact",) if exact else ())):
        table.add_column(column, justify="left" if not column else "right")
    estimates = result.estimates()
    for label, name in ROWS:
        if name in estimates:
            value = estimates[name]
            cells = [label, number(name, value.mean), interval(name, value)]
            if exact:
                cells.append(number(name, exact[name]) if name in exact else "")
            table.add_row(*cells)
    console.print(table)
    if scenario.keys:
        console.print()
        console.print(_keys(scenario, estimates))
    console.print()
    console.print(_bars(estimates))
    if scenario.terminating:
        console.print(_timeline(result))
    for label, stressed in stress:
        console.print(f"{label}: {_summary(stressed)}", highlight=False)
    for note in notes(scenario, command):
        console.print(f"Note: {note}", highlight=False)


def _parameters(scenario: Scenario, command: StudyRequest) -> Table:
    table = Table(title="Parameters", title_justify="left", show_header=False, show_edge=False)
    used = parameters(scenario, command.traffic)
    used |= {"seed": command.plan.seed, "replications": command.plan.replications}
    used["driver"] = command.plan.driver
    names = [name for name, value in used.items() if value is not None]
    half = -(-len(names) // 2)
    for at in range(half):
        row: list[str] = []
        for name in (names[at], *names[at + half : at + half + 1]):
            row += [name, _value(used[name])]
        table.add_row(*row)
    return table


def _value(value: object) -> str:
    if isinstance(value, list):
        return ",".join(_value(part) for part in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _keys(scenario: Scenario, estimates: Mapping[str, Estimate]) -> Table:
    table = Table(title="By key", title_justify="left", show_edge=False)
    for column in ("", *("served", "95 %", "wait, mean", "95 %", "wait, p95", "95 %")):
        table.add_column(column, justify="right" if column else "left")
    for key in scenario.keys:
        cells: list[str] = []
        for name in ("served_share", "wait_mean_s", "wait_p95_s"):
            value = estimates[f"{name}[{key.name}]"]
            cells += [number(name, value.mean), interval(name, value)]
        table.add_row(key.name, *cells)
    return table


def _bars(estimates: Mapping[str, Estimate]) -> Table:
    table = Table(title="How requests ended", title_justify="left", show_header=False)
    table.show_edge = False
    for label, name, style in SHARES:
        share = estimates[name].mean or 0.0
        bar = Text("█" * round(BAR * share) or ("▏" if share else ""), style=style)
        table.add_row(label, number(name, share), bar)
    return table


def _timeline(result: Result) -> Table:
    table = Table(title="When (first replication)", title_justify="left", show_edge=False)
    for column in ("at", "how", "requests"):
        table.add_column(column, justify="right" if column != "how" else "left")
    timeline = result.replications[0].timeline
    for at_s, outcome, count in timeline[:30]:
        table.add_row(f"{at_s:.3f} s", outcome, str(count))
    if len(timeline) > 30:
        table.add_row("...", f"{len(timeline) - 30} more", "")
    return table


def _summary(result: Result) -> str:
    parts = (("lost", "lost_share"), ("wait p95", "wait_p95_s"), ("wait p99", "wait_p99_s"))
    return ", ".join(f"{label} {number(name, result.estimate(name).mean)}" for label, name in parts)


def as_it_was(observed: Metrics) -> str:
    """Return in a line what a log says of itself."""
    names = (("lost", "lost_share"), ("wait p95", "wait_p95_s"), ("wait p99", "wait_p99_s"))
    parts = (f"{label} {number(name, observed.get(name))}" for label, name in names)
    return f"As it was in the log: {', '.join(parts)}"


def notes(scenario: Scenario, command: StudyRequest) -> Iterator[str]:
    """Yield what a reader should keep in mind."""
    if verdict := load_of(scenario).verdict(scenario.cap):
        yield f"{verdict}."
    service = scenario.service
    slots = scenario.replicas * scenario.slots
    if scenario.cap > slots:
        yield (
            f"the cap of {scenario.cap} is above the engine's {slots} slots; the rest waits inside "
            "the engine, where nobody can see or refuse it (hidden wait)."
        )
    yield from memory_notes(scenario)
    if service.profile is not None:
        yield f"service speed: {service.profile.source}. Calibrate before use."
    elif service.source:
        yield f"service speed: {service.source}."
    if service.slowdown_error:
        yield (
            f"fitted to the log: n together run at 1 / (1 + {service.slowdown:.3g} (n - 1)), "
            f"± {1.96 * service.slowdown_error:.2g}; the intervals have that in them."
        )
    if scenario.cap > service.seen_batch + 0.5:
        yield (
            f"the log never had more than {service.seen_batch:.0f} in service: at cap "
            f"{scenario.cap} the engine's speed is a guess."
        )
    if isinstance(scenario.arrivals, Replay):
        yield _replay_note(scenario.arrivals)
    if command.plan.replications == 1:
        yield (
            "one replication: there are no intervals."
            if scenario.random
            else "nothing in this is random: one replication says it all."
        )
    yield (
        "intervals are sampling error only; "
        "docs/simulation.md says how the model differs from an engine."
    )


def memory_notes(scenario: Scenario) -> Iterator[str]:
    """Yield from which cap on memory rather than slots says how many run."""
    binds = kv_binds_at(scenario)
    if binds is None:
        return
    profile = scenario.service.profile
    assert profile is not None
    room = profile.details.kv_tokens * scenario.replicas
    yield (
        f"KV memory binds at cap {binds}: a running request of this traffic holds "
        f"{held_mean(scenario):,.0f} tokens on average, of {room:,.0f}. From there on more slots "
        "serve no more; the rest is preempted or waits inside the engine."
    )


def _replay_note(arrivals: Replay) -> str:
    how = []
    if arrivals.thin < 1:
        how.append(f"thinned to {arrivals.thin:g} at random (keeps the time scale of bursts)")
    if arrivals.stretch != 1:
        how.append(f"stretched {arrivals.stretch:g} times (keeps the CV of gaps)")
    if arrivals.bootstrap_s:
        how.append(f"reordered in blocks of {arrivals.bootstrap_s:g} s")
    if not how:
        return (
            "the recording is one sample path; its intervals show only the randomness of service. "
            "Use --thin or --bootstrap for others like it."
        )
    return f"the recording was {', '.join(how)}."


# Sweeps

SWEEP_COLUMNS = (
    ("lost", "lost_share"),
    ("full", "rejected_share"),
    ("timed out", "timed_out_share"),
    ("slots taken", "utilization"),
    ("wait mean", "wait_mean_s"),
    ("wait p95", "wait_p95_s"),
    ("wait p99", "wait_p99_s"),
    ("latency p95", "latency_p95_s"),
)


def sweep_page(
    console: Console, command: StudyRequest, choice: Choice, observed: Metrics | None = None
) -> None:
    """Print what `sweep` and `replay` print for people."""
    used = parameters(command.scenarios[0], command.traffic)
    shown = {
        name: value
        for name, value in used.items()
        if value is not None and name not in {"cap", "queue", "timeout_s"}
    }
    shown |= {"seed": command.plan.seed, "replications": command.plan.replications}
    told = "  ".join(f"{name} {_value(value)}" for name, value in shown.items())
    console.print(told, highlight=False, soft_wrap=False)
    table = Table(show_edge=False)
    for column in ("cap", "queue", "timeout"):
        table.add_column(column, justify="right")
    columns = _columns(command)
    for label, name in columns:
        table.add_column(label, justify="right", style="bold" if name in command.slo else "")
    table.add_column("")
    if observed is not None:
        cells = [number(name, observed.get(name)) for _, name in columns]
        table.add_row("as", "it", "was", *cells, "", style="cyan")
    for point in choice.points:
        table.add_row(
            *_point_cells(point, choice, columns), style="" if point.keeps_limits else "dim"
        )
    console.print(table)
    console.print("P: in the Pareto set of lost share and p95 latency.", highlight=False)
    console.print("~: cannot be told apart from the recommended point (>).", highlight=False)
    if any(load_of(point.scenario).overloaded for point in choice.points):
        console.print("!: more is offered than this cap can serve.", highlight=False)
    if not all(point.allowed for point in choice.points):
        console.print("x: not below the engine's slots; check refuses it.", highlight=False)
    console.print(_verdict(choice), highlight=False)
    best = choice.recommended.scenario if choice.recommended else command.scenarios[-1]
    for note in notes(best, command):
        console.print(f"Note: {note}", highlight=False)


def _columns(command: StudyRequest) -> list[tuple[str, str]]:
    """Return the usual columns, and one for each further metric that has a limit."""
    usual = {name for _, name in SWEEP_COLUMNS}
    further = [name for name in command.slo if name not in usual]
    labels = {name: label for label, name in ROWS if not label.startswith(" ")}
    more = [(labels.get(name, name), name) for name in further]
    shown = {name for _, name in (*SWEEP_COLUMNS, *more)}
    asked = [each for each in asked_columns(command) if each[1] not in shown]
    return [*SWEEP_COLUMNS, *more, *asked]


def asked_columns(command: StudyRequest) -> list[tuple[str, str]]:
    """Return the columns that are there because an option asked for what they show."""
    base = command.scenarios[0]
    columns = []
    if (profile := base.service.profile) is not None and profile.details.paged:
        columns += [("hidden wait", "hidden_wait_mean_s"), ("preempted", "preemptions_per_request")]
    if base.gpu_cost_per_h:
        columns.append(("cost/1000", "cost_per_thousand"))
    return columns


def _point_cells(point: Point, choice: Choice, columns: Sequence[tuple[str, str]]) -> list[str]:
    scenario = point.scenario
    timeout = "none" if scenario.timeout_s == inf else f"{scenario.timeout_s:g} s"
    means = [number(name, point.result.estimate(name).mean) for _, name in columns]
    marks = "".join(
        (
            ">" if point is choice.recommended else "",
            "P" if point.pareto else "",
            "~" if point.alike else "",
            "!" if load_of(scenario).overloaded else "",
            "x" if not point.allowed else "",
        )
    )
    return [str(scenario.cap), str(scenario.queue), timeout, *means, marks]


def _verdict(choice: Choice) -> str:
    if choice.recommended is None:
        return f"Recommended: none; {choice.why}."
    scenario = choice.recommended.scenario
    timeout = "none" if scenario.timeout_s == inf else f"{scenario.timeout_s:g} s"
    sure = "" if choice.confidence is None else f" ({choice.confidence:.1%} sure)"
    return (
        f"Recommended: cap {scenario.cap}, queue {scenario.queue}, timeout {timeout}{sure}; "
        f"{choice.why}."
    )


# Progress

OnProgress = Callable[[int, int], None]


@contextmanager
def progress(console: Console, what: str) -> Iterator[OnProgress | None]:
    """Give a function that moves a bar, or None where nobody would see it."""
    if not console.is_terminal:
        yield None
        return
    columns: tuple[Any, ...] = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def on_progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield on_progress
