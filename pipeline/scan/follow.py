"""`spark.readStream.format("neve")`: follows a stream, micro-batch by micro-batch, with an offset for each extent.

    offset := {"extents": {"<extent id>": <bytes read>}}

An extent that is in the stream's list and not in the offset has not been begun; one that has left the list is
forgotten.

Invariants: a micro-batch reads [start, end) of its offsets and nothing else: repeated after a failure, it gives the
            same rows;
            an end is where a block ends: the seal, or how far readers may go (G4);
            an extent is begun when all before it in the list are read to their seal: rows come in the stream's order of
            extents; Spark reads the extents of one micro-batch side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from neve.pipeline.core.filters import Filters
from neve.pipeline.core.follow import advance
from neve.pipeline.core.slices import ScanExtent, Slice, cut, pack
from neve.pipeline.scan import planning, snapshot, tasks, worker
from neve.pipeline.scan.connections import link_for
from neve.pipeline.scan.options import ANY, ScanOptions
from neve.pipeline.scan.tasks import ScanTask
from neve.pipeline.source import ScanPartition, first_attempt
from neve.proto.errors import InvalidArgument, NotFound

Offset = dict[str, Any]


class NeveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, parsed: ScanOptions, names: tuple[str, ...]) -> None:
        if not parsed.stream or parsed.rows != "blocks":
            raise InvalidArgument(what="stream", detail="readStream follows one stream's blocks: name it")
        if parsed.replica != ANY:
            raise InvalidArgument(what="replica", detail="readStream reads any replica")
        if parsed.revision:
            raise InvalidArgument(what="revision", detail="readStream follows the newest")
        self.parsed = parsed
        self.names = names
        self._target: dict[int, int] | None = None  # of Trigger.AvailableNow

    def initialOffset(self) -> Offset:  # noqa: N802  # these names are Spark's
        return _offset({})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self.parsed.bytes_per_trigger
        return ReadMaxBytes(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        _, extents = self._now()
        self._target = {extent.extent_id: extent.end for extent in extents}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        _, extents = self._now()
        done = _ends(start)
        if self._target is not None:
            target = self._target
            extents = [extent for extent in extents if extent.extent_id in target]
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return _offset(advance([(e.extent_id, e.end, e.sealed) for e in extents], done, bytes_max, self._target))

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        _, extents = self._now()
        return _offset({extent.extent_id: extent.end for extent in extents})

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """A batch that is repeated after a restart may be about extents that have been sealed since: same bytes."""
        before, until = _ends(start), _ends(end)
        revision, extents = self._now()
        listed = {extent.extent_id: extent for extent in extents}
        slices: list[Slice] = []
        slice_bytes = self.parsed.task_bytes(self.names)
        for extent_id, stop in until.items():
            begin = before.get(extent_id, 0)
            if stop <= begin:
                continue
            extent = listed.get(extent_id)
            if extent is None or (extent.sealed and extent.end < stop):
                raise NotFound(kind="position", name=f"{extent_id}:{begin}", detail="it has left the stream")
            # An open extent was readable up to there. A node that restarts forgets it until the writer reports it
            # again.
            part = ScanExtent(extent_id, extent.stream_id, stop, extent.sealed, extent.info)
            slices += cut(part, slice_bytes=slice_bytes, filters=Filters(), start=begin)
        packs = pack(slices, slice_bytes=slice_bytes)
        return [ScanPartition(ScanTask(self.parsed, self.names, revision, slices=some)) for some in packs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        worker.settle()
        if partition.value is None:
            return iter(())
        return tasks.read(partition.value, first_attempt=first_attempt())

    def commit(self, end: Offset) -> None:
        """Spark keeps the offsets; nothing is kept here."""

    def stop(self) -> None:
        """The link serves the whole process."""

    def _now(self) -> tuple[int, list[ScanExtent]]:
        """The stream's extents in their order, each with how far it can be read now."""
        link = link_for(self.parsed)

        async def ask() -> tuple[int, list[ScanExtent]]:
            taken = await snapshot.take(link, self.parsed)
            chosen = list(planning.choose(taken, self.parsed))
            return taken.revision, await planning.fix_ends(link, taken, chosen, self.parsed)

        return link.run(ask())


def _offset(ends: dict[int, int]) -> Offset:
    return {"extents": {str(extent_id): end for extent_id, end in ends.items()}}


def _ends(offset: Offset) -> dict[int, int]:
    return {int(extent_id): int(end) for extent_id, end in offset.get("extents", {}).items()}
