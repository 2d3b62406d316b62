"""TLS on the public listener: a certificate and its key from files, read again on SIGHUP."""

import ssl
from pathlib import Path


class CannotServeTls(Exception):  # noqa: N818 - said to an operator as it stands
    """The certificate or its key cannot be used; the message says why."""


def make_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Return what serves a certificate; raises CannotServeTls."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load(context, cert, key)
    return context


def load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Serve a certificate from the next connection on; raises CannotServeTls, and keeps the old."""
    try:
        # Tried apart: one that fits no key would leave the context in force without either.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise CannotServeTls(
            f"server.tls_cert {cert} with server.tls_key {key} cannot be used: {reason}"
        ) from error
