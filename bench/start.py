"""CPU from the start of a front door until it accepts, of its process alone; the least of some.

Its modules are compiled, as pip and the first start leave them; what the first start costs, with
nothing compiled, is told beside it.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from bench.harness import ENVIRONMENT, FrontDoor, configuration, fine_cpu_s

TARGET_S = 0.4


def once(folder: Path) -> tuple[float, float]:
    """Start one and end it; returns seconds of CPU and by the clock until it accepted."""
    # An environment of containers and tests often forbids Python to keep what it has compiled.
    environment = {**ENVIRONMENT, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    text = configuration("http://127.0.0.1:9", admission=(8, 6, 8, 30))
    began_s = time.monotonic()
    with FrontDoor(folder, text, environment) as door:
        return fine_cpu_s(door.process), time.monotonic() - began_s


def main() -> int:
    """Measure and print; returns 1 when the target is missed."""
    parser = argparse.ArgumentParser(prog="bin/bench start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        first_cpu_s, first_clock_s = once(Path(name))
        took = [once(Path(name)) for _ in range(options.rounds)]
    cpu_s, clock_s = min(cpu for cpu, _ in took), min(clock for _, clock in took)
    met = cpu_s <= TARGET_S
    print(f"nothing compiled: {first_cpu_s:.2f} s of CPU, {first_clock_s:.2f} s")
    print(
        f"start to accept: {cpu_s:.2f} s of CPU, {clock_s:.2f} s "
        f"(target <= {TARGET_S} s of CPU) {'ok' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
