"""Those who come back when told find a place; they are known by what they sent, by nothing else."""

import asyncio

from doorway import CHAT, doorway
from wire import chat

from tornado_frontdoor.core.request import CanonicalRequest, UpstreamKey
from tornado_frontdoor.proxy.callers import PRINTED_BYTES, RequestToken, caller_of


def _request(body: bytes = b"{}", path: str = "/v1/chat/completions") -> CanonicalRequest:
    return CanonicalRequest(
        surface="openai",
        model="m",
        upstream=UpstreamKey("u"),
        path=path,
        body=body,
        content_type="application/json",
        stream=False,
    )


def test_a_caller_is_the_same_by_credential_path_and_body_and_by_nothing_else() -> None:
    def token(headers: dict[str, str], request: CanonicalRequest | None = None) -> object:
        return caller_of(headers, request or _request()).token

    mine = {"authorization": "Bearer a", "x-stainless-retry-count": "0", "user-agent": "one"}
    again = {"authorization": "Bearer a", "x-stainless-retry-count": "1", "user-agent": "two"}
    assert token(mine) == token(again)
    assert hash(token(mine)) == hash(token(again))
    others = [
        token({"authorization": "Bearer b"}),
        token({"x-api-key": "Bearer a"}),
        token({}),
        token(mine, _request(b"{} ")),
        token(mine, _request(path="/v1/completions")),
    ]
    assert all(one != token(mine) for one in others)
    assert len(set(others)) == len(others)


def test_of_a_long_body_beginning_end_and_length_count() -> None:
    long = b"a" * (3 * PRINTED_BYTES)

    def token(body: bytes) -> object:
        return RequestToken({}, _request(body))

    assert token(long) == token(long)
    assert token(long) != token(long + b"a")
    assert token(long) != token(b"b" + long[1:])
    assert token(long) != token(long[:-1] + b"b")
    just_over = b"a" * PRINTED_BYTES
    assert token(just_over + b"a") != token(just_over + b"b")


def test_a_token_keeps_no_body_once_it_was_asked_for() -> None:
    token = RequestToken({"authorization": "Bearer secret"}, _request(b"private"))
    hash(token)
    assert token._of is None
    assert "secret" not in repr(token)
    assert "private" not in repr(token)


async def _until_told(told_ms: int, since_s: float) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(max(0.0, since_s + told_ms / 1000 - loop.time()))


def test_who_comes_back_when_told_is_counted_and_who_stays_away_too() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 0.4}, cap=1, queue=2) as door:
            held = [await door.begin(CHAT, chat()) for _ in range(3)]
            await door.inside(1, 2)
            mine = {"model": "reasoning", "messages": [{"role": "user", "content": "mine"}]}
            refused = await door.call(CHAT, mine)
            since_s = asyncio.get_running_loop().time()
            assert refused.status == 503
            assert door.gate.returns_expected == 1
            status = (await door.admin("/admin/status")).json["upstreams"]["reasoning"]
            assert status["returns"] == {
                "expected": 1,
                "places_kept": 0,  # nobody was seen to come back yet
                "places": 1,
                "came_back": 0,
                "stayed_away": 0,
            }
            await _until_told(int(refused.headers["retry-after-ms"]), since_s)
            again = await door.call(CHAT, mine)
            assert again.status == 200
            metrics = (await door.admin("/metrics")).body.decode()
            labels = 'result="came_back",upstream="reasoning"'
            assert f"frontdoor_returns_total{{{labels}}} 1.0" in metrics
            assert 'frontdoor_returns_expected{upstream="reasoning"} 0.0' in metrics
            assert 'frontdoor_return_places_kept{upstream="reasoning"} 0.0' in metrics
            for wire in held:
                await wire.reply()

    asyncio.run(scenario())
