"""Makes a key for a client: the key for whom it is for, its hash for the configuration."""

import sys
from secrets import token_urlsafe

from tornado_frontdoor.surfaces.keys import hashed

PREFIX = "fd-"
BYTES = 32


def new(name: str) -> int:
    """Print a new key on stdout and its table on stderr; returns the exit code."""
    if not name or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
        print(f"frontdoor: a name has letters, digits, . _ -, not {name!r}", file=sys.stderr)
        return 2
    key = PREFIX + token_urlsafe(BYTES)
    print(key)
    table = f"[keys.{name}]" if "." not in name else f'[keys."{name}"]'
    print(
        f"# The key is on stdout and nowhere else; give it to {name}. Into the configuration:\n"
        f'{table}\nsha256 = "{hashed(key)}"',
        file=sys.stderr,
    )
    return 0
