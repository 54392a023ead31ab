"""One partition on this server: loaded, served, frozen, given up, and loaded again when necessary.

    LOADING ──load──▶ SERVING ──prepare──▶ FREEZING ──ends known──▶ FROZEN
       ▲                 │ map changed, lock or stream lost │              │ map changed, or its time is over
       └─────────────────┴──────────────────────────────────┴──────────────┘        no longer ours: STOPPED

Invariants: a partition is served only under its lock, with the region as read linearizably after the lock was taken: no
            other process can change range or streams without this lock's token;
            it is never unfrozen: every freeze ends in a load with a new token, which revokes the right of the manager
            that prepared the split or merge (scenario T20);
            once a freeze is answered, nothing is read either: after the split another server may have the keys, and our
            own lock would not show it;
            a partition that was given up is never served: `partition` is None before the lock is released.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from neve.client.streams.client import Client
from neve.client.streams.writer_group import WriterGroup
from neve.meta import keys
from neve.meta.core_retry import Backoff, Delays
from neve.meta.regions import decode_region
from neve.partition_server.config import PartitionServerConfig
from neve.partition_server.engine.engine import PartitionStreams
from neve.partition_server.engine.interface import Engine
from neve.partition_server.engine.memory import MemoryBudget
from neve.partition_server.tables.block_cache import BlockCache
from neve.proto import common_pb2
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import InvalidArgument, NeveError, Overloaded, WrongServer

log = logging.getLogger(__name__)

LOAD_RETRY_S_MIN = 0.05
DRAIN_S = 2.0  # for appends in flight when a partition is given up

T = TypeVar("T")


class Phase(enum.Enum):
    LOADING = "loading"
    SERVING = "serving"
    FREEZING = "freezing"  # reads only
    FROZEN = "frozen"  # neither reads nor writes
    STOPPED = "stopped"


class _NotWanted(Exception):
    """The map has changed: this region is no longer to be served in this form."""


LoadPartition = Callable[["Surroundings", pm.RegionRecord, PartitionStreams], Awaitable[Engine]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all partitions of a process share."""

    config: PartitionServerConfig
    client: Client
    root: bytes
    rng: random.Random
    wall_ms: Callable[[], int]
    cache: BlockCache[Any]
    memory: MemoryBudget
    loading: asyncio.Semaphore
    load: LoadPartition


