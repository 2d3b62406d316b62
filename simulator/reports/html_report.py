"""The answer of `tune` as one page that needs no other file: pictures are SVG, numbers hover.

Rule 1: nothing is fetched and nothing is missing without a network: no font, no script, no style
        from elsewhere.
Rule 2: a picture shows what was simulated or what theory says, never what was only meant; the
        parameters are those that were really used.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import log10

from simulator.model.checked_gate import Entry
from simulator.model.records import Metrics, Records
from simulator.reports.json_document import parameters
from simulator.reports.svg import Curve, Dot, Frame, drawn
from simulator.reports.terminal import ROWS, number
from simulator.reports.tune_text import toml_text
from simulator.study.request import StudyRequest
from simulator.study.tune import Trial, Tuned

SHOWN_S = 600.0
"""Seconds that are drawn over time: more is a black bar."""
QUANTILES = tuple(1 - 10 ** (-at / 12) for at in range(37))
"""Up to 0.999, evenly on the scale of the share that waits longer."""


def html_report(
    tuned: Tuned,
    command: StudyRequest,
    upstream: str,
    slots: int,
    run: tuple[Records, Sequence[Entry]] | None,
    observed: Metrics | None,
) -> str:
    """Return the page; `run` is one replication of the recommended point with its journal."""
    best = tuned.recommended
    text = toml_text(tuned, command, upstream, slots)
    parts = [
        f"<h1>{_sentence(tuned)}</h1>",
        f"<pre>{escape(text)}</pre>",
        *_points(tuned, command),
        *(() if run is None else _over_time(*run, best)),
        *_numbers(best, observed),
        *_parameters(command),
    ]
    return _PAGE.replace("@BODY@", "\n".join(parts))


def _sentence(tuned: Tuned) -> str:
    best = tuned.recommended
    if best is None:
        return "No cap, queue and timeout keep every limit here"
    scenario = best.scenario
    sure = "" if tuned.confidence is None else f", {tuned.confidence:.0%} sure"
    return f"Set cap {scenario.cap}, queue {scenario.queue}, timeout {scenario.timeout_s:g} s{sure}"


def value_of(trial: Trial, metric: str) -> float | None:
    """Return a metric of today: what theory or the limits' judgement says, else the sample's."""
    for check in trial.judged_today:
        if check.metric == metric:
            return check.mean
    if trial.today is not None and trial.today.replications:
        return trial.today.estimate(metric).mean
    return None


def _points(tuned: Tuned, command: StudyRequest) -> Iterable[str]:
    trials = sorted(
        {trial.scenario: trial for trial in (*tuned.trials, *tuned.neighbours)}.values(),
        key=lambda trial: (trial.scenario.cap, trial.scenario.queue, trial.scenario.timeout_s),
    )
    if tuned.recommended is not None:
        best = tuned.recommended.scenario
        trials = [tuned.recommended if t.scenario == best else t for t in trials]
    dots, rows = [], []
    for trial in trials:
        lost, wait_s = value_of(trial, "lost_share"), value_of(trial, "wait_p95_s")
        scenario = trial.scenario
        chosen = tuned.recommended is not None and scenario == tuned.recommended.scenario
        name = f"cap {scenario.cap}, queue {scenario.queue}, timeout {scenario.timeout_s:g} s"
        told = f"{name}: {number('lost_share', lost)} lost, p95 wait {number('wait_p95_s', wait_s)}"
        rows.append({"name": name, "told": told, "chosen": chosen, "chance": trial.chance})
        if lost is not None and wait_s is not None:
            dots.append(Dot(100 * lost, wait_s, scenario.cap, told, chosen))
    if not dots:
        return
    limits = command.slo
    frame = Frame(
        "lost, % of all requests",
        "p95 wait of the served, s",
        x_limit=100 * limits["lost_share"] if "lost_share" in limits else None,
        y_limit=limits.get("wait_p95_s"),
    )
    yield "<h2>What each limit costs</h2>"
    yield (
        "<p>A point for each cap, queue and timeout that was looked at, today's traffic; colour is "
        "the cap, the ring is the recommended one, dotted lines are the limits. Hover for its "
        "numbers, or move along the points, smallest first:</p>"
    )
    start = next((at for at, row in enumerate(rows) if row["chosen"]), 0)
    yield (
        f'<input type="range" id="at" min="0" max="{len(rows) - 1}" value="{start}" '
        'aria-label="point"><output id="told"></output>'
    )
    yield drawn(frame, dots=dots)
    packed = json.dumps(rows).replace("<", "\\u003c")
    yield f'<script type="application/json" id="points">{packed}</script>'


def _over_time(records: Records, journal: Sequence[Entry], best: Trial | None) -> Iterable[str]:
    assert best is not None
    cap = best.scenario.cap
    last_s = journal[-1].at_s if journal else 0.0
    start_s = 0.0 if last_s < 2 * SHOWN_S else last_s / 2
    shown = [entry for entry in journal if start_s <= entry.at_s <= start_s + SHOWN_S]
    flight = Curve([(entry.at_s - start_s, entry.in_flight) for entry in shown], "in flight")
    queue = Curve([(entry.at_s - start_s, entry.queued) for entry in shown], "queued")
    yield "<h2>In flight and queued over time</h2>"
    yield f"<p>The recommended point, {SHOWN_S:g} s of one replication, today's traffic.</p>"
    yield drawn(Frame("seconds", "requests", y_limit=cap), curves=[flight, queue])
    waits = records.waits.percentiles(QUANTILES)
    known = [
        (wait_s, log10(1 - share))
        for share, wait_s in zip(QUANTILES, waits, strict=True)
        if wait_s is not None
    ]
    yield "<h2>How long the served waited</h2>"
    yield "<p>The share that waited longer than so many seconds, each step a tenth of the last.</p>"
    frame = Frame("wait, s", "share that waited longer", y_logarithm=True)
    yield drawn(frame, curves=[Curve(known, "waits")])


def _numbers(best: Trial | None, observed: Metrics | None) -> Iterable[str]:
    if best is None or best.today is None:
        return
    estimates = best.today.estimates()
    stressed = None if best.stressed is None else best.stressed.estimates()
    yield "<h2>The recommended point</h2>"
    yield "<table><tr><th></th><th>today</th><th>± (95 %)</th>"
    yield "<th>with the headroom</th>" if stressed else ""
    yield ("<th>in the log, as it was</th>" if observed else "") + "</tr>"
    for label, name in ROWS:
        if name not in estimates:
            continue
        value = estimates[name]
        cells = [number(name, value.mean), number(name, value.ci95)]
        if stressed:
            cells.append(number(name, stressed[name].mean))
        if observed:
            cells.append(number(name, observed[name]) if name in observed else "")
        told = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f"<tr><th>{escape(label.strip())}</th>{told}</tr>"
    yield "</table>"


def _parameters(command: StudyRequest) -> Iterable[str]:
    used: Mapping[str, object] = parameters(command.scenarios[0], command.traffic)
    yield "<h2>What it rests on</h2><table>"
    for name, value in used.items():
        if value is not None and name not in {"cap", "queue", "timeout_s"}:
            told = f"{value:.6g}" if isinstance(value, float) else str(value)
            yield f"<tr><th>{escape(name)}</th><td>{escape(told)}</td></tr>"
    yield f"<tr><th>seed</th><td>{command.plan.seed}</td></tr></table>"


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>frontdoor tune</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c2430; background: #fff; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .3rem; }
pre { background: #f3f5f8; padding: 1rem; overflow-x: auto; font-size: .8rem; line-height: 1.4; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #4a5568; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; } td { text-align: right; }
th, td { padding: .15rem .9rem .15rem 0; border-bottom: 1px solid #e5e9ef; }
input[type=range] { width: 100%; } output { display: block; min-height: 1.5em; font-weight: 600; }
.dot.at { stroke: #111; stroke-width: 3; }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #dde3ea; } pre { background: #1d232c; }
  svg text { fill: #a9b4c2; } th, td { border-color: #2b333f; } .dot.at { stroke: #fff; }
}
</style></head><body>
@BODY@
<script>
const data = document.getElementById("points");
if (data) {
  const rows = JSON.parse(data.textContent);
  const slider = document.getElementById("at");
  const show = () => {
    const row = rows[slider.value];
    const sure = (100 * row.chance).toFixed(0);
    const told = row.told + "; chance to keep the limits " + sure + " %";
    document.getElementById("told").textContent = told;
    for (const dot of document.querySelectorAll(".dot"))
      dot.classList.toggle("at", dot.dataset.told === row.told);
  };
  slider.addEventListener("input", show);
  show();
}
</script>
</body></html>
"""
