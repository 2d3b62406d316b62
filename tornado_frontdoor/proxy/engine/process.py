"""An engine's process: started and stopped by the operator's commands, or held as a child of ours.

A child is held by a reaper (`reaper.py`), which ends it with all that it has started when the front
door ends, also by `kill -9`. What it prints goes to a file. Commands are lists of arguments, which
no shell reads.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tornado_frontdoor.config import ProcessSettings
from tornado_frontdoor.core.printable import printable
from tornado_frontdoor.engines.base import ProcessCall, StepResult, tells_of_full_memory

LOG = logging.getLogger("frontdoor")

REAPER = Path(__file__).with_name("reaper.py")
STOP_MARGIN_S = 5.0
"""For a stop, beyond what the engine may take to end."""
LOG_END_BYTES = 32768
"""Of what an engine printed that ended as it started: where it says why."""
LOOK_S = 0.1
"""Between looks whether it is ready, or gone."""

Outcome = tuple[StepResult, str]


class EngineProcess:
    """One engine's process; `answers` tells whether anybody answers there, and is ready."""

    def __init__(
        self,
        settings: ProcessSettings,
        log_file: Path,
        answers: Callable[[], Awaitable[StepResult]],
    ) -> None:
        self.settings = settings
        self._log_file = log_file
        self._answers = answers
        self._child: asyncio.subprocess.Process | None = None
        self._log_from = 0
        """Where in its log the output of the child begins."""

    def change(self, wanted: ProcessSettings) -> bool:
        """Take other commands, for the next start and stop; False: some of it takes a restart."""
        settings = self.settings
        if bool(wanted.command) == bool(settings.command):
            self.settings = replace(
                settings, command=wanted.command, start=wanted.start, stop=wanted.stop
            )
        return self.settings == wanted

    async def carry_out(self, call: ProcessCall) -> Outcome:
        """Start or stop it; over when it is ready, or when nobody answers any more.

        What is not ready in time is stopped again, so that nothing of it goes on.
        """
        settings = self.settings
        try:
            if call is ProcessCall.STOP:
                async with asyncio.timeout(settings.stop_timeout_s + STOP_MARGIN_S):
                    return await self._stop()
            async with asyncio.timeout(settings.start_timeout_s):
                return await self._start()
        except TimeoutError:
            if call is ProcessCall.STOP:
                return StepResult.FAILED, "somebody still answers there"
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.stop_timeout_s + STOP_MARGIN_S):
                await self._stop()
        return StepResult.FAILED, f"not ready within {settings.start_timeout_s:g} s: stopped again"

    async def close(self) -> None:
        """End a child; what the operator's commands started stays."""
        await self._end_child()

    async def _start(self) -> Outcome:
        if self.settings.command:
            if self._child is None or self._child.returncode is not None:
                await self._spawn(self.settings.command)
        elif (failure := await self._run(self.settings.start)) is not None:
            return failure
        while await self._answers() is not StepResult.DONE:
            child = self._child
            if child is not None and child.returncode is not None:
                full = tells_of_full_memory(self._printed())
                result = StepResult.NO_MEMORY if full else StepResult.FAILED
                return result, f"it ended with {child.returncode}: see {self._log_file}"
            await asyncio.sleep(LOOK_S)
        return StepResult.DONE, ""

    async def _stop(self) -> Outcome:
        if self.settings.command:
            if self._child is None:
                return StepResult.FAILED, "another process answers there, which is not ours to end"
            await self._end_child()
        elif (failure := await self._run(self.settings.stop)) is not None:
            return failure
        while await self._answers() is not StepResult.LOST:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(LOOK_S)
        return StepResult.DONE, ""

    async def _spawn(self, command: tuple[str, ...]) -> None:
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        with self._log_file.open("ab") as log:
            self._log_from = log.tell()
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(REAPER)),
                *(str(self.settings.stop_timeout_s), *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        LOG.info("started %s, process %d, output in %s", command[0], self._child.pid, log.name)

    def _printed(self) -> str:
        """Return the end of what the child has printed."""
        with suppress(OSError), self._log_file.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_from, end - LOG_END_BYTES))
            return log.read(LOG_END_BYTES).decode("utf-8", "replace")
        return ""

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None or child.stdin is None:
            return
        child.stdin.close()  # the reaper ends by this
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.stop_timeout_s + 5.0):
                await child.wait()

    async def _run(self, argv: tuple[str, ...]) -> Outcome | None:
        """Run one of the operator's commands; returns what went wrong."""
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return StepResult.FAILED, f"cannot run {argv[0]}: {error.strerror}"
        try:
            _, said = await process.communicate()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.kill()
            raise
        if process.returncode == 0:
            return None
        words = printable(said[-200:].decode("utf-8", "replace").strip())
        result = StepResult.NO_MEMORY if tells_of_full_memory(words) else StepResult.FAILED
        return result, f"{argv[0]} ended with {process.returncode}: {words}"
