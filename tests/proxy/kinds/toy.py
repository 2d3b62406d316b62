"""A kind of engine that nobody makes: one level, one word for its state, no release, no metrics."""

from collections.abc import Sequence

from tornado_frontdoor.engines.base import Call, EngineKind, Role, Sample, Seen, Step

REST = Step(Role.SLEEP, "rest", 5.0, Call("POST", "/rest"))
RISE = Step(Role.WAKE, "rise", 5.0, Call("POST", "/rise"))


class Toy(EngineKind):
    """Says `up`, or `down`, and how many it serves: `up 3`."""

    name = "toy"
    state = Call("GET", "/how")

    def read_state(
        self,
        state: bytes,
        beside: Sequence[bytes],
        samples: Sequence[Sample],
    ) -> Seen | str:
        word, _, running = state.decode().partition(" ")
        if word not in ("up", "down"):
            return f"it says {word!r}"
        return Seen(word == "down", 1 if word == "down" else 0, int(running or 0), 0)

    def wake_steps(self, version: str | None, level: int) -> tuple[Step, ...]:
        return (RISE,)

    def sleep_steps(self, version: str | None, level: int, *, asleep: bool) -> tuple[Step, ...]:
        return (REST,)

    def canary(self, path: str, model: str) -> Call:
        return Call("POST", "/ping", model)


KIND = Toy()
