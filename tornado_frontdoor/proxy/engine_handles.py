"""One engine that sleeps, as operators mean it: the only one of its upstream, or one replica.

Its gate decides; here is who carries that out, who waits for an answer, and what holds it.
"""

from asyncio import gather
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tornado_frontdoor.core.decisions import Answered, Changed, EngineState, OfReplica, Verdict
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.core.standing import NOTHING, Said, Standing, StandingOrder
from tornado_frontdoor.core.wake.policy import KeepAlive
from tornado_frontdoor.proxy.engine.executor import EngineExecutor
from tornado_frontdoor.proxy.gate_driver import EngineOrder, GateDriver, Sleeper
from tornado_frontdoor.proxy.standing_orders import OrderRules, StandingOrders


class EngineHandle:
    """`replica` is its address where there are several behind the gate."""

    def __init__(
        self, driver: GateDriver, executor: EngineExecutor, url: str, *, one_of_several: bool
    ) -> None:
        self.loop = driver.loop
        self.executor = executor
        self.url = url
        self.orders: StandingOrders | None = None
        self._driver = driver
        self._replica = url if one_of_several else None

    @property
    def known(self) -> Sleeper:
        """What is known of it."""
        return self._driver.sleeper(self._replica)

    @property
    def key(self) -> UpstreamKey:
        """Its name for people: the upstream's, and its address where there are several."""
        key = self._driver.gate.key
        return key if self._replica is None else UpstreamKey(f"{key} at {self._replica}")

    @property
    def state(self) -> EngineState:
        """How it is."""
        return self.known.state

    @property
    def keep_alive(self) -> KeepAlive | None:
        """How long a caller wants it kept awake."""
        return self.known.keep_alive

    def expected_wait_s(self, place: int) -> float:
        """Return how long it takes until it is awake."""
        return self.known.expected_wait_s(place)

    def held(self) -> tuple[StandingOrder, ...]:
        """Return the orders that hold it awake or asleep, by rank, by the clock on the wall."""
        return () if self.orders is None else self.orders.standing.orders

    def retire(self) -> None:
        """Sleep no more by idleness, and by no order: its upstream is in no file any more."""
        self._driver.stand(NOTHING, self._replica)
        never = replace(self.known.wake.policy, idle_sleep_s=0, idle_offload_s=0)
        self._driver.change_policies({self.url: never})

    def stand(self, standing: Standing) -> None:
        """Tell the gate which orders hold it awake or asleep."""
        self._driver.stand(standing, self._replica)

    def lost(self, why: str) -> None:
        """Tell the gate that a request could not connect to it, and why."""
        self._driver.lost(why, self._replica)

    def believe(self) -> None:
        """Tell the gate that an operator says that its answers are good."""
        self._driver.believe(self._replica)

    def measured(self, gib: float) -> None:
        """Tell the gate what it takes of its GPUs now."""
        self._driver.measured(gib, self._replica)

    def suspect(self) -> None:
        """Tell the gate that it refused a request as one that sleeps does."""
        self._driver.suspect(self._replica)

    def hear_ledger(self) -> None:
        """Tell the gate that something was decided about its memory."""
        self._driver.hear_ledger(self._replica)

    async def wake(self, by: str = "an operator") -> Answered:
        """Wake it, and return what came of it."""
        answered = self.executor.request("wake")
        self._driver.wake_now(by, self._replica)
        return await answered

    async def sleep(self, level: int) -> Answered:
        """Put it to sleep, and return what came of it."""
        answered = self.executor.request("sleep", level)
        self._driver.sleep_now(level, self._replica)
        came = await answered
        if came.verdict is Verdict.DONE and self.orders is not None:
            self.orders.say(Said.SLEEP)
        return came


class EngineHandles:
    """The engines of one upstream that sleep, by address: none, the only one, or several."""

    def __init__(
        self,
        driver: GateDriver | None = None,
        executors: Mapping[str, EngineExecutor] = MappingProxyType({}),
        *,
        several: bool = False,
    ) -> None:
        self._several = several
        self._gone = False
        self._of: dict[str, EngineHandle] = {}
        for url, executor in executors.items():
            assert driver is not None
            executor.one_of_several = several
            self._of[url] = EngineHandle(driver, executor, url, one_of_several=several)

    def __bool__(self) -> bool:
        """Whether there are any, and their gate is here."""
        return bool(self._of) and not self._gone

    def __iter__(self) -> Iterator[EngineHandle]:
        return iter(self._of.values())

    @property
    def first(self) -> EngineHandle | None:
        """The only one, or the first of several; None: it never sleeps."""
        return next(iter(self), None)

    def at(self, url: str) -> EngineHandle | None:
        """Return the one of an address, while its gate is here."""
        return None if self._gone else self._of.get(url)

    def targets(self, replica: str | None) -> list[EngineHandle]:
        """Return whom an operator means: all, or the one of an address; none: there is none."""
        return [one for url, one in self._of.items() if replica in (None, url)]

    def command(self, decision: EngineOrder) -> None:
        """Have one decision carried out by whom it concerns."""
        if isinstance(decision, OfReplica):
            self._of[decision.replica].executor.command(decision.what)
            return
        first = self.first
        if first is None or self._gone:
            pass  # the gate was given away meanwhile
        elif self._several and isinstance(decision, Changed):
            first.executor.tell_state(decision.state)
        else:
            first.executor.command(decision)

    def held(self) -> tuple[StandingOrder, ...]:
        """Return the orders that hold them awake or asleep, by rank, each once."""
        return tuple(dict.fromkeys(order for one in self for order in one.held()))

    def change_orders(self, rules: OrderRules) -> None:
        """Put another configuration of their orders in force."""
        for one in self:
            if one.orders is not None:
                one.orders.change(rules)

    def close_orders(self) -> None:
        """Keep no orders any more."""
        for one in self:
            if one.orders is not None:
                one.orders.close()

    async def close(self) -> None:
        """Stop: nothing here moves any more, and what operators say is for the next to hear."""
        self._gone = True
        self.close_orders()
        for one in self:
            await one.executor.close()

    async def wake(self, by: str, replica: str | None) -> Answered:
        """Wake all, or the one of an address; return what came of it."""
        targets = self.targets(replica)
        return _joined(targets, await gather(*(one.wake(by) for one in targets)))

    async def sleep(self, level: int, replica: str | None) -> Answered:
        """Put all to sleep, or the one of an address; return what came of it."""
        targets = self.targets(replica)
        return _joined(targets, await gather(*(one.sleep(level) for one in targets)))


def _joined(several: Sequence[EngineHandle], came: Sequence[Answered]) -> Answered:
    """Return what came of a request to several engines as one answer: the first that is no yes."""
    for engine, answered in zip(several, came, strict=True):
        if answered.verdict is not Verdict.DONE:
            where = f"{engine.url}: " if len(several) > 1 else ""
            return answered._replace(detail=f"{where}{answered.detail}")
    return came[0]
