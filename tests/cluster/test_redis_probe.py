"""`check --probe` tries a cluster's Redis: what is wrong with it is said, and no trace left."""

import asyncio
import contextlib
import io
import socket
from pathlib import Path

from doors import doors
from redis_server import RedisServer

from tornado_frontdoor.cli.main import main
from tornado_frontdoor.config import load
from tornado_frontdoor.proxy.cluster.redis_probe import RedisTried, try_redis

FILE = """
[cluster]
redis = "redis://h/0"
lease_s = 0.5
[upstreams.a]
url = "http://127.0.0.1:1"
[models.a]
upstream = "a"
"""


def tried(folder: Path, url: str) -> RedisTried:
    path = folder / "frontdoor.toml"
    path.write_text(FILE.replace("redis://h/0", url))
    return asyncio.run(try_redis(load(path)))


def command(redis: RedisServer, *words: str) -> bytes:
    with socket.create_connection(("127.0.0.1", redis.port), 5) as wire:
        wire.sendall(" ".join(words).encode() + b"\r\n")
        return wire.recv(65536)


def test_a_redis_that_serves_is_named_with_its_release_and_who_is_there(
    redis: RedisServer, tmp_path: Path
) -> None:
    seen, mistakes = tried(tmp_path, redis.url)
    assert seen.startswith("redis 7.")
    assert seen.endswith("; 0 front doors there")
    assert mistakes == []
    assert command(redis, "DBSIZE") == b":0\r\n"


def test_what_is_wrong_with_its_access_is_told(redis: RedisServer, tmp_path: Path) -> None:
    at = f"127.0.0.1:{redis.port}"
    wrong = {
        f"redis://{at}/99": "it has no database of that number",
        f"redis://:secret@{at}/0": "its default user has no password",
        f"redis://u:secret@{at}/0": "it refuses this user or password",
    }
    for url, why in wrong.items():
        seen, (mistake,) = tried(tmp_path, url)
        assert seen == ""
        assert mistake.startswith(f"redis://{at}/")
        assert why in mistake
        assert "secret" not in mistake


def test_one_that_wants_a_password_or_grants_too_little_is_told(
    redis: RedisServer, tmp_path: Path
) -> None:
    at = f"127.0.0.1:{redis.port}"
    assert command(redis, "ACL SETUSER few on >pw ~* +info +ping +client +select") == b"+OK\r\n"
    assert "all commands on {frontdoor}:*" in tried(tmp_path, f"redis://few:pw@{at}/0").mistakes[0]
    command(redis, "ACL SETUSER all on >pw ~{frontdoor}:* +@all")
    assert tried(tmp_path, f"redis://all:pw@{at}/0").mistakes == []
    command(redis, "CONFIG SET requirepass secret")
    assert "it wants a password" in tried(tmp_path, redis.url).mistakes[0]


def test_a_replica_is_told_to_be_none_to_meet_at(redis: RedisServer, tmp_path: Path) -> None:
    command(redis, "REPLICAOF 127.0.0.1 1")
    assert "it is a replica: name its primary" in tried(tmp_path, redis.url).mistakes[0]


def test_nobody_there_is_told_as_such(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "nobody listens there" in tried(tmp_path, f"redis://127.0.0.1:{port}/0").mistakes[0]
    assert "there is no such socket" in tried(tmp_path, f"unix://{tmp_path}/none").mistakes[0]
    told = tried(tmp_path, "redis://no-such-host.invalid/0").mistakes[0]
    assert "its host is not known" in told


def test_front_doors_that_keep_other_limits_are_told(redis: RedisServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with doors(redis, tmp_path, 1) as many:
            path = tmp_path / "door-0.toml"
            seen, mistakes = await try_redis(load(path))
            assert seen.endswith("; 1 front door there")
            assert mistakes == []
            other = tmp_path / "other.toml"
            other.write_text(path.read_text().replace("cap = 6", "cap = 5"))
            (mistake,) = (await try_redis(load(other))).mistakes
            assert "would not join: admission.cap of " in mistake
            assert len((await many.alive[0].status())["cluster"]["doors"]) == 1

    asyncio.run(scenario())


def test_the_command_names_the_key(redis: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "frontdoor.toml"

    def checked(url: str) -> tuple[int, str, str]:
        path.write_text(FILE.replace("redis://h/0", url))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["check", "--probe", "--config", str(path)])
        return code, out.getvalue(), err.getvalue()

    code, out, err = checked(redis.url)
    assert (code, "cluster.redis" in err) == (1, False)  # its engine is not there
    assert f"redis {redis.url}: redis 7." in out
    code, out, err = checked(redis.url.replace("/0", "/99"))
    assert code == 1
    assert f"{path}: cluster.redis: redis://127.0.0.1:{redis.port}/99: it has no database" in err
