"""The admin token: a file of its own, so that no settings, log or status can show it."""

from pathlib import Path
from stat import S_ISREG

TOKEN_LENGTH_MAX = 4096


def read_token(path: Path) -> str:
    """Read a file that holds one line of printable ASCII; raises OSError or ValueError."""
    if not S_ISREG(path.stat().st_mode):  # a pipe would keep everybody waiting
        raise ValueError("is no regular file")
    with path.open("rb") as file:
        token = file.read(TOKEN_LENGTH_MAX + 1).strip()
    if not token:
        raise ValueError("is empty")
    if len(token) > TOKEN_LENGTH_MAX or not all(0x21 <= byte <= 0x7E for byte in token):
        raise ValueError("must hold one word of printable ASCII")
    return token.decode("ascii")