class Hosted:
    """A partition that the map assigns to this server. `run` is its task, from the first assignment to the last."""

    def __init__(self, surroundings: Surroundings, region: pm.RegionRecord, *, server_id: int) -> None:
        self.partition_id: int = region.partition_id
        self.partition: Engine | None = None  # only while SERVING or FREEZING
        self.phase = Phase.LOADING
        self.error = ""  # why it is not served, as a text
        self.loads = 0
        self.load_s = 0.0  # duration of the last load, after taking the lock
        self._around = surroundings
        self._server_id = server_id
        self._wanted: pm.RegionRecord | None = region
        self._woken = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._group: WriterGroup | None = None
        self._frozen_group: WriterGroup | None = None
        self._thaw = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    # --- called by lifecycle ---------------------------------------------------------------------------------

    def want(self, region: pm.RegionRecord | None) -> None:
        """Serve this region from now on; None: stop serving."""
        before, self._wanted = self._wanted, region
        if not _same(before, region):
            if self.phase is not Phase.STOPPED:
                self._enter(Phase.LOADING)  # at once: the map has given these keys to another server
            self._woken.set()

    # --- called by the servicer ------------------------------------------------------------------------------

    async def until_changed(self, timeout_s: float) -> None:
        """Wait for another phase or the timeout."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        timer = self._loop.call_later(max(0.0, timeout_s), _settle, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    async def prepare_split(self, middle_key: bytes) -> ps.PreparePartitionSplitReply:
        partition, group, region = self._served()
        middle_key = middle_key or partition.middle_key() or b""
        if not middle_key:
            raise InvalidArgument(what="middle_key", detail="there are too few keys to choose one; pass one")
        if not region.start < middle_key or (region.end and middle_key >= region.end):
            detail = f"{middle_key!r} is not inside ({region.start!r}, {region.end!r})"
            raise InvalidArgument(what="middle_key", detail=detail)
        ends = await self._freeze(partition.freeze())
        return ps.PreparePartitionSplitReply(
            middle_key=middle_key,
            owner=group.owner,
            log=ends[0],
            row=ends[1],
            meta=ends[2],
            frozen_ms=self._around.config.serving.frozen_ms,
        )

    async def prepare_merge(self) -> ps.PreparePartitionMergeReply:
        partition, group, _ = self._served()
        log_end, row_end, meta_end, manifest = await self._freeze(partition.flush_and_freeze())
        return ps.PreparePartitionMergeReply(
            owner=group.owner,
            log=log_end,
            row=row_end,
            meta=meta_end,
            manifest=common_pb2.Position(extent_id=manifest.extent_id, offset=manifest.offset),
            frozen_ms=self._around.config.serving.frozen_ms,
        )

    def thaw(self, owner: common_pb2.Owner) -> None:
        """The split or merge failed: load again, with a new token, which revokes the right to complete it."""
        group = self._group
        if self.phase is Phase.FROZEN and group is not None and group.token == owner.token:
            log.info("partition_thawed partition_id=%d", self.partition_id)
            self._thaw.set()

    def _served(self) -> tuple[Engine, WriterGroup, pm.RegionRecord]:
        if self.partition is None or self._group is None or self._wanted is None or self.phase is not Phase.SERVING:
            detail = f"partition {self.partition_id} is {self.phase.value}"
            raise Overloaded(what="partition", detail=detail)
        return self.partition, self._group, self._wanted

    async def _freeze(self, work: Coroutine[Any, Any, T]) -> T:
        group = self._group
        assert group is not None
        self._frozen_group = group
        self._enter(Phase.FREEZING)
        try:
            ends = await work
            group.ensure()
            if self.phase is not Phase.FREEZING or self._group is not group:
                raise WrongServer(partition_id=self.partition_id, detail="the map changed while it was frozen")
        except BaseException:
            if self._group is group:
                self._thaw.set()
            raise
        self._enter(Phase.FROZEN)
        self._loop.call_later(self._around.config.serving.frozen_ms / 1000, self._on_frozen_for_long, group)
        return ends

    def _on_frozen_for_long(self, group: WriterGroup) -> None:
        if self._group is group:
            log.warning("partition_frozen_in_vain partition_id=%d", self.partition_id)
            self._thaw.set()

    # --- the task --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        serving = self._around.config.serving
        rng = self._around.rng
        backoff = Backoff(Delays(LOAD_RETRY_S_MIN, serving.load_retry_s_max), lambda: rng.uniform(0.5, 1.0))
        while (region := self._wanted) is not None:
            self._woken.clear()
            loads = self.loads
            try:
                await self._serve(region)
            except _NotWanted:
                self.error = "the map has changed"
            except NeveError as error:
                self.error = str(error)
                log.warning("partition_not_served partition_id=%d error=%s", self.partition_id, error)
            except Exception as error:  # a bug must not leave the keys without a server for ever
                self.error = repr(error)
                log.exception("partition_failed partition_id=%d", self.partition_id)
            self._enter(Phase.LOADING)
            if self.loads > loads:
                backoff.reset()
            elif not self._woken.is_set():
                await _wait(self._woken, backoff.next_s())
        self._enter(Phase.STOPPED)

    async def _serve(self, region: pm.RegionRecord) -> None:
        """Load the partition, and serve it while it is assigned to us and under our lock."""
        around = self._around
        group = around.client.writer_group(
            [region.log_stream_id, region.row_stream_id, region.meta_stream_id],
            owner=f"partition server {self._server_id}",
        )
        await self._while_wanted(region, group.open())
        graceful = False
        try:
            begun_s = self._loop.time()
            region = await self._confirmed(region, group)
            async with around.loading:
                partition = await self._while_wanted(region, self._load(region, group))
            try:
                self.load_s = self._loop.time() - begun_s
                self.loads += 1
                self._begin(region, partition, group)
                log.info(
                    "partition_served partition_id=%d epoch=%d token=%d load_s=%.3f",
                    *(self.partition_id, region.epoch, group.token, self.load_s),
                )
                graceful = await self._until_over(region, partition, group)
            finally:
                self.partition = self._group = None
                self._enter(Phase.LOADING)
                if graceful and around.config.serving.flush_on_stop:
                    await _in_time(partition.flush(), DRAIN_S)
                if graceful:
                    await _in_time(_drained(group), DRAIN_S)
                await partition.close()
        finally:
            await group.abort()

    def _begin(self, region: pm.RegionRecord, partition: Engine, group: WriterGroup) -> None:
        if not _same(region, self._wanted):
            raise _NotWanted
        self._thaw.clear()
        self.partition, self._group = partition, group
        self.error = ""
        self._enter(Phase.SERVING)

    async def _confirmed(self, region: pm.RegionRecord, group: WriterGroup) -> pm.RegionRecord:
        """Return the region as read after taking the lock: from now on no other process changes its range."""
        meta = await self._around.client.metadata()
        kv = await meta.get(keys.region_key(self._around.root, self.partition_id))
        now = decode_region(kv.value) if kv is not None else None
        if now is None or now.server_id != self._server_id or now.epoch != region.epoch:
            raise _NotWanted
        group.ensure()
        return now

    async def _load(self, region: pm.RegionRecord, group: WriterGroup) -> Engine:
        around = self._around
        log_writer, row_writer, meta_writer = group.writers
        streams = PartitionStreams(
            log=log_writer, row=row_writer, meta=meta_writer, client=around.client, ensure_owner=group.ensure
        )
        return await around.load(around, region, streams)

    async def _until_over(self, region: pm.RegionRecord, partition: Engine, group: WriterGroup) -> bool:
        """Wait for the end of serving. Returns True after an orderly end, when pending calls may still finish."""
        ends = {
            "unwanted": asyncio.ensure_future(self._unwanted(region)),
            "lost": asyncio.ensure_future(group.ended.wait()),
            "thaw": asyncio.ensure_future(self._thaw.wait()),
        }
        try:
            everything: list[asyncio.Future[Any]] = [*ends.values(), partition.failed]
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            why = [name for name, task in ends.items() if task.done()]
            log.info("partition_given_up partition_id=%d why=%s", self.partition_id, ",".join(why) or "failed")
            return why == ["unwanted"] and not partition.failed.done() and self._frozen_group is not group
        finally:
            await _cancelled(*ends.values())

    # --- inside ----------------------------------------------------------------------------------------------

    async def _while_wanted(self, region: pm.RegionRecord, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        unwanted = asyncio.ensure_future(self._unwanted(region))
        try:
            await asyncio.wait({task, unwanted}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _NotWanted
        finally:
            await _cancelled(task, unwanted)

    async def _unwanted(self, region: pm.RegionRecord) -> None:
        if _same(region, self._wanted):
            await self._woken.wait()  # even if it is assigned again by now: it was given up in between

    def _enter(self, phase: Phase) -> None:
        if phase is self.phase:
            return
        self.phase = phase
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            _settle(waiter)


def _same(one: pm.RegionRecord | None, other: pm.RegionRecord | None) -> bool:
    """Whether serving one means serving the other: an epoch identifies a range with its streams."""
    if one is None or other is None:
        return one is other
    return one.epoch == other.epoch


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return


async def _drained(group: WriterGroup) -> None:
    await asyncio.gather(*(writer.drain() for writer in group.writers))


async def _in_time(work: Awaitable[None], timeout_s: float) -> None:
    """Wait up to the timeout. The next load deals with what is not done by then."""
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except (NeveError, TimeoutError) as error:
        log.info("partition_not_drained error=%r", error)


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
