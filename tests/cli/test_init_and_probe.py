"""`init` before engines that run, and `check --probe`, which names each mistake."""

import contextlib
import http.server
import io
import json
import socket
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from on_stage import stage

from tornado_frontdoor.cli.engine_survey import survey
from tornado_frontdoor.cli.main import main
from tornado_frontdoor.config import load

CHAT = {"/v1/chat/completions": {}, "/v1/completions": {}}
EMBED = {"/v1/embeddings": {}}


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Done:
    """Run `frontdoor` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def engine(
    documents: dict[str, Any], key: str | None = None, heard: list[str] | None = None
) -> Iterator[str]:
    """Run an engine that answers these paths and nothing else; yields its URL.

    `heard` gets the keys that it was asked with.
    """
    keys: list[str] = [] if heard is None else heard

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            document = documents.get(self.path.partition("?")[0])
            status = 200 if document is not None else 404
            keys.append(self.headers["Authorization"])
            if key is not None and self.headers["Authorization"] != f"Bearer {key}":
                status = 401
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def models(*names: str, **entry: object) -> dict[str, Any]:
    return {"data": [{"id": name, "object": "model", **entry} for name in names]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def written_for(*urls: str) -> tuple[dict[str, Any], str]:
    done = run("init", *urls)
    assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout), done.stderr


def test_a_file_for_three_stand_ins_is_served_as_it_was_written(tmp_path: Path):
    with stage(tmp_path) as on:
        _, text = on.engine("--model", "Qwen/Qwen3-32B", "--sleep-mode", "--slots", "12")
        _, plain = on.engine("--model", "reasoning")
        _, third = on.engine("--model", "third", "--sleep-mode", "--slots", "4")
        out = tmp_path / "made.toml"
        urls = (f"127.0.0.1:{text}", f"http://127.0.0.1:{plain}/v1", f"http://127.0.0.1:{third}/")
        done = run("init", "--out", str(out), *urls)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert done.stderr.count("not learned: ") == 1
        assert "upstreams.reasoning.admission.slots is a guess" in done.stderr
        settings = load(out)
        assert list(settings.upstreams) == ["qwen3-32b", "reasoning", "third"]
        asleep = settings.upstreams["qwen3-32b"]
        assert asleep.admission is not None
        assert (asleep.admission.slots, asleep.admission.cap) == (12, 11)
        assert asleep.sleep is not None
        assert settings.upstreams["reasoning"].sleep is None
        assert "NOT LEARNED" in out.read_text()
        catalog = settings.catalog()
        for asked in ("claude-opus-4", "qwen3-32b", "Qwen/Qwen3-32B"):
            target = catalog.resolve(asked)
            assert target is not None
            assert target.served_name == "Qwen/Qwen3-32B"

        probed = run("check", "--probe", "--config", str(out))
        assert (probed.returncode, probed.stderr) == (0, "")
        process = on.start(
            *("serve", "--config", str(out)),
            *("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
        )
        assert process.port("public")


def test_a_file_that_is_there_is_left_alone(tmp_path: Path):
    out = tmp_path / "mine.toml"
    out.write_text("mine")
    with engine({"/v1/models": models("m", max_model_len=10)}) as url:
        done = run("init", "--out", str(out), url)
    assert done.returncode == 1
    assert "is there already" in done.stderr
    assert out.read_text() == "mine"


def test_an_engine_that_only_embeds_gets_no_claude_and_its_route():
    embeds = {"/v1/models": models("e5", max_model_len=512), "/openapi.json": {"paths": EMBED}}
    chats = {"/v1/models": models("chat", max_model_len=4096), "/openapi.json": {"paths": CHAT}}
    with engine(embeds) as first, engine(chats) as second:
        found, _ = written_for(first, second)
    assert found["routes"] == {"chat_default": "chat", "embeddings": "e5"}
    assert "claude-*" in found["models"]["chat"]["aliases"]
    assert "claude-*" not in found["models"]["e5"]["aliases"]


def test_what_two_engines_serve_and_what_no_file_can_name_is_left_out_and_said():
    with (
        engine({"/v1/models": models("same", "a*b", max_model_len=10)}) as first,
        engine({"/v1/models": models("same", 'quo"te\\', max_model_len=10)}) as second,
    ):
        found, said = written_for(first, second)
    assert set(found["models"]) == {"same", 'quo"te\\'}
    assert '"same" is served by two engines' in said
    assert '"a*b" cannot be a model\'s name' in said


def test_a_length_that_is_not_told_is_a_comment_and_said():
    with engine({"/v1/models": models("m")}) as url:
        done = run("init", url)
    assert "# max_model_len = 32768  # NOT LEARNED" in done.stdout
    assert "does not say how long the context" in done.stderr


@pytest.mark.parametrize(
    ("documents", "kind", "slots"),
    [
        ({"/props": {"total_slots": 4, "build_info": "b6000"}}, "llama.cpp b6000", 4),
        ({"/get_server_info": {"max_running_requests": 48, "version": "0.6"}}, "SGLang 0.6", 48),
        (
            {
                "/version": {"version": "0.33.0"},
                "/is_sleeping": {"is_sleeping": True},
                "/server_info": {
                    "vllm_config": {
                        "scheduler_config": {"max_num_seqs": 256},
                        "parallel_config": {"data_parallel_size": 2},
                    }
                },
            },
            "vLLM 0.33.0",
            512,
        ),
        (
            {"/version": {"version": "0.33.0"}, "/server_info": {"vllm_config": "text"}},
            "vLLM",
            None,
        ),
        ({"/props": ["no object"], "/version": 7}, "an engine", None),
    ],
    ids=["llama.cpp", "sglang", "vllm", "vllm without dev mode", "garbage"],
)
def test_an_engine_of_each_kind_tells_its_slots(
    documents: dict[str, Any], kind: str, slots: int | None
):
    with engine({"/v1/models": models("m"), **documents}) as url:
        found = survey(url)
    assert found.kind.startswith(kind)
    assert found.slots == slots


def test_nobody_there_is_said_with_what_to_look_at():
    done = run("init", f"127.0.0.1:{free_port()}")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "nobody listens there" in line


def test_an_address_that_is_none_is_a_usage_error():
    done = run("init", "ftp://host")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


# check --probe

CONFIGURATION = """
[server]
[surfaces]
[upstreams.one]
url = "{url}"
{upstream}
[upstreams.one.admission]
slots = {slots}
cap = 2
queue = 8
queue_timeout_s = 30
{tables}
[models.mine]
upstream = "one"
served_name = "{served}"
{model}
"""
WHOLE = {
    "/v1/models": models("served-name", max_model_len=4096),
    "/version": {"version": "0.33.0"},
    "/is_sleeping": {"is_sleeping": False},
    "/server_info": {"vllm_config": {"scheduler_config": {"max_num_seqs": 8}}},
    "/openapi.json": {"paths": CHAT},
}
SLEEP = "[upstreams.one.sleep]\nidle_sleep_s = 900"


def probed(folder: Path, url: str, **values: object) -> tuple[int, list[str], str]:
    """Check a configuration with --probe; returns code, mistakes and stdout."""
    path = folder / "probed.toml"
    defaults = {"url": url, "upstream": "", "slots": 8, "tables": "", "model": ""}
    path.write_text(CONFIGURATION.format_map({"served": "served-name", **defaults, **values}))
    done = run("check", "--probe", "--config", str(path))
    prefix = f"{path}: "
    lines = done.stderr.splitlines()
    assert all(line.startswith(prefix) for line in lines), done.stderr
    return done.returncode, [line.removeprefix(prefix) for line in lines], done.stdout


def test_a_configuration_that_fits_its_engine_is_said_to(tmp_path: Path):
    with engine(WHOLE) as url:
        code, mistakes, said = probed(tmp_path, url, tables=SLEEP)
    assert (code, mistakes) == (0, [])
    assert "upstream one: vLLM 0.33.0; served-name; context 4096; 8 slots; awake" in said


@pytest.mark.parametrize(
    ("changes", "without", "key", "told"),
    [
        ({"slots": 16}, (), "upstreams.one.admission.slots", "runs 8 sequences"),
        ({"served": "servedname"}, (), "models.mine.served_name", 'did you mean "served-name"'),
        ({"tables": SLEEP}, ("/is_sleeping",), "upstreams.one.sleep", "VLLM_SERVER_DEV_MODE=1"),
        (
            {"tables": f'{SLEEP}\ncanary_path = "/v1/embeddings"'},
            (),
            "upstreams.one.sleep.canary_path",
            "does not have",
        ),
        (
            {"model": "[models.mine.dialect]\nmax_model_len = 8192"},
            (),
            "models.mine.dialect.max_model_len",
            "the engine's is 4096",
        ),
        ({}, ("/v1/models",), "upstreams.one.url", "has no /v1/models"),
    ],
    ids=["slots", "served name", "no dev mode", "canary", "length", "another service"],
)
def test_each_mistake_is_named_with_its_key(
    tmp_path: Path, changes: dict[str, object], without: tuple[str, ...], key: str, told: str
):
    documents = {path: document for path, document in WHOLE.items() if path not in without}
    with engine(documents) as url:
        code, mistakes, _ = probed(tmp_path, url, **changes)
    assert code == 1
    (mistake,) = mistakes
    assert mistake.startswith(f"{key}: ")
    assert told in mistake


def test_an_engine_that_the_front_door_starts_need_not_run(tmp_path: Path):
    url = f"http://127.0.0.1:{free_port()}"
    process = 'engine = "process"\n[upstreams.one.process]\ncommand = ["engine"]\n'
    process += "[upstreams.one.sleep]\nidle_stop_s = 60\n"
    code, mistakes, said = probed(tmp_path, url, upstream=process)
    assert (code, mistakes) == (0, [])
    assert "upstream one: not running; the front door starts it" in said


def test_an_engine_that_wants_a_key_is_said_to_want_one(tmp_path: Path):
    with engine(WHOLE, key="secret") as url:
        code, (mistake,), _ = probed(tmp_path, url)
        assert survey(url, "secret").slots == 8
        assert code == 1
        assert "wants an API key (status 401)" in mistake
        (tmp_path / "key").write_text("secret\n")
        assert probed(tmp_path, url, upstream='api_key_file = "key"')[:2] == (0, [])
        (tmp_path / "key").write_text("wrong\n")
        _, (mistake,), _ = probed(tmp_path, url, upstream='api_key_file = "key"')
        assert "refuses the key (status 401)" in mistake


def test_a_key_is_for_the_engine_that_asks_for_one_and_its_file_is_written_down(tmp_path: Path):
    (tmp_path / "key").write_text("secret\n")
    heard: list[str] = []
    other = {"/v1/models": models("other", max_model_len=10)}
    with engine(WHOLE, key="secret") as closed, engine(other, heard=heard) as free:
        done = run("init", "--key-file", str(tmp_path / "key"), closed, free)
    assert done.returncode == 0, done.stderr
    upstreams = tomllib.loads(done.stdout)["upstreams"]
    assert upstreams["served-name"]["api_key_file"] == str(tmp_path / "key")
    assert "api_key_file" not in upstreams["other"]
    assert heard
    assert not any(heard)
    assert run("init", "--key-file", str(tmp_path / "none"), "h").returncode == 2


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:{port}", "nobody listens there"),
        ("http://no-such-host.invalid:80", "its host is not known"),
        ("https://127.0.0.1:{http}", "http:// rather than https://"),
        ("http://127.0.0.1:{garbage}", "does not speak HTTP"),
    ],
    ids=["port", "host", "tls", "not http"],
)
def test_a_wrong_address_is_told_by_what_is_wrong_with_it(tmp_path: Path, url: str, told: str):
    with engine(WHOLE) as http_url, garbage() as port:
        at = url.format(port=free_port(), http=http_url.rpartition(":")[2], garbage=port)
        code, (mistake,), _ = probed(tmp_path, at)
    assert code == 1
    assert mistake.startswith(f"upstreams.one.url: {at}: ")
    assert told in mistake


@contextlib.contextmanager
def garbage() -> Iterator[int]:
    """Run what answers with something that is no HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_with_json_only_json_is_on_stdout(tmp_path: Path):
    with engine(WHOLE) as url:
        path = tmp_path / "x.toml"
        values = {"url": url, "upstream": "", "slots": 8, "tables": "", "model": ""}
        path.write_text(CONFIGURATION.format_map({"served": "served-name", **values}))
        done = run("check", "--probe", "--json", "--config", str(path))
    assert done.returncode == 0
    json.loads(done.stdout)
