"""Names: from what a caller wrote to the upstream that serves it and the name it is served by."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from tornado_frontdoor.core.request import UpstreamKey

LONGEST_NAME = 1000
"""Characters of a name that a pattern may stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a model can do, for surfaces that translate. Nothing here is guessed from a name.

    The words are those of `[models.X.dialect]` in docs/configuration.md.
    """

    inline_system: Literal["merge", "keep", "reminder"] = "merge"
    thinking_style: Literal["reasoning_effort", "enable_thinking", "thinking", "none"] = (
        "reasoning_effort"
    )
    thinking_budget: bool = False
    thinking_default: Literal["template", "off"] = "template"
    effort_map: Mapping[str, str] = field(default_factory=dict)
    reasoning_field: Literal["reasoning", "reasoning_content", "both"] = "reasoning"
    prefill: Literal["continue", "reject"] = "continue"
    images: Literal["base64", "base64+url", "none"] = "base64"
    max_output_tokens: int | None = None
    max_model_len: int | None = None
    stop_limit: int = 4
    strip_attribution: bool = True
    continuous_usage: bool = False
    tool_args: Literal["stream", "buffer"] = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One model of the configuration: what it is called, and who serves it under which name."""

    model: str
    served_name: str
    upstream: UpstreamKey
    aliases: tuple[str, ...] = ()
    traits: Traits = field(default_factory=Traits)
    anthropic: Literal["translate", "native"] = "translate"
    max_weight: int | None = None
    """The upstream's cap: what one request may weigh at most; None where it is uncapped."""
    wake: Literal["always", "if-awake", "never"] = "always"
    """Whether its requests wake a sleeping engine, where they do not say so themselves."""
    progress: Literal["interim", "sse"] = "interim"
    """How those who wait are told their place, where they do not say so themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Which model a request without one is for; None: it must name one."""

    chat_default: str | None = None
    multipart_chat_default: str | None = None
    embeddings: str | None = None


class Catalog:
    """All models, found by name, alias or glob, without regard to case.

    Exact names and aliases win over globs; among globs the longest wins, then the first written.
    """

    def __init__(self, targets: Iterable[Target], routes: Routes | None = None) -> None:
        self.targets = tuple(targets)
        self.routes = routes or Routes()
        self._exact: dict[str, Target] = {}
        globs: list[tuple[str, Target]] = []
        for target in self.targets:
            self._exact[target.model.lower()] = target
            for alias in target.aliases:
                if is_glob(alias):
                    globs.append((alias.lower(), target))
                else:
                    self._exact[alias.lower()] = target
        self._globs = sorted(globs, key=lambda pair: -len(pair[0]))  # stable: first written wins

    def resolve(self, name: str) -> Target | None:
        """Return the model that `name` means, or None when nobody serves it.

        No pattern stands for a name that is endless.
        """
        folded = name.lower()
        target = self._exact.get(folded)
        if target is not None:
            return target
        if len(name) > LONGEST_NAME:
            return None
        for pattern, candidate in self._globs:
            if fnmatchcase(folded, pattern):
                return candidate
        return None

    def names(self) -> list[tuple[str, Target]]:
        """Return every name that can be listed (table names and plain aliases), in file order."""
        listed: list[tuple[str, Target]] = []
        for target in self.targets:
            seen = {target.model.lower()}
            listed.append((target.model, target))
            for alias in target.aliases:
                if not is_glob(alias) and alias.lower() not in seen:
                    seen.add(alias.lower())
                    listed.append((alias, target))
        return listed


def is_glob(alias: str) -> bool:
    """Tell whether `alias` is a pattern rather than a name."""
    return any(character in alias for character in "*?[")
