"""The stream of events that the page lives by: whole, resumable, bounded; and its history."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

from doorway import CHAT, Doorway, doorway
from msgspec.structs import replace
from wire import Cut, Wire, chat

from tornado_frontdoor.cli.live import read_events
from tornado_frontdoor.core.decisions import Outcome
from tornado_frontdoor.proxy.admin.history import FILE, History
from tornado_frontdoor.proxy.records import Record

Event = tuple[str, dict[str, Any]]

LINE = replace(Record("r", "openai", 0.0).line(Outcome.SERVED, "T"), upstream="a")


async def look(door: Doorway, **headers: str) -> Wire:
    wire = await door.wire(door.admin_port)
    wire.send("/admin/events", None, "GET", **headers)
    status, said = await wire.head()
    assert status == 200
    assert said["content-type"].startswith("text/event-stream")
    return wire


async def next_events(wire: Wire) -> tuple[list[Event], str]:
    """Return the events of one write and the last id in it."""
    text = (await wire.chunk()).decode()
    ids = [line[4:] for line in text.splitlines() if line.startswith("id: ")]
    lines = [f"{line}\n".encode() for line in text.split("\n")]
    events = [(kind, dict(fields)) for kind, fields in read_events(lines)]
    return events, ids[-1] if ids else ""


async def until_event(wire: Wire, kind: str) -> tuple[dict[str, Any], str]:
    while True:
        events, last_id = await next_events(wire)
        for found, fields in events:
            if found == kind:
                return fields, last_id


def test_a_snapshot_comes_first_and_then_what_happens() -> None:
    async def scenario() -> None:
        async with doorway({"hold": 0.4}, cap=1, queue=2) as door:
            await door.call(CHAT, chat("text"))
            wire = await look(door)
            ((kind, snapshot),), _ = await next_events(wire)
            assert kind == "snapshot"
            assert set(snapshot["engines"]) == {"reasoning", "text"}
            assert [one["model"] for one in snapshot["requests"]] == ["text"]
            assert ["server.drain_timeout_s", "5", "file"] in snapshot["config"]
            wires = [await door.begin(CHAT, chat()) for _ in range(2)]
            await door.inside(1, 1)
            queue, _ = await until_event(wire, "queue")
            assert [(one["state"], one["place"]) for one in queue["inside"]] == [
                ("in_flight", None),
                ("queued", 1),
            ]
            request, _ = await until_event(wire, "request")
            assert request == door.lines[1]
            for other in wires:
                await other.reply()
            wire.leave()
            await door.until(lambda: len(door.app._hub) == 0)
            assert door.app._hub._timer is None

    asyncio.run(scenario())


def test_another_configuration_is_told_to_those_who_look() -> None:
    async def scenario() -> None:
        async with doorway(cap=3) as door:
            wire = await look(door)
            await next_events(wire)
            door.reread(cap=2)
            config, _ = await until_event(wire, "config")
            assert ["upstreams.reasoning.admission.cap", "2", "file"] in config["config"]
            wire.leave()

    asyncio.run(scenario())


def test_who_was_cut_off_gets_what_was_missed_and_no_more() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await look(door)
            await next_events(wire)
            await door.call(CHAT, chat("text"))
            _, last_id = await until_event(wire, "request")
            wire.leave()
            for _ in range(2):
                await door.call(CHAT, {"model": "nobody"})
            again = await look(door, Last_Event_ID=last_id)
            events, _ = await next_events(again)
            assert [kind for kind, _ in events] == ["snapshot", "request", "request"]
            assert events[0][1]["requests"] is None
            stranger = await look(door, Last_Event_ID="another-7")
            events, _ = await next_events(stranger)
            assert [kind for kind, _ in events] == ["snapshot"]
            assert len(events[0][1]["requests"]) == 3
            for one in (again, stranger):
                one.leave()

    asyncio.run(scenario())


def test_a_viewer_that_does_not_read_holds_nothing_up_and_gets_a_snapshot_later() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            slow = await look(door)
            slow.reader._transport.pause_reading()  # type: ignore[attr-defined]
            line = replace(LINE, user_agent="x" * 60_000)
            (viewer,) = door.app._hub._viewers
            for number in range(400):
                door.app._hub.happened("request", replace(line, request_id=str(number)))
                door.app._hub._flush()
            assert viewer.behind
            buffered = len(viewer.client._connection.stream._write_buffer)
            assert buffered < 4 << 20
            slow.reader._transport.resume_reading()  # type: ignore[attr-defined]
            snapshots = 0
            while snapshots < 2:
                events, _ = await next_events(slow)
                snapshots += sum(kind == "snapshot" for kind, _ in events)
            slow.leave()

    asyncio.run(scenario())


def test_streams_end_with_the_front_door() -> None:
    async def scenario() -> None:
        async with doorway() as door:
            wire = await look(door)
            await next_events(wire)
            await door.app.drain()
            door.app._hub.close()
            try:
                while await wire.chunk():
                    pass
            except Cut as cut:
                raise AssertionError("a viewer was cut") from cut

    asyncio.run(scenario())


def test_the_history_outlives_its_front_door_and_a_spoilt_file_is_put_aside(tmp_path: Path) -> None:
    async def scenario() -> None:
        history = History(tmp_path, lambda: (3, 2))
        for waited_s in (0.0, 1.0, 2.0):
            history.ended(replace(LINE, waited_s=waited_s))
        history.ended(replace(LINE, outcome="queue_full"))
        history.heard("engine", {"state": "sleeping"})
        history._minute -= 1
        history.close()
        after = History(tmp_path, lambda: (0, 0))
        (kept, running) = after.minutes()
        assert (kept["arrivals"], kept["served"], kept["refused"]) == (4, 3, 1)
        assert (kept["wait_p50_s"], kept["sleeps"]) == (1.0, 1)
        assert running["arrivals"] == 0
        after.close()
        (tmp_path / FILE).write_bytes(b"no database" * 100)
        anew = History(tmp_path, lambda: (0, 0))
        assert len(anew.minutes()) == 1
        anew.close()
        assert (tmp_path / "history.unreadable").exists()
        with sqlite3.connect(tmp_path / FILE) as store:
            rows = store.execute("select j from minutes").fetchall()
        store.close()
        assert len(rows) == 1
        assert json.loads(rows[0][0])["arrivals"] == 0

    asyncio.run(scenario())
