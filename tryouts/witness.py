"""A real vLLM asked directly, and a front door in a process of its own that can be killed.

What the engine says is read from the engine itself: `/is_sleeping`, its gauges, and its own count
of sleeps and wakes (0.32 and later), so that the front door is no witness in its own cause.
"""

import contextlib
import json
import re
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from bench.harness import FrontDoor

GAUGE = re.compile(r"^(vllm:\w+|process_start_time_seconds)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


class RealEngine:
    """The engine at a URL, asked directly."""

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self.model = model

    def call(self, method: str, path: str, body: object = None, timeout_s: float = 60) -> Any:
        """Return the JSON of an answer (None: it had no body); raises OSError."""
        return call(f"{self.url}{path}", method, body, timeout_s)

    def sleeping(self) -> bool:
        """Ask whether it sleeps."""
        return bool(self.call("GET", "/is_sleeping")["is_sleeping"])

    def gauges(self) -> dict[str, float]:
        """Return its gauges and counters; labels are added up, but for the few that matter."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found: dict[str, float] = {}
        for name, labels, value in GAUGE.findall(text):
            kind = re.search(r'(?:sleep_state|operation)="(\w+)"', labels)
            key = f"{name.removeprefix('vllm:')} {kind[1]}" if kind else name.removeprefix("vllm:")
            found[key] = found.get(key, 0.0) + float(value)
        return found

    def level(self) -> str:
        """Return the state that its gauge shows."""
        found = [name for name, value in self.gauges().items() if value == 1 and "_state " in name]
        return ", ".join(name.partition(" ")[2] for name in found) or "none"

    def operations(self) -> tuple[int, int]:
        """Return how many sleeps and how many wakes it has counted."""
        gauges = self.gauges()
        name = "sleep_mode_operation_duration_seconds_count"
        return int(gauges.get(f"{name} sleep", 0)), int(gauges.get(f"{name} wake", 0))

    def asked(self) -> int:
        """Return how many requests it has ended."""
        return int(self.gauges().get("request_success_total", 0))

    def wake(self) -> None:
        """Wake it, however deep it sleeps."""
        self.call("POST", "/wake_up?tags=weights")
        self.call("POST", "/collective_rpc", {"method": "reload_weights"})
        self.call("POST", "/wake_up?tags=kv_cache")

    def nap(self, seconds: float) -> None:
        """Block it; raises OSError where it has no such worker method."""
        asked = {"method": "nap", "kwargs": {"seconds": str(seconds)}}
        self.call("POST", "/collective_rpc", asked, seconds + 30)

    def story(self, tokens: int) -> str:
        """Ask for so many tokens past the front door, and return how that ended."""
        body = {"model": self.model, "prompt": "1 2 3", "max_tokens": tokens, "ignore_eos": True}
        answer = self.call("POST", "/v1/completions", body, 300)
        return str(answer["choices"][0]["finish_reason"])


class Door(FrontDoor):
    """A front door before `engine`, asked as an operator and as a client."""

    def journal(self) -> str | None:
        """Return what its journal says was going on when it was killed."""
        path = self.log.parent / "state" / "frontdoor.sqlite3"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
            ((memory,),) = file.execute("SELECT memory FROM engines")
        going: str | None = json.loads(memory or "{}").get("going")
        return going

    def status(self) -> dict[str, Any]:
        """Return the engine's part of `/admin/status`."""
        status: dict[str, Any] = call(f"{self.admin}/admin/status")["upstreams"]["engine"]
        return status

    def state(self) -> str:
        """Return the engine's state."""
        return str(self.status()["state"])

    def order(self, what: str) -> Any:
        """Order a wake or a sleep and wait for it."""
        return call(f"{self.admin}/admin/{what}", "POST", timeout_s=120)

    def ask(self, model: str, tokens: int = 8) -> tuple[str, float]:
        """Stream a chat; return the finish reason, or what went wrong, and the seconds it took."""
        began_s = time.monotonic()
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        request = urllib.request.Request(
            f"{self.public}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return f"{error.code} {error.read()[:300]!r}", time.monotonic() - began_s
        except OSError as error:
            return repr(error), time.monotonic() - began_s
        reasons = re.findall(r'"finish_reason":\s*"(\w+)"', text)
        whole = text.rstrip().endswith("data: [DONE]")
        return ", ".join(reasons) if whole else f"cut off: {text[-200:]!r}", (
            time.monotonic() - began_s
        )


class EngineWatch:
    """Follows the front door's view of the engine: each state and step, in order."""

    def __init__(self, door: Door) -> None:
        self.seen: list[str] = []
        self._door = door
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.002):
            with contextlib.suppress(OSError):
                status = self._door.status()
                step = f" ({status['wake_step']})" if status["wake_step"] else ""
                if [status["state"] + step] != self.seen[-1:]:
                    self.seen.append(status["state"] + step)

    def end(self) -> str:
        """Stop; return what was seen."""
        self._over.set()
        self._thread.join()
        return " > ".join(self.seen)


def call(url: str, method: str = "GET", body: object = None, timeout_s: float = 60) -> Any:
    """Return the JSON behind a URL (None: an empty body); raises OSError, also for an error."""
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.loads(answer.read() or b"null")


def until(condition: Callable[[], bool], timeout_s: float) -> float | None:
    """Return the seconds until `condition` held, or None when it did not in time."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < timeout_s:
        with contextlib.suppress(OSError):
            if condition():
                return time.monotonic() - began_s
        time.sleep(0.02)
    return None


def took(seconds: float | None) -> str:
    """Return a time for people."""
    return "not in time" if seconds is None else f"after {seconds:.2f} s"
