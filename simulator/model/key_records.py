"""What became of each key's requests, where clients bring keys."""

from simulator.model.attempt import Attempt
from simulator.model.tally import Tally
from simulator.traffic.keys import ClientKey


class KeyRecords:
    """The books of one replication by key, the warm-up left out."""

    def __init__(self, keys: tuple[ClientKey, ...], warmup: int) -> None:
        self._warmup = warmup
        self._offered = {key.name: 0 for key in keys}
        self._waits = {key.name: Tally() for key in keys}

    def came(self, attempt: Attempt) -> None:
        """Note a request's first attempt."""
        if attempt.index >= self._warmup:
            self._offered[attempt.key] += 1

    def served(self, attempt: Attempt) -> None:
        """Note that a request ran to its end."""
        if attempt.index >= self._warmup:
            self._waits[attempt.key].add(attempt.admitted_s - attempt.arrived_s)

    def metrics(self) -> dict[str, float | None]:
        """Return the share served and the waits of each key."""
        metrics: dict[str, float | None] = {}
        for name, waits in self._waits.items():
            waits.settle()
            offered = self._offered[name]
            metrics[f"served_share[{name}]"] = waits.count / offered if offered else None
            metrics[f"wait_mean_s[{name}]"] = waits.mean
            metrics[f"wait_p95_s[{name}]"] = waits.percentiles((0.95,))[0]
        return metrics
