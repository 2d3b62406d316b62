"""Dialects towards engines: what a kind of engine is asked, and how its answers are read. Pure.

`base.py` says what a kind is; every other module here is one, and is found by being here.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from tornado_frontdoor.engines.base import EngineKind

DEFAULT_KIND = "vllm"


def kinds() -> Mapping[str, EngineKind]:
    """Return the kinds of engine that there are, by name."""
    names = sorted(found.name for found in iter_modules(__path__) if found.name != "base")
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return {module.KIND.name: module.KIND for module in modules}
