"""What is believed of an engine's memory: what a look means depends on what came before it.

Rule 1: weights that were dropped are trusted again only when they were seen to be loaded, or when
        the engine is another process. `/is_sleeping` is false on an engine full of garbage too.
Rule 2: the level is 1 only where nothing speaks against it; a level nobody knows is treated as 2.
        The gauge believes any `/sleep`, also one that did nothing.
"""

from enum import Enum, auto

from tornado_frontdoor.core.decisions import EngineState, JournalEntry
from tornado_frontdoor.engines.base import EngineKind, Report, Role, Seen, Step, StepResult

LONGEST_PATIENCE = 16.0
"""The time limit of looks doubles up to so many times while they are not answered."""


class EngineEvent(Enum):
    """What can happen to an engine's state."""

    WANTED = auto()
    """Somebody is inside, or an operator asked, and no pause after a failure is on."""
    DUE = auto()
    """An idle tier or an operator wants it asleep, and nobody has work for it."""
    NOT_DUE = auto()
    """Somebody has, or nobody can tell; or another call keeps it busy."""
    FOUND_AWAKE = auto()
    """A look: it does not sleep (or cannot), and its weights have been loaded."""
    FOUND_DOUBTFUL = auto()
    """A look: it does not sleep, and nobody knows whether its weights have been loaded."""
    FOUND_SLEEPING = auto()
    """A look: level 1."""
    FOUND_OFFLOADED = auto()
    """A look: level 2, or a level that nobody knows."""
    FOUND_BUSY = auto()
    """A look was not answered in time; or what it found must wait for the end of a pause."""
    LOST = auto()
    """Nobody answers at the address."""
    PROVEN = auto()
    """The last step of a wake is done."""
    FAILED = auto()
    """A transition was given up."""


class ObservedEngine:
    """One engine as far as it is known; `read` makes an event of what a look brought."""

    def __init__(self, kind: EngineKind, memory: JournalEntry) -> None:
        self.kind = kind
        self.level = memory.level
        """How deep it slept when last known: what callers are told while it is not awake."""
        self.trusted = memory.trusted
        """Whether its weights mean something once it is awake."""
        self.process = memory.process
        self.support: bool | None = None
        """Whether it can sleep; None until it was asked."""
        self.version: str | None = None
        """What it last told."""
        self.patience = 1.0
        """How many times longer than usual the next look may take."""
        self.weights_on_gpu = False
        """Whether it may sleep with its weights mapped, because a wake failed half-way, or an
        earlier front door ended on the way from level 1 to 2; and can be put back to sleep."""
        self._fell = memory.going is EngineState.FALLING_ASLEEP
        self.reload_fault: str | None = None
        """Why level 2 is off: from there it does not come back (vllm#28606)."""
        self.notes: list[str] = []
        """What an operator should read, until somebody tells them."""
        self._failures = 0

    def memory(self, going: EngineState | None) -> JournalEntry:
        """Return what the next front door has to know."""
        return JournalEntry(going, self.level, self.trusted, self.process)

    def falls(self, level: int) -> None:
        """Note that a sleep of that level is about to be asked for."""
        self.level = level
        if level == 2:
            self.trusted = False

    def give_up(self, steps: tuple[Step, ...], index: int, why: str) -> None:
        """Note that a sequence was given up at the step of that index."""
        if steps[index].role is Role.LOAD_WEIGHTS:
            self.reload_fault = f"level 2 is off: {why}"
            self.notes.append(self.reload_fault)
        if any(step.role is Role.WAKE_WEIGHTS for step in steps[:index]):
            self.weights_on_gpu = self.sleeps_half_awake

    @property
    def sleeps_half_awake(self) -> bool:
        """Whether it can be put back to sleep with its weights mapped."""
        return self.kind.sleeps_half_awake(self.version)

    def loaded(self) -> None:
        """Note that weights were loaded, and that the engine was seen awake after it."""
        self.trusted = True
        self.weights_on_gpu = False
        self.reload_fault = None

    def read(self, report: Report) -> EngineEvent:
        """Return what a look means that ended this way."""
        match report.ending:
            case StepResult.LOST:
                return EngineEvent.LOST
            case StepResult.TIMED_OUT:
                # Another control call is under way, or the network is slow: wait longer next time.
                self.patience = min(self.patience * 2, LONGEST_PATIENCE)
                return EngineEvent.FOUND_BUSY
            case StepResult.UNSUPPORTED:
                if self.support is not False:
                    self.notes.append("it has no sleep mode: it is never put to sleep")
                self.support = False
                self.trusted = True  # without these routes its weights were never dropped
                return EngineEvent.FOUND_AWAKE
            case StepResult.DONE if report.seen is not None:
                return self._understand(report.seen)
            case _:
                return self._puzzled()

    def _puzzled(self) -> EngineEvent:
        """Ranks that disagree answer 500: once is chance, twice means asleep, nobody knows how."""
        self._failures += 1
        if self._failures < 2:
            return EngineEvent.FOUND_BUSY
        self.trusted = False
        return EngineEvent.FOUND_OFFLOADED

    def _understand(self, seen: Seen) -> EngineEvent:
        self.support = True
        self.patience = 1.0
        self._failures = 0
        self.version = seen.version
        if seen.process is not None:
            if self.process is not None and seen.process != self.process:
                # A new process has loaded its weights; what was done to the old one is gone.
                self.trusted = True
                self.weights_on_gpu = False
                self.level = 0
            self.process = seen.process
        self.weights_on_gpu |= self._fell and seen.sleeping and self.sleeps_half_awake
        self._fell = False
        if not seen.sleeping:
            return EngineEvent.FOUND_AWAKE if self.trusted else EngineEvent.FOUND_DOUBTFUL
        level = self.level if seen.level is None else seen.level
        if level == 1 and self.trusted:
            self.level = 1
            return EngineEvent.FOUND_SLEEPING
        self.level = 2
        self.trusted = False
        return EngineEvent.FOUND_OFFLOADED
