"""neve nodes, streams, extents, tasks: lists of the cluster's parts, as tables or as JSON."""

from __future__ import annotations

import argparse
import time
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from neve.client.command import options
from neve.client.command import streams as stream_view
from neve.client.streams.types import Stream
from neve.tools import views
from neve.tools.admin_link import AdminLink
from neve.tools.ask import add_command, show

T = TypeVar("T")


def add_parser(commands: Any) -> None:
    add_command(commands, "nodes", run_nodes, help="list the extent nodes")
    streams = add_command(commands, "streams", run_streams, help="list the streams")
    streams.add_argument(
        "--label", type=options.label, action="append", default=[], metavar="KEY=VALUE", help="only those with it"
    )
    _add_limit(streams)
    extents = add_command(
        commands,
        "extents",
        run_extents,
        help="list the extents",
        description="List the extents. Replicas are node ids; one with a ? has not confirmed the seal yet.",
    )
    extents.add_argument("--node", type=options.whole_number(1, options.ID_MAX), default=0, metavar="ID")
    extents.add_argument(
        "--stream", type=options.stream_id_or_name, metavar="STREAM", help="of one stream, in its order"
    )
    extents.add_argument("--under-replicated", action="store_true", help="only those that lack a replica")
    extents.add_argument("--open", action="store_true", help="only those that are not sealed")
    _add_limit(extents)
    _add_limit(add_command(commands, "tasks", run_tasks, help="list what recovery is doing"))


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=options.whole_number(1, 10**9), default=10**9, metavar="N", help="at most so many"
    )


async def _first(found: AsyncIterator[T], limit: int) -> list[T]:
    listed: list[T] = []
    async for each in found:
        listed.append(each)
        if len(listed) >= limit:
            break
    return listed


async def run_nodes(link: AdminLink, args: argparse.Namespace) -> int:
    nodes = await link.nodes()
    return show(
        nodes,
        args,
        columns=views.NODE_COLUMNS,
        row=views.node_row,
        value=views.node_value,
        nothing="no node has registered",
    )


async def run_streams(link: AdminLink, args: argparse.Namespace) -> int:
    streams = [Stream.of(info) for info in await _first(link.streams(dict(args.label)), args.limit)]
    return show(
        streams,
        args,
        columns=stream_view.COLUMNS,
        row=stream_view.row,
        value=stream_view.value,
        nothing="no streams",
    )


async def run_extents(link: AdminLink, args: argparse.Namespace) -> int:
    if args.stream is not None:
        _, extents = await link.stream(args.stream)
        if args.under_replicated:  # only the leader knows which extents are
            lacking = {extent.extent_id async for extent in link.extents(under_replicated=True)}
            extents = [extent for extent in extents if extent.extent_id in lacking]
        kept = [
            extent
            for extent in extents
            if (not args.open or not extent.HasField("seal"))
            and (not args.node or any(each.replica.node_id == args.node for each in extent.replicas))
        ][: args.limit]
    else:
        kept = await _first(
            link.extents(
                node_id=args.node, under_replicated=args.under_replicated, open_only=args.open, with_streams=True
            ),
            args.limit,
        )
    return show(
        kept,
        args,
        columns=views.EXTENT_COLUMNS,
        row=views.extent_row,
        value=views.extent_value,
        nothing="no such extents",
    )


async def run_tasks(link: AdminLink, args: argparse.Namespace) -> int:
    now_ms = int(time.time() * 1000)
    return show(
        await _first(link.tasks(), args.limit),
        args,
        columns=views.TASK_COLUMNS,
        row=lambda task: views.task_row(task, now_ms=now_ms),
        value=views.task_value,
        nothing="nothing to recover",
    )
