"""Stand-ins of engines that are no vLLM: their habits, on real sockets; each counts what it saw."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

TOKENS = ("/v1/chat/completions", "/v1/completions")


class DiedError(Exception):
    """The engine's process ends at this point."""


class Asked(NamedTuple):
    """One request to an engine."""

    path: str
    query: Mapping[str, list[str]]
    body: Mapping[str, Any]


class FakeEngine:
    """An HTTP server of one engine, which can die and come back at its address."""

    kind = ""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """The transitions it was asked for."""
        self.garbage = 0
        """Requests for tokens that met an engine which was not wholly awake."""
        self.overlaps = 0
        self.deaths = 0
        self.chats = 0
        self.babbles = False
        """Whether its answers make no sense, of which nothing else tells."""
        self.running = 0
        self.port = 0
        self.failing: set[str] = set()
        """Calls that go wrong."""
        self.blocked: asyncio.Event | None = None
        """Set while calls are to wait."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._doing = 0

    async def start(self) -> None:
        """Listen, at the address of before if there was one."""
        self.fresh()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def die(self) -> None:
        """End: nobody listens any more, and every connection is reset."""
        self.deaths += 1
        await self.close()

    async def close(self) -> None:
        """Stop listening."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for writer in [*self._writers]:
                writer.transport.abort()
            await asyncio.sleep(0)

    def fresh(self) -> None:
        """Be as after a start."""

    async def answer(self, asked: Asked) -> tuple[int, object]:
        """Return a status and a document."""
        raise NotImplementedError

    async def transition(self, name: str) -> None:
        """Take note of a transition; wait while it is blocked."""
        self.overlaps += self._doing > 0
        self.calls.append(name)
        self._doing += 1
        try:
            if self.blocked is not None:
                await self.blocked.wait()
        finally:
            self._doing -= 1

    def chat(self, *, awake: bool) -> tuple[int, object]:
        """Answer a request for tokens."""
        self.garbage += not awake
        self.chats += 1
        token = (
            {"token": "!!", "logprob": -9.0} if self.babbles else {"token": "we", "logprob": -0.1}
        )
        choice = {"message": {"role": "assistant", "content": "well"}}
        return 200, {"choices": [choice | {"logprobs": {"content": [token]}}]}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(
                    line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line
                )
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                target = urlsplit(head.split(" ", 2)[1])
                asked = Asked(target.path, parse_qs(target.query), json.loads(body) if body else {})
                status, document = await self.answer(asked)
                told = json.dumps(document).encode()
                writer.write(
                    f"HTTP/1.1 {status} S\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(told)}\r\n\r\n".encode()
                    + told
                )
                await writer.drain()
        except DiedError:
            await self.die()
            await self.start()  # by whoever supervises it
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._writers.discard(writer)
            with contextlib.suppress(OSError):
                writer.close()


def _error(status: int, message: str) -> tuple[int, object]:
    return status, {"error": {"code": status, "message": message}}


class FakeRouter(FakeEngine):
    """llama-server as a router: loads and unloads in its own time, and says so at once."""

    kind = "llama.cpp"
    load_s = 0.3
    unload_s = 0.3

    def fresh(self) -> None:
        """Nothing is loaded after a start."""
        self.status = "unloaded"
        self._busy: asyncio.Task[None] | None = None

    @property
    def awake(self) -> bool:
        """Whether the model answers."""
        return self.status == "loaded"

    @property
    def wakes(self) -> int:
        """How often it was loaded."""
        return self.calls.count("load")

    def _later(self, status: str, delay_s: float) -> None:
        async def change() -> None:
            if self.blocked is not None:
                await self.blocked.wait()
            await asyncio.sleep(delay_s)
            self.status = "unloaded" if "load" in self.failing else status

        self._busy = asyncio.get_running_loop().create_task(change())

    async def close(self) -> None:
        """Stop listening, and loading."""
        if self._busy is not None:
            self._busy.cancel()
        await super().close()

    async def answer(self, asked: Asked) -> tuple[int, object]:
        """Answer as a router does."""
        if asked.path == "/models":
            status = {"value": self.status}
            other = {"id": "other", "status": {"value": "unloaded"}}
            return 200, {"data": [{"id": "text", "aliases": [], "status": status}, other]}
        named = asked.body.get("model") or asked.query.get("model", [""])[0]
        if named != "text":
            return _error(404, "File Not Found")
        if asked.path in ("/models/load", "/models/unload"):
            return self._turn(asked.path.removeprefix("/models/"))
        if self.status != "loaded":
            return _error(400, "model is not loaded")
        if asked.path in TOKENS:
            return self.chat(awake=True)
        assert asked.query["autoload"] == ["false"]
        return 200, [{"is_processing": self.running > 0}, {"is_processing": False}]

    def _turn(self, verb: str) -> tuple[int, object]:
        if (self.status == "unloaded") is (verb == "unload"):
            return _error(400, f"model is {'not' if verb == 'unload' else 'already'} running")
        self.calls.append(verb)
        if verb == "load":
            self.status = "loading"
            self._later("loaded", self.load_s)
        else:
            self._later("unloaded", self.unload_s)  # until then it says `loaded`
        return 200, {"success": True}


class FakeSglang(FakeEngine):
    """SGLang: a call at the wrong time ends it, resumed weights are garbage, no route tells."""

    kind = "sglang"

    def fresh(self) -> None:
        """All is loaded after a start."""
        self.released: set[str] = set()
        self.read = True
        self.label = "default"

    @property
    def awake(self) -> bool:
        """Whether it would answer with sense."""
        return not self.released and self.read

    @property
    def wakes(self) -> int:
        """How often its weights got their place back."""
        return self.calls.count("resume weights")

    async def answer(self, asked: Asked) -> tuple[int, object]:
        """Answer as SGLang does."""
        tags = set(asked.body.get("tags", ()))
        match asked.path:
            case "/server_info" | "/v1/loads":
                return 200, self._told(asked.path)
            case "/update_weight_version":
                assert asked.body["abort_all_requests"] is False
                self.label = asked.body["new_version"]
            case "/release_memory_occupation":
                await self._release(tags)
            case "/resume_memory_occupation":
                await self._resume(tags)
            case "/update_weights_from_disk":
                return await self._reload(asked.body["model_path"])
            case path if path in TOKENS:
                answer = self.chat(awake=self.awake)
                if self.released:
                    raise DiedError
                return answer
            case _:
                return _error(404, "no")
        return 200, None

    def _told(self, path: str) -> object:
        if path == "/v1/loads":
            load = {"total_running_reqs": self.running, "total_waiting_reqs": 0}
            return {"loads": [], "aggregate": load}
        return {
            "version": "0.5.9",
            "model_path": "/models/text",
            "enable_memory_saver": True,
            "weight_version": self.label,
        }

    async def _reload(self, model_path: str) -> tuple[int, object]:
        await self.transition("update_weights_from_disk")
        if "load" in self.failing:
            return 400, {"success": False, "message": "no such file"}
        if "weights" in self.released or model_path != "/models/text":
            raise DiedError
        self.read = True
        return 200, {"success": True}

    async def _release(self, tags: set[str]) -> None:
        await self.transition("release")
        if self.running or tags & self.released:
            raise DiedError
        self.released |= tags
        self.read &= "weights" not in tags

    async def _resume(self, tags: set[str]) -> None:
        await self.transition(f"resume {' '.join(sorted(tags))}")
        if not tags <= self.released:
            raise DiedError
        self.released -= tags
