"""The live bytes of each log extent: log entries joined with the tables, by Spark.

Invariants: the newest entry of a key counts, over all tables of its partition and the log behind them; a deleted or
            expired one holds nothing alive;
            live bytes are those of values: headers and keys around them go with the extent;
            every log extent of every partition is accounted for, or it raises (T36).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neve.pipeline.core.gc import LogExtent
from neve.pipeline.scan.partitions import PartitionPlan
from neve.pipeline.scan.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def live_by_extent(entries: DataFrame, now_ms: int) -> dict[tuple[int, int], int]:
    """(partition, log extent) → bytes of values in it that live objects point to."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    # An entry may be both in a table and in the log that is replayed: then the table says where its value is.
    age = F.struct("seq", (~F.col("from_log")).alias("in_table"))
    what = F.struct("deleted", "expires_ms", "part_extents", "part_bytes")
    newest = (
        entries.groupBy("partition_id", "key").agg(F.max_by(what, age).alias("entry")).select("partition_id", "entry.*")
    )
    living = newest.filter(~F.col("deleted") & ((F.col("expires_ms") == 0) | (F.col("expires_ms") > now_ms)))
    parts = living.select("partition_id", F.explode(F.arrays_zip("part_extents", "part_bytes")).alias("part"))
    sums = parts.groupBy("partition_id", F.col("part.part_extents").alias("extent_id")).agg(
        F.sum("part.part_bytes").alias("bytes")
    )
    return {(row["partition_id"], row["extent_id"]): int(row["bytes"]) for row in sums.collect()}


def log_extents(taken: Snapshot, plans: list[PartitionPlan], live: dict[tuple[int, int], int]) -> list[LogExtent]:
    """Every log extent of every partition, with what is live in it and why it may not go."""
    found: list[LogExtent] = []
    for plan in plans:
        partition_id = plan.region.partition_id
        for extent_id in taken.stream(plan.region.log_stream_id).extent_ids:
            extent = taken.state.extents[extent_id]
            pinned = "it is to be replayed" if extent_id in plan.pinned else ""
            length = extent.seal.length if extent.seal is not None else 0
            found.append(
                LogExtent(
                    partition_id,
                    extent_id,
                    extent.eversion,
                    length,
                    min(live.get((partition_id, extent_id), 0), length),
                    len(extent.replicas),
                    extent.created_ms,
                    "it is open" if extent.seal is None else pinned,
                )
            )
    return found
