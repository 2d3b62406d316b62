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
from simulator.reports.terminal import ROWS, asked_columns, interval, number
from simulator.reports.tier_picture import spans, states_section
from simulator.reports.tune_text import Destination, grounds, reasons, table_lines, toml_text
from simulator.study.idle_times import idle_text
from simulator.study.request import StudyRequest
from simulator.study.tune import Trial, Tuned

SHOWN_REQUESTS = 400
"""Requests whose time is drawn: more is a black bar."""
SHOWN_WITH_TIERS = 100
"""Where engines sleep, requests are so far apart that each is a line."""
QUANTILES = tuple(1 - 10 ** (-at / 12) for at in range(37))
"""Up to 0.999, evenly on the scale of the share that waits longer."""


def html_report(
    tuned: Tuned,
    command: StudyRequest,
    to: Destination,
    run: tuple[Records, Sequence[Entry]] | None,
    observed: Metrics | None,
) -> str:
    """Return the page; `run` is one replication of the recommended point with its journal."""
    best = tuned.recommended
    text = toml_text(tuned, command, to)
    parts = [
        *_head(tuned, command, to),
        *_points(tuned, command),
        *(() if run is None else _over_time(*run, best, command)),
        *(() if run is None else _states(*run, best)),
        *_numbers(best, observed),
        *_parameters(tuned, command),
        f"<details><summary>The whole answer as text</summary><pre>{escape(text)}</pre></details>",
    ]
    return _PAGE.replace("@BODY@", "\n".join(parts))


def _head(tuned: Tuned, command: StudyRequest, to: Destination) -> Iterable[str]:
    """Yield the answer: a sentence, the numbers that matter, what to paste, and why."""
    best = tuned.recommended
    yield f"<header><h1>{_sentence(tuned)}</h1>"
    if best is None:
        told = next(iter(grounds(tuned, command)))
        yield f"<p>{escape(told)}</p></header>"
        return
    yield '<div class="cards">'
    for label, value, why in _cards(tuned, best):
        told = f"<b>{escape(value)}</b><span>{escape(label)}</span><small>{escape(why)}</small>"
        yield f"<div>{told}</div>"
    yield '</div></header><div class="pair">'
    table = "\n".join(table_lines(best, to))
    yield f'<div><button id="copy">copy</button><pre id="toml">{escape(table)}</pre></div>'
    items = "".join(f"<li>{escape(reason)}</li>" for reason in reasons(tuned))
    yield f"<ul>{items}</ul></div>"


def _cards(tuned: Tuned, best: Trial) -> Iterable[tuple[str, str, str]]:
    """Yield what to look at first: a name, a value, and beside what to hold it."""
    more = f"+{tuned.headroom:.0%} traffic"
    for label, name in (("lost", "lost_share"), ("p95 wait", "wait_p95_s")):
        later = best.value(name, stressed=True)
        beside = "" if later is None else f"{number(name, later)} with {more}"
        yield label, number(name, best.value(name)), beside
    for label, name in (("p95 latency", "latency_p95_s"), ("slots taken", "utilization")):
        yield label, number(name, best.value(name)), f"of cap {best.scenario.cap}"
    if tuned.confidence is not None:
        sure = "more than that" if tuned.confidence > 0.995 else "see what else may be right"
        yield "sure", f"{100 * tuned.confidence:.0f} %", "" if tuned.confidence > 0.95 else sure


