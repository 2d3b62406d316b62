"""Whether the options of a run make sense; told before anything is started or sent."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loadtests.lib import arrivals, holds, objectives

Check = Callable[[Any], object]

CHECKS: dict[str, Check] = {
    "--slo": objectives.parse,
    "--hold": holds.parse,
    "--thin": lambda given: arrivals.share(float(given)),
    "--trace": lambda given: arrivals.read_trace(Path(given)),
}


def mistake(options: Mapping[str, Any], checks: Mapping[str, Check] = CHECKS) -> str | None:
    """Return what is wrong with the first option that is; one that was not given is right."""
    for option, check in checks.items():
        if options[option] not in {None, ""}:
            try:
                check(options[option])
            except (ValueError, OSError) as error:
                return f"{option}: {error}"
    return None
