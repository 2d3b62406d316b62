"""An engine with idle tiers in pictures: its states over time, and what they cost and save."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from simulator.reports.terminal import number
from simulator.study.statistics import Estimate
from tornado_frontdoor.core.decisions import EngineState

COLOURS = {
    EngineState.AWAKE: "#2f855a",
    EngineState.SLEEPING: "#63b3ed",
    EngineState.OFFLOADED: "#2b6cb0",
    EngineState.STOPPED: "#4a5568",
    EngineState.WAKING: "#dd6b20",
    EngineState.FALLING_ASLEEP: "#d69e2e",
}
WIDTH, HEIGHT, BOTTOM = 860, 74, 24
HOURS = 24.0

Spans = Sequence[tuple[float, float, EngineState]]
"""From, to, and in which state."""


def spans(changes: Sequence[tuple[float, EngineState]], end_s: float) -> Spans:
    """Return how long each state lasted, until then."""
    ends = [min(at_s, end_s) for at_s, _ in changes[1:]] + [end_s]
    return [
        (at_s, until_s, state)
        for (at_s, state), until_s in zip(changes, ends, strict=True)
        if until_s > at_s and state in COLOURS
    ]


def states_section(lasted: Spans, metrics: Mapping[str, Estimate]) -> Iterable[str]:
    """Yield the engine's states over time, its hours in memory, and how many met it cold."""
    if not lasted:
        return
    yield "<h2>The engine's states over time</h2>"
    yield f"<p>{escape(_worth(metrics))} One simulated run, all of it:</p>"
    yield f'<div class="wide">{_strip(lasted)}</div>'


def _worth(metrics: Mapping[str, Estimate]) -> str:
    """Return what a day comes to: hours that the GPU is held, cold starts, and who met them."""
    awake, moving = (metrics[name].mean or 0.0 for name in ("awake_share", "in_transition_share"))
    wakes = [metrics[f"wakes_from_{name}_per_h"].mean or 0.0 for name in ("sleeping", "offloaded")]
    cold = metrics["cold_share"].mean
    return (
        f"A day has {HOURS * (awake + moving):.1f} GPU-hours awake or on the way, of {HOURS:g}, "
        f"and {HOURS * sum(wakes):.3g} cold starts ({HOURS * wakes[0]:.3g} from level 1, "
        f"{HOURS * wakes[1]:.3g} from level 2); {number('cold_share', cold)} of the requests met "
        "an engine that was not awake."
    )


def _strip(lasted: Spans) -> str:
    first_s, last_s = lasted[0][0], lasted[-1][1]
    unit_s, unit = (3600.0, "h") if last_s - first_s > 7200 else (1.0, "s")

    def at(instant_s: float) -> float:
        return WIDTH * (instant_s - first_s) / (last_s - first_s)

    parts = [
        f'<rect x="{at(since_s):.2f}" y="{BOTTOM}" width="{at(until_s) - at(since_s):.2f}" '
        f'height="{HEIGHT - 2 * BOTTOM}" fill="{COLOURS[state]}"><title>{_name(state)}, '
        f"{until_s - since_s:.4g} s</title></rect>"
        for since_s, until_s, state in lasted
    ]
    seen = {state for _, _, state in lasted}
    for place, state in enumerate(each for each in COLOURS if each in seen):
        parts.append(f'<rect x="{110 * place}" y="4" width="10" height="10" ')
        parts[-1] += f'fill="{COLOURS[state]}"/>'
        parts.append(f'<text x="{110 * place + 15}" y="13">{_name(state)}</text>')
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        passed = share * (last_s - first_s) / unit_s
        told = f"{passed:,.0f} {unit}" if passed >= 100 else f"{passed:.3g} {unit}"
        parts.append(f'<text x="{WIDTH * share}" y="{HEIGHT - 8}" text-anchor="{anchor}">{told}')
        parts[-1] += "</text>"
    label = "the engine's states over time"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        + "".join(parts)
        + "</svg>"
    )


def _name(state: EngineState) -> str:
    return state.value.replace("_", " ")
