"""What a running engine says of itself when it is asked: for `init` and `check --probe`.

Only looks: nothing is generated, woken or put to sleep. What an engine does not tell is None, and
an engine that cannot be asked is an `Unasked` that says why.
"""

import json
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from socket import gaierror
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request

from tornado_frontdoor.cli.straight import STRAIGHT, straight_with
from tornado_frontdoor.config.engine_tls import TlsFiles
from tornado_frontdoor.config.faults import printable
from tornado_frontdoor.proxy.engine.model_list import read_model_list

TIMEOUT_S = 5.0
MOST_BYTES = 8 << 20
SLOTS_MAX = 100_000


class Unasked(Exception):  # noqa: N818 - said to an operator as it stands
    """An engine that could not be asked; the text says what is wrong and what to look at."""

    def __init__(self, told: str, *, wants_key: bool = False, answered: bool = True) -> None:
        super().__init__(told)
        self.wants_key = wants_key
        self.answered = answered
        """Something is there, which is not what was looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One engine's answers."""

    models: Mapping[str, int | None]
    """The names it serves, each with the length of its context."""
    version: str | None = None
    kind: str = "an engine"
    """What it seems to be, for a person."""
    can_sleep: bool = False
    """It has vLLM's sleep routes."""
    sleeping: bool | None = None
    slots: int | None = None
    """Sequences that run at once."""
    took_key: bool = False
    """It was asked with a key."""
    paths: frozenset[str] | None = None
    """What it can be asked, where it tells (`/openapi.json`)."""

    @property
    def only_embeds(self) -> bool:
        """Whether it says that it embeds and does not chat."""
        paths = self.paths or frozenset()
        return "/v1/embeddings" in paths and "/v1/chat/completions" not in paths


def survey(url: str, key: str | None = None, tls: TlsFiles | None = None) -> Survey:
    """Ask the engine at `url`, with its API key if it wants one; raises Unasked."""
    ask = _Asker(url, key, tls)
    try:
        models = read_model_list(ask.must("/v1/models"))
    except ValueError:
        raise Unasked(
            "what answers there has no list of models: no engine that speaks OpenAI"
        ) from None
    with ThreadPoolExecutor(6) as pool:
        told_version, asleep, vllm, llama, sglang, routes = pool.map(
            ask.json,
            (
                *("/version", "/is_sleeping", "/server_info?config_format=json"),
                *("/props", "/get_server_info", "/openapi.json"),
            ),
        )
    version = _text(told_version, "version")
    sleeping = asleep.get("is_sleeping")
    kind = "an engine"
    if version is not None or sleeping is not None:
        kind = f"vLLM {version or '(release unknown)'}"
    elif "total_slots" in llama:
        kind = f"llama.cpp {llama.get('build_info', '')}".rstrip()
    elif "max_running_requests" in sglang:
        kind = f"SGLang {sglang.get('version', '')}".rstrip()
    paths = routes.get("paths")
    return Survey(
        models=models,
        version=version,
        kind=printable(kind),
        can_sleep=isinstance(sleeping, bool),
        sleeping=sleeping if isinstance(sleeping, bool) else None,
        slots=_vllm_slots(vllm)
        or _count(llama, "total_slots")
        or _count(sglang, "max_running_requests"),
        took_key=key is not None,
        paths=frozenset(paths) if isinstance(paths, dict) else None,
    )


def _vllm_slots(info: Mapping[str, Any]) -> int | None:
    """Return `max_num_seqs` of all its data-parallel ranks together."""
    config = info.get("vllm_config")
    if not isinstance(config, dict):
        return None
    seqs = _count(config.get("scheduler_config"), "max_num_seqs")
    ranks = _count(config.get("parallel_config"), "data_parallel_size") or 1
    return None if seqs is None else seqs * ranks


def _count(table: object, name: str) -> int | None:
    value = table.get(name) if isinstance(table, dict) else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value <= SLOTS_MAX else None


def _text(table: Mapping[str, Any], name: str) -> str | None:
    value = table.get(name)
    return value if isinstance(value, str) else None


class _Asker:
    """Asks one engine, directly."""

    def __init__(self, url: str, key: str | None, tls: TlsFiles | None) -> None:
        self._url = url
        self._open = (STRAIGHT if tls is None else straight_with(tls.context())).open
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def must(self, path: str) -> bytes:
        """Return a 200's body; raises Unasked, which says what to look at."""
        try:
            return self._get(path)
        except HTTPError as error:
            with error:
                wants_key = error.code in (401, 403)
                told = _status_fault(error.code, self._headers)
                raise Unasked(told, wants_key=wants_key) from None
        except URLError as error:
            gone = isinstance(error.reason, ConnectionRefusedError)
            raise Unasked(_network_fault(error.reason, self._url), answered=not gone) from None
        except (OSError, HTTPException) as error:
            raise Unasked(_network_fault(error, self._url)) from None

    def json(self, path: str) -> dict[str, Any]:
        """Return an object, or an empty one where there is none to be had."""
        try:
            found = json.loads(self._get(path))
        except (OSError, HTTPException, ValueError):  # HTTPError and URLError are OSErrors
            return {}
        return found if isinstance(found, dict) else {}

    def _get(self, path: str) -> bytes:
        request = Request(self._url + path, headers=self._headers)  # noqa: S310 - http or https
        with self._open(request, timeout=TIMEOUT_S) as answer:
            body: bytes = answer.read(MOST_BYTES)
            return body


def _status_fault(status: int, headers: Mapping[str, str]) -> str:
    if status in (401, 403):
        which = "refuses the key" if headers else "wants an API key"
        return f"the engine {which} (status {status})"
    if status == 404:
        return (
            "something answers there, and has no /v1/models (status 404): "
            "is this the engine's port, and is it one that speaks OpenAI?"
        )
    return f"the engine answers /v1/models with status {status}"


def _network_fault(reason: object, url: str) -> str:
    asked = isinstance(reason, ssl.SSLError) and "CERTIFICATE_REQUIRED" in str(reason)
    if asked or (isinstance(reason, ConnectionResetError) and url.startswith("https:")):
        return "it lets nobody in without a certificate of ours: see upstreams.NAME.client_cert"
    for kind, told in _NETWORK_FAULTS:
        if isinstance(reason, kind):
            return told
    return f"it cannot be reached: {printable(str(reason))}"


_NO_HTTP = "what answers there does not speak HTTP: is it https://, or another program's port?"
_NETWORK_FAULTS: tuple[tuple[type[Exception], str], ...] = (
    (ConnectionRefusedError, "nobody listens there: is the engine started, and is this its port?"),
    (
        TimeoutError,
        f"no answer within {TIMEOUT_S:g} s: is the host right, and does a firewall let it by?",
    ),
    (
        ssl.SSLCertVerificationError,
        "its certificate is not one that is trusted here: see upstreams.NAME.ca_file",
    ),
    (ssl.SSLError, "it does not speak TLS there: is it http:// rather than https://?"),
    (gaierror, "its host is not known: is it spelt right, and does this machine's DNS know it?"),
    (HTTPException, _NO_HTTP),
    (ConnectionResetError, _NO_HTTP),
)
