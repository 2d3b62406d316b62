"""Options as docopt gives them, text by name, read one by one; every fault is kept.

Rule 1: a fault is one line, `--option: what is wrong`, and names the value.
Rule 2: reading goes on after a fault, with the default, so that all faults are told at once.
"""

from collections.abc import Callable, Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeVar

from simulator.traffic.distributions import NEVER, Distribution
from simulator.traffic.retries import NO_RETRY, Advice, Retry

T = TypeVar("T")


class UsageError(ValueError):
    """Options that cannot work; `faults` has a line for each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class OptionParser:
    """The options of one command line and the faults found in them."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self.faults: list[str] = []

    def __contains__(self, option: str) -> bool:
        return self._given.get(option) not in {None, False}

    def flag(self, option: str) -> bool:
        """Return whether a flag was given."""
        return bool(self._given.get(option))

    def take(self, option: str, parse: Callable[[str], T], default: T) -> T:
        """Return an option's value, or the default where it is absent or wrong."""
        text = self._given.get(option)
        if text is None:
            return default
        try:
            return parse(str(text).strip())
        except ValueError as error:
            self.fault(option, str(error))
            return default

    def fault(self, option: str, what: str) -> None:
        """Note a fault, once where an option is read twice."""
        if (line := f"{option}: {what}") not in self.faults:
            self.faults.append(line)

    def given_of(self, *options: str) -> list[str]:
        """Return which of these options were given."""
        return [option for option in options if option in self]

    def needs(self, option: str, *others: str) -> None:
        """Note a fault when an option was given without any of those it goes with."""
        if option in self and not self.given_of(*others):
            self.fault(option, f"goes with {' or '.join(others)} only")

    def done(self) -> None:
        """Raise UsageError when there were faults."""
        if self.faults:
            raise UsageError(self.faults)


# What a text can mean. Each raises ValueError with what is wrong.


LEAST, MOST = 1e-12, 1e12
"""Beyond them squares and products are no floats any more."""
MOST_PLACES = 100_000
"""In a queue or a cap; ten times more and theory alone takes half a minute."""
MOST_RETRIES = 1000
MOST_JOBS = 1024
SHORTEST_PAUSE_S = 0.001
"""Of those who come back for ever: with none, a full queue is asked without an end."""


def number(text: str) -> float:
    """Return a number that is 0 or of a size that can be reckoned with."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    if value and not LEAST <= abs(value) <= MOST:
        raise ValueError(f"{text!r} is not within {LEAST:g} to {MOST:g}")
    return value


def at_least(low: float) -> Callable[[str], float]:
    """Return a parser of numbers that are not below `low`."""

    def parse(text: str) -> float:
        value = number(text)
        if value < low:
            raise ValueError(f"must be at least {low:g}, not {text}")
        return value

    return parse


def above(low: float) -> Callable[[str], float]:
    """Return a parser of numbers above `low`."""

    def parse(text: str) -> float:
        value = number(text)
        if value <= low:
            raise ValueError(f"must be above {low:g}, not {text}")
        return value

    return parse


def up_to(most: float, parse: Callable[[str], float]) -> Callable[[str], float]:
    """Return a parser of the numbers of another that are not above `most`."""

    def parse_bounded(text: str) -> float:
        value = parse(text)
        if value > most:
            raise ValueError(f"must be at most {most:g}, not {text}")
        return value

    return parse_bounded


def share(text: str) -> float:
    """Return a number above 0 and at most 1."""
    value = number(text)
    if not 0 < value <= 1:
        raise ValueError(f"must be above 0 and at most 1, not {text}")
    return value


def whole(low: int, most: int = 10**9) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if value < low:
            raise ValueError(f"must be at least {low}, not {text}")
        if value > most:
            raise ValueError(f"must be at most {most}, not {text}")
        return value

    return parse


def places(low: int) -> Callable[[str], int]:
    """Return a parser of how many may be in a queue, in flight or anywhere at once."""
    return whole(low, MOST_PLACES)


jobs = whole(1, MOST_JOBS)
"""Returns how many processes may work at once."""


def wholes(low: int) -> Callable[[str], list[int]]:
    """Return a parser of lists such as `4..8` or `0,4,8`, without repetitions, in order."""

    def parse(text: str) -> list[int]:
        values: set[int] = set()
        for part in text.split(","):
            first, dots, last = part.partition("..")
            start = places(low)(first)
            stop = places(low)(last) if dots else start
            if stop < start:
                raise ValueError(f"{part!r} runs backwards")
            values.update(range(start, stop + 1))
        return sorted(values)

    return parse


def timeout(text: str) -> float:
    """Return seconds above 0, or infinity for `none`."""
    return inf if text == "none" else above(0)(text)


def timeouts(text: str) -> list[float]:
    """Return a list of timeouts, without repetitions, in order."""
    return sorted({timeout(part) for part in text.split(",")})


def pair_of(parse: Callable[[str], float]) -> Callable[[str], tuple[float, float]]:
    """Return a parser of two numbers with a comma between them."""

    def parse_pair(text: str) -> tuple[float, float]:
        parts = text.split(",")
        if len(parts) != 2:
            raise ValueError(f"needs two numbers and a comma, not {text!r}")
        return parse(parts[0]), parse(parts[1])

    return parse_pair


def one_of(*names: str) -> Callable[[str], str]:
    """Return a parser of some words."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return parse


