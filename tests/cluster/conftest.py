"""Puts this room's own modules (`worlds`, ...) within reach of its tests, and the proxy's wire."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "proxy")]

from redis_server import RedisServer, redis_server  # noqa: E402


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server
