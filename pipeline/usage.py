"""`python -m neve.pipeline.usage`: space usage: bytes, blocks, live ratio, replicas; by stream, partition, node, rack
and age.

Invariants: all figures are of one metadata revision;
            bytes of a stream or partition are of one copy, bytes of a node or rack are of the replicas there;
            live is what a stream refers to; of a partition's log, the values that live objects point to, and all of
            what is still to be replayed;
            extents that two streams share (after a split) count for each of them, and once in the total;
            what is not known (blocks of an extent that could not be counted) is shown as unknown, not as 0.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neve.client.command.failures import DONE
from neve.client.command.tables import human_bytes, print_json, print_table
from neve.pipeline import picture
from neve.pipeline.core.gc import LogExtent
from neve.pipeline.jobs import JobContext, job_parser, read_whole, run_job
from neve.pipeline.live_bytes import live_by_extent, log_extents
from neve.pipeline.scan import snapshot
from neve.pipeline.scan.connections import Link, link_for
from neve.pipeline.scan.partitions import PartitionPlan, plan_partitions
from neve.pipeline.scan.snapshot import Snapshot
from neve.proto import stream_manager_pb2 as sm
from neve.rpc.entry import enter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOUR_MS = 3600 * 1000
AGES = ((HOUR_MS, "below 1 h"), (24 * HOUR_MS, "below 1 d"), (7 * 24 * HOUR_MS, "below 7 d"))
OLDEST = "older"
TOP = 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = job_parser("usage", "Space usage by stream, node, rack and age: a table, Parquet and a picture.")
    parser.add_argument("--output", metavar="FOLDER", default="", help="write a row for each extent there, as Parquet")
    parser.add_argument("--picture", metavar="PNG", type=Path, default=None, help="draw live ratio and capacity")
    parser.add_argument("--no-blocks", action="store_true", help="do not count blocks: metadata alone is read")
    return run_job("usage", parser, arguments, usage)


def usage(context: JobContext) -> int:
    args = context.args
    report = read_whole(context, lambda: measure(context))
    if args.picture is not None:
        picture.draw(report, args.picture)
    if args.json:
        print_json(report)
    else:
        show(report)
        if args.picture is not None:
            print(f"picture: {args.picture}")
    return DONE


def measure(context: JobContext) -> dict[str, Any]:
    """All of it at one metadata revision; writes the rows of --output, if they are wanted."""
    args = context.args
    context.progress.step("reading metadata")
    link = link_for(context.options)
    taken, nodes = link.run(_cluster(link, context))
    logs = link.run(_plan(link, taken))
    log_live = _live(context, taken, logs)
    extents = with_live(context, with_blocks(context, taken.revision, count=not args.no_blocks), log_live).persist()
    try:
        if args.output:
            extents.write.mode("overwrite").parquet(args.output)
        context.progress.step("adding up")
        report: dict[str, Any] = add_up(extents, taken, nodes)
        report["partitions"] = partitions(taken, logs, log_live)
        return report
    finally:
        extents.unpersist()


async def _cluster(link: Link, context: JobContext) -> tuple[Snapshot, list[sm.NodeRecord]]:
    """The snapshot that all is counted at, and the nodes with what the leader knows of their disks now."""
    taken = await snapshot.take(link, context.options)
    return taken, list(await link.admin.nodes())


async def _plan(link: Link, taken: Snapshot) -> list[PartitionPlan]:
    return await plan_partitions(link, taken)


def _live(context: JobContext, taken: Snapshot, plans: Sequence[PartitionPlan]) -> list[LogExtent]:
    """The log extents of all partitions, with what of them is live."""
    if not plans:
        return []
    context.progress.step("reading tables and logs")
    entries = context.load(rows="entries", revision=taken.revision)
    return log_extents(taken, list(plans), live_by_extent(entries, int(time.time() * 1000)))


def with_live(context: JobContext, extents: DataFrame, logs: Sequence[LogExtent]) -> DataFrame:
    """`live_bytes` of each extent."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    referred = F.when(F.size("stream_ids") > 0, F.col("length")).otherwise(0)
    live: dict[int, int] = {}
    for log in logs:  # one that two partitions share holds what either needs
        live[log.extent_id] = min(
            log.length, live.get(log.extent_id, 0) + (log.length if log.pinned else log.live_bytes)
        )
    known = [(log.extent_id, live[log.extent_id]) for log in logs if log.length]
    if not known:
        return extents.withColumn("live_bytes", referred)
    table = context.spark.createDataFrame(sorted(set(known)), "extent_id long, log_live long")
    joined = extents.join(F.broadcast(table), "extent_id", "left")
    return joined.withColumn("live_bytes", F.coalesce("log_live", referred)).drop("log_live")


