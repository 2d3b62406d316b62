"""The load test of a cluster judges what it says: histories, order, doors, ways to Redis."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stopwatch import PATIENCE_S

from loadtests.harness import cluster_history as histories
from loadtests.harness import cluster_laws, cluster_run
from loadtests.harness.cluster import FaultCase, FaultSeen
from loadtests.harness.cluster_history import EndedRequest, Instant
from loadtests.harness.processes import BrokenError
from loadtests.harness.redis_servers import find_program
from loadtests.harness.redis_way import RedisWay
from loadtests.lib.doors import Doors, read_doors, write_doors

# Histories


def test_histories_of_several_engines_are_one_by_their_stamps() -> None:
    first = [(1.0, 0, ""), (1.1, 1, ""), (1.1, 1, "a"), (1.5, 0, "")]
    second = [(1.0, 2, ""), (1.2, 3, ""), (1.2, 3, "b")]
    merged = histories.merge([first, second])
    assert [one.started for one in merged if one.started] == ["a", "b"]
    assert histories.most_of(merged) == 4
    assert histories.most_at_one(merged) == 3
    assert merged[-1].total == 3


def history(*steps: tuple[float, int]) -> list[Instant]:
    return [Instant(at_s, (total,), "") for at_s, total in steps]


@pytest.mark.parametrize(
    ("steps", "again_s"),
    [
        ([(0.0, 6)], 0.0),
        ([(0.0, 6), (10.1, 4), (11.2, 6)], 1.2),
        ([(0.0, 6), (10.5, 5), (10.9, 6)], 0.0),  # between two requests
        ([(0.0, 6), (10.1, 4), (10.9, 5), (11.0, 6), (12.0, 3), (13.0, 6)], 3.0),
        ([(0.0, 4), (10.8, 6)], 0.8),  # what lacked before the fault lacks since it
        ([(0.0, 6), (10.1, 5)], None),
        ([(0.0, 6), (15.9, 5)], 0.0),
    ],
)
def test_full_use_is_back_when_the_last_lack_of_it_has_ended(
    steps: list[tuple[float, int]], again_s: float | None
) -> None:
    seen = histories.full_again_s(history(*steps), 10.0, 16.0, 6)
    assert seen == (again_s if again_s is None else pytest.approx(again_s))


def test_a_time_begins_with_what_ran_then() -> None:
    seen = histories.between(history((0.0, 6), (3.0, 5), (9.0, 9)), 2.0, 5.0)
    assert [(one.at_s, one.total) for one in seen] == [(2.0, 6), (3.0, 5)]


@pytest.mark.parametrize(
    ("order", "excused", "late"),
    [
        ("abcd", "", []),
        ("bacd", "", []),
        ("cdab", "", [2.0, 1.9]),
        ("cdab", "ab", []),
        ("cdab", "cd", []),
        ("cdxab", "b", [2.0]),
    ],
)
def test_who_came_clearly_earlier_and_was_let_in_later_is_out_of_order(
    order: str, excused: str, late: list[float]
) -> None:
    came_s = {"a": 0.0, "b": 0.1, "c": 1.0, "d": 2.0}
    begun = [Instant(float(n), (1,), name) for n, name in enumerate(order)]
    waited_s = {one.started: one.at_s - came_s.get(one.started, 0.0) for one in begun}
    assert histories.late_s(begun, came_s, waited_s, [*excused]) == pytest.approx(late)


def test_who_reached_the_owner_late_was_late_by_no_fault_of_its_order() -> None:
    came_s = {"early": 0.0, "late": 1.0}
    begun = [Instant(5.0, (1,), "late"), Instant(6.0, (2,), "early")]

    def late_s(early_waited_s: float) -> list[float]:
        return histories.late_s(begun, came_s, {"late": 4.0, "early": early_waited_s})

    assert (late_s(6.0), late_s(4.5)) == ([1.0], [])


def test_who_is_let_in_at_the_same_instant_is_in_order() -> None:
    came_s = {"early": 0.0, "late": 1.0}

    def late_s(later_s: float) -> list[float]:
        begun = [Instant(5.0, (1,), "late"), Instant(5.0 + later_s, (2,), "early")]
        return histories.late_s(begun, came_s, {"early": 5.0 + later_s, "late": 4.0})

    assert (late_s(0.002), late_s(0.1)) == ([], [1.0])


def test_a_request_came_when_its_door_had_read_its_head() -> None:
    def came_s(stamp_ms: int) -> float:
        request_id = f"{stamp_ms:012x}{'0' * 14}"
        ended = EndedRequest(10.0, 12.0, 1.0, "http://door", "served", "200", request_id)
        return ended.came_s(1000.0)

    assert came_s(1_010_500) == 10.5
    assert came_s(1_010_500 + 3_600_000) == 10.0  # its door's clock is an hour ahead
    assert EndedRequest(10.0, 12.0, 1.0, "http://door", "lost", "", "").came_s(1000.0) == 10.0


# Laws

SOUND = FaultSeen("x", most=6, most_at_one=4, full_again_s=1.0, ended={"served": 9}, held_s=0.1)


def broken(seen: FaultSeen, *, graceful: bool = False, outage: bool = False) -> int:
    case = FaultCase("x", lambda _: None, full_s=2.0, graceful=graceful, outage=outage)
    return sum(not law.holds for law in cluster_laws.of_a_fault(case, seen))


def test_a_sound_fault_breaks_no_law() -> None:
    assert broken(SOUND) == broken(SOUND, graceful=True) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"most": 7},
        {"most_at_one": 5},
        {"late_s": [0.5]},
        {"lost_slots": 1},
        {"held_s": None},
        {"held_s": 60.0},
        {"full_again_s": 2.5},
        {"strays": 1},
        {"killed": 1},  # with nobody at it
        {"ended": {"served": 9, "refused": 1}},
    ],
)
def test_each_breach_breaks_a_law(change: dict[str, object]) -> None:
    fields = {name: getattr(SOUND, name) for name in FaultSeen.__slots__}
    assert broken(FaultSeen(**fields | change)) == 1


def test_who_has_to_go_elsewhere_breaks_the_law_of_a_graceful_end_only() -> None:
    moved = FaultSeen("x", full_again_s=1.0, held_s=0.0, ended={"served": 9, "moved": 1})
    assert (broken(moved), broken(moved, graceful=True)) == (0, 1)


def test_a_door_that_knows_too_little_may_refuse() -> None:
    refuses = FaultSeen("x", full_again_s=1.0, held_s=0.0, ended={"served": 9, "refused": 1})
    assert (broken(refuses), broken(refuses, outage=True)) == (1, 0)


def test_faults_are_chosen_by_name() -> None:
    assert cluster_run.chosen(None) == [*cluster_run.NAMES]
    assert cluster_run.chosen("owner killed, burst") == ["owner killed", "burst"]
    with pytest.raises(ValueError, match="'owner' is none of burst, member killed"):
        cluster_run.chosen("owner")


# Doors


def test_the_list_of_doors_is_the_latest_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "doors.json"
    write_doors(path, ["a"])
    doors = Doors(path)
    assert doors.urls == ["a"]
    write_doors(path, [])
    assert doors.urls == []
    write_doors(path, None)
    assert doors.urls is None


def test_what_is_no_list_of_doors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "doors.json"
    path.write_text(json.dumps({"a": 1}))
    with pytest.raises(ValueError, match="holds no JSON list of URLs"):
        read_doors(str(path))


# Ways to Redis


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that answers what it is told."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(1000):
                    connection.sendall(piece)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def connected(way: RedisWay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", way.port), PATIENCE_S)


def test_a_way_carries_and_what_is_under_way_while_it_is_cut_comes_in_order(echo: int) -> None:
    way = RedisWay(echo)
    with connected(way) as wire:
        wire.sendall(b"one")
        assert wire.recv(100) == b"one"
        way.cut()
        wire.sendall(b"two")
        wire.settimeout(0.1)
        with pytest.raises(TimeoutError):
            wire.recv(100)
        wire.settimeout(PATIENCE_S)
        wire.sendall(b"three")
        way.heal()
        told = b""
        while len(told) < 8:
            told += wire.recv(100)
        assert told == b"twothree"
    way.refuse()


def test_a_delay_is_that_of_each_piece_and_not_of_one_after_the_other(echo: int) -> None:
    way = RedisWay(echo)
    with connected(way) as wire:
        wire.sendall(b"1")
        wire.recv(100)
        way.delay(0.2)
        began_s = time.monotonic()
        for _ in range(20):
            wire.sendall(b"1")
            time.sleep(0.01)  # pieces of their own
        told = b""
        while len(told) < 20:
            told += wire.recv(100)
            assert time.monotonic() - began_s >= 0.4
        assert time.monotonic() - began_s < 20 * 0.2
    way.refuse()


def test_a_way_that_drops_resets_and_swallows_and_one_that_refuses_refuses(echo: int) -> None:
    way = RedisWay(echo)
    with connected(way) as old, connected(way) as idle:
        for wire in (old, idle):
            wire.sendall(b"1")
            assert wire.recv(100) == b"1"
        way.drop()
        with pytest.raises(ConnectionResetError):
            old.recv(100)
        with connected(way) as new:
            new.sendall(b"lost")
            new.settimeout(0.1)
            with pytest.raises(TimeoutError):
                new.recv(100)
            new.settimeout(PATIENCE_S)
            way.heal()
            with pytest.raises(ConnectionResetError):
                new.recv(100)
    with connected(way) as wire:
        wire.sendall(b"again")
        assert wire.recv(100) == b"again"
    way.refuse()
    with pytest.raises(ConnectionRefusedError):
        connected(way)


def test_without_redis_and_without_root_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BrokenError, match=r"redis-server is not installed.*nothing was tried"):
        find_program(lambda _: None)
