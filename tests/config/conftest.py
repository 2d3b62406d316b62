"""A configuration that is right, and a way to spoil it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tornado_frontdoor.config import ConfigError, load

sys.path.insert(0, str(Path(__file__).parent))

GOOD = """\
[server]
listen = "127.0.0.1:8080"

[upstreams.reasoning]
url = "http://engine-a:8000"

[upstreams.reasoning.admission]
slots = 8
cap = 6
queue = 8
queue_timeout_s = 30

[upstreams.text]
url = "http://engine-b:8000"

[upstreams.text.sleep]
max_waiting = 64

[models.reasoning]
upstream = "reasoning"
aliases = ["r1", "claude-*"]

[models.Text-35B]
upstream = "text"

[routes]
chat_default = "text-35b"
"""

Write = Callable[[str], Path]
Faults = Callable[[str], list[str]]


@pytest.fixture(scope="session")
def good() -> str:
    """Return a text without faults."""
    return GOOD


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a configuration and returns its path."""

    def write_file(text: str) -> Path:
        path = tmp_path / "frontdoor.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def faults(write: Write) -> Faults:
    """Return a function from a configuration to its fault lines without the file's name."""

    def read(text: str) -> list[str]:
        path = write(text)
        try:
            load(path)
        except ConfigError as error:
            caught = error
        else:
            return []
        lines = str(caught).splitlines()
        assert len(lines) == len(caught.faults)
        assert all(line.startswith(f"{path}: ") for line in lines)
        return [line.removeprefix(f"{path}: ") for line in lines]

    return read