def _sentence(tuned: Tuned) -> str:
    best = tuned.recommended
    if best is None:
        return "No cap, queue and timeout keep every limit here"
    scenario = best.scenario
    return (
        f"Set <em>cap {scenario.cap}</em>, <em>queue {scenario.queue}</em>, "
        f"<em>timeout {scenario.timeout_s:g} s</em>"
    )


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
        lost, wait_s = trial.value("lost_share"), trial.value("wait_p95_s")
        scenario = trial.scenario
        chosen = tuned.recommended is not None and scenario == tuned.recommended.scenario
        name = f"cap {scenario.cap}, queue {scenario.queue}, timeout {scenario.timeout_s:g} s"
        told = f"{name}: {number('lost_share', lost)} lost, p95 wait {number('wait_p95_s', wait_s)}"
        for label, metric in asked_columns(command):
            if (value := trial.value(metric)) is not None:
                told += f", {label} {number(metric, value)}"
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
        groups="cap",
    )
    yield "<h2>What each limit costs</h2>"
    ring = "" if tuned.recommended is None else "; the ring is the recommended one"
    tiers = trials[0].scenario.tiers
    idle = ""
    if tiers is not None and (tuned.idle or tiers.sleeps):
        which = "the idle times that were chosen" if tuned.idle else "idle times"
        idle = f" with {which} ({idle_text(tiers.idle_s)})"
    yield (
        f"<p>A point for each cap, queue and timeout that was looked at{idle}, with today's traffic"
        f"{ring}. Hover, or move along them, smallest first.</p>"
    )
    start = next((at for at, row in enumerate(rows) if row["chosen"]), 0)
    yield (
        f'<input type="range" id="at" min="0" max="{len(rows) - 1}" value="{start}" '
        'aria-label="point"><output id="told"></output>'
    )
    yield drawn(frame, dots=dots)
    packed = json.dumps(rows).replace("<", "\\u003c")
    yield f'<script type="application/json" id="points">{packed}</script>'


