"""What the KV caches of the replicas went through: how full, and who was preempted.

Time averages are over the time that the other metrics are of: `open` and `close` say when.
"""

from collections.abc import Sequence

from simulator.engine_model.kv_memory import PagedReplica
from simulator.model.attempt import Attempt


class KvRecords:
    """The books of one replication, for an engine whose memory is known."""

    def __init__(self, kv_tokens: float, warmup: int) -> None:
        self._tokens = kv_tokens
        self._warmup = warmup
        self._replicas: Sequence[PagedReplica] = ()
        self._opened = self._closed = (0.0, 0.0)
        self._preempted_s: dict[Attempt, float] = {}
        self.preemptions = 0

    def watch(self, replicas: Sequence[PagedReplica]) -> None:
        """Learn whose memory it is."""
        self._replicas = replicas

    def open(self, at_s: float) -> None:
        """Begin to measure."""
        self._opened = at_s, self._area(at_s)

    def close(self, at_s: float) -> None:
        """End measuring."""
        self._closed = at_s, self._area(at_s)

    def _area(self, at_s: float) -> float:
        return sum(replica.held_area(at_s) for replica in self._replicas)

    def preempted(self, attempt: Attempt, at_s: float) -> None:
        """Note that an attempt had to give its memory up."""
        if attempt.index >= self._warmup:
            self.preemptions += 1
        self._preempted_s[attempt] = at_s

    def resumed(self, attempt: Attempt, at_s: float) -> None:
        """Note that it goes on: it has waited inside the engine, as before its start."""
        attempt.started_s += at_s - self._preempted_s.pop(attempt)

    def left(self, attempt: Attempt) -> None:
        """Note that it goes no further."""
        self._preempted_s.pop(attempt, None)

    def metrics(self, offered: int) -> dict[str, float | None]:
        """Return what came of it."""
        window_s = self._closed[0] - self._opened[0]
        whole = self._tokens * len(self._replicas) * window_s
        most = max((replica.most_held for replica in self._replicas), default=0.0)
        return {
            "kv_usage_mean": (self._closed[1] - self._opened[1]) / whole if whole else None,
            "kv_usage_max": min(1.0, most / self._tokens),
            "preemptions_per_request": self.preemptions / offered if offered else None,
        }
