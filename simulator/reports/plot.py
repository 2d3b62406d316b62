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

from simulator.model.checked_gate import Entry
from simulator.model.records import Records
from simulator.study.sweep import Choice

SHOWN_S = 600.0
"""Seconds of the first replication that are drawn: more is a black bar."""


def draw_run(path: Path, records: Records, journal: Sequence[Entry], cap: int, title: str) -> None:
    """Draw one replication: in flight and queue over time, and the law of the waits."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    figure.suptitle(title)
    flight, queue, waits = figure.subplots(3, 1)
    start_s = _start(journal)
    shown = [entry for entry in journal if start_s <= entry.at_s <= start_s + SHOWN_S]
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
    queue.set_xlabel("seconds")
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
    _save(figure, path, title)


def _start(journal: Sequence[Entry]) -> float:
    """Return where to begin: after the system has filled, when the run is long."""
    if not journal or journal[-1].at_s < 2 * SHOWN_S:
        return 0.0
    return journal[-1].at_s / 2


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
