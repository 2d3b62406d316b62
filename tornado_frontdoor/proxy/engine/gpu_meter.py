"""What an engine takes of its GPUs now, by `nvidia-smi`: the sum over its processes.

An engine's processes are the one that listens at its port and all that this one has started; so it
must run on this machine, where its processes can be seen. vLLM listens in one process and holds its
memory in others; llama-server's router holds each model in one of its own, and is not told apart.
"""

import asyncio
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

PROGRAM = "nvidia-smi"
LIMIT_S = 20.0
"""It takes seconds where the driver is not kept loaded."""
_GPUS = ("--query-gpu=index,uuid", "--format=csv,noheader")
_PROCESSES = ("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
_LISTENS = "0A"
_MIB_IN_GIB = 1024.0


class CannotMeasureError(Exception):
    """What it takes is not to be had; the message says why."""


class GpuMeter:
    """Measures one engine. `devices` are GPU numbers as `nvidia-smi` has them."""

    def __init__(self, url: str, devices: Sequence[int], program: str = PROGRAM) -> None:
        self._url = url
        self._devices = frozenset(devices)
        self._program = program

    async def measure_gib(self) -> float:
        """Return the most that it takes of one of its GPUs; raises CannotMeasureError."""
        gpus = {uuid: int(index) for index, uuid in await self._ask(_GPUS, 2) if index.isdecimal()}
        wanted = {uuid for uuid, index in gpus.items() if index in self._devices}
        if len(wanted) < len(self._devices):
            known = ", ".join(str(index) for index in sorted(gpus.values())) or "none"
            raise CannotMeasureError(f"{self._program} knows other GPUs: {known}")
        taken = await self._ask(_PROCESSES, 3)
        ours = await asyncio.to_thread(self._processes)
        sums: dict[str, float] = {}
        for uuid, pid, used_mib in taken:
            if uuid in wanted and pid in ours and used_mib.isdecimal():
                sums[uuid] = sums.get(uuid, 0.0) + float(used_mib)
        if not sums:
            raise CannotMeasureError(
                f"{self._program} shows no process of it, as where it runs in a container"
            )
        return max(sums.values()) / _MIB_IN_GIB

    async def _ask(self, query: Sequence[str], columns: int) -> list[list[str]]:
        try:
            process = await asyncio.create_subprocess_exec(
                *(self._program, *query),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            raise CannotMeasureError(f"cannot run {self._program}: {error.strerror}") from error
        try:
            async with asyncio.timeout(LIMIT_S):
                out, _ = await process.communicate()
        except TimeoutError:
            raise CannotMeasureError(f"{self._program} took more than {LIMIT_S:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            raise CannotMeasureError(f"{self._program} ended with {process.returncode}")
        rows = [[cell.strip() for cell in line.split(",")] for line in out.decode().splitlines()]
        return [row for row in rows if len(row) == columns]

    def _processes(self) -> set[str]:
        address = urlsplit(self._url)
        host, port = address.hostname or "", address.port or 80
        if not _is_here(host):
            raise CannotMeasureError(f"it runs on another machine ({host})")
        return _family(_listeners(port))


def _is_here(host: str) -> bool:
    """Tell whether a host is this machine: only then can a socket be bound to its address."""
    try:
        for family, kind, proto, _, where in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, proto) as sock:
                sock.bind(where)
                return True
    except OSError:
        pass
    return False


def _listeners(port: int) -> set[str]:
    """Return the processes that listen at a port, as far as they can be seen."""
    sockets = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    found = set()
    for process in _all_processes():
        with suppress(OSError):
            if any(str(link.readlink()) in sockets for link in (process / "fd").iterdir()):
                found.add(process.name)
    return found


def _family(pids: Iterable[str]) -> set[str]:
    """Return processes and all that they have started."""
    parents: dict[str, str] = {}
    for process in _all_processes():
        with suppress(OSError, IndexError):
            # The name, in brackets, may hold anything; the parent is the second field after it.
            parents[process.name] = (process / "stat").read_text().rpartition(")")[2].split()[1]
    family = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def _all_processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
