"""Plans a scan: which extents, how far, in which slices. Runs where Spark plans a query, once a query.

Invariants: extents, replicas and seals are of one metadata revision, and the end of an open extent is fixed here:
            however often a task is run, it reads the same rows;
            an open extent with an unknown readable end is an error, not an empty extent (scenario T36).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from neve.pipeline.core.filters import Filters
from neve.pipeline.core.slices import ScanExtent, cut, pack
from neve.pipeline.scan import columns, snapshot
from neve.pipeline.scan.connections import Link
from neve.pipeline.scan.metadata_rows import extent_row, replica_row
from neve.pipeline.scan.options import EACH, ScanOptions
from neve.pipeline.scan.partitions import plan_partitions
from neve.pipeline.scan.replica_check import ReplicaToCheck, unread
from neve.pipeline.scan.snapshot import Snapshot
from neve.pipeline.scan.tasks import ScanTask
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NotFound, ReplicaMissing

OPEN_AT_A_TIME = 64
ROWS_PER_TASK = 50_000  # of metadata
OPEN_AND_SILENT = "it is open, and no replica tells how far it may be read"


async def plan_tasks(link: Link, options: ScanOptions, names: tuple[str, ...], filters: Filters) -> list[ScanTask]:
    """The tasks of Spark for a scan with these options, columns and filters."""
    taken = await snapshot.take(link, options)
    for node_id in (options.node_id, options.replica_node_id):
        if node_id and node_id not in taken.state.nodes:
            raise NotFound(kind="node", name=str(node_id), detail=f"at revision {taken.revision}")
    if options.partition_id:
        taken.region(options.partition_id)
    if options.rows == columns.FILES:
        return _file_tasks(taken, options, names)
    if options.rows == columns.ENTRIES:
        plans = await plan_partitions(link, taken, options.partition_id)
        return [ScanTask(options, names, taken.revision, partitions=(e,)) for plan in plans for e in plan.reads]
    chosen = [each for each in choose(taken, options) if filters.admits("extent_id", each[0])]
    if options.rows == columns.EXTENTS:
        ends = {extent.extent_id: extent.end for extent in await fix_ends(link, taken, chosen, options, strict=False)}
        rows = [extent_row(taken, extent_id, ends.get(extent_id)) for extent_id, _ in chosen]
        return [
            ScanTask(options, names, taken.revision, rows=tuple(rows[at : at + ROWS_PER_TASK]))
            for at in range(0, len(rows), ROWS_PER_TASK)
        ]
    extents = await fix_ends(link, taken, chosen, options, strict=options.rows == columns.BLOCKS)
    if options.rows == columns.REPLICAS:
        known = {extent.extent_id for extent in extents}
        silent = [extent_id for extent_id, _ in chosen if options.open_extents and extent_id not in known]
        return list(_replica_tasks(taken, extents, silent, options, names))
    slice_bytes = options.task_bytes(names)
    slices = [
        piece
        for extent in extents
        for node_id in _node_ids(extent, options)
        for piece in cut(extent, slice_bytes=slice_bytes, filters=filters, node_id=node_id)
    ]
    packs = pack(slices, slice_bytes=slice_bytes)
    return [ScanTask(options, names, taken.revision, filters, slices=slices) for slices in packs]


def _file_tasks(taken: Snapshot, options: ScanOptions, names: tuple[str, ...]) -> list[ScanTask]:
    """One for each node that may hold files. One that does not answer fails the scan: T36."""
    return [
        ScanTask(options, names, taken.revision, nodes=((node_id, node.wire_address),))
        for node_id, node in sorted(taken.state.nodes.items())
        if options.node_id in (0, node_id) and node.mode != sm.NODE_MODE_DECOMMISSIONED
    ]


def _replica_tasks(
    taken: Snapshot, extents: list[ScanExtent], silent: list[int], options: ScanOptions, names: tuple[str, ...]
) -> Iterator[ScanTask]:
    """A replica is read by one task: its digest is over all of its bytes, from the first one on.

    `silent`: open extents with an unknown end. Their replicas are rows, too, without a length, and are not read.
    """
    rows: list[dict[str, Any]] = []
    for extent_id in silent:
        info = taken.extent(extent_id)
        unknown = ScanExtent(extent_id, 0, 0, False, b"")
        for each, rack in _replicas(taken, info, options):
            row = replica_row(taken.revision, unknown, info, each, rack)
            rows.append(row | {"length": None} | (unread(OPEN_AND_SILENT) if options.verify else {}))
    checks: list[ReplicaToCheck] = []
    waiting_bytes = 0
    for extent in extents:
        info = extent.message()
        for each, rack in _replicas(taken, info, options):
            node_id = each.replica.node_id
            if not (options.verify and may_be_read(extent, each)):
                rows.append(replica_row(taken.revision, extent, info, each, rack))
            elif checks and waiting_bytes + extent.end > options.task_bytes(names):
                yield ScanTask(options, names, taken.revision, checks=tuple(checks))
                checks, waiting_bytes = [ReplicaToCheck(taken.revision, extent, node_id, rack)], extent.end
            else:
                checks.append(ReplicaToCheck(taken.revision, extent, node_id, rack))
                waiting_bytes += extent.end
    if checks:
        yield ScanTask(options, names, taken.revision, checks=tuple(checks))
    for at in range(0, len(rows), ROWS_PER_TASK):
        yield ScanTask(options, names, taken.revision, rows=tuple(rows[at : at + ROWS_PER_TASK]))


def _replicas(taken: Snapshot, info: sm.ExtentInfo, options: ScanOptions) -> Iterator[tuple[sm.ExtentReplica, str]]:
    """Those that are wanted, each with its node's rack."""
    for each in info.replicas:
        node_id = each.replica.node_id
        if options.replica_node_id in (0, node_id) and options.node_id in (0, node_id):
            node = taken.state.nodes.get(node_id)
            yield each, node.rack if node is not None else ""


