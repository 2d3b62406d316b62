"""Open-loop arrivals to a capped and two uncapped engines: chat in both dialects, embeddings.

Each of the three models gets `--rate` requests a second, as a Poisson process, or the arrivals of
`--trace`. `--users` sources share that rate; the load is the same for any number of them.

    locust -f loadtests/mixed.py --headless --users 4 --rate 2.4 --hold exp:2 --seconds 300
"""

from typing import cast

from loadtests.lib.dialects import ClientCall, Surface
from loadtests.lib.users import Open


class Source(Open):
    """A share of the arrivals."""

    kinds = 3

    def arrive(self, due_s: float) -> None:
        """Ask one of the three engines."""
        model = self.rng.choice(("reasoning", "text", "embed"))
        surface: Surface = "embeddings"
        if model != "embed":
            surface = cast("Surface", self.rng.choice(self.surfaces))
        stream = surface != "embeddings" and self.rng.random() < 0.5
        self.ask(
            ClientCall(surface=surface, model=model, hold_s=self.hold_s(), stream=stream, tokens=2),
            due_s,
        )
