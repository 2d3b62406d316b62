"""The answer of `tune` as TOML with its reasons as comments, and as a document for scripts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from textwrap import wrap

from simulator.model.scenario import Scenario
from simulator.reports.idle_text import idle_document, idle_reasons, idle_table
from simulator.reports.json_document import (
    load_document,
    metrics_document,
    parameters,
    service_text,
)
from simulator.reports.terminal import asked_columns, interval, memory_notes, notes, number
from simulator.study.capacity import load_of
from simulator.study.limits import LimitCheck, is_least
from simulator.study.request import StudyRequest
from simulator.study.statistics import Estimate
from simulator.study.trials import PeakStretch, Place
from simulator.study.tune import Trial, Tuned, ruled_out_text

SHOWN = (
    ("lost", "lost_share"),
    ("wait p95", "wait_p95_s"),
    ("latency p95", "latency_p95_s"),
    ("slots taken", "utilization"),
)
WIDTH = 96


Value = bool | int | float
Tables = Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Whose tables the answer is for, and what they have that `tune` does not look for."""

    upstream: str
    slots: int | None
    """What is to be written; None: the replicas have theirs."""
    kept: Mapping[str, Value] = field(default_factory=dict)
    """Further keys of its admission table, as they are."""
    tiers: bool = True
    """Whether idle times are to be written, where there are any: else it has them already."""


def tables_of(scenario: Scenario, to: Destination) -> Tables:
    """Return what is to be written, by the upstream's table."""
    idle_s = None if scenario.tiers is None else scenario.tiers.idle_s
    return tables_for(to, (scenario.cap, scenario.queue, scenario.timeout_s), idle_s)


def tables_for(to: Destination, place: Place, idle_s: tuple[float, float] | None) -> Tables:
    """Return the same for a point and idle times, if there are any."""
    cap, queue, timeout_s = place
    admission: dict[str, Value] = {} if to.slots is None else {"slots": to.slots}
    admission |= {"cap": cap, "queue": queue, "queue_timeout_s": timeout_s, **to.kept}
    if "return_places" in admission:  # never more than the queue has
        admission["return_places"] = min(int(admission["return_places"]), queue)
    tables: dict[str, Mapping[str, Value]] = {"admission": admission}
    if idle_s is not None and to.tiers:
        tables["sleep"] = {"idle_sleep_s": idle_s[0], "idle_offload_s": idle_s[1]}
    return tables


def toml_text(tuned: Tuned, command: StudyRequest, to: Destination) -> str:
    """Return the whole answer: one piece of TOML."""
    lines = [*_comments(_verdict(tuned))]
    if tuned.recommended is not None:
        lines += [*table_lines(tuned.recommended, to), ""]
        lines += _comments(reasons(tuned))
        lines += ["#", *(f"# {row}" for row in _table(tuned, command))]
        if tuned.idle:
            lines += ["#", *(f"# {row}" for row in idle_table(tuned))]
    lines += ["#", *_comments(grounds(tuned, command))]
    return "\n".join(lines) + "\n"


def table_lines(trial: Trial, to: Destination) -> list[str]:
    """Return the tables that `frontdoor check` accepts."""
    lines: list[str] = []
    for name, values in tables_of(trial.scenario, to).items():
        lines += [""] if lines else []
        lines.append(f"[upstreams.{key_text(to.upstream)}.{name}]")
        lines += [f"{key} = {value_text(value)}" for key, value in values.items()]
    return lines


