"""Who may change what is in a GPU's memory, and in which order."""

from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.core.gpu_locks import GpuLocks
from tornado_frontdoor.core.request import UpstreamKey

A, B, C, D = (UpstreamKey(key) for key in "ABCD")


def test_one_at_a_time_on_a_device_and_in_order_of_asking():
    """Cases V9, S28: a transition of B waits for A's, and both get their turn."""
    locks = GpuLocks()
    assert locks.ask(A, (0,))
    assert not locks.ask(B, (0,))
    assert not locks.ask(C, (0,))
    assert locks.release(A) == (B,)
    assert locks.release(B) == (C,)
    assert locks.release(C) == ()


def test_other_devices_do_not_wait():
    """Case S6."""
    locks = GpuLocks()
    assert locks.ask(A, (0,))
    assert locks.ask(B, (1,))
    assert locks.ask(C, ())
    assert locks.ask(D, ())


def test_an_engine_on_two_devices_is_not_passed_by_those_on_one():
    locks = GpuLocks()
    locks.ask(A, (0,))
    assert not locks.ask(B, (0, 1))
    assert not locks.ask(C, (1,)), "device 1 is free, but B was first"
    assert locks.release(A) == (B,)
    assert locks.release(B) == (C,)


def test_who_asks_no_longer_lets_those_behind_go():
    """Case S10: nobody wants B any more."""
    locks = GpuLocks()
    locks.ask(A, (0,))
    locks.ask(B, (0, 1))
    locks.ask(C, (1,))
    assert locks.release(B) == (C,)
    assert not locks.holds(B)


def test_giving_back_what_one_has_not_does_nothing():
    locks = GpuLocks()
    assert locks.release(A) == ()
    assert locks.ask(A, (0,))


DEVICES = st.sets(st.integers(0, 3), max_size=3).map(lambda found: tuple(sorted(found)))


@given(st.lists(st.tuples(st.sampled_from("ABCDE"), DEVICES), max_size=40))
def test_nobody_shares_a_device_and_nobody_is_forgotten(moves):
    locks = GpuLocks()
    holds: dict[str, tuple[int, ...]] = {}
    waits: dict[str, tuple[int, ...]] = {}

    def granted(keys: tuple[str, ...]) -> None:
        for key in keys:
            holds[key] = waits.pop(key)
        taken = [device for devices in holds.values() for device in devices]
        assert len(taken) == len(set(taken))

    for key, devices in moves:
        if key in holds or key in waits:
            holds.pop(key, None)
            waits.pop(key, None)
            granted(locks.release(UpstreamKey(key)))
        else:
            waits[key] = devices
            if locks.ask(UpstreamKey(key), devices):
                granted((key,))
    while holds:
        key = next(iter(holds))
        del holds[key]
        granted(locks.release(UpstreamKey(key)))
    assert not waits
