"""One partition: objects under the keys of a range, on a log, a row and a meta stream that it alone writes.

    partition = await Partition.load(region, streams, config=…, clock=…, rng=…, cache=…, memory=…)
    info = await partition.put(b"key", b"value", condition=None, ttl_ms=0, call=call)
    info, value = await partition.get(b"key")

Invariants: a write is answered when it is in the log on every replica; a read sees answered writes, and is itself
            answered only while the lock is surely held (rule 2);
            a load brings back every write that was answered, and no write twice (T50);
            from `freeze` on nothing is written any more, and reads go on; it never unfreezes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from neve.client.streams.types import Position
from neve.client.streams.writer import Writer
from neve.partition_server.engine.config import DEFAULT_CONFIG, EngineConfig
from neve.partition_server.engine.entry import Entry, Info
from neve.partition_server.engine.interface import Admit
from neve.partition_server.engine.lookups import Lookups
from neve.partition_server.engine.maintenance import Maintenance
from neve.partition_server.engine.memory import MemoryBudget
from neve.partition_server.engine.operations import ANYTHING, Operation
from neve.partition_server.engine.puts import GroupedPuts, Puts, Results
from neve.partition_server.engine.scans import ScanPage, Scans
from neve.partition_server.engine.shared import PartitionStreams, Store
from neve.partition_server.engine.stats import LoadMeter, middle_key_of, state_of
from neve.partition_server.engine.uploads import Uploads
from neve.partition_server.engine.values import Pieces, Values
from neve.partition_server.engine.write import Outcome
from neve.partition_server.engine.writes import Writes
from neve.partition_server.log import loader
from neve.partition_server.log.log_format import NOBODY, Caller
from neve.partition_server.log.reclaimer import Reclaimer
from neve.partition_server.tables.block_cache import BlockCache
from neve.partition_server.tables.committer import Committer
from neve.partition_server.tables.compactor import Compactor
from neve.partition_server.tables.flusher import Flusher
from neve.partition_server.tables.table_format import Block
from neve.proto import common_pb2
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.crc import Buffer
from neve.proto.errors import ConditionFailed, InvalidArgument, NotFound, ShuttingDown
from neve.rpc.limits import MIB

GET_BYTES_MAX = 32 * MIB  # of one answer
GET_ATTEMPTS_MAX = 10  # each finds that the value was moved meanwhile


class Partition:
    """Made by `load`. `failed` is done when it is of no use any more: load it anew."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.failed = store.failed
        self.partition_id = store.partition_id
        self.start, self.end = store.start, store.end
        self._lookups = Lookups(store)
        self._values = Values(store.log)
        self._writes = Writes(store, self._lookups)
        self._puts = GroupedPuts(store, self._writes)
        self._committer = Committer(store)
        self._flusher = Flusher(store, self._committer)
        self._compactor = Compactor(store, self._committer)
        self._scans = Scans(store, self._values)
        self._uploads = Uploads(store, self._writes)
        self._reclaimer = Reclaimer(
            store,
            committer=self._committer,
            flusher=self._flusher,
            lookups=self._lookups,
            values=self._values,
            writes=self._writes,
            scans=self._scans,
        )
        self._maintenance = Maintenance(
            store,
            flusher=self._flusher,
            compactor=self._compactor,
            reclaimer=self._reclaimer,
            scans=self._scans,
            uploads=self._uploads,
        )
        self._meter = LoadMeter(store)

    @classmethod
    async def load(
        cls,
        region: pm.RegionRecord,
        streams: PartitionStreams,
        *,
        config: EngineConfig = DEFAULT_CONFIG,
        clock: Callable[[], int],
        rng: random.Random,
        cache: BlockCache[Block],
        memory: MemoryBudget,
    ) -> Partition:
        """Bring the partition back from its streams, which were opened for us. `clock` is wall time in ms."""
        store = Store(region, streams, config=config, clock=clock, rng=rng, cache=cache, memory=memory)
        partition = cls(store)
        try:
            await loader.load(store, partition._committer, partition._flusher)
        except BaseException:
            store.share.leave()
            raise
        partition._maintenance.start()
        return partition

    # --- reads -----------------------------------------------------------------------------------------------

    async def get(
        self,
        key: bytes,
        *,
        offset: int = 0,
        length: int = 0,
        version: int = 0,
        admit: Admit | None = None,
    ) -> tuple[ps.ObjectInfo, Pieces]:
        """The object, and the bytes of the range that was asked for (0: to the end) as views, one behind the other.
        `admit` is told how many bytes that will be before they are read, and may raise, or return what is to be awaited
        first; again if the object changed."""
        store = self._store
        store.check_readable()
        store.check_key(key)
        entry = await self._live(key)
        for attempt in range(GET_ATTEMPTS_MAX):
            if version and entry.version != version:
                store.ensure_owner()
                raise ConditionFailed(version=entry.version)
            if offset > entry.size_bytes:
                store.ensure_owner()  # also this tells how large the object is
                raise InvalidArgument(what="offset", detail=f"{offset} of {entry.size_bytes} bytes")
            size_bytes = min(length or entry.size_bytes, GET_BYTES_MAX)
            if admit is not None and (room := admit(min(size_bytes, entry.size_bytes - offset))) is not None:
                await room
            try:
                pieces = await self._values.read(entry, offset, size_bytes)
                break
            except NotFound as error:
                before, entry = entry, await self._live(key)
                if entry.seq == before.seq or attempt == GET_ATTEMPTS_MAX - 1:
                    raise store.gone(error) from error
        store.ensure_owner()
        store.counters.reads += 1
        store.counters.bytes_read += min(size_bytes, entry.size_bytes - offset)
        return entry.message(), pieces

    async def head(self, key: bytes) -> ps.ObjectInfo:
        store = self._store
        store.check_readable()
        store.check_key(key)
        entry = await self._live(key)
        store.ensure_owner()
        store.counters.reads += 1
        return entry.message()

    async def _live(self, key: bytes) -> Entry:
        entry = await self._lookups.newest(key)
        if entry is None or not entry.exists(self._store.wall_ms()):
            self._store.ensure_owner()
            raise NotFound(kind="object", name=key.decode(errors="backslashreplace"))
        return entry

    async def scan(
        self,
        *,
        prefix: bytes = b"",
        start: bytes = b"",
        end: bytes = b"",
        limit: int = 0,
        continuation: bytes = b"",
        with_values: bool = False,
        max_bytes: int = 0,
    ) -> ScanPage:
        """Objects in the order of their keys, of those that are in the partition's range."""
        self._store.check_readable()
        return await self._scans.scan(
            prefix=prefix,
            start=start,
            end=end,
            limit=limit,
            continuation=continuation,
            with_values=with_values,
            max_bytes=max_bytes,
        )

    # --- writes ----------------------------------------------------------------------------------------------

    async def put(
        self,
        key: bytes,
        value: Buffer,
        *,
        condition: ps.Condition | None = None,
        ttl_ms: int = 0,
        call: common_pb2.CallId | None = None,
    ) -> ps.ObjectInfo:
        (info,) = await self.start_put(key, value, condition=condition, ttl_ms=ttl_ms, call=call)
        return info.message(key)

    def start_put(
        self,
        key: bytes,
        value: Buffer,
        *,
        condition: ps.Condition | None = None,
        ttl_ms: int = 0,
        call: common_pb2.CallId | None = None,
    ) -> asyncio.Future[Outcome]:
        """A put that is under way when this returns: for those who have many. The future has one Info."""
        return self._writes.start_put(
            key, value, expected=expected_of(condition), ttl_ms=ttl_ms, caller=caller_of(call)
        )

    def start_puts(self, puts: Puts) -> asyncio.Future[Results]:
        """Many of them, without conditions; the future has a result for each, or what ended them all."""
        return self._puts.start(puts)

    async def delete(
        self, key: bytes, *, condition: ps.Condition | None = None, call: common_pb2.CallId | None = None
    ) -> bool:
        """Whether there was something to delete."""
        return await self._writes.delete(key, expected=expected_of(condition), caller=caller_of(call))

    async def batch(
        self, operations: Sequence[Operation], *, call: common_pb2.CallId | None = None
    ) -> list[ps.ObjectInfo]:
        """All or nothing. Conditions are about what was there before; a deleted key has version 0 in the answer."""
        outcome = await self._writes.batch(operations, caller=caller_of(call))
        return [info.message(each.key) for info, each in zip(outcome, operations, strict=True)]

    async def begin_upload(
        self,
        key: bytes,
        *,
        condition: ps.Condition | None = None,
        ttl_ms: int = 0,
        call: common_pb2.CallId | None = None,
    ) -> int:
        """The upload's id. Its condition is decided when it is complete."""
        return self._uploads.begin(key, expected=expected_of(condition), ttl_ms=ttl_ms, caller=caller_of(call))

    async def upload_part(self, upload_id: int, key: bytes, *, offset: int, payload: Buffer) -> int:
        """The end of what has come so far; it is in the log."""
        return await self._uploads.part(upload_id, key, offset=offset, payload=payload)

    async def complete_upload(
        self,
        upload_id: int,
        key: bytes,
        *,
        size_bytes: int,
        value_crc32c: int,
        call: common_pb2.CallId | None = None,
    ) -> ps.ObjectInfo:
        (info,) = await self._uploads.complete(
            upload_id, key, size_bytes=size_bytes, crc=value_crc32c, caller=caller_of(call)
        )
        return info.message(key)

    async def abort_upload(self, upload_id: int, key: bytes) -> None:
        self._uploads.abort(upload_id, key)

    # --- by managers and operators ---------------------------------------------------------------------------

    async def flush(self) -> None:
        """Have a table of everything that was acknowledged before."""
        self._store.check_writable()
        with self._store.noting_ended_streams():
            await self._flusher.flush_all()

    async def compact(self, full: bool) -> None:
        """Merge tables: all into one, or as they would be in the background."""
        self._store.check_writable()
        with self._store.noting_ended_streams():
            if full:
                await self._flusher.flush_all()
                await self._compactor.run_all()
            else:
                await self._compactor.run_one()
            await self._reclaimer.tidy()

    async def reclaim(self, extent_ids: Sequence[int]) -> tuple[list[int], list[int], int]:
        """Move what lives in these log extents, and let them go: those that went, those that stay, bytes moved."""
        self._store.check_writable()
        with self._store.noting_ended_streams():
            return await self._reclaimer.reclaim(extent_ids)

    def middle_key(self) -> bytes | None:
        """A key that has about half of the partition on each side; None if there are too few."""
        return middle_key_of(self._store)

    def state(self) -> ps.PartitionState:
        return state_of(self._store)

    def load_now(self) -> pm.PartitionLoad:
        """What was done since it was last asked."""
        return self._meter.measure()

    async def freeze(self) -> tuple[common_pb2.StreamEnd, common_pb2.StreamEnd, common_pb2.StreamEnd]:
        """Take no more writes, finish those under way, and tell where the streams end: log, row, meta."""
        await self._stop_writing()
        streams = self._store.streams
        return await _end_of(streams.log), await _end_of(streams.row), await _end_of(streams.meta)

    async def flush_and_freeze(
        self,
    ) -> tuple[common_pb2.StreamEnd, common_pb2.StreamEnd, common_pb2.StreamEnd, Position]:
        """The same, with everything in tables, and where the manifest is that says so."""
        await self._stop_writing()
        await self._store.streams.log.flush()
        await asyncio.sleep(0)  # what was acknowledged by that is applied
        await self._flusher.flush_all()
        position = await self._committer.commit_last()
        streams = self._store.streams
        return await _end_of(streams.log), await _end_of(streams.row), await _end_of(streams.meta), position

    async def _stop_writing(self) -> None:
        store = self._store
        store.check_readable()
        store.frozen = True
        store.unstall()
        await self._maintenance.stop()
        await self._committer.idle()

    async def close(self) -> None:
        """Without a flush: the log has it. What is still being read ends with WrongServer: memory goes at once."""
        store = self._store
        store.frozen = True
        store.unstall()
        await self._maintenance.stop()
        store.fail(ShuttingDown(detail=f"partition {store.partition_id} was closed"))
        store.share.leave()
        await self._flusher.let_go()


async def _end_of(writer: Writer) -> common_pb2.StreamEnd:
    extent_id, end = await writer.freeze()
    return common_pb2.StreamEnd(stream_id=writer.stream_id, extent_id=extent_id, acknowledged_end=end)


def expected_of(condition: ps.Condition | None) -> int | None:
    """What a condition expects: a version, 0 for nothing there, ANYTHING."""
    if condition is None:
        return ANYTHING
    kind = condition.WhichOneof("expected")
    if kind is None or (kind == "absent" and not condition.absent):
        return ANYTHING
    if kind == "absent":
        return 0
    if not condition.version:
        raise InvalidArgument(what="condition.version", detail="0 is no version; for nothing there say `absent`")
    return condition.version


def caller_of(call: common_pb2.CallId | None) -> Caller:
    if call is None or not call.client_id:
        return NOBODY
    return Caller(call.client_id, call.call_id, call.completed_below)


__all__ = ["Info", "Operation", "Outcome", "Partition", "PartitionStreams", "Puts", "ScanPage"]
