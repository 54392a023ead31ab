"""neve drain, decommission, maintenance, resume, region, seal, accept-length, quota: what an operator orders.

Invariants: what cannot be taken back (decommission, seal, accept-length) asks first, or needs --yes;
            an order that takes long (drain, decommission) returns at once, or with --wait when it is done; while it is
            held up, it says by what, and when another order takes its place, it fails.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from neve.client.command import options
from neve.client.command import streams as stream_view
from neve.client.command.confirm import add_force, add_yes, confirm, refuse_partition
from neve.client.command.failures import DONE, USAGE, CommandFailed
from neve.client.command.tables import print_json, print_table
from neve.client.streams.types import Stream
from neve.proto import stream_manager_pb2 as sm
from neve.tools import views
from neve.tools.admin_link import AdminLink
from neve.tools.ask import Command, add_command, show

POLL_S = 1.0
MAINTENANCE_S_DEFAULT = 1800.0
MAINTENANCE_S_MAX = 2**32 - 1


def add_parser(commands: Any) -> None:
    drain = _node_command(commands, "drain", run_drain, help="move everything away from a node; it can come back")
    _add_wait(drain)
    decommission = _node_command(
        commands, "decommission", run_decommission, help="move everything away from a node, for ever"
    )
    add_yes(decommission)
    _add_wait(decommission)
    maintenance = _node_command(
        commands, "maintenance", run_maintenance, help="let a node be away for a while without recovering its data"
    )
    maintenance.add_argument(
        "--for", dest="length_s", type=options.duration_s, default=MAINTENANCE_S_DEFAULT, metavar="DURATION"
    )
    _node_command(commands, "read-only", run_read_only, help="place nothing new on a node")
    _node_command(commands, "resume", run_resume, help="make a node normal again: ends drain, maintenance, read-only")
    region = add_command(commands, "region", run_region, help="stop or start placing extents in a region")
    region.add_argument("region", metavar="REGION")
    region.add_argument("action", choices=["stop", "start"])
    seal = add_command(commands, "seal", run_seal, help="seal a stream: nothing is ever appended to it again")
    seal.add_argument("stream", type=options.stream_id_or_name, metavar="STREAM", help="id or name")
    add_yes(seal)
    add_force(seal)
    _add_accept_length(commands)
    _add_quota(commands)


def _node_command(commands: Any, name: str, command: Command, *, help: str) -> argparse.ArgumentParser:
    parser = add_command(commands, name, command, help=help)
    parser.add_argument("node", type=options.whole_number(1, options.ID_MAX), metavar="NODE", help="its id")
    return parser


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait", action="store_true", help="return when the node is empty")


def _add_accept_length(commands: Any) -> None:
    accept = add_command(
        commands,
        "accept-length",
        run_accept_length,
        help="seal an extent at a length that you answer for",
        description="Seal an extent that cannot be sealed safely (SealUnavailable) at a length that you name. What was "
        "acknowledged beyond that length is lost for ever, and the loss is yours: bring the nodes back first.",
    )
    accept.add_argument("extent", type=options.whole_number(1, options.ID_MAX), metavar="EXTENT")
    accept.add_argument("length", type=options.whole_number(0, 1 << 40), metavar="LENGTH", help="in bytes")
    accept.add_argument("--reason", required=True, help="for the audit log")
    add_yes(accept)


def _add_quota(commands: Any) -> None:
    quota = add_command(
        commands,
        "quota",
        run_quota,
        help="list, set or remove quotas",
        description="Without a prefix: list the quotas and what is used of them. With one: bound the streams that have "
        "a label whose text key=value begins with it.",
    )
    quota.add_argument("prefix", nargs="?", metavar="PREFIX", help="for example team=search")
    quota.add_argument("--streams", type=options.whole_number(1, 10**12), metavar="N")
    quota.add_argument("--extents", type=options.whole_number(1, 10**12), metavar="N")
    quota.add_argument("--bytes", type=options.positive_size_bytes, metavar="SIZE", help="of one copy of the data")
    quota.add_argument("--remove", action="store_true")


# --- nodes -------------------------------------------------------------------------------------------------------


async def run_drain(link: AdminLink, args: argparse.Namespace) -> int:
    return await _set_mode(link, args, sm.NODE_MODE_DRAINING, wait=args.wait)


async def run_decommission(link: AdminLink, args: argparse.Namespace) -> int:
    node = await link.node(args.node)
    confirm(f"Node {args.node} at {node.wire_address} will be emptied, and never used again.", args)
    return await _set_mode(link, args, sm.NODE_MODE_DECOMMISSIONED, wait=args.wait)


async def run_maintenance(link: AdminLink, args: argparse.Namespace) -> int:
    length_s = int(min(MAINTENANCE_S_MAX, max(1, args.length_s)))
    return await _set_mode(link, args, sm.NODE_MODE_MAINTENANCE, maintenance_s=length_s)


async def run_read_only(link: AdminLink, args: argparse.Namespace) -> int:
    return await _set_mode(link, args, sm.NODE_MODE_READ_ONLY)


async def run_resume(link: AdminLink, args: argparse.Namespace) -> int:
    return await _set_mode(link, args, sm.NODE_MODE_NORMAL)


async def _set_mode(
    link: AdminLink,
    args: argparse.Namespace,
    mode: sm.NodeMode,
    *,
    maintenance_s: int = 0,
    wait: bool = False,
) -> int:
    node = await link.set_node_mode(args.node, mode, maintenance_s=maintenance_s)
    if wait:
        node = await _until_empty(link, node, mode)
    if args.json:
        print_json(views.node_value(node))
    else:
        print_table(views.NODE_COLUMNS, [views.node_row(node)])
    return DONE


async def _until_empty(link: AdminLink, node: sm.NodeRecord, mode: sm.NodeMode) -> sm.NodeRecord:
    """`node` once it has `mode` and nothing else; a decommission drains first. Another order to the node ends it."""
    said = ""
    while not (_is_empty(node) and node.mode == mode):
        if node.mode not in (mode, sm.NODE_MODE_DRAINING):
            modes = f"{views.mode_name(node.mode)} now, not {views.mode_name(mode)} as ordered"
            raise CommandFailed(f"node {node.node_id} is {modes}: somebody changed its mode")
        held_up = f"; held up: {views.some(node.hold_ups)}" if node.hold_ups else ""
        if (line := f"node {node.node_id}: {_extents(node)} extents left{held_up}") != said:
            said = line
            print(line, file=sys.stderr, flush=True)
        await asyncio.sleep(POLL_S)
        node = await link.node(node.node_id)
    return node


def _extents(node: sm.NodeRecord) -> int:
    return sum(disk.extents for disk in node.disks)


def _is_empty(node: sm.NodeRecord) -> bool:
    return not node.hold_ups and _extents(node) == 0


async def run_region(link: AdminLink, args: argparse.Namespace) -> int:
    await link.set_placement(args.region, stopped=args.action == "stop")
    if args.json:
        print_json({"region": args.region, "stopped": args.action == "stop"})
    else:
        words = "no new extent is placed" if args.action == "stop" else "new extents are placed again"
        print(f"{words} in region {args.region}")
    return DONE


# --- streams and extents -----------------------------------------------------------------------------------------


async def run_seal(link: AdminLink, args: argparse.Namespace) -> int:
    stream = await link.stream_info(args.stream)
    refuse_partition(stream.stream_id, stream.labels, args)
    confirm(f"Stream {stream.stream_id} {stream.name!r} will be sealed: nothing is ever appended to it again.", args)
    reply = await link.seal_stream(stream.stream_id)
    if args.json:
        print_json(stream_view.value(Stream.of(reply.stream)))
    else:
        print(f"stream {reply.stream.stream_id} is sealed")
    return DONE


async def run_accept_length(link: AdminLink, args: argparse.Namespace) -> int:
    confirm(f"Extent {args.extent} will be sealed at {args.length} bytes; what was acknowledged beyond is lost.", args)
    extent = await link.accept_length(args.extent, args.length, reason=args.reason)
    if args.json:
        print_json(views.extent_value(extent))
    else:
        print_table(views.EXTENT_COLUMNS, [views.extent_row(extent)])
    return DONE


async def run_quota(link: AdminLink, args: argparse.Namespace) -> int:
    limits = {"streams_max": args.streams, "extents_max": args.extents, "bytes_max": args.bytes}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if args.prefix is None:
        if given or args.remove:
            raise CommandFailed("which quota? name its prefix, for example team=search", USAGE)
        quotas = await link.quotas()
    elif args.remove:
        if given:
            raise CommandFailed("--remove takes no limits", USAGE)
        await link.set_quota(args.prefix)
        quotas = await link.quotas()
    elif given:
        quotas = [await link.set_quota(args.prefix, **given)]
    else:
        quotas = [usage for usage in await link.quotas() if usage.quota.prefix == args.prefix]
        if not quotas:
            raise CommandFailed(f"no quota for {args.prefix}: set one with --streams, --extents or --bytes")
    return show(
        quotas,
        args,
        columns=views.QUOTA_COLUMNS,
        row=views.quota_row,
        value=views.quota_value,
        nothing="no quotas",
    )
