"""An event loop whose clock stands still while anything can happen, and then jumps.

The sockets are the kernel's, but only pairs of the local family: what one end writes is there for
the other in the same instant, and nothing else in the machine has a say. So everything that happens
follows from the order in which the loop looks at what is ready, and that is drawn from a seed.
"""

import asyncio
import selectors
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from random import Random
from time import monotonic
from typing import Any

OURS = ("tornado_frontdoor", "simulator")


class StuckError(AssertionError):
    """Nothing is ready and no timer is set: the world would wait for ever."""


class _Selector(selectors.EpollSelector):
    """Never waits: where nothing is ready, time goes on to when the loop wanted to be woken."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            if len(ready) > 1:
                self._rng.shuffle(ready)
        elif timeout is None:
            raise StuckError("nothing is ready and no timer is set")
        elif timeout > 0:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time. `after_each_turn` is called when a turn's callbacks have run."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._virtual = _Selector(rng)
        super().__init__(self._virtual)
        self.after_each_turn: Callable[[], None] = lambda: None
        self.turns = 0
        self._failure: BaseException | None = None

    def time(self) -> float:
        """Return virtual seconds."""
        return self._virtual.now_s

    def run_in_executor(
        self, _executor: Any, func: Callable[..., Any], *arguments: Any
    ) -> "asyncio.Future[Any]":
        """Do at once what a thread would, and let it be known a drawn time later."""
        future = self.create_future()
        try:
            known = partial(future.set_result, func(*arguments))
        except Exception as error:  # noqa: BLE001 - it is the future's
            known = partial(future.set_exception, error)
        self.call_later(
            self._rng.choice((0, 0.001, 0.05)), lambda: None if future.done() else known()
        )
        return future

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        self.turns += 1
        self.after_each_turn()


@cache
def _clocks(_modules: int) -> list[tuple[Any, str, Any]]:
    """Return where our modules, and the classes in them, keep the monotonic clock."""
    ours = [module for name, module in list(sys.modules.items()) if name.startswith(OURS)]
    classes = [one for module in ours for one in vars(module).values() if isinstance(one, type)]
    return [
        (owner, key, value)
        for owner in dict.fromkeys([*ours, *classes])
        for key, value in vars(owner).items()
        if getattr(value, "__func__", value) is monotonic
    ]


@contextmanager
def virtual_clock(loop: VirtualLoop) -> Iterator[None]:
    """Let everything of ours that reads the monotonic clock read the loop's."""
    clocks = _clocks(len(sys.modules))
    for owner, key, clock in clocks:
        setattr(owner, key, loop.time if clock is monotonic else staticmethod(loop.time))
    try:
        yield
    finally:
        for owner, key, clock in clocks:
            setattr(owner, key, clock)
