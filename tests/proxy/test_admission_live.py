"""Admission over real sockets: the cap, the line, the order, the refusals of a crowd."""

import asyncio
from collections import Counter

import pytest
from doorway import CHAT, Doorway, doorway
from wire import Reply, chat


async def crowd(door: Doorway, count: int, body: object) -> list[Reply]:
    """Send the same request on `count` connections at once."""
    return await asyncio.gather(*(door.call(CHAT, body) for _ in range(count)))


@pytest.mark.parametrize(
    ("queue_timeout_s", "served", "full", "late"),
    [(30, 14, 26, 0), (0.4, 6, 26, 8), (1.2, 12, 26, 2)],
)
def test_forty_at_once_are_served_or_refused_by_cap_line_and_patience(
    queue_timeout_s: float, served: int, full: int, late: int
) -> None:
    """F1, F3, F5: holds of 0.8 s, cap 6, 8 places; the engine itself counts who was there."""

    async def scenario() -> None:
        async with doorway({"hold": 0.8}, queue_timeout_s=queue_timeout_s) as door:
            replies = await crowd(door, 40, {"model": "reasoning", "messages": []})
            assert Counter(reply.status for reply in replies) == {200: served, 503: full + late}
            assert door.stats()["max_concurrent"] == 6
            assert door.stats()["max_sequences"] == 6
            assert door.stats()["started"] == served
            refused = [reply for reply in replies if reply.status == 503]
            for reply in refused:
                hold_to_the_form_of_a_refusal(reply)
            codes = Counter(reply.json["error"]["code"] for reply in refused)
            assert codes == Counter({"queue_full": full, "queue_timeout": late})
            at_once = [r for r in refused if r.json["error"]["code"] == "queue_full"]
            assert max(reply.took_s for reply in at_once) < 0.5
            exact = [int(reply.headers["retry-after-ms"]) for reply in at_once]
            assert len(set(exact)) == len(exact), "a crowd that is told one instant returns in one"
            assert len({reply.headers["retry-after"] for reply in at_once}) > 3
            await door.at_rest()
            assert Counter(door.outcomes) == Counter(
                {"served": served, "queue_full": full, "queue_timeout": late}
            )

    asyncio.run(scenario())


def hold_to_the_form_of_a_refusal(reply: Reply) -> None:
    """F23: every 503 tells when to come back, in seconds and milliseconds, and why."""
    assert 1 <= int(reply.headers["retry-after"]) <= 59
    assert 1 <= int(reply.headers["retry-after-ms"]) <= 59_000
    assert reply.headers["x-should-retry"] == "true"
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json
    assert problem["status"] == 503
    assert problem["upstream"] == "reasoning"
    assert problem["retry_after_s"] == int(reply.headers["retry-after"])
    assert problem["instance"] == f"urn:frontdoor:request:{reply.headers['x-request-id']}"
    assert problem["error"]["type"] == "overloaded"
    assert problem["error"]["message"] == problem["detail"]
    assert problem["type"] == f"urn:frontdoor:problem:{problem['error']['code'].replace('_', '-')}"


def test_the_line_is_served_in_the_order_of_arrival() -> None:
    """F53: forty requests, two slots, and the engine's own record of the order."""

    async def scenario() -> None:
        async with doorway({"hold": 0.02}, cap=2, queue=38) as door:
            ids = []
            wires = []
            for number in range(40):
                wires.append(await door.begin(CHAT, chat()))
                await door.until(
                    lambda number=number: len(door.app.door.under_way) + len(door.lines) > number  # type: ignore[misc]
                )
            for wire in wires:
                reply = await wire.reply()
                assert reply.status == 200
                ids.append(reply.headers["x-request-id"])
            assert door.stats()["order"] == ids
            assert door.stats()["max_concurrent"] == 2

    asyncio.run(scenario())


def test_another_upstream_is_not_delayed_by_a_full_line() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 1}, cap=2, queue=2) as door:
            held = [await door.begin(CHAT, chat()) for _ in range(4)]
            await door.inside(2, 2)
            for _ in range(5):
                other = await door.call(CHAT, chat("text"))
                assert other.status == 200
                assert other.took_s < 0.25
            default = await door.call(CHAT, {"messages": []})
            assert default.headers["x-frontdoor-upstream"] == "text"
            assert (
                await door.call("/tokenize", {"model": "reasoning", "prompt": "x"})
            ).status == 200
            assert door.gate.in_flight == 2
            assert [(await wire.reply()).status for wire in held] == [200] * 4

    asyncio.run(scenario())


def test_all_routes_and_names_of_an_upstream_share_one_cap_and_one_line() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 1}, cap=2, queue=2) as door:
            wires = [
                await door.begin(CHAT, chat()),
                await door.begin("/v1/completions", {"model": "thinker", "prompt": "x"}),
                await door.begin("/v1/responses", {"model": "REASONING", "input": "x"}),
                await door.begin(CHAT, chat("claude-x")),
            ]
            await door.inside(2, 2)
            full = await door.call("/v1/score", {"model": "thinker", "text_1": "a", "text_2": "b"})
            assert full.status == 503
            assert [(await wire.reply()).status for wire in wires] == [200] * 4
            assert door.stats()["max_concurrent"] == 2

    asyncio.run(scenario())


def test_a_request_for_many_sequences_takes_as_many_slots() -> None:
    """F42: four choices twice do not fit into six slots; the newcomer does not overtake."""

    async def scenario() -> None:
        async with doorway({"hold": 0.7}) as door:
            first = await door.begin(CHAT, chat(n=4))
            await door.inside(4)
            second = await door.begin(CHAT, chat(n=4))
            await door.inside(4, 1)
            third = await door.begin(CHAT, chat())
            await door.inside(4, 2)
            prompts = await door.begin(
                "/v1/completions", {"model": "reasoning", "prompt": ["a", "b"], "n": 2}
            )
            await door.inside(4, 3)
            for wire in (first, second, third, prompts):
                assert (await wire.reply()).status == 200
            assert door.stats()["max_sequences"] <= 6
            waits = [line["waited_s"] for line in door.lines]
            assert waits[0] == 0
            assert min(waits[1:]) > 0.1

    asyncio.run(scenario())


@pytest.mark.parametrize("n", ["7", "1" + "0" * 9, "1" + "0" * 400, "1" + "0" * 4299])
def test_what_can_never_fit_is_refused_at_once(n: str) -> None:
    """However large the number is: also one that Python would not print."""

    async def scenario() -> None:
        async with doorway() as door:
            prompts = ",".join(["1.5"] * 20)
            for path in (CHAT, "/v1/completions"):
                raw = f'{{"model":"reasoning","messages":[],"prompt":[{prompts}],"n":{n}}}'
                reply = await door.call(path, raw.encode(), Content_Type="application/json")
                assert reply.status == 400
                assert reply.json["error"]["param"] == "n"
            assert door.stats()["started"] == 0
            assert door.outcomes == ["bad_request", "bad_request"]
            assert (await door.admin("/metrics")).status == 200

    asyncio.run(scenario())


def test_huge_numbers_break_no_gauge_of_an_uncapped_upstream() -> None:
    async def scenario() -> None:
        async with doorway(text={"hold": 0.5}) as door:
            raw = b'{"model":"text","prompt":"x","n":1' + b"0" * 400 + b"}"
            wire = await door.begin("/v1/completions", raw, Content_Type="application/json")
            await door.until(lambda: door.app.door.under_way)
            assert (await door.admin("/metrics")).status == 200
            assert (await door.admin("/admin/status")).status == 200
            wire.leave()

    asyncio.run(scenario())
