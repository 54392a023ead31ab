"""Loads a partition: the valid manifest, its tables and sessions, then the log after it.

Invariants: the newest manifest of the partition in its present form counts. After a merge, until there is one, it is
            the union of the two that the region names: then nothing has to be replayed, and a manifest is written at
            once;
            a partition without a manifest is replayed from the beginning of its log.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from neve.partition_server.engine.config import KEY_BYTES_MAX
from neve.partition_server.engine.shared import Store, View
from neve.partition_server.log.log_format import HEADER_BYTES, VERSION_BYTES
from neve.partition_server.log.replay import replay
from neve.partition_server.log.stream_io import read_to_end
from neve.partition_server.tables import manifest as manifests
from neve.partition_server.tables.committer import Committer
from neve.partition_server.tables.flusher import Flusher
from neve.partition_server.tables.manifest import clip_entry, position_of, restore_sessions
from neve.partition_server.tables.table import open_table
from neve.proto import partition_records_pb2 as records
from neve.proto.blocks import HEADER_BYTES as BLOCK_HEADER_BYTES
from neve.proto.errors import Internal, InvalidArgument

log = logging.getLogger(__name__)

TABLES_AT_ONCE = 8


async def load(store: Store, committer: Committer, flusher: Flusher) -> None:
    region = store.region
    await _learn_limits(store)
    began_s = store.loop.time()
    found = await _last_manifest(store, committer)
    merged = found is None and bool(region.merged_manifests)
    if merged:
        found = await _merged_manifest(store)
    dropped = False
    if found is not None:
        committer.number = found.number
        dropped = await _open_tables(store, found)
        restore_sessions(store.sessions, found.sessions)
        store.seq = store.flushed_seq = found.seq
        if found.HasField("log_replay_from"):
            store.log_replay_from = position_of(found.log_replay_from)
    if merged:
        # Both sides were flushed and nothing has been written since, so the log has nothing to replay.
        store.log_replay_from = store.streams.log.committed
    if merged or dropped:
        # The newest manifest must not name what we leave out: its extents are removed, and the next load would look for
        # them.
        await committer.commit()

    async def make_room() -> None:
        """Flush only if memory is full: otherwise it can wait until the partition is served."""
        flusher.rotate()
        if store.memory.full or len(store.view.memtables) > store.config.memtables_closed_max + 1:
            await flusher.flush_closed()

    records_replayed = await replay(store, store.log_replay_from, make_room)
    log.info(
        "partition_loaded partition_id=%d manifest=%d tables=%d replayed=%d seq=%d seconds=%.3f",
        *(store.partition_id, committer.number, len(store.view.tables), records_replayed, store.seq),
        store.loop.time() - began_s,
    )


async def _learn_limits(store: Store) -> None:
    """Set the limits of records that others refer to: each is a single block, so one extent contains it."""
    client = store.streams.client
    sizes = [(await client.stream(each.stream_id)).extent_bytes_max for each in (store.log, store.row)]
    limit_bytes = min(client.options.block_payload_bytes_max, *(size - BLOCK_HEADER_BYTES for size in sizes))
    store.record_bytes_max = limit_bytes
    store.part_bytes = min(store.config.part_bytes, limit_bytes - HEADER_BYTES - KEY_BYTES_MAX - VERSION_BYTES)
    if store.part_bytes <= 0 or store.config.block_bytes + 2 * KEY_BYTES_MAX > limit_bytes:
        raise InvalidArgument(what="extent_bytes_max", detail=f"records of {limit_bytes} bytes are too small")


async def _last_manifest(store: Store, committer: Committer) -> records.Manifest | None:
    """Return the newest manifest of the partition in its present form."""
    last: records.Manifest | None = None
    streams = store.streams
    batches = read_to_end(streams.client, streams.meta, None, manifests.MARKER)
    async with aclosing(batches):  # type: ignore[type-var]  # it is a generator
        async for batch in batches:
            for position, payload, _ in batch:
                manifest = manifests.decode(payload)
                if manifest is not None and manifests.counts_after(manifest, store.region.merged_at):
                    last, committer.position = manifest, position
    return last


async def _merged_manifest(store: Store) -> records.Manifest:
    found = []
    for message in store.region.merged_manifests:
        manifest = manifests.decode(await store.meta.read_record(position_of(message)))
        if manifest is None:
            raise Internal(detail=f"partition {store.partition_id}: no manifest at {position_of(message)}")
        found.append(manifest)
    return manifests.unite(found)


async def _open_tables(store: Store, manifest: records.Manifest) -> bool:
    """Open the tables of the partition's own range; a twin's table may be completely outside.

    Returns whether some were left out whose bounds overlap the range although they have no key in it.
    """
    wanted = [clipped for each in manifest.tables if (clipped := clip_entry(each, store.start, store.end)) is not None]
    tables = []
    for at in range(0, len(wanted), TABLES_AT_ONCE):
        tables += await asyncio.gather(
            *(
                open_table(
                    store.row,
                    store.cache,
                    position_of(entry.footer),
                    clip_start=entry.clip_start,
                    clip_end=entry.clip_end,
                )
                for entry in wanted[at : at + TABLES_AT_ONCE]
            )
        )
    ours = tuple(table for table in tables if table.has_range(table.clip_start, table.clip_end))
    store.view = View(store.view.memtables, ours)
    return len(ours) < len(tables)
