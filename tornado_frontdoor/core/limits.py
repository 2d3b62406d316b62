"""What one gate may hold, as an operator sets it."""

from dataclasses import dataclass

COOLING_LIMIT_S = 2.0
"""Longer than any engine was seen to need: llama.cpp looks after its clients once a second."""


def default_return_places(queue: int) -> int:
    """Return how many of a queue's places are kept for those who come back, unless told."""
    return queue // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """What one gate may hold. No limit of a wait or a crowd has a default: it would be a surprise.

    With `cap` None nothing is limited while the engine is awake, and `queue` bounds those who wait
    for it to wake. Raises ValueError for limits that cannot work.
    """

    cap: int | None
    """Slots that may be taken, in flight or cooling (>= 1)."""
    queue: int
    """Places in the queue (>= 0)."""
    queue_timeout_s: float
    """Longest wait for a slot of an awake engine (> 0)."""
    return_places: int = 0
    """How many of the last places are kept for those who come back when they were told (>= 0)."""
    heeds_patience: bool = True
    """Whether those are refused at once who would leave before their turn."""
    fair_share: bool = False
    """Whether slots are shared by key, rather than given in order of arrival alone."""
    cooling_limit_s: float = COOLING_LIMIT_S
    """How long a slot stays taken whose engine gives no sign that it has let go (>= 0)."""

    def __post_init__(self) -> None:
        if self.cap is not None and self.cap < 1:
            raise ValueError(f"cap must be at least 1, not {self.cap}")
        if self.queue < 0:
            raise ValueError(f"queue must be at least 0, not {self.queue}")
        if not self.queue_timeout_s > 0:
            raise ValueError(f"queue_timeout_s must be above 0, not {self.queue_timeout_s}")
        if not 0 <= self.return_places <= self.queue:
            raise ValueError(f"return_places must be 0 to {self.queue}, not {self.return_places}")
        if not self.cooling_limit_s >= 0:
            raise ValueError(f"cooling_limit_s must be at least 0, not {self.cooling_limit_s}")
