"""One partition: objects under the keys of a range, on a log, a row and a meta stream that it alone writes.

    partition = await Partition.load(region, streams, config=…, clock=…, rng=…, cache=…, memory=…)
    info = await partition.put(b"key", b"value", condition=None, ttl_ms=0, call=call)
    info, value = await partition.get(b"key")

Invariants: a write is answered when it is in the log on every replica; a read sees answered writes, and is itself
            answered only while the lock is surely held (rule 2);
            a load brings back every write that was answered, and no write twice (T50);
            from `freeze` on nothing is written any more, and reads go on; it never unfreezes.
Neighbours: the server of the process loads and closes partitions and calls this; store.py is what its modules share.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from neve.partition_server.block_cache import BlockCache
from neve.partition_server.engine_config import DEFAULT_CONFIG, EngineConfig
from neve.partition_server.entry import Entry, Info
from neve.partition_server.log_format import NOBODY, Caller
from neve.partition_server.lookups import Lookups
from neve.partition_server.memory import MemoryBudget
from neve.partition_server.replay import replay
from neve.partition_server.store import PartitionStreams, Store
from neve.partition_server.stream_io import OwnStream
from neve.partition_server.values import Pieces, Values
from neve.partition_server.write import Outcome
from neve.partition_server.writes import ANYTHING, Operation, Writes
from neve.proto import common_pb2
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.crc import Buffer
from neve.proto.errors import ConditionFailed, InvalidArgument, NotFound

log = logging.getLogger(__name__)


class Partition:
    """Made by `load`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lookups = Lookups(store)
        self._values = Values(OwnStream(store.streams.client, store.streams.log))
        self._writes = Writes(store, self._lookups)
        self.failed = store.failed

    @classmethod
    async def load(
        cls,
        region: pm.RegionRecord,
        streams: PartitionStreams,
        *,
        config: EngineConfig = DEFAULT_CONFIG,
        clock: Callable[[], int],
        rng: random.Random,
        cache: BlockCache[Any],
        memory: MemoryBudget,
    ) -> Partition:
        """Bring the partition back from its streams, which were opened for us. `clock` is wall time in ms."""
        store = Store(region, streams, config=config, clock=clock, rng=rng, memory=memory)
        partition = cls(store)

        async def make_room() -> None:
            return

        records = await replay(store, None, make_room)
        log.info(
            "partition_loaded partition_id=%d replayed=%d seq=%d keys=%d",
            *(store.partition_id, records, store.seq, len(store.active)),
        )
        return partition

    # --- reads -----------------------------------------------------------------------------------------------

    async def get(
        self, key: bytes, *, offset: int = 0, length: int = 0, version: int = 0
    ) -> tuple[ps.ObjectInfo, Pieces]:
        """The object, and the bytes of the range that was asked for (0: to the end) as views, one behind the other."""
        store = self._store
        store.check_readable()
        store.check_key(key)
        entry = await self._live(key)
        if version and entry.version != version:
            store.ensure_owner()
            raise ConditionFailed(version=entry.version)
        if offset > entry.size_bytes:
            raise InvalidArgument(what="offset", detail=f"{offset} of {entry.size_bytes} bytes")
        length = min(length or entry.size_bytes, store.config.get_bytes_max)
        pieces = await self._values.read(entry, offset, length)
        store.ensure_owner()
        store.counters.reads += 1
        store.counters.bytes_read += min(length, entry.size_bytes - offset)
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

    async def close(self) -> None:
        """Without a flush: the log has it."""
        self._store.share.leave()


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


__all__ = ["Info", "Operation", "Outcome", "Partition", "PartitionStreams"]
