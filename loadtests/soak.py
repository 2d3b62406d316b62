"""Everything at once, for as long as one likes: arrivals, streams and clients that leave.

One user is the source of `mixed`; of the others, every second one reads streams as in `streaming`
and every second one leaves as in `disconnects`.

    locust -f loadtests/soak.py --headless --users 9 --spawn-rate 9 --rate 1 --seconds 1800
"""

from loadtests import disconnects, mixed, streaming


class SteadyArrivals(mixed.Source):
    """The source of arrivals."""

    fixed_count = 1

    @property
    def sources(self) -> int:
        """It is alone."""
        return 1


class Readers(streaming.TokenReader):
    """Reads streams."""


class Leavers(disconnects.Fickle):
    """Leaves."""
