"""Replications where there is doubt: a budget that goes to the points a recommendation hangs on.

Rule 1: the budget is in replications, so that the same options give the same answer anywhere.
Rule 2: replications are numbered on, so that all points go on seeing the same requests.
"""

from collections.abc import Callable

from simulator.model.scenario import Scenario
from simulator.study.experiment import Result

Further = Callable[[Scenario, int, int], Result]
"""Computes so many further replications of a scenario, numbered from the first of them on."""
MOST = 32
"""No point gets more than so many times its first replications."""


class Spending:
    """Doubles the replications of a point that is in doubt, until the budget is spent."""

    def __init__(self, further: Further, budget: int) -> None:
        self._further = further
        self._left = budget

    def more(self, scenario: Scenario, result: Result, first: int) -> Result | None:
        """Return it with more replications; None: that would not help, or there are none left.

        `first` is how many it had at first.
        """
        done = len(result.replications)
        count = min(done, MOST * first - done, self._left)
        if count <= 0 or not scenario.random:
            return None
        self._left -= count
        added = self._further(scenario, done, count)
        return Result((*result.replications, *added.replications), result.uncertain_engine)
