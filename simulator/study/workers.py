"""Processes of this machine that carry out tasks: quick to start, and told once what is large.

Rule 1: they are forked from a server that has imported what they need, where the system has such a
        thing; so the imports are paid for once, and no thread of ours is ever forked.
Rule 2: a large array that many tasks have in common, as a trace is, is written to a file once, and
        each process maps it: it is neither sent with each task nor held in each process.
"""

import io
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import lru_cache
from multiprocessing.context import BaseContext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
T = TypeVar("T")

LARGE_BYTES = 1 << 16
"""Arrays from this size on go through a file."""


class LocalPool(Executor):
    """Some processes; `terminate` where nobody waits for their results any more."""

    def __init__(self, jobs: int) -> None:
        self._others = set(multiprocessing.active_children())
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=_context(), initializer=_stand_by_the_parent
        )
        self._shelf = Shelf()

    def submit(self, do: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have one of the processes call a plain function."""
        return self._pool.submit(call, self._shelf.packed((do, args, kwargs)))

    def terminate(self) -> None:
        """End the processes now: a task may take minutes."""
        for worker in set(multiprocessing.active_children()) - self._others:
            worker.terminate()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the processes go."""
        self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)
        self._shelf.clear()


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["simulator.study.experiment"])
    return context


def _stand_by_the_parent() -> None:
    """Leave Ctrl-C, which reaches the whole process group, to the parent, and end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Wait for its end, whatever ends it: nobody waits for results any more then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Shelf:
    """Large arrays, each in a file of its own."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        # With the array itself, as its id is its own only for as long as it is there.
        self._paths: dict[int, tuple[Array, str]] = {}

    def packed(self, what: object) -> bytes:
        """Return it as bytes that `call` understands."""
        buffer = io.BytesIO()
        _Pickler(buffer, self).dump(what)
        return buffer.getvalue()

    @property
    def folder(self) -> str | None:
        """Where the files are; None: there are none."""
        return None if self._folder is None else self._folder.name

    def path_of(self, array: Array) -> str | None:
        """Return the file that has the array; None where it cannot be written."""
        known = self._paths.get(id(array))
        if known is not None:
            return known[1]
        try:
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="frontdoor-", ignore_cleanup_errors=True)
            path = str(Path(self._folder.name) / f"{len(self._paths)}.npy")
            np.save(path, array)
        except OSError:
            return None
        self._paths[id(array)] = array, path
        return path

    def clear(self) -> None:
        """Remove the files."""
        self._paths.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shelf: Shelf) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._shelf = shelf

    def persistent_id(self, obj: object) -> str | None:
        """Return the file that has an object, if it is in one rather than in these bytes."""
        if type(obj) is not np.ndarray or obj.nbytes < LARGE_BYTES or obj.dtype.hasobject:
            return None
        return self._shelf.path_of(obj)


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: str) -> Array:
        """Return what is in such a file."""
        return _mapped(pid)


@lru_cache(maxsize=64)
def _mapped(path: str) -> Array:
    array: Array = np.asarray(np.load(path, mmap_mode="r"))
    return array


def call(packed: bytes) -> Any:
    """Make the call that was packed, and return what it returns."""
    do, args, kwargs = _Unpickler(io.BytesIO(packed)).load()
    return do(*args, **kwargs)
