"""`python -m neve.pipeline.gc`: plans the deletion of unneeded data; with --apply, asks the owners to delete it.

    extents that no stream refers to, files that metadata does not list, log extents in which little is live

Invariants: Spark proposes and the owners decide: the manager and the partition servers check each proposal again, by
            what stands then, in a transaction (T37);
            a run that could not see everything, for whatever reason, proposes nothing, writes no plan and exits with 1
            (T36);
            running it twice, or two at a time, does no more than once (T38).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from neve.client.command.failures import DONE, FAILED, CommandFailed
from neve.client.command.options import duration_s
from neve.client.command.tables import human_bytes, print_json, print_table
from neve.pipeline.core import gc as core_gc
from neve.pipeline.core.gc import Evidence, LogExtent, Plan, PlanRow, Policy, UnlistedFile, UnreferencedExtent
from neve.pipeline.jobs import JobContext, job_parser, read_whole, run_job
from neve.pipeline.live_bytes import live_by_extent, log_extents
from neve.pipeline.scan import snapshot
from neve.pipeline.scan.connections import Link, link_for
from neve.pipeline.scan.partitions import PartitionPlan, plan_partitions
from neve.pipeline.scan.snapshot import Snapshot
from neve.proto import methods
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import NeveError, NotFound
from neve.rpc.entry import enter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PROPOSED_AT_A_TIME = 1_000  # extents in one call to the manager, as it takes them
RECLAIM_TIMEOUT_S = 1800.0  # live values are read and written again
SHOWN_MAX = 40
CANDIDATES_MAX = 1_000_000  # that a plan holds: more is not garbage, it is a mistake


def main(arguments: Sequence[str] | None = None) -> int:
    parser = job_parser("gc", "Find data that is no longer needed, and with --apply have its owners delete it.")
    parser.add_argument("--apply", action="store_true", help="carry the plan out; without it nothing is changed")
    parser.add_argument("--output", metavar="FOLDER", default="", help="write the plan there, as Parquet")
    grace = "nothing younger is proposed (default: 24h); the manager has a grace period of its own, too"
    parser.add_argument("--grace", type=duration_s, default=24 * 3600.0, metavar="DURATION", help=grace)
    share = "log extents with at most this share of live bytes are reclaimed (default: 0.5)"
    parser.add_argument("--live-share", type=_share, default=0.5, metavar="0..1", help=share)
    return run_job("gc", parser, arguments, collect_garbage)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def collect_garbage(context: JobContext) -> int:
    args = context.args
    evidence = read_whole(context, lambda: gather(context))
    plan = core_gc.make_plan(evidence, Policy(grace_ms=int(args.grace * 1000), live_share_max=args.live_share))
    if plan.refused:
        raise CommandFailed("nothing is proposed, because not everything could be seen: " + "; ".join(plan.refused))
    if args.output:
        write_plan(context, plan, args.output)
    applied: dict[str, Any] = {}
    if args.apply:
        context.progress.step("applying")
        link = link_for(context.options)
        applied = link.run(apply(link, plan))
    show(plan, applied, args)
    return FAILED if applied.get("failed") else DONE


# --- gathering -----------------------------------------------------------------------------------------------


def gather(context: JobContext) -> Evidence:
    """All of it at one metadata revision. Whatever fails raises, and no plan is made."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    seen_ms = int(time.time() * 1000)
    context.progress.step("reading metadata")
    extents = context.load(rows="extents").persist()
    try:
        first = extents.agg(F.max("revision"), F.min("revision"), F.count("*")).collect()[0]
        if first[2] == 0:
            raise CommandFailed("the cluster has no extents: there is nothing to collect")
        revision = int(first[0])
        if first[0] != first[1]:
            raise CommandFailed(f"metadata of revisions {first[1]} and {first[0]}: nothing is proposed")
        unreferenced = [
            UnreferencedExtent(
                row["extent_id"],
                row["eversion"],
                (row["length"] or 0) * len(row["node_ids"]),
                row["created_ms"],
                row["changed_revision"],
            )
            for row in _bounded(extents.filter("size(stream_ids) = 0"))
        ]
        context.progress.step("listing files")
        unlisted = _unlisted_files(context.load(rows="files", revision=revision), extents)
    finally:
        extents.unpersist()
    return Evidence(revision, seen_ms, unreferenced, unlisted, _log_extents(context, revision, seen_ms))


