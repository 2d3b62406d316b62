"""Engines behind TLS: whose word is taken that it is they, and what they are shown of us."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from ssl import PROTOCOL_TLS_CLIENT, SSLContext, SSLError, create_default_context
from stat import S_ISREG
from typing import NamedTuple


class TlsFiles(NamedTuple):
    """What is trusted of an engine behind TLS, and what it is shown of us; PEM files."""

    ca_file: Path | None = None
    """Certificates that may have signed the engine's; None: those that this machine trusts."""
    client_cert: Path | None = None
    client_key: Path | None = None
    """The key of `client_cert`, unless that file has it too."""

    def context(self) -> SSLContext:
        """Return them as Python's own clients want them; raises ValueError that names a file."""
        if self.ca_file is None:
            context = create_default_context()
        else:
            context = SSLContext(PROTOCOL_TLS_CLIENT)
            _read(self.ca_file, context.load_verify_locations)
        if self.client_cert is not None:
            _present(context, self.client_cert, self.client_key or self.client_cert)
        return context


def _present(context: SSLContext, cert: Path, key: Path) -> None:
    if key != cert:
        _read(key, _nothing)
    password = partial(_no_passphrase, key)
    _read(cert, partial(context.load_cert_chain, keyfile=key, password=password))


def _nothing(_: Path) -> None:
    pass


def _no_passphrase(key: Path) -> str:
    raise ValueError(f"{key} has a passphrase, and nobody is there to type it")


def _read(file: Path, read: Callable[[Path], None]) -> None:
    try:
        if not S_ISREG(file.stat().st_mode):  # a pipe would keep everybody waiting
            raise ValueError(f"{file} is no regular file")
        read(file)
    except SSLError as error:
        reason = (error.reason or "no certificate in it").lower().replace("_", " ")
        raise ValueError(f"{file} cannot be used: {reason}") from error
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error


def tls_faults(files: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield what cannot be used of an upstream's files: the setting, and why.

    It reads these files alone: the machine's own certificates take tens of milliseconds, and every
    reload looks at every upstream.
    """
    if not files:
        return
    context = SSLContext(PROTOCOL_TLS_CLIENT)
    ca_file, cert = files.get("ca_file"), files.get("client_cert")
    if ca_file is not None:
        try:
            _read(ca_file, context.load_verify_locations)
        except ValueError as error:
            yield "ca_file", str(error)
    if cert is not None:
        try:
            _present(context, cert, files.get("client_key", cert))
        except ValueError as error:
            yield "client_cert", str(error)
