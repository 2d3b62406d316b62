"""What is believed of an engine's memory: what a probe means depends on what came before it.

A value: `read` returns the next belief and what the probe means, and changes nothing.

Rule 1: weights that were dropped are trusted again only when they were seen to be loaded, when the
        engine tells that they are, or when it is another process. An engine full of garbage says
        that it is awake, too.
Rule 2: the level is 1 only where nothing speaks against it; a level nobody knows is treated as 2.
        The gauge believes any call to sleep, also one that did nothing.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from tornado_frontdoor.core.decisions import EngineState, JournalEntry
from tornado_frontdoor.core.wake.known_good import NOTHING_KNOWN, KnownGood
from tornado_frontdoor.engines.base import STOPPED, EngineKind, Report, Role, Seen, Step, StepResult

LONGEST_PATIENCE = 16.0
"""The time limit of probes doubles up to so many times while they are not answered."""


class EngineEvent(Enum):
    """What can happen to an engine's state."""

    WANTED = auto()
    """Somebody is inside, or an operator asked, and no pause after a failure is on."""
    DUE = auto()
    """An idle tier or an operator wants it asleep, and nobody has work for it."""
    NOT_DUE = auto()
    """Somebody has, or nobody can tell; or another call keeps it busy."""
    FOUND_AWAKE = auto()
    """A probe: it does not sleep (or cannot), and its weights have been loaded."""
    FOUND_DOUBTFUL = auto()
    """A probe: it does not sleep, and nobody knows whether its weights have been loaded."""
    FOUND_SLEEPING = auto()
    """A probe: level 1."""
    FOUND_OFFLOADED = auto()
    """A probe: level 2, or a level that nobody knows."""
    FOUND_STOPPED = auto()
    """A probe: nobody is there, and its process can be started."""
    FOUND_BUSY = auto()
    """A probe was not answered in time; or what it found must wait for the end of a pause."""
    LOST = auto()
    """Nobody answers at the address."""
    PROVEN = auto()
    """The last step of a wake is done."""
    FAILED = auto()
    """A transition was given up, perhaps before its first step: it could not be written down."""


