"""Locust's event hooks with types: its own decorators would take ours away."""

from collections.abc import Callable
from typing import Any, TypeVar

Listener = TypeVar("Listener", bound=Callable[..., None])


def on(hook: Any) -> Callable[[Listener], Listener]:
    """Register a function as a listener of a hook."""

    def register(listener: Listener) -> Listener:
        hook.add_listener(listener)
        return listener

    return register


def fire(hook: Any, **what: Any) -> None:
    """Tell the listeners of a hook."""
    hook.fire(**what)