def _log_extents(context: JobContext, revision: int, seen_ms: int) -> list[LogExtent]:
    """The live bytes in the partitions' logs; nothing if there are no partitions."""
    link = link_for(context.options)
    at_revision = replace(context.options, revision=revision)

    async def plan() -> tuple[Snapshot, list[PartitionPlan]]:
        taken = await snapshot.take(link, at_revision)
        return taken, await plan_partitions(link, taken)

    taken, plans = link.run(plan())
    if not plans:
        return []
    context.progress.step("reading tables and logs")
    live = live_by_extent(context.load(rows="entries", revision=revision), seen_ms)
    return log_extents(taken, plans, live)


def _unlisted_files(files: DataFrame, extents: DataFrame) -> list[UnlistedFile]:
    from pyspark.sql import functions as F  # noqa: N812

    listed = extents.select("extent_id", F.explode("node_ids").alias("node_id"))
    known = extents.select("extent_id", F.lit(True).alias("known"))
    odd = files.join(listed, ["extent_id", "node_id"], "left_anti").join(known, "extent_id", "left")
    return [
        UnlistedFile(
            row["extent_id"],
            row["node_id"],
            int(row["incarnation"], 16),
            row["length"] or 0,
            row["created_ms"],
            bool(row["known"]),
        )
        for row in _bounded(odd)
    ]


def _bounded(frame: DataFrame) -> list[Any]:
    rows = frame.limit(CANDIDATES_MAX + 1).collect()
    if len(rows) > CANDIDATES_MAX:
        raise CommandFailed(f"more than {CANDIDATES_MAX:,} candidates: that is no garbage; nothing is proposed")
    return rows


# --- the plan ------------------------------------------------------------------------------------------------


PLAN_SCHEMA = (
    "revision long, action string, extent_id long, eversion long, node_id long, incarnation string, partition_id long, "
    "size_bytes long, live_bytes long, reason string"
)


def write_plan(context: JobContext, plan: Plan, folder: str) -> None:
    rows = [
        (
            plan.revision,
            r.action,
            r.extent_id,
            r.eversion,
            r.node_id,
            f"{r.incarnation:016x}",
            r.partition_id,
            r.size_bytes,
            r.live_bytes,
            r.reason,
        )
        for r in plan.rows
    ]
    context.spark.createDataFrame(rows, PLAN_SCHEMA).coalesce(1).write.mode("overwrite").parquet(folder)


async def apply(link: Link, plan: Plan) -> dict[str, Any]:
    """Ask the owners, who decide what to keep. A failed call is reported and does no harm."""
    proposals = [(row.extent_id, row.eversion) for row in plan.rows_for(core_gc.DELETE)]
    deleted: list[int] = []
    kept: list[int] = []
    failed: list[str] = []
    for start in range(0, len(proposals), PROPOSED_AT_A_TIME):
        some = proposals[start : start + PROPOSED_AT_A_TIME]
        try:
            reply = await link.admin.delete_extents(some, revision=plan.revision)
        except NeveError as error:
            failed.append(f"{len(some)} extents from {some[0][0]} on were proposed: {error}")
            continue
        deleted += reply.deleted
        kept += reply.kept
    reclaimed: list[dict[str, Any]] = []
    servers = await _servers(link) if plan.rows_for(core_gc.RECLAIM) else {}
    for partition_id, rows in _by_partition(plan.rows_for(core_gc.RECLAIM)).items():
        try:
            done = await _reclaim(link, servers, partition_id, rows)
        except NeveError as error:
            failed.append(f"partition {partition_id}: {error}")
            continue
        reclaimed.append(
            {
                "partition_id": partition_id,
                "punched": sorted(done.punched),
                "kept": sorted(done.kept),
                "moved_bytes": done.moved_bytes,
            }
        )
    return {"deleted": sorted(deleted), "kept": sorted(kept), "reclaimed": reclaimed, "failed": failed}


