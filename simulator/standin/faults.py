"""Misfortunes by order: which call of a stand-in goes wrong, how, and how often.

    SPEC  = RULE {"," RULE}
    RULE  = NAME "=" KIND [":" ARGUMENT] ["*" COUNT] ["@" SKIP]

    wake_up=slow:3*2            the next two wakes take 3 s longer
    collective_rpc=fail*1       one worker call answers 500 and has no effect
    is_sleeping=hang            never answered, and all later control calls wait behind it
    chat=die_on_first           the first answer after each start or wake kills the engine
    health=fail:503*3@5         from the sixth on three probes answer 503

NAME: a control call (`sleep`, `wake_up`, `is_sleeping`, `collective_rpc`, `reset_prefix_cache`,
`pause`, `resume`, `is_paused`, `abort_requests`), a worker method (`reload_weights`), a look
(`health`, `version`, `metrics`, `models`), or what asks for a sequence: `chat`, `completions`,
`responses`, `messages`, `embeddings`, `score`, `rerank`, `audio`; `inference` is any of these.

KIND:
    slow:S        S seconds longer; for a sequence: before it begins, in its slot
    hang          for ever (`slow` without end)
    mute          the effect, but never an answer
    drop          the connection is cut in place of the call
    fail[:CODE]   an error answer (default 500) and no effect
    noop          success is answered, nothing is done
    die           the engine dies in place of the call
    die_after     the engine dies right after the answer (for a sequence: as it starts)
    die_on_first  for sequences: `die`, once after each start or wake
    garbage       for sequences: the text is garbage

Without COUNT a rule holds for ever. Of several rules for one call the first that is left is used.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass

LOOKS = ("health", "version", "metrics", "models")
CONTROLS = (
    "sleep", "wake_up", "is_sleeping", "collective_rpc", "reload_weights", "reset_prefix_cache",
    "pause", "resume", "is_paused", "abort_requests",
)  # fmt: skip
SEQUENCES = (
    "chat", "completions", "responses", "messages", "embeddings", "score", "rerank", "audio",
    "inference",
)  # fmt: skip
_FOR_ALL = ("slow", "hang", "mute", "drop", "fail", "die", "die_after")
KINDS = {
    **dict.fromkeys(LOOKS, _FOR_ALL),
    **dict.fromkeys(CONTROLS, (*_FOR_ALL, "noop")),
    **dict.fromkeys(SEQUENCES, (*_FOR_ALL, "die_on_first", "garbage")),
}
_RULE = re.compile(r"(\w+)=(\w+)(?::([\d.]+))?(?:\*(\d+))?(?:@(\d+))?")


@dataclass(slots=True)
class FaultRule:
    """One rule; `left` counts down to 0."""

    name: str
    kind: str
    argument: float | None = None
    left: float = math.inf
    skip: int = 0

    @property
    def slow_s(self) -> float:
        """Seconds that it adds."""
        if self.kind == "hang":
            return math.inf
        return self.argument or 0.0 if self.kind == "slow" else 0.0

    @property
    def status(self) -> int:
        """The status of an error answer."""
        return int(self.argument or 500)


NONE = FaultRule("", "")


class Faults:
    """The rules of one stand-in, used up as calls come."""

    def __init__(self, spec: str = "") -> None:
        self._rules: list[FaultRule] = []
        self.injected: Counter[str] = Counter()
        """How often each `NAME=KIND` struck."""
        self.fresh = True
        """No sequence has run since the engine started or woke: what `die_on_first` waits for."""
        self.add(spec)

    def add(self, spec: str) -> None:
        """Append rules; raises ValueError that names the wrong one."""
        self._rules += [_parse(rule.strip()) for rule in spec.split(",") if rule.strip()]

    def clear(self) -> None:
        """Forget all rules."""
        self._rules.clear()

    def strike(self, *names: str) -> FaultRule:
        """Return (and use up) what is to befall a call known by `names`; `NONE`: nothing."""
        for rule in self._rules:
            if rule.name not in names or rule.left <= 0:
                continue
            if rule.skip > 0:
                rule.skip -= 1
                continue
            if rule.kind == "die_on_first" and not self.fresh:
                continue
            rule.left -= 1
            self.injected[f"{rule.name}={rule.kind}"] += 1
            return rule
        return NONE


def _parse(text: str) -> FaultRule:
    match = _RULE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not NAME=KIND[:ARGUMENT][*COUNT][@SKIP]")
    name, kind, argument, count, skip = match.groups()
    if name not in KINDS:
        raise ValueError(f"{text!r}: no call is named {name!r}; there are {', '.join(KINDS)}")
    if kind not in KINDS[name]:
        raise ValueError(f"{text!r}: {name} knows {', '.join(KINDS[name])}, not {kind!r}")
    if kind == "slow" and argument is None:
        raise ValueError(f"{text!r}: slow needs seconds, as in slow:3")
    return FaultRule(
        name,
        kind,
        None if argument is None else float(argument),
        math.inf if count is None else int(count),
        int(skip or 0),
    )