class Reading(NamedTuple):
    """What a probe has brought."""

    engine: "ObservedEngine"
    event: EngineEvent
    note: str = ""
    """What an operator should read, if anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedEngine:
    """One engine as far as it is known."""

    level: int = 0
    """How deep it slept when last known: what callers are told while it is not awake."""
    trusted: bool = True
    """Whether its weights mean something once it is awake."""
    process: str | None = None
    fell: bool = False
    """Whether an earlier front door ended while it fell, and no probe was answered since."""
    support: bool | None = None
    """Whether it can sleep; None until it was asked."""
    version: str | None = None
    """What it last told."""
    patience: float = 1.0
    """How many times longer than usual the next probe may take."""
    weights_on_gpu: bool = False
    """Whether it may sleep with its weights mapped, because a wake failed half-way, or an
    earlier front door ended on the way from level 1 to 2; and can be put back to sleep."""
    reload_fault: str | None = None
    """Why level 2 is off: from there it does not come back (vllm#28606)."""
    proof: KnownGood = NOTHING_KNOWN
    """What it answered while it was good, and what its last canary has shown."""
    failures: int = 0
    """Probes in a row that were answered with a failure."""

    @classmethod
    def remembered(cls, entry: JournalEntry) -> "ObservedEngine":
        """Return what an earlier front door knew."""
        return cls(
            level=entry.level,
            trusted=entry.trusted,
            process=entry.process,
            fell=entry.going is EngineState.FALLING_ASLEEP,
            proof=KnownGood(token=entry.token),
        )

    def entry(self, going: EngineState | None) -> JournalEntry:
        """Return what the next front door has to know."""
        return JournalEntry(going, self.level, self.trusted, self.process, self.proof.token)

    def falling(self, level: int) -> "ObservedEngine":
        """Return it once a sleep of that level may have been asked for."""
        return replace(self, level=level, trusted=self.trusted and level != 2)

    def given_up(
        self, kind: EngineKind, steps: tuple[Step, ...], index: int, why: str, *, full: bool
    ) -> "ObservedEngine":
        """Return it after a sequence that was given up at the step of that index.

        `full`: as its GPU was; that says nothing of the engine.
        """
        fault, half = self.reload_fault, self.weights_on_gpu
        if steps[index].role is Role.LOAD_WEIGHTS and not full:
            fault = f"level 2 is off: {why}"
        if any(step.role is Role.WAKE_WEIGHTS for step in steps[:index]):
            half = kind.sleeps_half_awake(self.version)
        return replace(self, reload_fault=fault, weights_on_gpu=half)

    def loaded(self) -> "ObservedEngine":
        """Return it once its weights were loaded, and it was seen awake after that."""
        return replace(self, trusted=True, weights_on_gpu=False, reload_fault=None)

    def heard(self, kind: EngineKind, report: Report, *, fresh: bool) -> "ObservedEngine":
        """Return it after a canary; `fresh`: its weights are as the engine itself loaded them."""
        proof = self.proof.heard(report, fresh=fresh)
        again = kind.wake_steps(self.version, 2)
        reloads = any(step.role is Role.LOAD_WEIGHTS for step in again)
        # Where its weights can be read again, that is what the next try does.
        trusted = self.trusted and not (proof.quarantined and reloads)
        return replace(self, proof=proof, trusted=trusted)

    def read(self, kind: EngineKind, report: Report, *, in_use: bool) -> Reading:
        """Return what a probe means that ended this way.

        `in_use`: callers are being served by it, and none has complained.
        """
        match report.ending:
            case StepResult.LOST:
                if not kind.stops:
                    return Reading(self, EngineEvent.LOST)
                # What starts anew has loaded its weights; what was done to the old one is gone.
                proof = replace(self.proof, result=None, detail="")
                known = ObservedEngine(level=STOPPED, support=self.support, proof=proof)
                return Reading(known, EngineEvent.FOUND_STOPPED)
            case StepResult.BUSY | StepResult.TIMED_OUT:
                return self._impatient(report.ending)
            case StepResult.UNSUPPORTED:
                told = "" if self.support is False else "it cannot sleep: it is never put to sleep"
                # Without these routes its weights were never dropped.
                known = replace(self, support=False, trusted=True)
                return Reading(known, EngineEvent.FOUND_AWAKE, told)
            case StepResult.DONE if report.seen is not None:
                return self._understand(kind, report.seen)
            case _:
                return self._puzzled(report, in_use=in_use)

    def _impatient(self, ending: StepResult) -> Reading:
        """Another control call is under way, or the network is slow: wait longer next time."""
        if ending is StepResult.BUSY:
            return Reading(self, EngineEvent.FOUND_BUSY)  # it says so, and at once
        patience = min(self.patience * 2, LONGEST_PATIENCE)
        note = ""
        if self.patience == 1:
            note = "it was asked for its state and did not answer in time: busy, or hung"
        elif patience != self.patience and patience == LONGEST_PATIENCE:
            note = "it still does not answer when asked for its state"
        return Reading(replace(self, patience=patience), EngineEvent.FOUND_BUSY, note)

    def _puzzled(self, report: Report, *, in_use: bool) -> Reading:
        """Ranks that disagree answer 500: once is chance, twice means asleep, nobody knows how."""
        known = replace(self, failures=self.failures + 1)
        note = "" if self.failures else f"it does not tell its state: {report.detail or 'an error'}"
        if known.failures < 2 or in_use:
            return Reading(known, EngineEvent.FOUND_BUSY, note)
        return Reading(replace(known, trusted=False), EngineEvent.FOUND_OFFLOADED, note)

    def _understand(self, kind: EngineKind, seen: Seen) -> Reading:
        level, trusted, half = self.level, self.trusted, self.weights_on_gpu
        proof = self.proof
        process = self.process if seen.process is None else seen.process
        if self.process is not None and process != self.process:
            # A new process has loaded its weights; what was done to the old one is gone.
            level, trusted, half, proof = 0, True, False, NOTHING_KNOWN
        trusted |= seen.loaded
        sleeping = level > 0 if seen.sleeping is None else seen.sleeping
        if self.fell and sleeping:
            half |= kind.sleeps_half_awake(seen.version)
        event = EngineEvent.FOUND_AWAKE if trusted else EngineEvent.FOUND_DOUBTFUL
        if sleeping:
            told = level if seen.level is None else seen.level
            if told == 1 and trusted:
                level, event = 1, EngineEvent.FOUND_SLEEPING
            else:
                level, trusted, event = 2, False, EngineEvent.FOUND_OFFLOADED
        known = ObservedEngine(
            level=level,
            trusted=trusted,
            process=process,
            support=True,
            version=seen.version,
            weights_on_gpu=half,
            reload_fault=self.reload_fault,
            proof=proof,
        )
        return Reading(known, event)
