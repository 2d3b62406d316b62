"""An engine that falls asleep when nobody asks and wakes when somebody does.

Four transitions take time: falling to level 1 or 2, waking from either. A request that comes while
the engine falls waits for the rest of that and for the wake. Idle time runs from the last end, not
from the last arrival, and nothing falls while anyone is inside.

    AWAKE --idle T1--> FALLING 1 --> ASLEEP 1 --idle T2--> FALLING 2 --> ASLEEP 2
    ASLEEP l --arrival--> WAKING l --> AWAKE;   FALLING l --arrival--> (falls to its end) WAKING l
"""

from collections.abc import Callable
from enum import Enum, auto

from simulator.driver import Driver, Order
from simulator.scenario import Tiers


class State(Enum):
    """What the engine is doing."""

    AWAKE = auto()
    FALLING = auto()
    ASLEEP = auto()
    WAKING = auto()


class Lifecycle:
    """One engine's sleep. `hold(limit_s)` and `resume()` close and open its gate."""

    def __init__(
        self,
        tiers: Tiers,
        driver: Driver,
        hold: Callable[[float], None],
        resume: Callable[[], None],
    ) -> None:
        self._tiers = tiers
        self._driver = driver
        self._hold = hold
        self._resume = resume
        self.state = State.AWAKE
        self.level = 0
        self.wakes = [0, 0]
        self._seconds: dict[tuple[State, int], float] = {}
        self._since_s = 0.0
        self._idle_since_s = 0.0
        self._idle_count = 0
        self._wanted = False

    def empty(self) -> None:
        """Note that nobody is inside any more: from now on the engine idles."""
        if self.state is not State.AWAKE:
            return
        self._idle_count += 1
        self._idle_since_s = self._driver.time_s
        for level in (1, 2):
            idle_s = self._tiers.idle_s[level - 1]
            if idle_s > 0:
                at_s = self._idle_since_s + idle_s
                self._driver.at(at_s, Order.IDLE, self._idled, (self._idle_count, level))

    def arrived(self) -> bool:
        """Note an arrival, before it goes to the gate; returns whether the engine is awake."""
        self._idle_count += 1  # makes pending idle events stale
        if self.state is State.ASLEEP:
            self._wake()
        elif self.state is State.FALLING:
            self._wanted = True
        return self.state is State.AWAKE

    def seconds(self) -> dict[tuple[State, int], float]:
        """Return the time spent so far in each (state, level)."""
        self._enter(self.state, self.level)
        return dict(self._seconds)

    def _idled(self, which: tuple[int, int]) -> None:
        count, level = which
        if count != self._idle_count or level <= self.level:
            return
        if self.state is State.FALLING:
            # The longer idle time ends during the fall to the first level: go on when it is over.
            at_s = self._since_s + self._tiers.fall_s[self.level - 1]
            self._driver.at(at_s, Order.IDLE, self._idled, which)
            return
        self._enter(State.FALLING, level)
        self._hold(self._tiers.hold_s[level - 1])
        at_s = self._driver.time_s + self._tiers.fall_s[level - 1]
        self._driver.at(at_s, Order.COMPLETION, self._fallen, None)

    def _fallen(self, _: object) -> None:
        self._enter(State.ASLEEP, self.level)
        if self._wanted:
            self._wanted = False
            self._wake()

    def _wake(self) -> None:
        self._enter(State.WAKING, self.level)
        self.wakes[self.level - 1] += 1
        at_s = self._driver.time_s + self._tiers.wake_s[self.level - 1]
        self._driver.at(at_s, Order.COMPLETION, self._woken, None)

    def _woken(self, _: object) -> None:
        self._enter(State.AWAKE, 0)
        self._resume()

    def _enter(self, state: State, level: int) -> None:
        now = self._driver.time_s
        key = (self.state, self.level)
        self._seconds[key] = self._seconds.get(key, 0.0) + now - self._since_s
        self._since_s = now
        self.state, self.level = state, level
