"""Which surface answers a path: the one with the longest prefix of it, and the front door itself.

A path counts only in normal form (`surfaces/paths.py`); what is on no allow-list is a 404 that says
what was asked, and with it a hint where a base URL is likely to be wrong.
"""

from collections.abc import Sequence
from contextlib import suppress

from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.core.printable import printable
from tornado_frontdoor.surfaces.base import Refused, Route, RouteKind, Surface
from tornado_frontdoor.surfaces.paths import hint, normalise

HEALTH = "/health"
FOUND_KEPT = 64
"""Targets that are remembered: there are as many paths, unless hosts are named with them."""

Found = tuple[Surface | None, Route, str]
"""Who answers (None: the front door), by which route, and the query."""


class RouteTable:
    """The surfaces by their prefixes."""

    def __init__(self, surfaces: Sequence[Surface]) -> None:
        prefixes = [(prefix, surface) for surface in surfaces for prefix in surface.prefixes]
        self.prefixes = sorted(prefixes, key=lambda pair: len(pair[0]), reverse=True)
        self._found: dict[tuple[str, str], Found] = {}
        """What was asked for and found before: nearly all ask for the same few paths."""

    def find(self, method: str, target: str) -> Found:
        """Return who answers, its route, the query; None for the front door. Raises Refused."""
        found = self._found.get((method, target))
        if found is None:
            found = self._search(method, target)
            _, route, query = found
            if route.argument is None and not query and len(self._found) < FOUND_KEPT:
                self._found[method, target] = found
        return found

    def _search(self, method: str, target: str) -> Found:
        normal = normalise(target)
        if normal is None:
            raise Refused(Reason.NOT_FOUND, "There is nothing at this path")
        path, query = normal
        if path == HEALTH and method in ("GET", "HEAD"):
            return None, Route(RouteKind.PROBE, path), query
        surface = self.surface_of(path)
        if surface is None:
            raise Refused(Reason.NOT_FOUND, _nothing_at(method, path))
        try:
            return surface, surface.route(method, path), query
        except Refused as refused:
            if refused.refusal.reason is not Reason.NOT_FOUND:
                raise
            raise Refused(Reason.NOT_FOUND, _nothing_at(method, path)) from None

    def methods_of(self, target: str) -> list[str]:
        """Return the methods that a path takes; none where it is not ours."""
        normal = normalise(target)
        if normal is None:
            return []
        path, _ = normal
        if path == HEALTH:
            return ["GET", "HEAD", "OPTIONS"]
        surface = self.surface_of(path)
        if surface is None:
            return []
        taken = []
        for method in ("GET", "HEAD", "POST"):
            with suppress(Refused):
                surface.route(method, path)
                taken.append(method)
        return [*taken, "OPTIONS"] if taken else []

    def surface_of(self, path: str) -> Surface | None:
        """Return the surface that answers for a path: the one with the longest prefix of it."""
        for prefix, surface in self.prefixes:
            if path == prefix or path.startswith(prefix + "/"):
                return surface
        return None


def _nothing_at(method: str, path: str) -> str:
    shown = f"There is nothing at {printable(method)} {printable(path)}"
    advice = hint(path)
    return f"{shown}. {advice}" if advice else shown
