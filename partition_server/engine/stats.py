"""Statistics of a partition: its size, its load, and a key for a split.

Invariants: sizes are of what is stored, as precisely as tables know: a key in two tables counts twice, and the share of
            a table that two partitions share after a split is estimated from its blocks.
"""

from __future__ import annotations

from neve.partition_server.engine.shared import Counters, Store
from neve.partition_server.tables.table import Table
from neve.proto import common_pb2
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps

SPLIT_SAMPLE_KEYS = 10_000


def share_of(table: Table) -> float:
    """Return how much of the table is inside its clip, counted in blocks."""
    blocks = len(table.index.last_keys)
    if not table.is_clipped or not blocks:
        return 1.0
    first = table.index.block_of(table.clip_start)
    last = table.index.block_of(table.clip_end) if table.clip_end else blocks
    return max(0, min(last + 1, blocks) - first) / blocks


def size_of(store: Store) -> tuple[int, int]:
    """Return the number of keys and bytes, including values in the log."""
    keys = sum(len(memtable) for memtable in store.view.memtables)
    size_bytes = sum(memtable.memory_bytes + memtable.part_bytes for memtable in store.view.memtables)
    for table in store.view.tables:
        share = share_of(table)
        keys += int((table.footer.entries - table.footer.deletes) * share)
        size_bytes += int((table.size_bytes + sum(table.log_references.values())) * share)
    return keys, size_bytes


def state_of(store: Store) -> ps.PartitionState:
    keys, size_bytes = size_of(store)
    state = ps.PartitionState(
        partition_id=store.partition_id,
        start=store.start,
        end=store.end,
        keys=keys,
        size_bytes=size_bytes,
        memtable_bytes=sum(memtable.memory_bytes for memtable in store.view.memtables),
        tables=len(store.view.tables),
        discardable_bytes=store.discardable(),
    )
    if store.log_replay_from is not None:
        extent_id, offset = store.log_replay_from
        state.log_replay_from.CopyFrom(common_pb2.Position(extent_id=extent_id, offset=offset))
    return state


class LoadMeter:
    """Measures rates since the last measurement."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._at_s = store.loop.time()
        self._before = Counters()

    def measure(self) -> pm.PartitionLoad:
        store = self._store
        now, now_s = store.counters, store.loop.time()
        before, seconds = self._before, max(now_s - self._at_s, 0.001)
        self._before = Counters(now.reads, now.writes, now.bytes_read, now.bytes_written)
        self._at_s = now_s
        keys, size_bytes = size_of(store)
        moved_bytes = now.bytes_read - before.bytes_read + now.bytes_written - before.bytes_written
        return pm.PartitionLoad(
            partition_id=store.partition_id,
            reads_per_s=(now.reads - before.reads) / seconds,
            writes_per_s=(now.writes - before.writes) / seconds,
            bytes_per_s=moved_bytes / seconds,
            size_bytes=size_bytes,
            keys=keys,
        )


def middle_key_of(store: Store) -> bytes | None:
    """Return the weighted middle of the blocks' last keys and the memtables' keys, strictly inside the range."""
    weighted: list[tuple[bytes, int]] = []
    for table in store.view.tables:
        keys = table.index.last_keys
        step = len(keys) // SPLIT_SAMPLE_KEYS + 1
        weight = step * (table.size_bytes + sum(table.log_references.values())) // max(1, len(keys)) + 1
        weighted += [(key, weight) for key in keys[::step] if store.owns(key) and key > store.start]
    for memtable in store.view.memtables:
        step = len(memtable) // SPLIT_SAMPLE_KEYS + 1
        weight = step * memtable.memory_bytes // max(1, len(memtable)) + 1
        sampled = [key for run in memtable.index.runs() for key in run[::step]]
        weighted += [(key, weight) for key in sampled if key > store.start]
    if len({key for key, _ in weighted}) < 2:
        return None
    weighted.sort()
    total, sum_so_far = sum(weight for _, weight in weighted), 0
    for key, weight in weighted:
        sum_so_far += weight
        if 2 * sum_so_far >= total:
            return key
    return None
