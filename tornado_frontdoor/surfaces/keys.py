"""Who may call: keys of clients, known by their hashes, in the header forms of all dialects.

A key is long and random, so its plain SHA-256 leads back to nothing, and the file that has the
hashes is no secret. Every hash is compared, each in constant time, whichever one matches.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

HEADERS = ("authorization", "x-api-key", "api-key")
"""What brings a key; the first as `Bearer KEY`, whatever the case of that word."""


class Key(NamedTuple):
    """One client: its name in log and metrics, and which models it may ask for (empty: all)."""

    name: str
    sha256: str
    models: frozenset[str] = frozenset()
    share: float = 1.0
    """What it has of an engine's slots beside others, where these are shared by key."""

    def may_ask(self, model: str) -> bool:
        """Tell whether it may ask for a model, by the name of the model's table."""
        return not self.models or model in self.models


class KeyRing:
    """All keys of a configuration."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = [(bytes.fromhex(key.sha256), key) for key in keys]

    def find(self, headers: Mapping[str, str]) -> Key | None:
        """Return whose key the headers (lower-case names) bring, or None."""
        found = None
        for given in _given(headers):
            digest = sha256(given.encode("latin-1", "replace")).digest()
            for known, key in self._keys:
                if compare_digest(known, digest):
                    found = key
        return found


def without_keys(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return headers without any key: one that is ours means nothing to an engine."""
    return {name: value for name, value in headers.items() if name not in HEADERS}


def hashed(key: str) -> str:
    """Return what the configuration has in place of a key."""
    return sha256(key.encode()).hexdigest()


def _given(headers: Mapping[str, str]) -> list[str]:
    given = [headers[name].strip() for name in HEADERS[1:] if name in headers]
    scheme, _, word = headers.get("authorization", "").partition(" ")
    return [*given, word.strip()] if scheme.lower() == "bearer" else given
