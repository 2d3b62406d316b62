"""Clients that leave: in the line, before the first byte, and in the middle of a stream.

`--users` clients crowd one capped engine; two of three requests are given up on. Afterwards no slot
and no place may be taken, here or in the engine.

    locust -f loadtests/disconnects.py --headless --users 20 --spawn-rate 20 --seconds 60
"""

from typing import cast

import gevent

from loadtests.lib.dialects import ClientCall, Surface
from loadtests.lib.users import ClosedUser

GAP_MS = 10.0
TOKENS = 20


class Fickle(ClosedUser):
    """Leaves most of its requests at some moment."""

    def once(self) -> None:
        """Make one request; perhaps leave it."""
        hold_s = self.hold_s()
        call = ClientCall(
            surface=cast("Surface", self.rng.choice(self.surfaces)),
            model="reasoning",
            stream=self.rng.random() < 0.7,
            hold_s=hold_s,
            tokens=TOKENS,
            gap_ms=GAP_MS,
        )
        match self.rng.randrange(3):
            case 0:
                self.ask(call)
            case 1:
                # In the line, or while the engine is silent, or a little later.
                self.ask(call, leave_s=self.rng.uniform(0.0, 2 * call.engine_s))
            case _:
                self.ask(call, read=self.rng.randint(1, TOKENS - 1))
        # Refused clients would come back at once and be all there is.
        gevent.sleep(hold_s / 2)
