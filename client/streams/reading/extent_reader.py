"""The reader of one extent: checks the blocks of a reply while the next replies are on their way.

Invariants: bytes whose CRC does not match are never returned. They are read from another replica, and the bad one is
            reported once it is certain that a block begins there;
            at most three replies are held: the one being consumed and two being fetched;
            a failed read is retried, at other replicas and with fresh metadata, until a deadline without progress.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass

from neve.client.manager_link import ManagerLink
from neve.client.streams.catalog import Catalog
from neve.client.streams.core.reader import Block, SourceHistory, parse_blocks
from neve.client.streams.options import ClientOptions
from neve.client.streams.reading.block_cache import BlockCache
from neve.client.streams.reading.read_ahead import Fetch, ReadAhead
from neve.client.streams.reading.read_race import REPLY_BYTES, SLOW_BUCKETS_PER_S, Race, ReadPlan, Won, with_headers
from neve.client.streams.types import Extent, Position, Replica
from neve.meta.core_retry import Backoff
from neve.proto import extent_node_pb2 as pb
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.blocks import Problem
from neve.proto.errors import AcknowledgedLost, NeveError, OutOfRange, ProtocolViolation, ReplicaDamaged, RequestError
from neve.rpc.pool import ChannelPool
from neve.rpc.wire.deadlines import Deadlines

log = logging.getLogger(__name__)

FOLLOW_SLACK_S = 2.0  # added to the time for which a node is asked to wait
POINT_READ_BYTES = 32 << 10  # requested for a single block; a node sends a larger block whole
REPORTS_MAX = 1_000  # bad replicas that a client remembers as reported
REPORT_TASKS_MAX = 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """Checked, consecutive blocks. `sealed`: the extent ends at `end` for good."""

    blocks: list[Block]
    end: int
    sealed: bool = False


class _Retries:
    """Retries of a read: the pause before the next attempt, and a deadline counted from the last progress."""

    def __init__(self, options: ClientOptions, rng: random.Random) -> None:
        self._options = options
        self._backoff = Backoff(options.retry_delays, lambda: rng.uniform(0.5, 1.0))
        self._loop = asyncio.get_running_loop()
        self.note_progress()

    def note_progress(self) -> None:
        self._since_s = self._loop.time()
        self._backoff.reset()

    async def pause(self, error: NeveError) -> None:
        """Wait before another attempt. Raises `error` if there has been no progress for `read_deadline_s`."""
        delay_s = self._backoff.next_s()
        if self._loop.time() - self._since_s + delay_s > self._options.read_deadline_s:
            raise error
        await asyncio.sleep(delay_s)


class ExtentReader:
    """Reads extents, for all readers of one client."""

    def __init__(
        self, channels: ChannelPool, link: ManagerLink, catalog: Catalog, *, options: ClientOptions, rng: random.Random
    ) -> None:
        self._channels = channels
        self._link = link
        self._catalog = catalog
        self._options = options
        self._rng = rng
        self._history = SourceHistory()
        self._last_plan: ReadPlan | None = None
        self.cache = BlockCache(options.cache_bytes_max)
        self._reported: dict[tuple[int, int], None] = {}
        self._reports: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._slow: Deadlines[Race] = Deadlines(self._loop, Race.on_slow, buckets_per_s=SLOW_BUCKETS_PER_S)

    async def close(self) -> None:
        self._slow.close()
        for task in self._reports:
            task.cancel()
        await asyncio.gather(*self._reports, return_exceptions=True)

    # --- many blocks -----------------------------------------------------------------------------------------

    async def chunks(
        self, extent_id: int, offset: int, *, follow: bool, stop: int | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """Iterate over all blocks from `offset` on.

        The last chunk has no blocks and says whether the extent is sealed; with `follow` it always is, because the
        reader waits for more until then. `stop`: the caller needs no block that begins at or after this offset, so none
        is fetched ahead.
        """
        extent = await self._catalog.extent(extent_id)
        retries = _Retries(self._options, self._rng)
        bad: dict[Replica, Problem] = {}  # replicas with bad bytes at `offset`
        begun_at = offset
        certain = offset == 0  # whether a block begins at `offset`
        ahead = ReadAhead()

        def ask_ahead(reply: pb.ReadBlockReply) -> None:
            """Fetch what follows this reply, up to the known end."""
            for begin in ahead.next_offsets(reply):
                if (extent.length is None or begin < extent.length) and (stop is None or begin < stop):
                    size_bytes = _up_to(stop, begin, self._options.read_bytes)
                    ahead.put(self._fetch(extent, begin, size_bytes, avoid=()))

        try:
            while True:
                if extent.length is not None and offset >= extent.length:
                    _ensure_inside(extent, extent.length, offset, begun_at)
                    yield Chunk([], offset, sealed=True)
                    return
                first_bytes = _up_to(stop, offset, self._options.read_first_bytes)
                fetch = ahead.take(offset) or self._fetch(extent, offset, first_bytes, avoid=bad)
                try:
                    won = await fetch.wait(ask_ahead)
                    _check_answer(won, offset)
                except RequestError:
                    raise  # no block begins at this offset
                except NeveError as error:
                    ahead.drop()
                    if extent.length is not None or not isinstance(error, OutOfRange):
                        extent = await self._after(error, extent, retries, bad)
                        continue
                    won = None  # every node has forgotten `committed`: nothing more can be read now
                if won is None or not won.reply.blocks:
                    ahead.drop()
                    if won is not None and won.reply.sealed:
                        yield Chunk([], offset, sealed=True)
                        return
                    if extent.length is not None:  # metadata says sealed, but no replica has sealed it yet
                        waiting = OutOfRange(
                            extent_id=extent_id, offset=offset, readable=won.reply.readable if won else 0
                        )
                        extent = await self._after(waiting, extent, retries, bad)
                        continue
                    if not follow:
                        yield Chunk([], offset)
                        return
                    polled = await self._poll(extent, offset)
                    if polled is not None:
                        ahead.put(polled)
                    else:
                        extent = await self._catalog.extent(extent_id, refresh=True)
                    continue
                under_way = len(ahead)
                ask_ahead(won.reply)
                if ahead and not under_way:
                    await asyncio.sleep(0)  # sends the request now, instead of after checking the blocks
                blocks, problem = parse_blocks(won.payload, offset)
                if blocks:
                    for replica, wrong in bad.items():  # a block does begin here, so these replicas are bad
                        self._report(extent_id, replica, wrong)
                    bad = {}
                    certain = True
                    yield Chunk(blocks, blocks[-1].end)
                    ahead.note_delivered()
                    offset = blocks[-1].end
                    retries.note_progress()
                if problem is not None:
                    ahead.drop()  # it begins where a bad replica said that this reply ends
                    bad[won.replica] = problem
                    self._history.failed(won.replica.address, self._loop.time())
                    if certain:
                        self._report(extent_id, won.replica, problem)
        finally:
            ahead.drop()

    def _fetch(
        self,
        extent: Extent,
        offset: int,
        size_bytes: int,
        *,
        avoid: Collection[Replica],
        max_blocks: int = 0,
    ) -> Fetch:
        fetch = Fetch(offset)
        replicas = self._history.order(extent, self._loop.time())
        if avoid:
            replicas = [each for each in replicas if each not in avoid]
        if avoid and not replicas:
            fetch.future = self._loop.create_future()
            detail = f"{len(avoid)} replicas have no sound block there"
            fetch.future.set_exception(ReplicaDamaged(extent_id=extent.id, offset=offset, detail=detail))
            return fetch
        on_head = fetch.set_head if not max_blocks else None  # nothing follows a single block
        plan = self._plan(extent, size_bytes, max_blocks)
        fetch.future = Race(
            self._channels, replicas, plan, offset, self._history, self._slow, self._options, on_head
        ).future
        return fetch

    def _plan(self, extent: Extent, size_bytes: int, max_blocks: int) -> ReadPlan:
        """Return the plan of a read. The last one is reused if it fits: reads of an extent mostly have one size."""
        plan = self._last_plan
        max_bytes = size_bytes if max_blocks else with_headers(size_bytes)
        if plan is None or plan.extent is not extent or plan.max_bytes != max_bytes or plan.max_blocks != max_blocks:
            next_max_bytes = 0 if max_blocks else with_headers(self._options.read_bytes)
            plan = self._last_plan = ReadPlan(
                extent, max_bytes=max_bytes, max_blocks=max_blocks, next_max_bytes=next_max_bytes
            )
        return plan

    async def _after(self, error: NeveError, extent: Extent, retries: _Retries, bad: dict[Replica, Problem]) -> Extent:
        """No replica could serve the read: pause and fetch fresh metadata. Bad replicas may be repaired by then."""
        log.info("read_failed extent_id=%d error=%s", extent.id, error)
        await retries.pause(error)
        bad.clear()
        return await self._catalog.extent(extent.id, refresh=True)

    async def _poll(self, extent: Extent, offset: int) -> Fetch | None:
        """Wait at one replica until there is more, for a limited time. None: the caller fetches fresh metadata."""
        options = self._options
        for replica in self._history.order(extent, self._loop.time()):
            request = pb.ReadBlockRequest(
                extent_id=extent.id,
                replica=replica.message(),
                eversion=extent.eversion,
                offset=offset,
                max_bytes=options.read_first_bytes,
                follow=True,
                wait_ms=int(options.follow_wait_s * 1000),
            )
            try:
                reply = await self._channels.channel(replica.address).call(
                    methods.EXTENT_NODE_READ_BLOCK,
                    request,
                    timeout_s=options.follow_wait_s + FOLLOW_SLACK_S,
                    reply_bytes_max=options.read_first_bytes + REPLY_BYTES,
                )
            except OutOfRange:
                continue  # the node has restarted and does not know `committed` yet
            except NeveError as error:
                log.info("follow_failed extent_id=%d address=%s error=%s", extent.id, replica.address, error)
                self._history.failed(replica.address, self._loop.time())
                continue
            if not reply.message.blocks and not reply.message.sealed:
                return None
            fetch = Fetch(offset)
            fetch.future = self._loop.create_future()
            fetch.future.set_result(Won(replica, reply.message, reply.attachment))
            return fetch
        await asyncio.sleep(options.retry_delay_s_max * self._rng.uniform(0.25, 0.5))
        return None

    # --- one block -------------------------------------------------------------------------------------------

    async def block(self, position: Position) -> Block | None:
        """Return the block at this position, from the cache or with one read. None if that read fails."""
        extent_id, offset = position
        if (known := self.cache.get(extent_id, offset)) is not None:
            return known
        extent = await self._catalog.extent(extent_id)
        try:
            won = await self._fetch(extent, offset, POINT_READ_BYTES, avoid=(), max_blocks=1).future
        except RequestError:
            raise
        except NeveError as error:
            log.debug("block_read_failed position=%s error=%s", position, error)
            return None
        blocks, problem = parse_blocks(won.payload, offset)
        if problem is not None or not blocks:
            return None
        self.cache.put(extent_id, blocks[0])
        return blocks[0]

    # --- bad replicas ----------------------------------------------------------------------------------------

    def _report(self, extent_id: int, replica: Replica, problem: Problem) -> None:
        """Report a bad replica to the manager, in the background and once. Scrubbing finds it if the report is lost."""
        key = (extent_id, replica.node_id)
        log.warning(
            "bad_replica extent_id=%d node_id=%d offset=%d reason=%s",
            *(extent_id, replica.node_id, problem.offset, problem.detail),
        )
        if key in self._reported or len(self._reports) >= REPORT_TASKS_MAX:
            return
        self._reported[key] = None
        if len(self._reported) > REPORTS_MAX:
            del self._reported[next(iter(self._reported))]
        report = sm.BadReplica(
            extent_id=extent_id,
            replica=replica.message(),
            offset=problem.offset,
            reason=problem.detail,
            reporter=f"client {self._link.client_id:016x}",
        )
        task = self._loop.create_task(self._send_report(report))
        self._reports[task] = None
        task.add_done_callback(lambda done: self._reports.pop(done, None))

    async def _send_report(self, report: sm.BadReplica) -> None:
        request = sm.ReportBadReplicaRequest(bad_replicas=[report])
        try:
            await self._link.order(methods.STREAM_MANAGER_REPORT_BAD_REPLICA, request)
        except NeveError as error:
            log.warning("bad_replica_not_reported extent_id=%d error=%s", report.extent_id, error)


def _up_to(stop: int | None, offset: int, size_bytes: int) -> int:
    """Return how much to request at `offset`. A block that extends beyond `stop` comes whole, with the next reply."""
    return size_bytes if stop is None or stop <= offset else min(size_bytes, stop - offset)


def _check_answer(won: Won, offset: int) -> None:
    if won.reply.end - offset != len(won.payload):
        detail = f"the reply has {len(won.payload)} bytes for [{offset}, {won.reply.end})"
        raise ProtocolViolation(detail=detail)


def _ensure_inside(extent: Extent, length: int, offset: int, begun_at: int) -> None:
    """Check an offset against the length of a sealed extent.

    Raises AcknowledgedLost if this reader has read beyond that length while the extent was open, else OutOfRange.
    """
    if offset > length and offset > begun_at:
        detail = "it was read before; without sync all replicas lost power, with sync this is a bug"
        raise AcknowledgedLost(extent_id=extent.id, sealed_length=length, acknowledged=offset, detail=detail)
    if offset > length:
        raise OutOfRange(extent_id=extent.id, offset=offset, readable=length)
