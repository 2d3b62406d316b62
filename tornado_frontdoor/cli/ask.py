"""`frontdoor ask`: one question, the place in the queue while it waits, then the answer.

It speaks HTTP over a plain socket because the libraries at hand hide interim answers, which are
what it is there to show.
"""

import json
import os
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from rich.console import Console

from tornado_frontdoor.cli.live import read_events
from tornado_frontdoor.cli.straight import base_given
from tornado_frontdoor.core.printable import printable

USAGE = """frontdoor ask: ask a model, and see how one waits for it.

Usage:
  frontdoor ask MODEL TEXT [--url URL]

Options:
  --url URL   The front door; else $FRONTDOOR_URL, else http://127.0.0.1:8080. $OPENAI_API_KEY is
              sent along where it is set.
  -h --help   Show this text.
"""
DEFAULT_URL = "http://127.0.0.1:8080"
PATH = "/v1/chat/completions"
SILENT_S = 900.0

Headers = Mapping[str, str]


class Unanswered(Exception):  # noqa: N818 - said to a person as it stands
    """There is no answer; the message says why."""


def run(arguments: Mapping[str, Any]) -> int:
    """Ask; returns the exit code."""
    try:
        url = base_given(arguments["--url"], "--url", "FRONTDOOR_URL", DEFAULT_URL)
    except ValueError as error:
        print(f"frontdoor ask: {error}", file=sys.stderr)
        return 2
    try:
        for piece in _answer(url, arguments["MODEL"], arguments["TEXT"]):
            print(piece, end="", flush=True)
        print()
    except Unanswered as error:
        print(f"frontdoor ask: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"frontdoor ask: no front door answers at {url}: {error}", file=sys.stderr)
        return 1
    return 0


def _answer(url: str, model: str, text: str) -> Iterator[str]:
    """Yield the answer piece by piece; raises Unanswered."""
    with _connection(url) as sock, sock.makefile("rb") as stream:
        sock.sendall(_request(url, model, text))
        status, headers = _wait(stream)
        if status != 200:
            raise Unanswered(_refusal(status, headers, stream))
        lines = _chunked(stream) if "chunked" in headers.get("transfer-encoding", "") else stream
        for _, event in read_events(lines, last=b"[DONE]"):
            if event.get("error"):
                raise Unanswered(printable(str(event["error"].get("message")), 500))
            for choice in event.get("choices", ()):
                yield _plain(choice.get("delta", {}).get("content") or "")


def _wait(stream: BinaryIO) -> tuple[int, Headers]:
    """Read heads until the final one; tell what interim ones say."""
    console = Console(stderr=True)
    with console.status("asked"):
        while True:
            status, headers = _head(stream)
            if status >= 200:
                return status, headers
            if "queue-position" in headers:
                console.print(place_of(headers), highlight=False)


def place_of(headers: Headers) -> str:
    """Return an interim answer in words."""
    about_s = int(headers.get("queue-eta-ms", 0)) / 1000
    state = headers.get("engine-state", "awake")
    engine = "" if state == "awake" else f"; its engine is {state}"
    return f"place {headers['queue-position']} in the queue, about {about_s:.0f} s{engine}"


def _head(stream: BinaryIO) -> tuple[int, Headers]:
    first = stream.readline(65536).split()
    if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or not first[1].isdigit():
        raise Unanswered("what answers there is no HTTP server, or it has closed the connection")
    headers: dict[str, str] = {}
    while line := stream.readline(65536).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return int(first[1]), headers


def _chunked(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a chunked body; raises Unanswered where it is cut."""
    rest = b""
    while True:
        size = stream.readline(100).strip()
        if not size:
            raise Unanswered("the answer was cut short")
        piece = stream.read(int(size, 16) + 2)[:-2]
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in lines)


def _refusal(status: int, headers: Headers, stream: BinaryIO) -> str:
    body = stream.read(min(int(headers.get("content-length") or 0), 65536))
    try:
        told = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        told = body.decode("utf-8", "replace")
    again = headers.get("retry-after")
    later = f" (come back in {again} s)" if again else ""
    return f"{status}: {printable(str(told), 500)}{later}"


def _connection(url: str) -> socket.socket:
    to = urlsplit(url)
    secure = to.scheme == "https"
    sock = socket.create_connection((to.hostname or "", to.port or (443 if secure else 80)), 10)
    sock.settimeout(SILENT_S)
    if secure:
        return ssl.create_default_context().wrap_socket(sock, server_hostname=to.hostname)
    return sock


def _request(url: str, model: str, text: str) -> bytes:
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": model, "stream": True, "messages": messages}).encode()
    to = urlsplit(url)
    lines = [
        f"POST {to.path}{PATH} HTTP/1.1",
        f"Host: {to.netloc.rpartition('@')[2]}",
        "User-Agent: frontdoor-ask",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "X-Frontdoor-Progress: 103",
        "Connection: close",
    ]
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def _plain(text: str) -> str:
    """Return a model's text without codes that would act on the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