def _over_time(
    records: Records, journal: Sequence[Entry], best: Trial | None, command: StudyRequest
) -> Iterable[str]:
    assert best is not None
    cap = best.scenario.cap
    at = [entry.at_s for entry in journal if entry.what == "arrived"]
    most = SHOWN_WITH_TIERS if records.states else SHOWN_REQUESTS
    start_s = at[len(at) // 2] if len(at) > 2 * most else 0.0
    following = [at_s for at_s in at if at_s >= start_s][:most]
    end_s = following[-1] if following else start_s
    shown = [entry for entry in journal if start_s <= entry.at_s <= end_s]
    flight = Curve([(entry.at_s - start_s, entry.in_flight) for entry in shown], "in flight", True)
    queue = Curve([(entry.at_s - start_s, entry.queued) for entry in shown], "queued", True)
    yield "<h2>In flight and queued over time</h2>"
    yield f"<p>{len(following)} requests of one simulated run; the dotted line is the cap.</p>"
    yield drawn(Frame("seconds", "requests", y_limit=cap, tight=True), curves=[flight, queue])
    waits = records.waits.percentiles(QUANTILES)
    known = [
        (wait_s, log10(1 - share))
        for share, wait_s in zip(QUANTILES, waits, strict=True)
        if wait_s is not None
    ]
    if not any(wait_s for wait_s, _ in known):
        yield "<p>Nobody waited.</p>"
        return
    p50, p95, p99 = records.waits.percentiles((0.5, 0.95, 0.99))
    marks = [
        (each, f"{name} of this run: {each:.2f} s")
        for each, name in ((p95, "p95"), (p99, "p99"))
        if each
    ]
    if "wait_p95_s" in command.slo:
        marks.append((command.slo["wait_p95_s"], f"limit of p95: {command.slo['wait_p95_s']:g} s"))
    yield "<h2>How long the served waited</h2>"
    half = "half did not wait at all" if not p50 else f"half waited for at most {p50:.2f} s"
    yield (
        f"<p>Of one simulated run: {half}. The share that waited longer, each step a tenth of the "
        "last:</p>"
    )
    frame = Frame("wait, s", "share that waited longer", y_logarithm=True, marks=marks)
    yield drawn(frame, curves=[Curve(known, "waits", filled=True)])


def _states(records: Records, journal: Sequence[Entry], best: Trial | None) -> Iterable[str]:
    came_s = [entry.at_s for entry in journal if entry.what == "arrived"]
    if records.states and came_s and best is not None and best.today is not None:
        lasted = spans(records.states, came_s[-1])
        yield from states_section(lasted, best.today.estimates())


def _numbers(best: Trial | None, observed: Metrics | None) -> Iterable[str]:
    if best is None or best.today is None:
        return
    estimates = best.today.estimates()
    exact = {check.metric for check in best.judged_today if check.exact}
    stressed = None if best.stressed is None else best.stressed.estimates()
    yield "<h2>The recommended point</h2>"
    yield '<div class="wide"><table><tr><th></th><td>today</td><td>95 %</td>'
    yield "<td>with the headroom</td>" if stressed else ""
    yield ("<td>in the log, as it was</td>" if observed else "") + "</tr>"
    for label, name in ROWS:
        if name not in estimates:
            continue
        value = estimates[name]
        told_interval = "exact" if name in exact else interval(name, value)
        cells = [number(name, best.value(name)), told_interval]
        if stressed:
            cells.append(number(name, best.value(name, stressed=True)))
        if observed:
            cells.append(number(name, observed[name]) if name in observed else "")
        told = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        within = ' class="within"' if label.startswith(" ") else ""
        yield f"<tr><th{within}>{escape(label.strip())}</th>{told}</tr>"
    yield "</table></div>"


def _parameters(tuned: Tuned, command: StudyRequest) -> Iterable[str]:
    used: Mapping[str, object] = parameters(command.scenarios[0], command.traffic)
    yield "<h2>What it rests on, and what it cannot know</h2><ul>"
    yield from (f"<li>{escape(ground)}</li>" for ground in grounds(tuned, command))
    yield "</ul><details><summary>All parameters</summary><table>"
    for name, value in used.items():
        if value is not None and name not in {"cap", "queue", "timeout_s"}:
            told = f"{value:.6g}" if isinstance(value, float) else str(value)
            yield f"<tr><th>{escape(name)}</th><td>{escape(told)}</td></tr>"
    yield f"<tr><th>seed</th><td>{command.plan.seed}</td></tr></table></details>"


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>frontdoor tune</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 0 auto;
  padding: 0 1.2rem 4rem; color: #1c2430; background: #fff; }
header { margin: 2.5rem 0 1.6rem; }
h1 { font-size: 2rem; line-height: 1.2; font-weight: 600; margin: 0 0 1.2rem; }
h1 em { font-style: normal; color: #2b6cb0; white-space: nowrap; }
h2 { font-size: 1.2rem; margin: 3rem 0 .2rem; } p { margin: .2rem 0 .6rem; color: #4a5568; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem; }
.cards div { background: #f3f6fa; border-radius: .6rem; padding: .8rem 1rem; }
.cards b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.cards span { display: block; } .cards small { color: #64748b; }
.pair { display: grid; grid-template-columns: minmax(17rem, 2fr) 3fr; gap: 1.6rem; }
.pair > div { position: relative; } .pair ul { margin: 0; padding-left: 1.1rem; }
.pair li { margin-bottom: .4rem; }
#copy { position: absolute; right: .5rem; top: .5rem; font: inherit; font-size: .8rem;
  border: 1px solid #cbd5e0; border-radius: .3rem; background: #fff; color: inherit; }
pre { background: #f3f6fa; border-radius: .6rem; margin: 0; padding: 1rem; overflow-x: auto;
  font-size: .85rem; line-height: 1.5; } summary { cursor: pointer; margin: 1rem 0 .4rem; }
.wide { overflow-x: auto; } .wide svg { min-width: 38rem; } .wide td { white-space: nowrap; }
.wide .within { padding-left: 1.2rem; color: #64748b; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #4a5568; }
.kept { fill: #2f855a; fill-opacity: .08; } .kept.key { fill-opacity: .25; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; } td { text-align: right; }
th, td { padding: .15rem .9rem .15rem 0; border-bottom: 1px solid #e5e9ef; }
input[type=range] { width: 100%; } output { display: block; min-height: 1.5em; font-weight: 600; }
.dot.at { stroke: #111; stroke-width: 3; }
@media (max-width: 40rem) { .pair { grid-template-columns: 1fr; } h1 { font-size: 1.5rem; } }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #dde3ea; } p, .cards small, .wide .within { color: #a9b4c2; }
  pre, .cards div { background: #1d232c; } h1 em { color: #63b3ed; }
  #copy { background: #14181f; border-color: #2b333f; }
  svg { filter: brightness(1.4); } svg text { fill: #8c97a5; } .kept { fill-opacity: .22; }
  th, td { border-color: #2b333f; } .dot.at { stroke: #fff; }
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
  for (const dot of document.querySelectorAll(".dot"))
    dot.addEventListener("click", () => {
      slider.value = rows.findIndex((row) => row.told === dot.dataset.told);
      show();
    });
  show();
}
const copy = document.getElementById("copy");
if (copy) copy.addEventListener("click", () => {
  const range = document.createRange();
  range.selectNodeContents(document.getElementById("toml"));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  copy.textContent = document.execCommand("copy") ? "copied" : "press Ctrl-C";
});
</script>
</body></html>
"""
