"""Who may change what is in a GPU's memory, and in which order, where nothing is known of sizes."""

from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.core.gpu_ledger import GpuLedger
from tornado_frontdoor.core.gpu_occupant import Occupant

A, B, C, D = "ABCD"


class Locks(GpuLedger):
    """A ledger that knows no size of anything, asked as in the order of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def want(self, owner: str, devices: tuple[int, ...]) -> bool:
        """Ask, and tell whether it is granted."""
        occupant = Occupant(upstream=owner, devices=devices, awake_gib=1.0, level=1)
        self.join(owner, lambda: occupant)
        self.asked += 1
        self.ask_to_wake(owner, float(self.asked))
        return owner in self.settle(0.0)

    def give_back(self, owner: str) -> tuple[str, ...]:
        """Give devices back or ask no longer; return who is granted theirs by that."""
        self.release(owner)
        return self.settle(0.0)


def test_one_at_a_time_on_a_device_and_in_order_of_asking():
    """Cases V9, S28: a transition of B waits for A's, and both get their turn."""
    locks = Locks()
    assert locks.want(A, (0,))
    assert not locks.want(B, (0,))
    assert not locks.want(C, (0,))
    assert locks.give_back(A) == (B,)
    assert locks.give_back(B) == (C,)
    assert locks.give_back(C) == ()


def test_other_devices_do_not_wait():
    """Case S6."""
    locks = Locks()
    assert locks.want(A, (0,))
    assert locks.want(B, (1,))
    assert locks.want(C, ())
    assert locks.want(D, ())


def test_an_engine_on_two_devices_is_not_passed_by_those_on_one():
    locks = Locks()
    locks.want(A, (0,))
    assert not locks.want(B, (0, 1))
    assert not locks.want(C, (1,)), "device 1 is free, but B was first"
    assert locks.give_back(A) == (B,)
    assert locks.give_back(B) == (C,)


def test_who_asks_no_longer_lets_those_behind_go():
    """Case S10: nobody wants B any more."""
    locks = Locks()
    locks.want(A, (0,))
    locks.want(B, (0, 1))
    locks.want(C, (1,))
    assert locks.give_back(B) == (C,)
    assert not locks.holds(B)


def test_giving_back_what_one_has_not_does_nothing():
    locks = Locks()
    locks.join(A, lambda: Occupant(upstream=A, devices=(0,), awake_gib=1.0))
    assert locks.give_back(A) == ()
    assert locks.want(A, (0,))


def test_falling_asleep_goes_before_a_wake_that_asked_earlier():
    locks = Locks()
    locks.want(A, (0,))
    locks.want(B, (0,))
    locks.join(C, lambda: Occupant(upstream=C, devices=(0,), awake_gib=1.0))
    locks.ask_to_sleep(C, 1)
    assert locks.give_back(A) == (C,)
    assert locks.give_back(C) == (B,)


DEVICES = st.sets(st.integers(0, 3), max_size=3).map(lambda found: tuple(sorted(found)))


@given(st.lists(st.tuples(st.sampled_from("ABCDE"), DEVICES), max_size=40))
def test_nobody_shares_a_device_and_nobody_is_forgotten(moves):
    locks = Locks()
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
            granted(locks.give_back(key))
        else:
            waits[key] = devices
            if locks.want(key, devices):
                granted((key,))
    while holds:
        key = next(iter(holds))
        del holds[key]
        granted(locks.give_back(key))
    assert not waits
