"""What is shown of the GPUs is what their ledger holds, and a plan of its own for what may come."""

from dataclasses import replace
from functools import partial

from rich.console import Console

from tornado_frontdoor.cli.admin_client import status_tables
from tornado_frontdoor.cli.live import Picture
from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.gpu_occupant import Occupant, RoomLimits
from tornado_frontdoor.proxy.admin.gpus import gpus_of

LIMITS = RoomLimits(device_gib={0: 70.0}, whole_gib={0: 80.0}, host_gib=96.0, stay_factor=0.0)


def made(**levels: int) -> tuple[GpuLedger, dict[str, Occupant]]:
    """Return a ledger of `chat`, `code` and `embed`, and what each of them tells it."""
    ledger = GpuLedger(limits=LIMITS)
    sizes = {"chat": (36.0, 0), "code": (34.0, 0), "embed": (10.0, 0)}
    facts = {
        name: Occupant(
            upstream=f"http://{name}",
            name=name,
            devices=(0,),
            awake_gib=gib,
            asleep_gib=2.0,
            weights_gib=gib - 4,
            pinned=name == "embed",
            priority=priority,
            level=levels.get(name, 0),
        )
        for name, (gib, priority) in sizes.items()
    }
    for name in facts:
        ledger.join(f"http://{name}", partial(facts.__getitem__, name))
    return ledger, facts


def test_sizes_residuals_and_what_a_request_would_set_going() -> None:
    ledger, _ = made(code=1)
    shown = gpus_of(ledger, 0.0)
    assert shown is not None
    assert shown["devices"] == [
        {"device": 0, "memory_gib": 80.0, "limit_gib": 70.0, "taken_gib": 48.0}
    ]
    assert shown["host"] == {"limit_gib": 96.0, "taken_gib": 30.0}
    assert shown["engines"]["code"]["gib"] == 2.0
    assert shown["engines"]["code"]["if_asked"] == "sends chat to sleep"
    assert shown["engines"]["chat"]["if_asked"] is None
    assert shown["engines"]["embed"]["pinned"]
    assert shown["turns"] == []
    both, _ = made(code=1, chat=1)
    assert gpus_of(both, 0.0)["engines"]["code"]["if_asked"] == "wakes at once"  # type: ignore[index]


def test_who_waits_in_which_order_and_who_goes_for_whom() -> None:
    ledger, facts = made(code=1)
    facts["chat"] = replace(facts["chat"], in_flight=2)
    ledger.ask_to_wake("http://code", 10.0)
    ledger.settle(12.0)
    shown = gpus_of(ledger, 14.0)
    assert shown is not None
    assert shown["turns"] == [
        {"upstream": "code", "waits_s": 4.0, "waits_for": "room made by chat"}
    ]
    assert (shown["engines"]["chat"]["room_for"], shown["engines"]["chat"]["goes_to"]) == (
        "code",
        1,
    )
    picture = Picture()
    picture.take("gpus", {"now": shown})
    console = Console(width=140)
    with console.capture() as capture:
        console.print(picture)
    text = told({"gpus": shown})
    assert "makes room for code" in capture.get()
    assert "makes room for code" in text
    assert "waits 4 s for room made by chat" in text
    assert "48 of 70 GiB" in text


def test_one_that_fits_nowhere_is_said_and_looking_decides_nothing() -> None:
    ledger, facts = made(code=1)
    facts["code"] = replace(facts["code"], awake_gib=75.0)
    before = ledger.occupants()
    shown = gpus_of(ledger, 0.0)
    assert shown is not None
    assert "can never wake: GPU 0 has 80.0 GiB" in shown["engines"]["code"]["if_asked"]
    assert ledger.occupants() == before
    assert ledger.calm


def test_without_sizes_there_is_nothing_to_show() -> None:
    assert gpus_of(GpuLedger(), 0.0) is None
    assert "GPU" not in told({})


def test_the_status_table_shows_each_replica() -> None:
    replica = {"url": "http://a:1", "slots": 4, "taken": 3, "state": "drained"}
    text = told({"upstreams": {"pair": {**UPSTREAM, "replicas": [replica]}}})
    assert "http://a:1" in text
    assert "drained" in text
    assert "3 of 4" in text


UPSTREAM = {
    "state": "awake",
    "wake_step": None,
    "in_flight": 3,
    "cap": 6,
    "queued": 0,
    "queue": 8,
    "last_activity_s": None,
    "sleep_support": False,
    "wakes_total": 0,
    "models": ["pair"],
}


def told(more: dict[str, object]) -> str:
    """Return what `frontdoor status` prints of such an answer."""
    answer = {"version": "1", "uptime_s": 5.0, "upstreams": {}, **more}
    console = Console(width=140)
    with console.capture() as capture:
        for table in status_tables(answer):
            console.print(table)
    return capture.get()
