"""`python -m neve.pipeline.scrub`: reads every replica of every extent and reports the bad ones.

    block CRCs, the digest of the whole, equality of all replicas; bad ones are reported to the manager, who has them
    made anew, and with --wait the job waits for that and reads them again

Invariants: a replica is called bad when it was seen twice, and metadata still lists it after the scan;
            only what is bad is reported; what could not be read is listed apart, and the exit code is 1;
            reports are suspicions: the manager asks the node, or has every byte verified, before anything changes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from neve.client.command.failures import DONE, FAILED
from neve.client.command.options import duration_s
from neve.client.command.tables import human_bytes, print_json, print_table
from neve.pipeline.core import scrub as core_scrub
from neve.pipeline.core.scrub import ReplicaVerdict, Summary
from neve.pipeline.jobs import JobContext, job_parser, run_job
from neve.pipeline.scan.connections import Link, link_for
from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.rpc.entry import enter

EXTENTS_AT_A_TIME = 500
REPORTS_AT_A_TIME = 200
POLL_S = 1.0
SHOWN_MAX = 50


def main(arguments: Sequence[str] | None = None) -> int:
    parser = job_parser("scrub", "Read every replica of every extent, compare them, and have the bad ones made anew.")
    parser.add_argument("--node", type=int, default=0, help="only this node's replicas")
    parser.add_argument("--stream", default="", help="only this stream's extents (id or name)")
    parser.add_argument("--dry-run", action="store_true", help="report nothing to the manager")
    parser.add_argument("--output", metavar="FOLDER", default="", help="write a row for each replica there, as Parquet")
    wait = "for bad replicas to be made anew, and read them again"
    parser.add_argument("--wait", type=duration_s, default=0.0, metavar="SECONDS", help=wait)
    return run_job("scrub", parser, arguments, scrub)


def scrub(context: JobContext) -> int:
    args = context.args
    context.progress.step("reading replicas")
    said = {"node": args.node, "stream": args.stream}
    chosen = {name: value for name, value in said.items() if value}  # both are refused, as of every scan
    frame = context.load(rows="replicas", verify="true", **chosen)
    if args.output:
        frame.write.mode("overwrite").parquet(args.output)
        frame = context.spark.read.parquet(args.output)
    link = link_for(context.options)
    summary = link.run(judge(link, *_read(frame)))
    reported = 0
    if summary.bad and not args.dry_run:
        context.progress.step("telling the manager")
        reported = link.run(report(link, summary.bad))
    left = summary.bad
    if summary.bad and args.wait and not args.dry_run:
        context.progress.step("waiting for recovery")
        left = wait_and_check(context, link, summary.bad)
    show(summary, reported=reported, left=left if args.wait else None, args=args)
    unsure = summary.unread or summary.undecided or summary.unconfirmed
    sound = not (unsure or (left if args.wait else summary.bad))
    return DONE if sound else FAILED


def _read(frame: Any) -> tuple[Summary, list[ReplicaVerdict], list[int]]:
    """Totals of all replicas, the rows of the extents with something to say, and the extents that have no replica to be
    read: the others need not leave Spark."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    frame = frame.persist()
    checked = frame.filter("verdict IS NOT NULL")
    try:
        unseen = frame.groupBy("extent_id").agg(F.count("verdict").alias("seen")).filter("seen = 0").collect()
        totals = checked.agg(
            F.count("*").alias("replicas"),
            F.countDistinct("extent_id").alias("extents"),
            F.sum("blocks").alias("blocks"),
            F.sum("bytes_read").alias("bytes_read"),
        ).collect()[0]
        spoken = checked.groupBy("extent_id").agg(
            F.max(F.expr("verdict != 'ok' OR problem IS NOT NULL")).alias("something"),
            F.countDistinct("digest").alias("digests"),
        )
        wanted = spoken.filter("something OR digests > 1").select("extent_id")
        rows = checked.join(wanted, "extent_id", "left_semi").collect()
    finally:
        frame.unpersist()
    summary = Summary(
        replicas=totals["replicas"],
        extents=totals["extents"],
        blocks=totals["blocks"] or 0,
        bytes_read=totals["bytes_read"] or 0,
    )
    return summary, [verdict_of(row) for row in rows], sorted(row["extent_id"] for row in unseen)


def verdict_of(row: Any) -> ReplicaVerdict:
    return ReplicaVerdict(
        extent_id=row["extent_id"],
        node_id=row["node_id"],
        incarnation=int(row["incarnation"], 16),
        sealed=row["sealed"],
        verdict=row["verdict"],
        offset=row["problem_offset"] or 0,
        problem=row["problem"] or "",
        digest=bytes(row["digest"] or b""),
        blocks=row["blocks"] or 0,
        bytes_read=row["bytes_read"] or 0,
    )


async def judge(
    link: Link, summary: Summary, verdicts: Sequence[ReplicaVerdict], unseen: Sequence[int] = ()
) -> Summary:
    """The result with the replicas compared, by the present metadata. `unseen`: extents without a readable replica."""
    judged = core_scrub.compare(verdicts)
    doubtful = sorted({each.extent_id for each in judged if each.verdict != core_scrub.OK})
    listed = {
        info.extent_id: {each.replica.node_id: each.replica.incarnation for each in info.replicas}
        for info in await _describe(link, doubtful)
    }
    core_scrub.sort_out(summary, core_scrub.drop_stale(judged, listed))
    # One that was sealed a moment ago is confirmed by now: the next scrub reads it.
    summary.unconfirmed = [
        info.extent_id
        for info in await _describe(link, unseen)
        if info.replicas and not any(each.confirmed for each in info.replicas)
    ]
    return summary


