"""Calls to the server of a key, repeated until one is answered or the time is up.

Invariants: every attempt of a write has the same call id; an error that a retry cannot heal is raised at once;
            between attempts, the map is refreshed if another server may serve the key by now. A jittered pause
            precedes each attempt, except the first one after a server has reported a newer map;
            after `close`, nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

from neve.client.objects.core_routing import (
    Region,
    RegionMap,
    attempt_timeout_s,
    map_version_wanted,
    may_have_moved,
    may_heal,
)
from neve.client.objects.options import KeyValueOptions
from neve.client.objects.regions import RegionCache
from neve.proto.crc import Buffer
from neve.proto.errors import Cancelled, DeadlineExceeded, InvalidArgument, NeveError, ShuttingDown, WrongServer
from neve.proto.method import Method, Rep, Req
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Reply


def no_server(key_map: RegionMap, region: Region | None) -> WrongServer:
    """The error for a key without a server: there are no partitions, or its server died and has no successor yet."""
    if region is None:
        return WrongServer(regions_version=key_map.version, detail="there are no partitions yet")
    detail = f"partition {region.partition_id} has no server at the moment"
    return WrongServer(partition_id=region.partition_id, regions_version=key_map.version, detail=detail)


def out_of_time(method: str, timeout_s: float, last: NeveError | None, *, maybe: bool) -> NeveError:
    """The error of an operation that ran out of time: the last one, unless an attempt may have been executed."""
    if last is not None and not maybe:
        return type(last)(**last.facts())  # type: ignore[arg-type]  # a copy: one error may end several operations
    detail = f"the last attempt: {last}" if last is not None else ""
    return DeadlineExceeded(method=method, timeout_ms=int(timeout_s * 1000), detail=detail)


def closed(*, maybe: bool) -> NeveError:
    """The error of an operation that was pending when the client was closed."""
    if maybe:
        return Cancelled(detail="this client was closed during the operation")
    return ShuttingDown(detail="this client was closed")


class Router:
    """Sends calls to the server of a key."""

    def __init__(
        self, channels: ChannelPool, cache: RegionCache, *, options: KeyValueOptions, rng: random.Random
    ) -> None:
        self._channels = channels
        self.cache = cache
        self._options = options
        self._rng = rng
        self._closed = asyncio.Event()

    def close(self) -> None:
        self._closed.set()

    def pause_s(self, attempts: int) -> float:
        return self._options.retry_delays.after(attempts, factor=self._rng.uniform(0.5, 1.0))

    async def call(
        self,
        key: bytes,
        method: Method[Req, Rep],
        make: Callable[[Region, int], Req],
        *,
        deadline_s: float,
        attachment: Sequence[Buffer] = (),
        reply_bytes_max: int = 4096,
    ) -> Reply[Rep]:
        """Call the server of `key`. `make` builds the request of each attempt from the region and the map's version."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        attempts = timeouts = 0
        last: NeveError | None = None
        maybe = False
        while True:
            key_map = self.cache.map
            region = key_map.find(key)
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                raise out_of_time(method.path, deadline_s - begun_s, last, maybe=maybe)
            if self._closed.is_set():
                raise closed(maybe=maybe)
            try:
                if region is None or not region.address:
                    raise no_server(key_map, region)
                return await self._channels.channel(region.address).call(
                    method,
                    make(region, key_map.version),
                    timeout_s=min(left_s, attempt_timeout_s(self._options.attempt_timeout_s, timeouts)),
                    attachment=attachment,
                    reply_bytes_max=reply_bytes_max,
                )
            except NeveError as error:
                if not may_heal(error):
                    if maybe and isinstance(error, InvalidArgument):
                        # A split parted a batch, or its call id was forgotten: it may have been executed before.
                        raise out_of_time(method.path, deadline_s - begun_s, error, maybe=True) from error
                    raise
                last, maybe = error, maybe or error.outcome_unknown
                attempts += 1
                timeouts += isinstance(error, DeadlineExceeded)
                await self.heal(error, attempts, deadline_s)

    async def heal(self, error: NeveError, attempts: int, deadline_s: float) -> None:
        """Before the next attempt: pause, and refresh the map if there may be a newer one."""
        loop = asyncio.get_running_loop()
        wanted = map_version_wanted(error, self.cache.map.version)
        if not wanted or attempts > 1:
            until_s = min(loop.time() + self.pause_s(attempts), deadline_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._closed.wait()
        if may_have_moved(error) and not self._closed.is_set():
            await asyncio.wait([self.cache.refresh_soon(wanted)], timeout=max(0.0, deadline_s - loop.time()))
