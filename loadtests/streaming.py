"""Streams, one after another by each user: first token, first visible token, gaps, whole answers.

locust -f loadtests/streaming.py --headless --users 20 --spawn-rate 20 --seconds 60
"""

from typing import cast

from loadtests.lib.dialects import ClientCall, Surface
from loadtests.lib.users import ClosedUser

GAP_MS = 20.0
THOUGHTS, TOKENS = 20, 80
HOLD_S = 0.2


class TokenReader(ClosedUser):
    """Reads streams to their end; every other one begins with reasoning."""

    def once(self) -> None:
        """Read one stream."""
        self.ask(
            ClientCall(
                surface=cast("Surface", self.rng.choice(self.surfaces)),
                model="text",
                stream=True,
                hold_s=HOLD_S,
                tokens=TOKENS,
                thoughts=self.rng.choice((0, THOUGHTS)),
                gap_ms=GAP_MS,
            )
        )
