"""A burst of `--users` requests in one instant, each held as long as the next.

With 40 users, a cap of 6 and a line of 8: 14 are served and 26 refused, in whatever dialects they
ask, because both stand in the one line of the engine.

    locust -f loadtests/verify.py --headless --users 40 --spawn-rate 40 --hold 2
"""

from typing import cast

from loadtests.lib.dialects import ClientCall, Surface
from loadtests.lib.users import Caller


class OneOfTheCrowd(Caller):
    """One request, together with all others; dialects by turns."""

    def part(self) -> None:
        """Wait for the crowd and ask."""
        surface = cast("Surface", self.surfaces[self.number % len(self.surfaces)])
        self.wait_for_all()
        self.ask(ClientCall(surface=surface, model="reasoning", hold_s=self.hold_s(), tokens=1))
