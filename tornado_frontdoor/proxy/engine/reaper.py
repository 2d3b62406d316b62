"""Holds one engine as its child, and ends it with its whole process group when it is to end.

    python reaper.py GRACE_S COMMAND...

A program of its own, started by the front door with a pipe as its standard input: when the front
door is gone, however that ended, the pipe ends, and the reaper ends the engine. It imports nothing
of ours, and knows nothing of engines.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress

LOOK_S = 0.1
"""Between looks at the child: how late its own end is noticed."""


def main(argv: list[str]) -> int:
    """Run the command until it ends or nobody wants it any more; returns its exit code."""
    grace_s, command = float(argv[0]), argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends by its pipe, and by nothing else
    try:
        child = subprocess.Popen(  # noqa: S603 - the operator's own command
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_listen_again,  # noqa: PLW1509 - there is one thread
        )
    except OSError as error:
        print(f"frontdoor: cannot run {command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while child.poll() is None and not selector.select(LOOK_S):
            pass
    _end_group(child, grace_s)
    return child.returncode


def _listen_again() -> None:
    """Give the child the signals that its reaper ignores."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _end_group(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Ask all of the group to end, and kill what is left of it."""
    end_s = time.monotonic() + grace_s
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        while time.monotonic() < end_s:
            child.poll()
            os.killpg(child.pid, 0)  # raises when nobody is left
            time.sleep(LOOK_S / 5)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
