"""How many requests were in service when, from the begins and ends of all of them."""

import numpy as np

from simulator.traffic.distributions import Floats


class Occupancy:
    """How many were in service when, from the begins and ends of all of them."""

    def __init__(self, begins: Floats, ends: Floats) -> None:
        instants = np.concatenate([begins, ends])
        steps = np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])
        # At one instant those who end go first: their slots are taken over.
        order = np.lexsort((steps, instants))
        self._instants = instants[order]
        self._inside = np.cumsum(steps[order])

    def at(self, at_s: Floats) -> Floats:
        """Return how many were in service right after these instants."""
        place = np.searchsorted(self._instants, at_s, side="right") - 1
        inside: Floats = self._inside[place]
        return inside

    def work(self, begins: Floats, ends: Floats, slowdown: float) -> Floats:
        """Return the seconds that requests would have taken alone, with that slowdown."""
        others = np.maximum(self._inside[:-1] - 1, 0)
        done = np.diff(self._instants) / (1 + slowdown * others)
        return self._between(np.concatenate([[0.0], np.cumsum(done)]), begins, ends)

    def company(self, begins: Floats, ends: Floats) -> Floats:
        """Return for each request the mean number in service while it was, itself included."""
        area = np.concatenate([[0.0], np.cumsum(self._inside[:-1] * np.diff(self._instants))])
        lasted = ends - begins
        whole = self._between(area, begins, ends)
        mean = np.divide(whole, lasted, out=np.ones_like(whole), where=lasted > 0)
        company: Floats = np.maximum(mean, 1.0)
        return company

    def _between(self, total: Floats, begins: Floats, ends: Floats) -> Floats:
        until, since = (np.interp(at_s, self._instants, total) for at_s in (ends, begins))
        between: Floats = until - since
        return between