def choose(taken: Snapshot, options: ScanOptions) -> Iterator[tuple[int, int]]:
    """(extent id, stream id) of the extents that the options name, in the order of the stream or of their ids."""
    state = taken.state
    if options.partition_id:
        region = taken.region(options.partition_id)
        for stream_id in (region.log_stream_id, region.row_stream_id, region.meta_stream_id):
            yield from ((extent_id, stream_id) for extent_id in taken.stream(stream_id).extent_ids)
        return
    if options.stream:
        stream = taken.stream(options.stream_key)
        yield from ((extent_id, stream.stream_id) for extent_id in stream.extent_ids)
        return
    wanted: Iterable[int] = sorted(state.extents)
    if options.extents:
        missing = [extent_id for extent_id in options.extents if extent_id not in state.extents]
        if missing:
            raise NotFound(kind="extent", name=str(missing[0]), detail=f"at revision {taken.revision}")
        wanted = dict.fromkeys(options.extents)
    elif options.node_id:
        wanted = sorted(state.extents_on(options.node_id))
    yield from ((extent_id, state.extents[extent_id].stream_id) for extent_id in wanted)


async def fix_ends(
    link: Link, taken: Snapshot, chosen: Iterable[tuple[int, int]], options: ScanOptions, *, strict: bool = True
) -> list[ScanExtent]:
    """Each with the end up to which it is read: the seal's, or how far readers may go now.

    An open extent with an unknown end is an error, or omitted without `strict`.
    """
    at_a_time = asyncio.Semaphore(OPEN_AT_A_TIME)

    async def fix(extent_id: int, stream_id: int) -> ScanExtent | None:
        info = taken.extent(extent_id)
        if info.HasField("seal"):
            return ScanExtent(extent_id, stream_id, info.seal.length, True, info.SerializeToString())
        if not options.open_extents:
            return None
        async with at_a_time:
            end = await link.committed(info)
        if end is None and not strict:
            return None
        if end is None:
            detail = f"{OPEN_AND_SILENT}; leave such out with openExtents=false"
            raise ReplicaMissing(extent_id=extent_id, detail=detail)
        return ScanExtent(extent_id, stream_id, end, False, info.SerializeToString())

    found = await asyncio.gather(*(fix(extent_id, stream_id) for extent_id, stream_id in chosen))
    return [extent for extent in found if extent is not None]


def _node_ids(extent: ScanExtent, options: ScanOptions) -> list[int]:
    """The replicas to read; 0 stands for any one of them."""
    wanted = options.replica_node_id
    if options.replica != EACH and not wanted:
        return [0]
    return [
        each.replica.node_id
        for each in extent.message().replicas
        if may_be_read(extent, each) and wanted in (0, each.replica.node_id)
    ]


def may_be_read(extent: ScanExtent, each: sm.ExtentReplica) -> bool:
    """A replica that has not confirmed the seal is not to be read (protocol rule 21)."""
    return each.confirmed or not extent.sealed
