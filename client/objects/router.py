"""One call to whoever serves a key, repeated until it is answered or its time is up.

Invariants: every attempt of a write carries the same call id; an error that another attempt cannot heal is raised at
            once; between attempts the map is refreshed if somebody else may serve the key by now, and there is a pause
            with jitter, except for the first time that a server knows of a newer map;
            once closed, nothing is sent any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

from neve.client.objects.core_routing import (
    Region,
    RegionMap,
    asks_for_the_map,
    attempt_timeout_s,
    map_version_wanted,
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
    """Nobody serves a key: nothing was set up, or its server died and the next one is not chosen yet."""
    if region is None:
        return WrongServer(regions_version=key_map.version, detail="there are no partitions yet")
    detail = f"partition {region.partition_id} has no server at the moment"
    return WrongServer(partition_id=region.partition_id, regions_version=key_map.version, detail=detail)


def out_of_time(method: str, timeout_s: float, last: NeveError | None, *, maybe: bool) -> NeveError:
    """What an operation ends with. While no attempt can have been executed, the last error says more."""
    if last is not None and not maybe:
        return type(last)(**last.facts())  # type: ignore[arg-type]  # a copy: several may end with one error
    detail = f"the last attempt: {last}" if last is not None else ""
    return DeadlineExceeded(method=method, timeout_ms=int(timeout_s * 1000), detail=detail)


def closed(*, maybe: bool) -> NeveError:
    """What an operation ends with whose client was closed under it."""
    if maybe:
        return Cancelled(detail="this client was closed while it was under way")
    return ShuttingDown(detail="this client was closed")


class Router:
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
        """`make` gets the region and the map's version for each attempt."""
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
                        # A batch whose keys a split has parted, a call that was forgotten: it may still have been done.
                        raise out_of_time(method.path, deadline_s - begun_s, error, maybe=True) from error
                    raise
                last, maybe = error, maybe or error.outcome_unknown
                attempts += 1
                timeouts += isinstance(error, DeadlineExceeded)
                await self.heal(error, attempts, deadline_s)

    async def heal(self, error: NeveError, attempts: int, deadline_s: float) -> None:
        """Wait, and learn a newer map if there may be one: before the next attempt."""
        loop = asyncio.get_running_loop()
        wanted = map_version_wanted(error, self.cache.map.version)
        if not wanted or attempts > 1:
            until_s = min(loop.time() + self.pause_s(attempts), deadline_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._closed.wait()
        if asks_for_the_map(error) and not self._closed.is_set():
            await asyncio.wait([self.cache.refresh_soon(wanted)], timeout=max(0.0, deadline_s - loop.time()))
