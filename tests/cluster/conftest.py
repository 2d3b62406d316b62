"""Puts this room's own modules (`worlds`, ...) within reach, the proxy's wire and its processes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / room) for room in ("proxy", "end_to_end"))]

from redis_server import RedisServer, redis_server  # noqa: E402


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server
