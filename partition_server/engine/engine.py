"""One partition: the objects of a key range, in a log, a row and a meta stream that only this partition writes.

    partition = await Partition.load(region, streams, config=…, clock=…, rng=…, cache=…, memory=…)
    info = await partition.put(b"key", b"value", condition=None, ttl_ms=0, call=call)
    info, value = await partition.get(b"key")

Invariants: a write is answered when it is in the log on every replica. A read sees answered writes, and is itself
            answered only while the lock is certainly held (protocol rule 2);
            a load restores every answered write, and none twice (scenario T50);
            after `freeze` nothing more is written, while reads continue; a partition never unfreezes.
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

GET_BYTES_MAX = 32 * MIB  # of one reply
GET_ATTEMPTS_MAX = 10  # each finds that the value was moved in the meantime


class Partition:
    """A loaded partition, made by `load`. When `failed` is done, the partition must be loaded again."""

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
        """Load the partition from its opened streams. `clock` returns wall time in ms."""
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
        """Return an object and the bytes of a range as consecutive views; `length` 0 means to the end.

        `admit` is called with the size of these bytes before they are read; again if the object has changed. It may
        raise, or return an awaitable to wait for.
        """
        store = self._store
        store.check_readable()
        store.check_key(key)
        entry = await self._live(key)
        for attempt in range(GET_ATTEMPTS_MAX):
            if version and entry.version != version:
                store.ensure_owner()
                raise ConditionFailed(version=entry.version)
            if offset > entry.size_bytes:
                store.ensure_owner()  # this answer, too, says how large the object is
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
        """Return a page of the objects in the partition's range, in order of their keys."""
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
        """Submit a put before returning. Cheaper for many puts. The future gets one Info."""
        return self._writes.start_put(
            key, value, expected=expected_of(condition), ttl_ms=ttl_ms, caller=caller_of(call)
        )

    def start_puts(self, puts: Puts) -> asyncio.Future[Results]:
        """Submit many puts without conditions. The future gets a result for each, or the error that ended them all."""
        return self._puts.start(puts)

    async def delete(
        self, key: bytes, *, condition: ps.Condition | None = None, call: common_pb2.CallId | None = None
    ) -> bool:
        """Delete an object; returns whether it existed."""
        return await self._writes.delete(key, expected=expected_of(condition), caller=caller_of(call))

    async def batch(
        self, operations: Sequence[Operation], *, call: common_pb2.CallId | None = None
    ) -> list[ps.ObjectInfo]:
        """Execute all operations or none. Conditions refer to the state before; a deleted key has version 0."""
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
        """Begin an upload and return its id. Its condition is checked when it is completed."""
        return self._uploads.begin(key, expected=expected_of(condition), ttl_ms=ttl_ms, caller=caller_of(call))

    async def upload_part(self, upload_id: int, key: bytes, *, offset: int, payload: Buffer) -> int:
        """Append a part to the log, and return the end of the upload so far."""
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
        """Write a table of everything that was acknowledged before."""
        self._store.check_writable()
        with self._store.noting_ended_streams():
            await self._flusher.flush_all()

    async def compact(self, full: bool) -> None:
        """Merge all tables into one, or as the background would."""
        self._store.check_writable()
        with self._store.noting_ended_streams():
            if full:
                await self._flusher.flush_all()
                await self._compactor.run_all()
            else:
                await self._compactor.run_one()
            await self._reclaimer.tidy()

    async def reclaim(self, extent_ids: Sequence[int]) -> tuple[list[int], list[int], int]:
        """Move the live values of these log extents and drop the extents. Returns dropped, kept, bytes moved."""
        self._store.check_writable()
        with self._store.noting_ended_streams():
            return await self._reclaimer.reclaim(extent_ids)

    def middle_key(self) -> bytes | None:
        """Return a key with about half of the partition on each side; None if there are too few keys."""
        return middle_key_of(self._store)

    def state(self) -> ps.PartitionState:
        return state_of(self._store)

    def load_now(self) -> pm.PartitionLoad:
        """Return the load since the last call."""
        return self._meter.measure()

    async def freeze(self) -> tuple[common_pb2.StreamEnd, common_pb2.StreamEnd, common_pb2.StreamEnd]:
        """Stop taking writes, finish pending ones, and return the ends of the log, row and meta streams."""
        await self._stop_writing()
        streams = self._store.streams
        return await _end_of(streams.log), await _end_of(streams.row), await _end_of(streams.meta)

    async def flush_and_freeze(
        self,
    ) -> tuple[common_pb2.StreamEnd, common_pb2.StreamEnd, common_pb2.StreamEnd, Position]:
        """Freeze with everything in tables. Also returns the position of the manifest that says so."""
        await self._stop_writing()
        await self._store.streams.log.flush()
        await asyncio.sleep(0)  # lets the writes that this acknowledged be applied
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
        """Close without a flush, since the log has everything. Pending reads raise WrongServer: memory goes at once."""
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
    """Return the expected version: 0 for absent, ANYTHING without a condition."""
    if condition is None:
        return ANYTHING
    kind = condition.WhichOneof("expected")
    if kind is None or (kind == "absent" and not condition.absent):
        return ANYTHING
    if kind == "absent":
        return 0
    if not condition.version:
        raise InvalidArgument(what="condition.version", detail="0 is not a version; use `absent` for a missing object")
    return condition.version


def caller_of(call: common_pb2.CallId | None) -> Caller:
    if call is None or not call.client_id:
        return NOBODY
    return Caller(call.client_id, call.call_id, call.completed_below)


__all__ = ["Info", "Operation", "Outcome", "Partition", "PartitionStreams", "Puts", "ScanPage"]