def law(text: str, *, constant: str = "const", unit: str = "S") -> Distribution:
    """Return `const:S`, `exp:S` or `lognormal:S,SIGMA`; `constant` is what the first is called."""
    kind, _, rest = text.partition(":")
    if kind == constant:
        return Distribution("const", at_least(0)(rest))
    if kind == "exp":
        return Distribution("exp", above(0)(rest))
    if kind == "lognormal":
        mean, sigma = pair_of(above(0))(rest)
        return Distribution("lognormal", mean, sigma)
    known = f"{constant}:{unit}, exp:{unit}, lognormal:{unit},SIGMA"
    raise ValueError(f"{text!r} is not one of {known}")


def patience(text: str) -> Distribution:
    """Return `none`, `exp:S` or `const:S`."""
    if text == "none":
        return NEVER
    kind, _, rest = text.partition(":")
    if kind not in {"exp", "const"}:
        raise ValueError(f"{text!r} is not one of none, exp:S, const:S")
    return Distribution("exp" if kind == "exp" else "const", above(0)(rest))


def retry(text: str) -> Retry:
    """Return a retry policy."""
    kind, _, rest = text.partition(":")
    match kind:
        case "none" if not rest:
            return NO_RETRY
        case "openai" | "anthropic" if not rest:
            return Retry(kind=kind)
        case "fixed":
            pause_s, times = pair_of(at_least(0))(rest)
            if times != int(times):
                raise ValueError(f"{rest!r}: the number of retries must be whole")
            if times > MOST_RETRIES:
                raise ValueError(f"{rest!r}: at most {MOST_RETRIES} retries")
            return Retry(kind="fixed", pause_s=pause_s, times=int(times))
        case "exp":
            pause_s, chance = pair_of(above(0))(rest)
            if chance > 1:
                raise ValueError(f"{rest!r}: the chance must be at most 1")
            if pause_s < SHORTEST_PAUSE_S:
                raise ValueError(f"{rest!r}: the pause must be at least {SHORTEST_PAUSE_S:g} s")
            return Retry(kind="exp", pause_s=pause_s, chance=chance)
        case _:
            raise ValueError(f"{text!r} is not one of none, openai, anthropic, fixed:S,N, exp:S,P")


def advice(text: str) -> Advice:
    """Return what refused clients are told."""
    kind, _, rest = text.partition(":")
    match kind:
        case "promise" | "none" if not rest:
            return Advice(kind=kind)
        case "const":
            return Advice(kind="const", pause_s=above(0)(rest))
        case _:
            raise ValueError(f"{text!r} is not one of promise, none, const:S")


def named_numbers(text: str) -> dict[str, float]:
    """Return `A=100,B=1` as numbers above 0 by name."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not name or name in found:
            raise ValueError(f"{part!r} is not NAME=NUMBER, each name once")
        found[name] = above(0)(value)
    return found


def replicas(text: str) -> tuple[int, int]:
    """Return `RxS`: the number of replicas and the slots of each."""
    count, by, slots = text.partition("x")
    if not by:
        raise ValueError(f"{text!r} is not RxS, e.g. 2x4")
    return places(1)(count), places(1)(slots)


def picture(text: str) -> Path:
    """Return the path of a picture that can be drawn."""
    path = Path(text)
    if path.suffix not in {".html", ".png", ".svg"}:
        raise ValueError(f"{text!r} ends in none of .html, .png, .svg")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path.parent} is not a folder")
    return path
