"""Loading and unloading a model of a real llama-server router, by a front door of its own."""

import http.client
import json
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.harness import FrontDoor

Say = Callable[..., None]
"""`say(what, holds=...)` of tryouts/engine.py."""
CHAT = "/v1/chat/completions"
CROWD = 20
LOAD_S = 120.0
STREAM_S = 600.0
"""A machine that has other work brings less than a token a second."""

CONFIGURATION = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
state_dir = "{folder}/state"

[upstreams.tryout]
engine = "llama.cpp"
url = "{url}"

[upstreams.tryout.sleep]
idle_sleep_s = 4
idle_offload_s = 0
hold_offloaded_s = 120
max_waiting = 64

[models.tryout]
upstream = "tryout"
served_name = "{model}"
"""


def ask(url: str, body: object = None, timeout_s: float = LOAD_S) -> tuple[int, bytes]:
    """Return the status and the body of an answer; a body is posted."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class Router:
    """A router, and a front door before it."""

    def __init__(self, say: Say, url: str, model: str, folder: Path) -> None:
        self.say, self.url, self.model = say, url, model
        self.door = FrontDoor(folder, CONFIGURATION.format(folder=folder, url=url, model=model))

    def models(self) -> dict[str, str]:
        """Return the router's models and their status."""
        listed = json.loads(ask(f"{self.url}/models")[1])["data"]
        return {one["id"]: one["status"]["value"] for one in listed}

    def loads(self) -> int:
        """Return how often the front door has woken it."""
        status: dict[str, Any] = json.loads(ask(f"{self.door.admin}/admin/status")[1])
        return int(status["upstreams"]["tryout"]["wakes_total"])

    def state(self) -> str:
        """Return what the front door believes."""
        status: dict[str, Any] = json.loads(ask(f"{self.door.admin}/admin/status")[1])
        return str(status["upstreams"]["tryout"]["state"])

    def wait(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> float | None:
        """Return the seconds until a condition held; None: it did not in time."""
        started = time.monotonic()
        while time.monotonic() - started < timeout_s:
            if condition():
                return time.monotonic() - started
            time.sleep(0.05)
        return None

    def chat(self, tokens: int = 2) -> int:
        """Ask through the front door; return the status."""
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": "tryout", "messages": messages, "max_tokens": tokens}
        return ask(self.door.public + CHAT, body)[0]

    def sleep(self) -> None:
        """Have it asleep."""
        for _ in range(20):
            if ask(f"{self.door.admin}/admin/sleep/tryout", {})[0] == 200:
                break
            time.sleep(1)
        self.say("an operator's sleep unloads it", holds=self.models()[self.model] == "unloaded")


def try_llama(say: Say, url: str, model: str) -> None:
    """Try each in turn; nobody else may use the router meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        scene = Router(say, url, model, Path(folder))
        try:
            if model not in scene.models():
                say(f"the router has {', '.join(scene.models())}: --model?", holds=False)
                return
            for part in (_wakes, _tiers, _by_hand, _somebody_else, _refused, _killed):
                part(scene)
        finally:
            code = scene.door.stop()
            say(f"the front door drained and ended with {code}", holds=code == 0)


def _wakes(scene: Router) -> None:
    scene.wait(lambda: scene.state() in ("offloaded", "awake"))
    started = time.monotonic()
    status = scene.chat()
    took_s = time.monotonic() - started
    scene.say(f"who comes to an unloaded model: {status} after {took_s:.1f} s", holds=status == 200)
    scene.sleep()
    before = scene.loads()
    with ThreadPoolExecutor(CROWD) as crowd:
        statuses = [*crowd.map(lambda _: scene.chat(), range(CROWD))]
    loads = scene.loads() - before
    served = statuses.count(200)
    scene.say(
        f"a crowd: {served} of {CROWD} served, {loads} load", holds=(served, loads) == (20, 1)
    )


def _tiers(scene: Router) -> None:
    scene.chat()
    took_s = scene.wait(lambda: scene.models()[scene.model] == "unloaded")
    scene.say(f"idle for 4 s, it was unloaded after {took_s} s", holds=took_s is not None)


def _by_hand(scene: Router) -> None:
    scene.say("loaded again", holds=scene.chat() == 200)
    ask(f"{scene.url}/models/unload", {"model": scene.model})
    took_s = scene.wait(lambda: scene.state() == "offloaded", 30)
    scene.say(f"unloaded by hand, noticed after {took_s} s", holds=took_s is not None)
    scene.say("and loaded for who comes", holds=scene.chat() == 200)


def _stream_past(scene: Router, model: str, told: list[bytes]) -> threading.Thread:
    """Begin a stream that the front door knows nothing of; `told` gets its body, or its error."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "count"}],
        "max_tokens": 900,
        "ignore_eos": True,
        "stream": True,
    }

    def read() -> None:
        try:
            told.append(ask(scene.url + CHAT, body, STREAM_S)[1])
        except (OSError, http.client.HTTPException) as error:
            told.append(repr(error).encode())

    stream = threading.Thread(target=read)
    stream.start()
    return stream


def _is_whole(told: list[bytes]) -> bool:
    return told[0].endswith(b"data: [DONE]\n\n")


def _end_of(told: list[bytes]) -> str:
    if _is_whole(told):
        return f"{len(told[0])} bytes, whole"
    return f"{len(told[0])} bytes, cut after {told[0][-200:]!r}"


def _somebody_else(scene: Router) -> None:
    told: list[bytes] = []
    stream = _stream_past(scene, scene.model, told)
    slept = 0
    while stream.is_alive():
        slept += scene.models()[scene.model] != "loaded"
        stream.join(0.2)
    scene.say(f"a stream past the front door: {_end_of(told)}", holds=_is_whole(told))
    scene.say("the model stayed loaded under it, past its tier", holds=slept == 0)


def _refused(scene: Router) -> None:
    others = [name for name in scene.models() if name != scene.model]
    if not others:
        scene.say("no second model: a load that is refused was not tried")
        return
    scene.sleep()
    ask(f"{scene.url}/models/load", {"model": others[0]})
    scene.wait(lambda: scene.models()[others[0]] == "loaded", LOAD_S)
    told: list[bytes] = []
    stream = _stream_past(scene, others[0], told)
    time.sleep(1)
    started = time.monotonic()
    status = scene.chat()
    scene.say(
        f"with another model at work: {status} after {time.monotonic() - started:.1f} s, which "
        f"left {scene.models()}",
        holds=status == 200,
    )
    stream.join()
    scene.say(f"and the other's stream: {_end_of(told)}", holds=_is_whole(told))


def _killed(scene: Router) -> None:
    scene.sleep()
    asking = threading.Thread(target=lambda: _unanswered(scene))
    asking.start()
    scene.wait(lambda: scene.models()[scene.model] == "loading", 20)
    scene.door.kill()
    asking.join()
    scene.door.start()
    took_s = scene.wait(lambda: scene.state() == "awake")
    scene.say(f"killed while it loads; the next is awake after {took_s} s", holds=bool(took_s))
    scene.say("and serves", holds=scene.chat() == 200)


def _unanswered(scene: Router) -> None:
    try:
        scene.chat()
    except OSError:
        return
