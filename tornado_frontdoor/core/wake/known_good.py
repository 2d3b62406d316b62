"""What a canary was answered while an engine was known to be good, and whether it still is.

A value. At temperature 0 the first token is the same as long as the weights are: weights that were
never filled, or filled with another model's, answer with something else, and say it went well.

Rule 1: it is recorded where nobody has put the engine to sleep since it loaded its weights, once.
Rule 2: another process has loaded its own weights, perhaps others: it is recorded anew.
Rule 3: what could not be compared proves nothing, and is said.
"""

from dataclasses import dataclass, replace
from enum import Enum

from tornado_frontdoor.core.decisions import CanaryEnded
from tornado_frontdoor.engines.base import FirstToken, Report, StepResult

TOLERANCE = 0.5
"""By how much a log-probability may differ: batches and kernels move it by hundredths."""
SURE = -0.7
"""A token that is more likely than not (log 0.5) is not passed by another one for such a reason."""


class CanaryResult(Enum):
    """What a canary has shown; the value is what metrics and status show."""

    MATCHED = "matched"
    RECORDED = "recorded"
    """Its answer is what later ones are compared with."""
    UNPROVEN = "unproven"
    """It was answered, or could not be asked, and nothing was compared."""
    GARBAGE = "garbage"
    """Another answer than while the engine was known to be good."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGood:
    """What is known of one engine's first token."""

    token: FirstToken | None = None
    result: CanaryResult | None = None
    """Of the last canary; None: there was none."""
    detail: str = ""

    @property
    def quarantined(self) -> bool:
        """Whether its last answer was garbage: nobody is let in until one is not."""
        return self.result is CanaryResult.GARBAGE

    def ended(self) -> CanaryEnded:
        """Return what there is to tell of the last canary."""
        assert self.result is not None
        return CanaryEnded(self.result.value, self.detail)

    def heard(self, report: Report, *, fresh: bool) -> "KnownGood":
        """Return it after a canary; `fresh`: its weights are as the engine itself loaded them."""
        token = report.token
        if report.ending is StepResult.UNSUPPORTED:
            return self._unproven(f"it cannot be asked for a token: {report.detail}")
        if report.ending is not StepResult.DONE:
            return replace(self, result=CanaryResult.FAILED, detail=report.detail)
        if token is None:
            return self._unproven("its answer to the canary has no first token")
        if self.token is None:
            if not fresh:
                return self._unproven("no first token was recorded while it was known to be good")
            return KnownGood(token=token, result=CanaryResult.RECORDED)
        return self._compared(self.token, token)

    def _unproven(self, why: str) -> "KnownGood":
        return replace(self, result=CanaryResult.UNPROVEN, detail=why)

    def _compared(self, good: FirstToken, now: FirstToken) -> "KnownGood":
        if not differs(good, now):
            return replace(self, result=CanaryResult.MATCHED, detail="")
        why = (
            f"its first token is {_told(now)}, and was {_told(good)} while it was known to be good"
        )
        return replace(self, result=CanaryResult.GARBAGE, detail=why)


NOTHING_KNOWN = KnownGood()


def differs(good: FirstToken, now: FirstToken) -> bool:
    """Tell whether an answer cannot come from the same weights."""
    if good.logprob is None or now.logprob is None:
        return good.text != now.text
    if abs(good.logprob - now.logprob) > TOLERANCE:
        return True
    return good.text != now.text and good.logprob > SURE


def _told(token: FirstToken) -> str:
    how = "" if token.logprob is None else f" ({token.logprob:.2f})"
    return f"{token.text!r}{how}"