def key_text(name: str) -> str:
    """Return a name as TOML has it in a key."""
    plain = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
    return name if plain else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def value_text(value: Value) -> str:
    """Return a value as TOML has it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:.15g}"


def _comments(texts: Iterator[str] | Sequence[str]) -> Iterator[str]:
    for text in texts:
        whole = _UNIT.sub("\\1\u00a0\\2", text)  # a number stays beside its unit
        yield from (f"# {line}".replace("\u00a0", " ") for line in wrap(whole, WIDTH))


_UNIT = re.compile(r"(\d) (%|s\b)")


def _verdict(tuned: Tuned) -> Iterator[str]:
    best = tuned.recommended
    if best is None:
        yield "No cap, queue and timeout keep every limit here."
        if tuned.ruled_out:
            yield f"Overloaded: {ruled_out_text(tuned.ruled_out, tuned.borne)}."
        nearest = max(tuned.trials, key=_nearness, default=None)
        if nearest is not None and (binding := nearest.binding) is not None:
            yield f"The nearest is {_name(nearest)}: {_said(binding)}."
        yield "A faster engine, more replicas, less traffic or wider limits (--slo) would."
        return
    scenario = best.scenario
    yield (
        f"Set cap {scenario.cap}, queue {scenario.queue}, timeout {scenario.timeout_s:g} s: "
        f"{_numbers(best)}."
    )
    if not tuned.holds_with_headroom:
        yield f"It keeps the limits today, but nothing does with {tuned.headroom:.0%} more traffic."


NAMED = 4
"""Rivals that are named; the others are counted."""


def reasons(tuned: Tuned) -> Iterator[str]:
    """Yield why this point, what binds and how sure it is."""
    best = tuned.recommended
    assert best is not None
    assert tuned.confidence is not None
    yield (
        "Why: the smallest cap, then the shortest queue, then the shortest timeout that keep every "
        "limit. A smaller cap leaves slots to aborted requests and to operators."
    )
    yield from idle_reasons(tuned)
    if (binding := best.binding) is not None:
        yield f"What binds: {_said(binding)}."
    sure = f"How sure: {tuned.confidence:.0%} that it is the right point"
    if tuned.uncertain:
        rivals = [_name(trial) for trial in _rivals(tuned)]
        sure += ", so this is UNCERTAIN"
        named = ", ".join(rivals[:NAMED])
        more = f" and {len(rivals) - NAMED} more" if len(rivals) > NAMED else ""
        sure += f"; as good may be {named}{more}" if rivals else "; it may miss a limit"
    yield sure + "."
    if tuned.peak is not None:
        yield _at_the_peak(tuned.peak)
    if tuned.ruled_out:
        yield f"Out: {ruled_out_text(tuned.ruled_out, tuned.borne)}."
    yield from memory_notes(best.scenario)


def _at_the_peak(peak: PeakStretch) -> str:
    lost, wait_s = (_with_interval(name, peak.result.estimate(name)) for _, name in SHOWN[:2])
    return (
        f"In the busiest hour, from {peak.start_s / 3600:.3g} h on with {peak.rate:.3g} requests a "
        f"second: {lost} lost, p95 wait {wait_s} (95 % intervals). "
        "--busiest 3600 judges by that hour alone."
    )


def _with_interval(name: str, value: Estimate) -> str:
    told, beside = number(name, value.mean), interval(name, value)
    if value.ends is not None:
        return f"{told} ({beside})"
    return f"{told} {beside}" if beside else told


def _rivals(tuned: Tuned) -> list[Trial]:
    best = tuned.recommended
    # Smaller ones were looked at with other idle times, where these were looked through.
    trials = (*tuned.trials, *tuned.neighbours) if tuned.idle else tuned.trials
    return [
        trial
        for trial in trials
        if best is not None and _size(trial) < _size(best) and trial.chance > 0.005
    ]


def _size(trial: Trial) -> tuple[int, int, float]:
    return trial.scenario.cap, trial.scenario.queue, trial.scenario.timeout_s


def _said(judgement: LimitCheck) -> str:
    name = judgement.metric
    value = number(name, judgement.mean)
    least = "at least " if is_least(name) else ""
    return f"{name} is {value}, its limit {least}{number(name, judgement.limit)}"


def _nearness(trial: Trial) -> float:
    binding = trial.binding
    return 0.0 if binding is None else binding.slack


def _name(trial: Trial) -> str:
    scenario = trial.scenario
    return f"cap {scenario.cap} queue {scenario.queue} timeout {scenario.timeout_s:g} s"


def _numbers(trial: Trial) -> str:
    def told(*, stressed: bool) -> str:
        lost, wait_s = (trial.value(name, stressed=stressed) for _, name in SHOWN[:2])
        return f"{number('lost_share', lost)} lost, p95 wait {number('wait_p95_s', wait_s)}"

    text = told(stressed=False)
    if trial.stressed is not None:
        text += f"; with the headroom's traffic {told(stressed=True)}"
    return text


def _table(tuned: Tuned, command: StudyRequest) -> Iterator[str]:
    further = [name for name in command.slo if name not in {name for _, name in SHOWN}]
    columns = [*SHOWN, *((name, name) for name in further)]
    columns += [each for each in asked_columns(command) if each[1] not in further]
    assert tuned.recommended is not None
    yield "and its neighbours, today:"
    yield f"{'':>1} {'cap':>4} {'queue':>5} {'timeout':>8}" + "".join(
        f" {label:>{max(11, len(label))}}" for label, _ in columns
    )
    rows = sorted((tuned.recommended, *tuned.neighbours), key=_size)
    for trial in rows:
        scenario = trial.scenario
        mark = ">" if trial.scenario == tuned.recommended.scenario else " "
        cells = ""
        for label, name in columns:
            cells += f" {number(name, trial.value(name)):>{max(11, len(label))}}"
        yield f"{mark} {scenario.cap:>4} {scenario.queue:>5} {scenario.timeout_s:>6g} s{cells}"


def traffic_text(command: StudyRequest) -> str:
    """Return the traffic in a line."""
    told = command.traffic.items()
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in told
        if value
    )


def grounds(tuned: Tuned, command: StudyRequest) -> Iterator[str]:
    """Yield what the answer rests on, and what it cannot know."""
    base = command.scenarios[0]
    service = service_text(base.service)
    yield f"Rests on: {traffic_text(command)}; service {service}; retry {base.retry}."
    world = tuned.recommended.scenario if tuned.recommended else base
    load = load_of(world)
    if load.share is not None:
        yield f"Load: {load.share:.0%} of what cap {world.cap} can serve."
    limits = ", ".join(f"{name}={limit:g}" for name, limit in command.slo.items())
    yield f"Limits: {limits}."
    if command.judged:
        yield f"Judged by {command.judged}."
    yield (
        "Cannot know: traffic that comes another day, an engine slower than the model of it, "
        "failures. Measure after you set it."
    )
    said = set(memory_notes(base)) if tuned.recommended else set()  # among the reasons
    for note in notes(base, command):
        if note not in said:
            yield f"Note: {note}"


def tune_document(tuned: Tuned, command: StudyRequest, to: Destination) -> dict[str, object]:
    """Return what `tune --json` prints."""
    base = command.scenarios[0]
    slots = base.replicas * base.slots
    used = parameters(base, command.traffic)
    for name in ("cap", "queue", "timeout_s"):
        del used[name]
    best = tuned.recommended
    return {
        "parameters": used,
        "seed": command.plan.seed,
        "slo": command.slo,
        "headroom": tuned.headroom,
        "upstream": to.upstream,
        "recommended": None if best is None else {"slots": slots, **_limits(best)},
        "toml": None if best is None else "\n".join(table_lines(best, to)) + "\n",
        "confidence": tuned.confidence,
        "uncertain": tuned.uncertain,
        "holds_with_headroom": tuned.holds_with_headroom,
        "ruled_out": [
            {"cap": cap, "offered_per_s": load.offered_per_s, "served_at_most_per_s": most}
            for cap, load in tuned.ruled_out
            for most in (load.served_at_most_per_s,)
        ],
        **({"idle_times": idle_document(tuned)} if tuned.idle else {}),
        "points": [trial_document(trial) for trial in tuned.trials],
        "metrics": None if best is None or best.today is None else metrics_document(best.today),
        "load": None if best is None else load_document(best.scenario),
        "simulated_requests": tuned.simulated,
    }


def _limits(trial: Trial) -> dict[str, object]:
    scenario = trial.scenario
    timeout_s = scenario.timeout_s if isfinite(scenario.timeout_s) else None
    return {"cap": scenario.cap, "queue": scenario.queue, "timeout_s": timeout_s}


def trial_document(trial: Trial) -> dict[str, object]:
    """Return one point that was tried."""
    return {
        **_limits(trial),
        "chance": trial.chance,
        "today": {judgement.metric: judgement.mean for judgement in trial.judged_today},
        "stressed": {judgement.metric: judgement.mean for judgement in trial.judged_stressed},
    }
