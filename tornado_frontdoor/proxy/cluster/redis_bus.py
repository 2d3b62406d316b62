"""Redis as the cluster uses it: a lease, a list of doors, an inbox for each, what must survive.

Three connections. On the *lifeline* this door reads its inbox; it is never closed while the process
lives, has no time limit, and bears the door's name, so that others see it end when the process
does. Packets go out on a second one, all that is ready at once; the rest takes the third.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tornado_frontdoor.cluster.actions import BeatAnswer
from tornado_frontdoor.cluster.messages import Packet, decode, encode
from tornado_frontdoor.proxy.cluster.agreement import SharedLimits

LOG = logging.getLogger("frontdoor")

TAG = "{frontdoor}"
LEASE, LAST, EPOCH, DOORS, JOURNAL, WAKES, LIMITS = (
    f"{TAG}:{name}"
    for name in ("lease", "last", "epoch", "doors", "journal", "wake-times", "limits")
)
INBOX = f"{TAG}:inbox:"
INBOX_PACKETS = 20_000
"""About as many are kept for a door that does not read; what it misses is sent again."""
FORGOTTEN_S = 3600
"""A door that has not told for so long that it lives is on no list any more."""
READ_AT_ONCE = 500
CLOSE_S = 1.0
RETRY_S = 0.05
RETRY_LONGEST_S = 0.5

_BEAT = """
local lease_key, last_key, epoch_key, doors_key, journal_key, inbox = unpack(KEYS)
local door, lease_ms, campaigns, epoch, limits, keep_ms = unpack(ARGV)
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
redis.call('ZADD', doors_key, now, door)
redis.call('ZREMRANGEBYSCORE', doors_key, '-inf', now - tonumber(keep_ms))
redis.call('PEXPIRE', inbox, tonumber(keep_ms))
local text = redis.call('GET', lease_key)
local lease = text and cjson.decode(text)
local won, journal = 0, {}
if lease and lease.owner == door then
  lease.limits = limits
  redis.call('SET', lease_key, cjson.encode(lease), 'PX', lease_ms)
elseif not lease and campaigns == '1' then
  local highest = math.max(tonumber(redis.call('GET', epoch_key) or '0'), tonumber(epoch)) + 1
  redis.call('SET', epoch_key, highest)
  local before = redis.call('GET', last_key)
  before = before and cjson.decode(before) or {owner = '', run = ''}
  lease = {owner = door, epoch = highest, run = run, limits = limits,
           before = before.owner, same = before.run == run}
  redis.call('SET', lease_key, cjson.encode(lease), 'PX', lease_ms)
  redis.call('SET', last_key, cjson.encode({owner = door, run = run}))
  won = 1
  journal = redis.call('HGETALL', journal_key)
end
return {cjson.encode(lease or {}), redis.call('PTTL', lease_key), won, run,
        redis.call('ZRANGE', doors_key, 0, -1), journal}
"""
_RELEASE = """
local text = redis.call('GET', KEYS[1])
local lease = text and cjson.decode(text)
if lease and lease.owner == ARGV[1] and lease.epoch == tonumber(ARGV[2]) then
  redis.call('DEL', KEYS[1])