async def _describe(link: Link, extent_ids: Sequence[int]) -> list[sm.ExtentInfo]:
    found: list[sm.ExtentInfo] = []
    for start in range(0, len(extent_ids), EXTENTS_AT_A_TIME):
        found += await link.admin.describe_extents(extent_ids[start : start + EXTENTS_AT_A_TIME])
    return found


async def report(link: Link, bad: Sequence[ReplicaVerdict]) -> int:
    messages = [
        sm.BadReplica(
            extent_id=each.extent_id,
            replica=common_pb2.Replica(node_id=each.node_id, incarnation=each.incarnation),
            offset=each.offset,
            reason=each.problem,
            reporter="scrub job",
        )
        for each in bad
    ]
    for start in range(0, len(messages), REPORTS_AT_A_TIME):
        request = sm.ReportBadReplicaRequest(bad_replicas=messages[start : start + REPORTS_AT_A_TIME])
        await link.managers.order(methods.STREAM_MANAGER_REPORT_BAD_REPLICA, request)
    return len(messages)


def wait_and_check(context: JobContext, link: Link, bad: Sequence[ReplicaVerdict]) -> list[ReplicaVerdict]:
    """Until the extents are as they should be, all replicas confirmed and read again; what is still bad then."""
    extent_ids = sorted({each.extent_id for each in bad})
    waiting = link.run(_until_confirmed(link, extent_ids, bad, context.args.wait))
    there = [info.extent_id for info in link.run(_describe(link, extent_ids))]
    if not there:
        return waiting  # all were deleted meanwhile
    frame = context.load(rows="replicas", verify="true", extents=",".join(map(str, there)))
    again = link.run(judge(link, *_read(frame)))
    return [*again.bad, *again.unread, *waiting]


async def _until_confirmed(
    link: Link, extent_ids: Sequence[int], bad: Iterable[ReplicaVerdict], timeout_s: float
) -> list[ReplicaVerdict]:
    """Those that were not made anew in time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    old = {(each.extent_id, each.node_id, each.incarnation) for each in bad}
    while True:
        waiting = [
            ReplicaVerdict(info.extent_id, each.replica.node_id, each.replica.incarnation, True, core_scrub.BAD)
            for info in await _describe(link, extent_ids)
            for each in info.replicas
            if (info.extent_id, each.replica.node_id, each.replica.incarnation) in old
            or (info.HasField("seal") and not each.confirmed)
        ]
        if not waiting or loop.time() >= deadline_s:
            return [replace(each, problem="it is not made anew yet") for each in waiting]
        await asyncio.sleep(POLL_S)


def show(summary: Summary, *, reported: int, left: list[ReplicaVerdict] | None, args: argparse.Namespace) -> None:
    if args.json:
        lists = {"bad": summary.bad, "unread": summary.unread, "changed_meanwhile": summary.stale}
        lists["notes"] = summary.notes
        print_json(
            {
                "replicas": summary.replicas,
                "extents": summary.extents,
                "blocks": summary.blocks,
                "bytes_read": summary.bytes_read,
                "reported": reported,
                **{name: [_plain(each) for each in found] for name, found in lists.items()},
                "undecided_extents": summary.undecided,
                "endangered_extents": summary.endangered,
                "unconfirmed_extents": summary.unconfirmed,
                "still_bad": None if left is None else [_plain(each) for each in left],
            }
        )
        return
    print(
        f"{summary.replicas:,} replicas of {summary.extents:,} extents, {summary.blocks:,} blocks, "
        f"{human_bytes(summary.bytes_read)}: {len(summary.bad)} bad, {len(summary.unread)} not read, "
        f"{len(summary.stale)} changed meanwhile; {reported} reported to the manager"
    )
    listed = [("bad", each) for each in summary.bad] + [("not read", each) for each in summary.unread]
    listed += [("sound", each) for each in summary.notes]
    columns = ("", "extent", "node", "offset", "what")
    print_table(columns, [(what, e.extent_id, e.node_id, e.offset, e.problem) for what, e in listed[:SHOWN_MAX]])
    if len(listed) > SHOWN_MAX:
        print(f"… and {len(listed) - SHOWN_MAX} more; --json or --output has all")
    for extent_id in summary.undecided:
        print(f"extent {extent_id}: its replicas differ, and nothing says which one is right: look at them")
    for extent_id in summary.endangered:
        print(f"extent {extent_id}: no replica of it was read and found sound")
    for extent_id in summary.unconfirmed:
        print(f"extent {extent_id}: it is sealed, and no replica has confirmed that it has it: none could be read")
    if left is not None:
        print(f"after recovery {len(left)} are still bad" if left else "all of them are sound again")


def _plain(each: ReplicaVerdict) -> dict[str, Any]:
    return {
        "extent_id": each.extent_id,
        "node_id": each.node_id,
        "incarnation": f"{each.incarnation:016x}",
        "offset": each.offset,
        "problem": each.problem,
    }


if __name__ == "__main__":
    sys.exit(enter("python -m neve.pipeline.scrub", "neve.pipeline.scrub"))
