"""A Python program with a sampler in it: sampled.py FOLDED_OUT -m MODULE, then what it is told.

Every few milliseconds of CPU the stack is noted; at its end the stacks are written, folded, one a
line with its number. What C does counts for the Python function that called it. The first SIGUSR1
begins (a program that warms up is not sampled), the second ends and writes.
"""

import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

EVERY_S = 0.001
"""As often as the kernel's clock lets it be, which is every four milliseconds on most."""

stacks: Counter[tuple[CodeType, ...]] = Counter()


def sample(_: int, frame: FrameType | None) -> None:
    """Note the stack."""
    stack = []
    while frame is not None:
        stack.append(frame.f_code)
        frame = frame.f_back
    stacks[tuple(reversed(stack))] += 1


def switch(_: int, __: FrameType | None) -> None:
    """Begin, or end and write."""
    if not signal.getitimer(signal.ITIMER_PROF)[0]:
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    lines = (f"{';'.join(map(name_of, stack))} {count}" for stack, count in stacks.items())
    written = folded.with_suffix(".part")
    written.write_text("\n".join(lines), encoding="utf-8")
    written.rename(folded)


def name_of(code: CodeType) -> str:
    """Return a function's name, after its room."""
    path = Path(code.co_filename)
    room = "/".join(path.parent.parts[-2:])
    return f"{room}:{path.stem}.{code.co_qualname.replace('.<locals>', '')}"


folded = Path(sys.argv[1])
signal.signal(signal.SIGPROF, sample)
signal.signal(signal.SIGUSR1, switch)
sys.argv = sys.argv[3:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
