"""One task of a scan: what it has to read, and reading it. Runs in Spark's workers, on any machine.

Invariants: a task is plain values and the same rows come of it however often it is run (T38);
            an error is raised, never passed over: an incomplete scan must not look like a complete one (T36).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from neve.pipeline.core.filters import Filters
from neve.pipeline.core.slices import Slice
from neve.pipeline.scan import columns, replica_check
from neve.pipeline.scan.batches import BlockBatches, batches_of
from neve.pipeline.scan.block_runs import SliceReader, Wanted
from neve.pipeline.scan.columns import KEY_COLUMNS
from neve.pipeline.scan.connections import link_for
from neve.pipeline.scan.local_files import disks_for
from neve.pipeline.scan.metadata_rows import file_rows
from neve.pipeline.scan.options import ScanOptions
from neve.pipeline.scan.partitions import PartitionToRead, entry_rows
from neve.pipeline.scan.replica_check import ReplicaToCheck


@dataclass(frozen=True, slots=True)
class ScanTask:
    options: ScanOptions
    names: tuple[str, ...]  # of the columns
    revision: int
    filters: Filters = Filters()  # noqa: RUF009  # frozen
    slices: tuple[Slice, ...] = ()  # rows=blocks
    rows: tuple[dict[str, Any], ...] = ()  # rows=extents, and replicas that need not be read
    checks: tuple[ReplicaToCheck, ...] = ()  # replicas to read
    nodes: tuple[tuple[int, str], ...] = ()  # rows=files: ids and addresses
    partitions: tuple[PartitionToRead, ...] = ()  # rows=entries


def read(task: ScanTask, *, first_attempt: bool = True) -> Iterator[pa.RecordBatch]:
    kind = task.options.rows
    if kind == columns.BLOCKS:
        yield from _read_blocks(task, first_attempt=first_attempt)
        return
    yield from batches_of(kind, task.names, task.rows)
    for node_id, address in task.nodes:
        yield from batches_of(kind, task.names, file_rows(link_for(task.options), task.revision, node_id, address))
    for each in task.partitions:
        yield from batches_of(kind, task.names, entry_rows(link_for(task.options), task.revision, each))
    if task.checks:
        link, disks = link_for(task.options), disks_for(task.options.disks, task.options.cluster)
        verdicts = (replica_check.check(link, disks, each) for each in task.checks)
        yield from batches_of(kind, task.names, verdicts)


def _read_blocks(task: ScanTask, *, first_attempt: bool) -> Iterator[pa.RecordBatch]:
    options = task.options
    wanted = Wanted(
        crc="crc_ok" in task.names,
        payload=not {"payload", *KEY_COLUMNS}.isdisjoint(task.names),
        batch_rows=options.batch_rows,
        batch_bytes=options.batch_bytes,
        filters=task.filters,
    )
    reader = SliceReader(
        link_for(options), disks_for(options.disks, options.cluster), wanted, first_attempt=first_attempt
    )
    batches = BlockBatches(task.names, task.revision)
    for piece in task.slices:
        for run in reader.runs(piece):
            if len(run.offsets):
                yield batches.batch(piece, run)