def _by_partition(rows: Sequence[PlanRow]) -> dict[int, list[PlanRow]]:
    grouped: dict[int, list[PlanRow]] = {}
    for row in rows:
        grouped.setdefault(row.partition_id, []).append(row)
    return grouped


async def _servers(link: Link) -> dict[int, str]:
    """The present server of each partition, which may have moved since the plan was made."""
    taken = await snapshot.take(link, link.options)
    addresses = {server_id: stored.record.wire_address for server_id, stored in taken.regions.servers.items()}
    return {
        partition_id: addresses.get(stored.record.server_id, "")
        for partition_id, stored in taken.regions.regions.items()
    }


async def _reclaim(
    link: Link, servers: dict[int, str], partition_id: int, rows: Sequence[PlanRow]
) -> ps.ReclaimLogExtentsReply:
    address = servers.get(partition_id, "")
    if not address:
        raise NotFound(kind="partition", name=str(partition_id), detail="nobody serves it now")
    request = ps.ReclaimLogExtentsRequest(
        call=link.managers.next_call(), partition_id=partition_id, extent_ids=[row.extent_id for row in rows]
    )
    method = methods.PARTITION_SERVER_RECLAIM_LOG_EXTENTS
    return (await link.ask_node(address, method, request, timeout_s=RECLAIM_TIMEOUT_S))[0]


def show(plan: Plan, applied: dict[str, Any], args: argparse.Namespace) -> None:
    counts = Counter(row.action for row in plan.rows)
    sizes: Counter[str] = Counter()
    for row in plan.rows:
        sizes[row.action] += row.size_bytes
    if args.json:
        print_json({"revision": plan.revision, "rows": [_plain(row) for row in plan.rows], "applied": applied or None})
        return
    print(f"at revision {plan.revision}:")
    words = {
        core_gc.DELETE: "extents that no stream refers to",
        core_gc.COLLECT: "files that metadata does not list; the manager collects them by itself",
        core_gc.RECLAIM: "log extents to reclaim",
        core_gc.KEEP: "would be, but for their reasons",
    }
    print_table(
        ("", "how many", "bytes", ""),
        [(action, counts[action], human_bytes(sizes[action]), text) for action, text in words.items()],
    )
    columns = ("", "extent", "node", "partition", "bytes", "live", "why")
    shown = [
        (r.action, r.extent_id, r.node_id or "", r.partition_id or "", r.size_bytes, r.live_bytes, r.reason)
        for r in plan.rows[:SHOWN_MAX]
    ]
    if shown:
        print_table(columns, shown)
    if len(plan.rows) > SHOWN_MAX:
        print(f"… and {len(plan.rows) - SHOWN_MAX} more; --json or --output has all")
    if applied:
        print(f"applied: {len(applied['deleted'])} extents deleted, {len(applied['kept'])} kept by the manager")
        for each in applied["reclaimed"]:
            print(
                f"partition {each['partition_id']}: {len(each['punched'])} log extents reclaimed, "
                f"{len(each['kept'])} kept, {human_bytes(each['moved_bytes'])} moved"
            )
        for sentence in applied["failed"]:
            print(f"failed: {sentence}")
    elif counts[core_gc.DELETE] or counts[core_gc.RECLAIM]:
        print("nothing was changed: --apply does it")


def _plain(row: PlanRow) -> dict[str, Any]:
    return {**asdict(row), "incarnation": f"{row.incarnation:016x}"}


if __name__ == "__main__":
    sys.exit(enter("python -m neve.pipeline.gc", "neve.pipeline.gc"))
