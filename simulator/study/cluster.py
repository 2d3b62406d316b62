"""A Dask cluster that carries tasks out, and what it may lack: said, never waited for without end.

Rule: workers may come and go, and the others make up for one that dies. Where none is left for
      `ALONE_S` nobody may ever come, so the run ends and says so.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from importlib import import_module
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")

ALONE_S = 60.0
"""How long a cluster may be without any worker."""
POLL_S = 1.0


class ClusterError(Exception):
    """The machines that were to compute cannot be reached; says why."""


class ClusterPool(Executor):
    """The workers of a Dask cluster."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._address = address
        self._executor: Executor = client.get_executor()
        self._seen_s = monotonic()

    def submit(self, do: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have one of the workers call a plain function."""
        return self._executor.submit(do, *args, **kwargs)

    def verify_workers(self) -> None:
        """Raise ClusterError where there has been no worker for too long."""
        now = monotonic()
        if self._client.status == "running" and self._client.scheduler_info()["workers"]:
            self._seen_s = now
        elif now - self._seen_s > ALONE_S:
            raise ClusterError(
                f"the Dask cluster at {self._address!r} has had no worker for "
                f"{now - self._seen_s:.0f} s: they ended, or cannot reach the scheduler. Start "
                f"some, `dask worker {self._address}`, and run this again"
            )


@contextmanager
def dask_pool(address: str) -> Iterator[ClusterPool]:
    """Give the workers of a cluster; raises ClusterError where there are none that will do."""
    client = _client_of(address)
    try:
        yield ClusterPool(client, address)
    finally:
        client.close()


CONNECT_S = 10
"""How long a scheduler, and then its first worker, may take to be there."""


def _client_of(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise ClusterError("needs the dask extra: pip install 'tornado-frontdoor[dask]'") from None
    try:
        client = Client(address, timeout=CONNECT_S)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Dask scheduler at {address!r}: {error}") from None
    try:
        _look_at_workers(client, address)
    except BaseException:
        client.close()  # type: ignore[no-untyped-call]
        raise
    return client


def _look_at_workers(client: Any, address: str) -> None:
    """Raise ClusterError unless there are workers, all with this very version of ours."""

    def version_there() -> str:  # sent as it is, as it may be that we are not there
        import_module("simulator.study.experiment")
        return str(import_module("tornado_frontdoor").__version__)

    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
        there = client.run(version_there)
    except TimeoutError:
        raise ClusterError(
            f"the Dask scheduler at {address!r} has no worker: start one there, "
            f"`dask worker {address}`"
        ) from None
    except ImportError as error:
        raise ClusterError(
            f"a Dask worker of {address!r} lacks what it needs ({error}): "
            "pip install 'tornado-frontdoor[dask]' there"
        ) from None
    here = version_there()
    for worker, version in there.items():
        if version != here:
            raise ClusterError(
                f"the Dask worker {worker} has tornado-frontdoor {version}, here it is "
                f"{here}: the same is needed everywhere"
            )