def partitions(taken: Snapshot, plans: Sequence[PartitionPlan], logs: Sequence[LogExtent]) -> list[dict[str, Any]]:
    """The contents of each partition's three streams. An open extent counts once it is sealed."""
    rows = []
    for plan in plans:
        region = plan.region
        own = [log for log in logs if log.partition_id == region.partition_id]
        log_bytes = sum(log.length for log in own)
        log_live = sum(log.length if log.pinned else log.live_bytes for log in own)
        others = [
            taken.state.extents[extent_id]
            for stream_id in (region.row_stream_id, region.meta_stream_id)
            for extent_id in taken.stream(stream_id).extent_ids
        ]
        table_bytes = sum(extent.seal.length for extent in others if extent.seal is not None)
        size_bytes = log_bytes + table_bytes
        rows.append(
            {
                "partition_id": region.partition_id,
                "start": region.start.decode("utf-8", "backslashreplace"),
                "end": region.end.decode("utf-8", "backslashreplace"),
                "extents": len(own) + len(others),
                "bytes": size_bytes,
                "log_bytes": log_bytes,
                "table_bytes": table_bytes,
                "live_bytes": log_live + table_bytes,
                "live_ratio": round((log_live + table_bytes) / size_bytes, 4) if size_bytes else None,
            }
        )
    return sorted(rows, key=lambda row: -row["bytes"])