end
"""
_REMEMBER = """
local text = redis.call('GET', KEYS[1])
local lease = text and cjson.decode(text)
if not lease or lease.owner ~= ARGV[1] or lease.epoch ~= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
return 1
"""


class Beaten(NamedTuple):
    """What came of a beat."""

    answer: BeatAnswer
    limits: str
    """The fingerprint of the limits that the owner keeps."""
    journal: Mapping[str, str]
    """What owners have written down; only for whoever has just won the lease."""


class RedisRelease(NamedTuple):
    """Who answers at an address."""

    name: str
    """`redis` or `valkey`."""
    version: str


class RedisBus:
    """One door's way to Redis. `start` reads and sends until `close`."""

    def __init__(self, url: str, door: str, lease_s: float, limits: SharedLimits) -> None:
        self._door = door
        self._lease_ms = max(1, round(lease_s * 1000))
        self.limits = limits
        name = f"frontdoor:{door}"
        # A connection that was lost must be seen to be lost.
        common: dict[str, Any] = {
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": lease_s,
        }
        self._lifeline: Redis = Redis.from_url(
            url, client_name=name, single_connection_client=True, **common
        )
        common["socket_timeout"] = lease_s
        self._sender: Redis = Redis.from_url(
            url, client_name=f"frontdoor-out:{door}", single_connection_client=True, **common
        )
        self._control: Redis = Redis.from_url(
            url, client_name=f"frontdoor-ctl:{door}", decode_responses=True, **common
        )
        self._beat = self._control.register_script(_BEAT)
        self._release = self._control.register_script(_RELEASE)
        self._remember = self._control.register_script(_REMEMBER)
        self._outbox: list[Packet] = []
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def start(
        self, on_packet: Callable[[Packet], None], on_lifeline: Callable[[bool], None]
    ) -> None:
        """Read this door's inbox, and send what is given to `send`."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._read(on_packet, on_lifeline)),
            loop.create_task(self._write()),
        ]

    async def close(self) -> None:
        """Close everything, and leave nothing behind in Redis."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            # A cancellation that falls into redis-py's own clean-up can be lost there.
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        with suppress(RedisError, OSError):
            await self._control.zrem(DOORS, self._door)
            await self._control.delete(INBOX + self._door)
        for client in (self._lifeline, self._sender, self._control):
            with suppress(RedisError, OSError):
                await client.aclose()

    # Packets

    def send(self, packet: Packet) -> None:
        """Send a packet, with all others that are ready when the last ones are under way."""
        self._outbox.append(packet)
        self._wanted.set()

    async def _write(self) -> None:
        while not self._closed:
            await self._wanted.wait()
            self._wanted.clear()
            packets, self._outbox = self._outbox, []
            pipe = self._sender.pipeline(transaction=False)
            for packet in packets:
                pipe.xadd(INBOX + packet.to, {b"p": encode(packet)}, maxlen=INBOX_PACKETS)
            # What is lost here is sent again by the session that it belongs to.
            with suppress(RedisError, OSError):
                await pipe.execute(raise_on_error=False)

    async def _read(
        self, on_packet: Callable[[Packet], None], on_lifeline: Callable[[bool], None]
    ) -> None:
        inbox, last, pause_s = INBOX + self._door, b"0", RETRY_S
        while not self._closed:
            try:
                await cast(Awaitable[bool], self._lifeline.ping())
                on_lifeline(True)
                pause_s = RETRY_S
                while True:
                    found: Any = await self._lifeline.xread({inbox: last}, READ_AT_ONCE, block=0)
                    for number, fields in found[0][1] if found else ():
                        last = number
                        self._hear(fields[b"p"], on_packet)
            except (RedisError, OSError):
                on_lifeline(False)
                last = b"0"  # an emptied Redis counts anew; what was read already changes nothing
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_LONGEST_S)

    def _hear(self, data: bytes, on_packet: Callable[[Packet], None]) -> None:
        try:
            packet = decode(data)
        except ValueError as error:
            LOG.warning("cluster: a message was not understood: %s", error)
            return
        on_packet(packet)

    # The rest

    async def beat(self, *, campaigns: bool, epoch: int) -> Beaten:
        """Tell that this door lives; renew its lease, or take a free one."""
        found: Any = await self._beat(
            keys=[LEASE, LAST, EPOCH, DOORS, JOURNAL, INBOX + self._door],
            args=[
                *(self._door, self._lease_ms, int(campaigns), epoch, self.limits.fingerprint),
                FORGOTTEN_S * 1000,
            ],
        )
        text, left_ms, won, run, doors, journal = found
        lease = json.loads(text) or {}
        answer = BeatAnswer(
            owner=lease.get("owner", ""),
            epoch=int(lease.get("epoch", 0)),
            left_s=max(0, int(left_ms)) / 1000,
            won=bool(won),
            before=lease.get("before", ""),
            same_run=bool(lease.get("same")),
            run=run,
            doors=tuple(doors),
        )
        return Beaten(
            answer, lease.get("limits", ""), dict(zip(journal[::2], journal[1::2], strict=True))
        )

    async def prove(self) -> RedisRelease:
        """Do a bit of everything that a door does; `close` takes away what is left of it."""
        told: Any = await self._control.info()
        await self._control.xadd(INBOX + self._door, {"p": ""}, maxlen=1)
        await cast(Awaitable[Any], self._control.eval("return redis.call('TIME')", 0))
        if told.get("server_name") == "valkey":
            return RedisRelease("valkey", str(told.get("valkey_version")))
        return RedisRelease("redis", str(told.get("redis_version")))

    async def kept(self) -> SharedLimits:
        """Return the limits that the owner keeps; their name is empty where nobody has a lease."""
        lease, kept = cast(list[Any], await self._control.mget(LEASE, LIMITS))
        name = str(json.loads(lease).get("limits", "")) if lease else ""
        limits = SharedLimits(*json.loads(kept)[:2]) if kept else SharedLimits()
        return limits if limits.fingerprint == name else SharedLimits(name)

    async def tell_limits(self) -> None:
        """Write down what this door keeps as the owner, for those whose limits differ."""
        await self._control.set(LIMITS, json.dumps(self.limits))

    async def release(self, epoch: int) -> None:
        """Give a lease back."""
        await self._release(keys=[LEASE], args=[self._door, epoch])

    async def remember(self, epoch: int, address: str, text: str) -> bool:
        """Write down what must survive, while the lease is ours; tells whether it is."""
        found = await self._remember(keys=[LEASE, JOURNAL], args=[self._door, epoch, address, text])
        return bool(found)

    async def lifelines(self) -> frozenset[str]:
        """Return the doors whose lifeline is open."""
        clients: Any = await self._control.client_list()
        names = (client["name"] for client in clients)
        return frozenset(n.removeprefix("frontdoor:") for n in names if n.startswith("frontdoor:"))

    async def forget(self, door: str) -> None:
        """Take a door off the list."""
        await self._control.zrem(DOORS, door)
        await self._control.delete(INBOX + door)
