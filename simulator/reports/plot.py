"""Pictures: waits, occupancy and queue over time, and the Pareto picture of a sweep.

matplotlib without pyplot: no window, no state between two pictures. HTML is an SVG in a page.
"""

from collections.abc import Mapping, Sequence
from html import escape
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simulator.model.checked_gate import Entry
from simulator.model.records import Records
from simulator.reports.tier_picture import COLOURS, spans
from simulator.study.sweep import Choice

SHOWN_S = 600.0
"""Seconds of the first replication that are drawn: more is a black bar."""
FEWEST = 100
"""Requests that are drawn at least, however rarely they come."""


def draw_run(path: Path, records: Records, journal: Sequence[Entry], cap: int, title: str) -> None:
    """Draw one replication: in flight and queue over time, and the law of the waits."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    figure.suptitle(title)
    flight, queue, waits, *states = figure.subplots(4 if records.states else 3, 1)
    start_s, end_s = _window(journal)
    shown = [entry for entry in journal if start_s <= entry.at_s <= end_s]
    instants = [entry.at_s for entry in shown]
    flight.step(instants, [entry.in_flight for entry in shown], where="post", linewidth=0.8)
    flight.axhline(cap, linestyle=":", color="grey")
    flight.set_ylabel("in flight")
    queue.step(instants, [entry.queued for entry in shown], where="post", linewidth=0.8, color="C1")
    for outcome, colour in (("queue_full", "C3"), ("queue_timeout", "C6")):
        refused = [entry for entry in shown if entry.what == outcome]
        if refused:
            queue.plot(
                [entry.at_s for entry in refused],
                [entry.queued for entry in refused],
                "x",
                color=colour,
                label=outcome,
            )
            queue.legend(loc="upper right")
    queue.set_ylabel("queued")
    whole_s = journal[-1].at_s if journal else 0.0
    part = f" ({start_s:.0f} to {end_s:.0f} of {whole_s:.0f} are shown)" if end_s < whole_s else ""
    queue.set_xlabel(f"seconds{part}")
    shares = [n / 200 for n in range(1, 201)]
    quantiles = records.waits.percentiles(shares)
    known = [
        (wait, share) for wait, share in zip(quantiles, shares, strict=True) if wait is not None
    ]
    if known:
        waits.step([wait for wait, _ in known], [share for _, share in known], where="post")
    waits.set_ylim(0, 1)
    waits.set_xlabel("wait of the served, seconds")
    waits.set_ylabel("share not above it")
    for axes in states:
        for at_s, until_s, state in spans(records.states, end_s):
            since_s = max(at_s, start_s)
            if since_s < until_s:
                axes.broken_barh([(since_s, until_s - since_s)], (0, 1), color=COLOURS[state])
        patches = [Patch(color=each, label=state.value) for state, each in COLOURS.items()]
        axes.legend(handles=patches, loc="upper right", ncols=len(patches), fontsize=7)
        axes.set(xlim=(start_s, end_s), ylim=(0, 1.6), yticks=[], xlabel="seconds", ylabel="engine")
    _save(figure, path, title)


def _window(journal: Sequence[Entry]) -> tuple[float, float]:
    """Return what to draw: after the system has filled, and long enough for some to come."""
    if not journal:
        return 0.0, 0.0
    end_s = journal[-1].at_s
    arrived = [entry.at_s for entry in journal if entry.what == "arrived"]
    start_s = 0.0 if end_s < 2 * SHOWN_S or len(arrived) < 2 * FEWEST else end_s / 2
    following = [at_s for at_s in arrived if at_s >= start_s]
    enough_s = following[min(FEWEST, len(following)) - 1] if following else start_s
    return start_s, max(start_s + SHOWN_S, enough_s)


def draw_sweep(path: Path, choice: Choice, slo: Mapping[str, float], title: str) -> None:
    """Draw all points by lost share and p95 latency, the Pareto set ringed."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots()
    caps = sorted({point.scenario.cap for point in choice.points})
    for point in choice.points:
        lost = point.result.estimate("lost_share")
        latency = point.result.estimate("latency_p95_s")
        if lost.mean is None or latency.mean is None:
            continue
        colour = f"C{caps.index(point.scenario.cap) % 10}"
        axes.errorbar(
            100 * lost.mean,
            latency.mean,
            xerr=100 * (lost.ci95 or 0),
            yerr=latency.ci95 or 0,
            fmt="o",
            color=colour,
            markersize=5,
            elinewidth=0.8,
        )
        if point.pareto:
            axes.plot(100 * lost.mean, latency.mean, "o", color=colour, ms=11, fillstyle="none")
        if point is choice.recommended:
            axes.plot(100 * lost.mean, latency.mean, "*", color="black", ms=16, zorder=0)
        timeout_s = point.scenario.timeout_s
        told = "" if timeout_s == inf else f", {timeout_s:g} s"
        axes.annotate(
            f" {point.scenario.cap}/{point.scenario.queue}{told}",
            (100 * lost.mean, latency.mean),
            fontsize=7,
        )
    if "lost_share" in slo:
        axes.axvline(100 * slo["lost_share"], linestyle=":", color="grey")
    axes.set_xlabel("lost, % of all requests")
    axes.set_ylabel("p95 latency of the served, seconds")
    axes.set_title(f"{title}\ncap/queue, timeout; ring: Pareto set; star: recommended")
    _save(figure, path, title)


def _save(figure: Figure, path: Path, title: str) -> None:
    if path.suffix == ".html":
        drawn = StringIO()
        figure.savefig(drawn, format="svg")
        svg = drawn.getvalue()
        path.write_text(
            f"<!DOCTYPE html>\n<html lang=en><meta charset=utf-8><title>{escape(title)}</title>\n"
            f"{svg[svg.index('<svg') :]}</html>\n",
            encoding="utf-8",
        )
        return
    canvas: Any = FigureCanvasAgg(figure)
    canvas.figure.savefig(path, format=path.suffix[1:], dpi=120)
