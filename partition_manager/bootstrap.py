"""The bootstrap, which creates the first region map: streams for each partition, then all regions in one transaction.

Invariants: a cluster is bootstrapped once: a second bootstrap with the same split keys gets the existing map, one with
            other keys is refused;
            the streams of a failed try are deleted, by that try if it can, otherwise by the next one and after the map
            is created; a label names the term that created a stream, so that a manager that was deposed without
            noticing deletes no stream of its successor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from neve.meta.keys import partition_lock
from neve.partition_manager import core_balance, core_regions
from neve.partition_manager.answers import region_message
from neve.partition_manager.core_regions import Cause, Change, PartitionStreamIds
from neve.partition_manager.region_store import Snapshot
from neve.partition_manager.term import Term
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import AlreadyExists, InvalidArgument, NeveError

log = logging.getLogger(__name__)

KIND_LABEL, TERM_LABEL, ROLE_LABEL = "neve.kind", "neve.term", "neve.role"
KIND = "partition"
ROLES = ("log", "row", "meta")

REGIONS_MAX = 100  # all are created in one transaction
STREAMS_AT_ONCE = 12  # created concurrently


async def bootstrap(term: Term, request: pm.BootstrapRequest, cause: Cause) -> pm.BootstrapReply:
    split_keys = list(request.split_keys)
    core_regions.check_split_keys(split_keys)
    if len(split_keys) >= REGIONS_MAX:
        raise InvalidArgument(what="split_keys", detail=f"{len(split_keys)} keys make more than {REGIONS_MAX} regions")
    async with term.bootstrapping:
        snapshot = await term.regions.fresh()
        if snapshot.map is None:
            snapshot = await _make(term, split_keys, cause)
        elif snapshot.map.call_made(cause.call) is None and snapshot.map.starts[1:] != split_keys:
            raise AlreadyExists(kind="region map", name=f"version {snapshot.map.version}")
    regions = snapshot.made.regions
    return pm.BootstrapReply(regions=[region_message(region, snapshot.servers) for region in regions])


async def _make(term: Term, split_keys: list[bytes], cause: Cause) -> Snapshot:
    await _delete_leftovers(term, keep=set())
    count = len(split_keys) + 1
    first_id = await term.streams.admin.alloc_ids(count)
    partition_ids = range(first_id, first_id + count)
    made: dict[tuple[int, str], int] = {}
    try:
        await _make_streams(term, partition_ids, made)
        regions = [
            core_regions.new_region(
                partition_id, start, end, PartitionStreamIds(*(made[partition_id, role] for role in ROLES))
            )
            for partition_id, start, end in zip(partition_ids, [b"", *split_keys], [*split_keys, b""], strict=True)
        ]

        def decide(snapshot: Snapshot) -> Change:
            if snapshot.map is not None:
                raise AlreadyExists(kind="region map", name=f"version {snapshot.map.version}")
            for partition_id, server_id in core_balance.assign(regions, snapshot.servers, {}).items():
                regions[partition_id - first_id].server_id = server_id
            return core_regions.bootstrap(regions, cause)

        snapshot = await term.regions.commit(decide)
    except NeveError:
        # The map may exist all the same, if this manager did not learn of its commit in time.
        if not await term.regions.was_made(cause):
            await _delete_streams(term, made.values())
        raise
    try:
        await _delete_leftovers(term, keep=set(made.values()))
    except NeveError as error:
        log.warning("bootstrap_leftovers_kept error=%s", error)  # streams without data that nothing refers to
    return snapshot


async def _make_streams(term: Term, partition_ids: range, made: dict[tuple[int, str], int]) -> None:
    room = asyncio.Semaphore(STREAMS_AT_ONCE)

    async def make(partition_id: int, role: str) -> None:
        async with room:
            term.ensure_leading()
            labels = {KIND_LABEL: KIND, ROLE_LABEL: role, TERM_LABEL: str(term.leadership.create_revision)}
            stream = await term.streams.create_stream(lock=partition_lock(partition_id), labels=labels)
            made[partition_id, role] = stream.id

    tasks = [asyncio.ensure_future(make(number, role)) for number in partition_ids for role in ROLES]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _delete_leftovers(term: Term, *, keep: set[int]) -> None:
    """Delete the streams of earlier tries, of this term or an earlier one.

    The map is read after the list of streams, so it has every listed stream that belongs to a partition.
    """
    found = [
        stream.id
        async for stream in term.streams.streams({KIND_LABEL: KIND})
        if int(stream.labels.get(TERM_LABEL, "0")) <= term.leadership.create_revision and stream.id not in keep
    ]
    if not found:
        return
    snapshot = await term.regions.fresh()
    used = {
        number
        for region in (snapshot.map.regions if snapshot.map is not None else ())
        for number in (region.log_stream_id, region.row_stream_id, region.meta_stream_id)
    }
    await _delete_streams(term, [number for number in found if number not in used])


async def _delete_streams(term: Term, stream_ids: Iterable[int]) -> None:
    for stream_id in list(stream_ids):
        term.ensure_leading()
        try:
            await term.streams.delete(stream_id)
            log.info("bootstrap_leftover_deleted stream_id=%d", stream_id)
        except NeveError as error:
            log.warning("bootstrap_leftover_kept stream_id=%d error=%s", stream_id, error)
