"""What systemd and its like are told, and what they hand over: sd_notify and listening sockets.

Both are a few lines of protocol over what is in the environment; where it is not there, nothing is
done. sd_notify(3), sd_listen_fds(3).
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Mapping

FIRST_FD = 3
NAMES = ("public", "admin")
"""By `FileDescriptorName=`; a socket of another name is the public one."""


class ServiceManager:
    """The service manager that started this process, if one did."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watchdog_s = _watchdog_s(environment)
        self._timer: asyncio.TimerHandle | None = None
        self._handed = _handed_over(environment)
        self.holds_sockets = bool(self._handed)
        """Whether who connects while we are gone waits for the next one."""

    def sockets(self, name: str) -> list[socket.socket]:
        """Return the sockets that were handed over for a listener; none: it binds its own."""
        found = [socket.socket(fileno=fd) for fd in self._handed.pop(name, ())]
        for sock in found:
            sock.setblocking(False)
            sock.set_inheritable(False)
        return found

    def ready(self, status: str) -> None:
        """Say that it serves; from now on the watchdog hears that the loop turns."""
        self._notify("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")
        if self._watchdog_s is not None and self._timer is None:
            self._feed_watchdog(self._watchdog_s / 2)

    def reloading(self) -> None:
        """Say that the configuration is being read; `ready` ends it."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._notify("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self, status: str) -> None:
        """Say that it drains."""
        self._notify("STOPPING=1", f"STATUS={status}")

    def succeeded_by(self, pid: int) -> None:
        """Say that another process is the service now."""
        self._notify(f"MAINPID={pid}", f"STATUS=taken over by process {pid}")
        self.close()
        self._address = ""

    def close(self) -> None:
        """Feed no watchdog any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _feed_watchdog(self, every_s: float) -> None:
        self._notify("WATCHDOG=1")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(every_s, self._feed_watchdog, every_s)

    def _notify(self, *lines: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        with (
            contextlib.suppress(OSError),  # a manager that hears nothing decides by itself
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), address)


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    usec = environment.get("WATCHDOG_USEC", "")
    return int(usec) / 1e6 if usec.isdecimal() and int(usec) > 0 else None


def _handed_over(environment: Mapping[str, str]) -> dict[str, list[int]]:
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return {}
    count = environment.get("LISTEN_FDS", "")
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    handed: dict[str, list[int]] = {}
    for number in range(int(count) if count.isdecimal() else 0):
        name = names[number] if number < len(names) else ""
        handed.setdefault(name if name in NAMES else NAMES[0], []).append(FIRST_FD + number)
    return handed
