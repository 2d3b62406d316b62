"""What a configuration says of clients, made: the dialects that are served, and who may call."""

from importlib import import_module
from secrets import token_hex

from tornado_frontdoor.config import Settings
from tornado_frontdoor.surfaces.base import Surface
from tornado_frontdoor.surfaces.keys import Key, KeyRing
from tornado_frontdoor.surfaces.openai import OpenAISurface


def make_surfaces(settings: Settings) -> list[Surface]:
    """Return the dialects that are switched on; one that is off is not even loaded."""
    surfaces: list[Surface] = []
    if settings.surfaces.openai:
        surfaces.append(OpenAISurface(settings.surfaces.steering_fields))
    if settings.surfaces.anthropic:
        anthropic = import_module("tornado_frontdoor.surfaces.anthropic")
        status = settings.surfaces.anthropic_overloaded_status
        steering = settings.surfaces.steering_fields
        bare = settings.surfaces.anthropic_at_v1
        surfaces.append(
            anthropic.AnthropicSurface(status, lambda: token_hex(12), steering, bare=bare)
        )
    return surfaces


def key_ring(settings: Settings) -> KeyRing | None:
    """Return the keys of clients, each with the models it may ask for by their tables' names.

    None: nobody is asked for a key.
    """
    if not settings.keys:
        return None
    tables = {name.lower(): name for name in settings.models}
    return KeyRing(
        Key(
            key.name,
            key.sha256,
            frozenset(tables[model.lower()] for model in key.models),
            key.share,
        )
        for key in settings.keys.values()
    )
