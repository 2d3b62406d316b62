"""The proxies that the front door is measured beside: how each is configured and started.

aiohttp, FastAPI with httpx and a relay that reads nothing are of ours, as small as can be. HAProxy,
Envoy, vllm-router and LiteLLM take part where they are there: on the PATH, or installed by
`bench/peers/install.sh`. Each keeps its connections on both sides; HAProxy and Envoy have one
thread, LiteLLM one worker.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import PEERS, Process, free_port, start_listening

INSTALLED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frontdoor-peers"
OWN = ("aiohttp", "fastapi", "relay")
OTHERS = ("haproxy", "envoy", "vllm-router", "litellm")
SLOW = frozenset({"fastapi", "litellm"})
"""What does not reach half of the front door's rate."""
SHARE_OF_LOAD = {"litellm": 0.05}
"""What needs milliseconds for a request is measured by fewer of them."""


def found(name: str) -> str | None:
    """Return the program of one of `OTHERS`; None where it is not installed."""
    folders = [os.environ.get("PATH", ""), "/usr/sbin"]
    folders += [str(folder) for folder in sorted(INSTALLED.glob("*/bin"))]
    return shutil.which(name, path=os.pathsep.join(folders))


def peers() -> list[str]:
    """Return what the front door can be measured beside here."""
    return [*OWN, *(name for name in OTHERS if found(name))]


def start_peer(name: str, engine: int, folder: Path) -> tuple[Process, int]:
    """Start one of `peers`; returns its process and port once it accepts."""
    port = free_port()
    if name in OWN:
        words = [sys.executable, str(PEERS / f"{name}_proxy.py")]
        command = [*words, str(port), f"http://127.0.0.1:{engine}"]
    else:
        command = [found(name) or name, *_WORDS[name](folder, port, engine)]
    return start_listening(name, command, port, folder / f"{name}.log"), port


def _haproxy(folder: Path, port: int, engine: int) -> list[str]:
    path = folder / "haproxy.cfg"
    path.write_text(
        f"""global
    nbthread 1
    maxconn 9000
defaults
    mode http
    timeout connect 5s
    timeout client 900s
    timeout server 900s
    http-reuse always
frontend public
    bind 127.0.0.1:{port}
    default_backend engine
backend engine
    server engine 127.0.0.1:{engine}
"""
    )
    return ["-db", "-f", str(path)]


def _envoy(folder: Path, port: int, engine: int) -> list[str]:
    def address(number: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    types = "type.googleapis.com/envoy.extensions.filters"
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "public",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{types}.http.router.v3.Router"},
            }
        ],
    }
    http = "envoy.filters.network.http_connection_manager"
    endpoint = {"endpoint": {"address": address(engine)}}
    configuration = {
        "static_resources": {
            "listeners": [
                {
                    "address": address(port),
                    "filter_chains": [{"filters": [{"name": http, "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    "name": "engine",
                    "load_assignment": {
                        "cluster_name": "engine",
                        "endpoints": [{"lb_endpoints": [endpoint]}],
                    },
                }
            ],
        }
    }
    path = folder / "envoy.json"
    path.write_text(json.dumps(configuration))
    words = ["-c", str(path), "--concurrency", "1", "--log-level", "error"]
    return [*words, "--disable-hot-restart", "--use-dynamic-base-id"]


def _vllm_router(_: Path, port: int, engine: int) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--worker-urls", f"http://127.0.0.1:{engine}", "--log-level", "error"),
        *("--prometheus-port", str(free_port())),
    ]


def _litellm(folder: Path, port: int, engine: int) -> list[str]:
    """The engine as a vLLM server, no key, nothing switched on."""
    path = folder / "litellm.yaml"
    path.write_text(
        f"""model_list:
  - model_name: reasoning
    litellm_params:
      model: hosted_vllm/reasoning
      api_base: http://127.0.0.1:{engine}/v1
      api_key: none
general_settings:
  dangerously_permit_weak_or_unset_master_key: true
"""
    )
    words = ["--config", str(path), "--host", "127.0.0.1", "--port", str(port)]
    return [*words, "--num_workers", "1"]


_WORDS: dict[str, Callable[[Path, int, int], list[str]]] = {
    "haproxy": _haproxy,
    "envoy": _envoy,
    "vllm-router": _vllm_router,
    "litellm": _litellm,
}
