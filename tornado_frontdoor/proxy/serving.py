"""Serving from the command line: the log is opened, the front door built, run and taken down."""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from tornado_frontdoor import __version__
from tornado_frontdoor.config import Address, Settings
from tornado_frontdoor.proxy.app import App
from tornado_frontdoor.proxy.downstream.server import CannotBind
from tornado_frontdoor.proxy.downstream.tls import CannotServeTls, make_context
from tornado_frontdoor.proxy.engine.journal import JournalError
from tornado_frontdoor.proxy.handover.meeting import CannotTakeOver
from tornado_frontdoor.proxy.heap import keep_little_memory
from tornado_frontdoor.proxy.logs import LogWriter, logging_to
from tornado_frontdoor.proxy.upstreams import CannotJoin

if TYPE_CHECKING:
    from tornado_frontdoor.proxy.handover.taken import Predecessor

LOG = logging.getLogger("frontdoor")

SWITCH_S = 0.001
"""How long a thread that reads a large body may keep the loop from going on."""
COLLECT_AFTER = (20_000, 20, 50)
"""Requests leave almost no cycles behind; Python's 700 would collect every few of them."""


def serve(
    settings: Settings, read_again: Callable[[], Settings], *, take_over: bool = False
) -> int:
    """Serve until told to stop; returns the exit code. `read_again` is for SIGHUP.

    `take_over`: in the place of the front door that runs on the same `server.state_dir`.
    """
    scheme = "https" if settings.server.tls_files else "http"
    announce_to = partial(announce, scheme=scheme)
    return asyncio.run(serve_until_stopped(settings, read_again, announce_to, take_over=take_over))


async def serve_until_stopped(
    settings: Settings,
    read_again: Callable[[], Settings],
    announce_to: Callable[[Address, Address], None],
    *,
    take_over: bool = False,
) -> int:
    """Serve on the running loop until a signal; returns the exit code."""
    with ExitStack() as stack:
        to = settings.log
        try:
            log = stack.enter_context(logging_to(to.file, to.format, to.buffer_kib * 1024))
        except OSError as error:
            print(f"frontdoor: log.file cannot be opened: {error}", file=sys.stderr)  # noqa: T201
            return 1
        return await _serve_and_log(settings, read_again, announce_to, log, take_over=take_over)


async def _serve_and_log(
    settings: Settings,
    read_again: Callable[[], Settings],
    announce_to: Callable[[Address, Address], None],
    log: LogWriter,
    *,
    take_over: bool,
) -> int:
    keep_little_memory()
    sys.setswitchinterval(SWITCH_S)
    try:
        if take_over and settings.cluster is not None:
            # Only now: a front door that is alone needs no Redis, nor its library.
            joining = import_module("tornado_frontdoor.proxy.cluster.joining")
            await joining.look_before(settings)
        app = App(settings, read_again, log, _take_over(settings) if take_over else None)
    except (JournalError, CannotServeTls, CannotTakeOver, CannotJoin) as error:
        print(f"frontdoor: {error}", file=sys.stderr)  # noqa: T201
        return 1
    try:
        if app.pool.cluster is not None:
            await app.pool.cluster.join()
        public, admin = app.start()
    except (CannotBind, CannotJoin) as error:
        await app.close()
        print(f"frontdoor: {error}", file=sys.stderr)  # noqa: T201
        return 1
    # What is loaded now stays: the collector need not walk it each time a crowd comes and goes.
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    app.heed_signals()  # before anybody is told that it listens, and may stop it
    announce_to(public, admin)
    LOG.info(
        "frontdoor %s serves %d upstreams by %s",
        __version__,
        len(settings.upstreams),
        settings.path,
    )
    await app.run()
    LOG.info("stopped")
    return int(app.succession.failed)


def _take_over(settings: Settings) -> "Predecessor | None":
    """Ask for the place of the front door that runs, once nothing else can go wrong here."""
    from tornado_frontdoor.proxy.handover.taken import find_predecessor

    if settings.server.tls_files:
        make_context(*settings.server.tls_files)
    settings.server.read_admin_token()
    for upstream in settings.upstreams.values():
        upstream.read_api_key()
    predecessor = find_predecessor(settings.server.state_dir)
    if predecessor is None:
        LOG.info("no front door runs in %s whose place could be taken", settings.server.state_dir)
    return predecessor


def announce(public: Address, admin: Address, scheme: str = "http") -> None:
    """Say on stdout where both listeners are, once they accept."""
    print(f"listening public {scheme}://{public}", flush=True)  # noqa: T201
    print(f"listening admin http://{admin}", flush=True)  # noqa: T201
