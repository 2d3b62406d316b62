"""Small pictures as SVG text: dots that hover, curves in steps, axes with round numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 860, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 26, 48
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#00838f", "#975a16", "#4a5568")


@dataclass(frozen=True, slots=True)
class Dot:
    """One point; `group` decides its colour."""

    x: float
    y: float
    group: int
    told: str
    ringed: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """Values that hold until the next one."""

    points: Sequence[tuple[float, float]]
    name: str
    filled: bool = False
    """Whether the area below it is coloured."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The axes; a limit is a dotted line."""

    x_name: str
    y_name: str
    x_limit: float | None = None
    y_limit: float | None = None
    y_logarithm: bool = False
    """Whether values of y are powers of ten."""
    marks: Sequence[tuple[float, str]] = ()
    """Values of x that are named."""
    groups: str = ""
    """What the groups of dots are."""
    tight: bool = False
    """Whether x ends with its last value, and y counts."""


class _Scale:
    """From values to places."""

    def __init__(
        self,
        values: Sequence[float],
        start: float,
        stop: float,
        *,
        whole: bool,
        least_step: float = 0.0,
    ) -> None:
        low, high = min(values), max(values)
        if not whole:
            low = min(0.0, low)
        self.step = 1.0 if whole else max(least_step, _round_step((high - low) or 1.0))
        self.low = floor(low / self.step) * self.step
        self.high = max(ceil(high / self.step), floor(low / self.step) + 1) * self.step
        self._start, self._stop = start, stop

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self._start + share * (self._stop - self._start)

    def ticks(self) -> list[float]:
        count = floor((self.high - self.low) / self.step + 1e-9)
        return [self.low + at * self.step for at in range(count + 1)]


def _round_step(span: float) -> float:
    raw = span / 6
    unit = 10.0 ** floor(log10(raw))
    return float(next(unit * factor for factor in (1, 2, 5, 10) if raw <= unit * factor))


def drawn(frame: Frame, dots: Sequence[Dot] = (), curves: Sequence[Curve] = ()) -> str:
    """Return the picture."""
    xs = [dot.x for dot in dots] + [x for curve in curves for x, _ in curve.points]
    ys = [dot.y for dot in dots] + [y for curve in curves for _, y in curve.points]
    if not xs:
        return "<p>Nothing to draw.</p>"
    xs += [frame.x_limit] if frame.x_limit is not None else []
    ys += [frame.y_limit] if frame.y_limit is not None else []
    x = _Scale(xs, LEFT, WIDTH - RIGHT, whole=False)
    if frame.tight:
        x.high = max(xs)
    least = 1.0 if frame.tight else 0.0
    y = _Scale(ys, HEIGHT - BOTTOM, TOP, whole=frame.y_logarithm, least_step=least)
    parts = [*_axes(frame, x, y)]
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        if curve.filled:
            parts.append(f'<path d="{_below(curve, x, y)}" fill="{colour}" fill-opacity=".22"/>')
        parts.append(
            f'<path d="{_steps(curve, x, y)}" fill="none" stroke="{colour}" stroke-width="1.4">'
            f"<title>{escape(curve.name)}</title></path>"
        )
        if len(curves) > 1:
            parts.append(
                f'<text x="{LEFT + 10 + 90 * number}" y="{HEIGHT - 8}" style="fill:{colour}">'
                f"{escape(curve.name)}</text>"
            )
    groups = sorted({dot.group for dot in dots})
    for number, group in enumerate(groups if frame.groups else ()):
        colour, at = COLOURS[number % len(COLOURS)], WIDTH - RIGHT - 60 * (len(groups) - number)
        parts.append(f'<circle cx="{at}" cy="{TOP - 14}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{at + 9}" y="{TOP - 10}">{escape(frame.groups)} {group}</text>')
    for dot in dots:
        colour = COLOURS[groups.index(dot.group) % len(COLOURS)]
        place = f'cx="{x.at(dot.x):.1f}" cy="{y.at(dot.y):.1f}"'
        if dot.ringed:
            parts.append(f'<circle {place} r="12" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<circle class="dot" {place} r="6" fill="{colour}" data-told="{escape(dot.told)}">'
            f"<title>{escape(dot.told)}</title></circle>"
        )
    label = escape(f"{frame.y_name} by {frame.x_name}")
    return (
        f'<div class="wide"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        + "".join(parts)
        + "</svg></div>"
    )


def _steps(curve: Curve, x: _Scale, y: _Scale) -> str:
    places = [(x.at(at), y.at(value)) for at, value in curve.points]
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for across, up in places[1:]:
        path += f"H{across:.1f}V{up:.1f}"
    return path


def _below(curve: Curve, x: _Scale, y: _Scale) -> str:
    bottom = HEIGHT - BOTTOM
    return f"{_steps(curve, x, y)}V{bottom}H{x.at(curve.points[0][0]):.1f}Z"


def _axes(frame: Frame, x: _Scale, y: _Scale) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in x.ticks():
        at = x.at(tick)
        parts.append(f'<path d="M{at:.1f} {bottom}V{TOP}" stroke="#8883" />')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    for tick in y.ticks():
        at = y.at(tick)
        told = f"{100 * 10**tick:g} %" if frame.y_logarithm else f"{tick:g}"
        parts.append(f'<path d="M{LEFT} {at:.1f}H{right}" stroke="#8883" />')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{told}</text>')
    middle = (LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(frame.x_name)}</text>'
    )
    parts.append(
        f'<text transform="translate(14 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(frame.y_name)}</text>"
    )
    dotted = 'stroke="#888" stroke-dasharray="3 4"'
    if frame.x_limit is not None and frame.y_limit is not None:
        across, up = x.at(frame.x_limit), y.at(frame.y_limit)
        parts.append(
            f'<path d="M{LEFT} {bottom}V{up:.1f}H{across:.1f}V{bottom}Z" class="kept"/>'
            f'<rect x="{LEFT}" y="{TOP - 20}" width="12" height="12" class="kept key"/>'
            f'<text x="{LEFT + 18}" y="{TOP - 10}">keeps the limits</text>'
        )
    for number, (value, name) in enumerate(frame.marks):
        at, height = x.at(value), TOP + 14 + 16 * number
        parts.append(f'<path d="M{at:.1f} {bottom}V{height}" {dotted} />')
        beside = 'text-anchor="end"' if at > right - 160 else ""
        place = at - 5 if beside else at + 5
        parts.append(f'<text x="{place:.1f}" y="{height + 4}" {beside}>{escape(name)}</text>')
    if frame.x_limit is not None:
        parts.append(f'<path d="M{x.at(frame.x_limit):.1f} {bottom}V{TOP}" {dotted} />')
    if frame.y_limit is not None:
        parts.append(f'<path d="M{LEFT} {y.at(frame.y_limit):.1f}H{right}" {dotted} />')
    return parts