def with_blocks(context: JobContext, revision: int, *, count: bool) -> DataFrame:
    """A row for each extent, with its number of blocks."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    extents = context.load(rows="extents", revision=revision)
    if not count:
        return extents.withColumn("blocks", F.lit(None).cast("long"))
    context.progress.step("counting blocks")
    blocks = context.load(rows="blocks", revision=revision, columns="extent_id,length")
    counted = blocks.groupBy("extent_id").agg(F.count("*").alias("blocks"), F.sum("length").alias("payload_bytes"))
    # Every extent was scanned: one without a row has no block.
    return extents.join(counted, "extent_id", "left").fillna(0, ["blocks", "payload_bytes"])


def add_up(extents: DataFrame, taken: Snapshot, nodes: Sequence[sm.NodeRecord]) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: N812

    now_ms = int(time.time() * 1000)
    replicas = F.size("node_ids")
    sums = (
        F.count("*").alias("extents"),
        F.sum("length").alias("bytes"),
        F.sum("blocks").alias("blocks"),
        F.sum("live_bytes").alias("live_bytes"),
        F.sum(replicas).alias("replicas"),
        F.sum(F.col("length") * replicas).alias("stored_bytes"),
    )
    age = F.lit(OLDEST)
    for limit_ms, words in reversed(AGES):
        age = F.when(now_ms - F.col("created_ms") < limit_ms, words).otherwise(age)
    by_age = extents.withColumn("age", age).groupBy("age").agg(*sums)
    by_stream = extents.select("*", F.explode_outer("stream_ids").alias("of")).groupBy("of").agg(*sums)
    by_node = extents.select("*", F.explode("node_ids").alias("on")).groupBy("on").agg(*sums)
    names = {stream.stream_id: stream.name for stream in taken.state.streams.values()}
    racks = {node.node_id: node.location.rack for node in nodes}
    rows_of_nodes = [_figures(row, node_id=row["on"], rack=racks.get(row["on"], "")) for row in by_node.collect()]
    return {
        "revision": taken.revision,
        "total": _figures(extents.agg(*sums).collect()[0]),
        "streams": sorted(
            (_figures(row, stream_id=row["of"] or 0, name=names.get(row["of"], "")) for row in by_stream.collect()),
            key=lambda row: -row["bytes"],
        ),
        "nodes": [_node(node, rows_of_nodes) for node in sorted(nodes, key=lambda node: node.node_id)],
        "racks": _racks(rows_of_nodes),
        "ages": [_figures(row, age=row["age"]) for row in by_age.collect()],
    }


def _figures(row: Any, **named: Any) -> dict[str, Any]:
    size_bytes, live = row["bytes"] or 0, row["live_bytes"] or 0
    return {
        **named,
        "extents": row["extents"],
        "bytes": size_bytes,
        "blocks": row["blocks"],
        "live_bytes": live,
        "live_ratio": round(live / size_bytes, 4) if size_bytes else None,
        "replicas": row["replicas"] or 0,
        "stored_bytes": row["stored_bytes"] or 0,
    }


def _node(node: sm.NodeRecord, figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = next((row for row in figures if row["node_id"] == node.node_id), None)
    return {
        "node_id": node.node_id,
        "address": node.wire_address,
        "rack": node.location.rack,
        "health": sm.NodeHealth.Name(node.health).removeprefix("NODE_HEALTH_").lower(),
        "capacity_bytes": sum(disk.capacity_bytes for disk in node.disks),
        "free_bytes": sum(disk.free_bytes for disk in node.disks),
        "replicas": found["extents"] if found else 0,
        "bytes": found["bytes"] if found else 0,
        "live_bytes": found["live_bytes"] if found else 0,
        "live_ratio": found["live_ratio"] if found else None,
    }


def _racks(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    racks: dict[str, dict[str, Any]] = {}
    for row in figures:
        rack = racks.setdefault(row["rack"], {"rack": row["rack"], "nodes": 0, "replicas": 0, "bytes": 0})
        rack["nodes"] += 1
        rack["replicas"] += row["extents"]
        rack["bytes"] += row["bytes"]
    return [racks[name] for name in sorted(racks)]


def show(report: dict[str, Any]) -> None:
    total = report["total"]
    blocks = "" if total["blocks"] is None else f"{total['blocks']:,} blocks, "
    print(
        f"at revision {report['revision']}: {total['extents']:,} extents, {blocks}"
        f"{human_bytes(total['bytes'])} of data, {human_bytes(total['stored_bytes'])} in {total['replicas']:,} replicas"
    )
    print_table(
        ("stream", "name", "extents", "blocks", "bytes", "live", "stored"),
        [
            (
                s["stream_id"] or "none",
                s["name"],
                s["extents"],
                s["blocks"],
                human_bytes(s["bytes"]),
                _share(s),
                human_bytes(s["stored_bytes"]),
            )
            for s in report["streams"][:TOP]
        ],
        title="streams",
    )
    if len(report["streams"]) > TOP:
        print(f"… and {len(report['streams']) - TOP} more; --json has all")
    if report["partitions"]:
        print_table(
            ("partition", "from", "to", "extents", "bytes", "log", "tables", "live"),
            [
                (
                    p["partition_id"],
                    p["start"],
                    p["end"],
                    p["extents"],
                    human_bytes(p["bytes"]),
                    human_bytes(p["log_bytes"]),
                    human_bytes(p["table_bytes"]),
                    _share(p),
                )
                for p in report["partitions"][:TOP]
            ],
            title="partitions",
        )
    print_table(
        ("node", "rack", "health", "replicas", "bytes", "live", "capacity", "free"),
        [
            (
                n["node_id"],
                n["rack"],
                n["health"],
                n["replicas"],
                human_bytes(n["bytes"]),
                _share(n),
                human_bytes(n["capacity_bytes"]),
                human_bytes(n["free_bytes"]),
            )
            for n in report["nodes"]
        ],
        title="nodes",
    )
    print_table(
        ("rack", "nodes", "replicas", "bytes"),
        [(r["rack"], r["nodes"], r["replicas"], human_bytes(r["bytes"])) for r in report["racks"]],
        title="racks",
    )
    print_table(
        ("age", "extents", "bytes", "live"),
        [(a["age"], a["extents"], human_bytes(a["bytes"]), _share(a)) for a in report["ages"]],
        title="ages",
    )


def _share(row: dict[str, Any]) -> str:
    return "" if row["live_ratio"] is None else f"{row['live_ratio']:.0%}"


if __name__ == "__main__":
    sys.exit(enter("python -m neve.pipeline.usage", "neve.pipeline.usage"))
