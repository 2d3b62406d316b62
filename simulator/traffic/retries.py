"""What clients do when they are refused: come back as real SDKs do, or as a law says.

Rule 1: a policy decides from the refusal and from one number in [0, 1) that it is given.
Rule 2: what SDKs are told is `retry-after-ms`, which they prefer and which never exceeds 59 s.

Sources: openai-python 3.57 (honours up to 120 s, gives up above), anthropic-sdk-python 2.14
(honours any), both with 2 retries and, unadvised, 0.5 s x 2^n up to 8 s less up to 25 %.
"""

from dataclasses import dataclass
from typing import Literal

from simulator.traffic.distributions import exponential

SDK_RETRIES = 2
SDK_FIRST_BACKOFF_S = 0.5
SDK_LONGEST_BACKOFF_S = 8.0
SDK_JITTER = 0.25
OPENAI_HONOURS_S = 120.0
LONGEST_TOLD_S = 59.0

RetryKind = Literal["none", "openai", "anthropic", "fixed", "exp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """What follows a refusal.

    `fixed` comes back after `pause_s`, at most `times` times; `exp` after an exponential time with
    mean `pause_s`, each time with probability `chance`, for ever.
    """

    kind: RetryKind
    pause_s: float = 0.0
    times: int = 0
    chance: float = 1.0

    def pause(self, told_s: float | None, attempts: int, at: float) -> float | None:
        """Return how long a client waits that was refused `attempts` times, or None: it gives up.

        `told_s` is the server's advice, `at` the client's number in [0, 1).
        """
        match self.kind:
            case "none":
                return None
            case "fixed":
                return self.pause_s if attempts <= self.times else None
            case "exp":
                # One number decides both: below `chance` it is uniform again.
                if at >= self.chance:
                    return None
                return exponential(self.pause_s, at / self.chance)
            case "openai" | "anthropic":
                return self._as_sdk(told_s, attempts, at)

    def _as_sdk(self, told_s: float | None, attempts: int, at: float) -> float | None:
        if attempts > SDK_RETRIES:
            return None
        if told_s is not None and told_s > 0:
            too_long = self.kind == "openai" and told_s > OPENAI_HONOURS_S
            return None if too_long else told_s
        backoff_s = min(SDK_FIRST_BACKOFF_S * (1 << (attempts - 1)), SDK_LONGEST_BACKOFF_S)
        return backoff_s * (1 - SDK_JITTER * at)

    def __str__(self) -> str:
        match self.kind:
            case "fixed":
                return f"fixed:{self.pause_s:g},{self.times}"
            case "exp":
                return f"exp:{self.pause_s:g},{self.chance:g}"
            case kind:
                return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What refused clients are told: what the gate promises, the same for all, or nothing."""

    kind: Literal["promise", "const", "none"] = "promise"
    pause_s: float = 0.0

    def told_s(self, promised_s: float | None) -> float | None:
        """Return what a client is told whom the gate promised an instant."""
        match self.kind:
            case "promise":
                return None if promised_s is None else min(promised_s, LONGEST_TOLD_S)
            case "const":
                return self.pause_s
            case "none":
                return None

    def __str__(self) -> str:
        return f"const:{self.pause_s:g}" if self.kind == "const" else self.kind


TOLD = Advice()
NO_RETRY = Retry(kind="none")
