"""neve partitions, bootstrap, split, merge, move, compact, balance: the key space, and what an operator does to it.

Invariants: keys are typed and shown as text where they are text; \\xNN stands for any byte, both ways.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from neve.client.command import options
from neve.client.command.failures import DONE, FAILED
from neve.client.command.tables import Cell, human_bytes, print_json, print_table
from neve.client.streams.options import ClientOptions
from neve.proto import partition_manager_pb2 as pm
from neve.rpc.pool import ChannelPool
from neve.rpc.wire.client import WireChannel
from neve.tools.objects.partition_link import PartitionLink

COLUMNS = ("partition", "from", "to", "server", "address", "version", "keys", "size", "reads/s", "writes/s")
ID = options.whole_number(1, options.ID_MAX)
RESHAPE_S_DEFAULT = 90.0  # a merge flushes both sides first
COMPACT_S_DEFAULT = 600.0  # it reads and writes all tables

Command = Callable[[PartitionLink, argparse.Namespace], Coroutine[Any, Any, int]]

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(\\))")


def add_parser(commands: Any) -> None:
    listing = _add(commands, "partitions", run_partitions, help="list the key ranges, who serves them, and their load")
    listing.add_argument("--check", action="store_true", help="exit with 1 if a key range has no server")
    bootstrap = _add(
        commands,
        "bootstrap",
        run_bootstrap,
        help="make the first key ranges",
        description="Make the first key ranges of a cluster, split at the given keys. Once in a cluster's life: the "
        "same again changes nothing.",
    )
    bootstrap.add_argument("split_keys", nargs="*", type=key, metavar="KEY", help="in order; none: one range")
    split = _add(commands, "split", run_split, help="split a key range in two")
    split.add_argument("partition", type=ID, metavar="PARTITION")
    split.add_argument("--at", type=key, default=b"", metavar="KEY", help="the first key of the right half")
    merge = _add(commands, "merge", run_merge, help="merge a key range with its right neighbour")
    merge.add_argument("left", type=ID, metavar="LEFT")
    merge.add_argument("right", type=ID, metavar="RIGHT")
    move = _add(commands, "move", run_move, help="give a key range to another server")
    move.add_argument("partition", type=ID, metavar="PARTITION")
    move.add_argument("server", type=ID, metavar="SERVER")
    compact = _add(
        commands,
        "compact",
        run_compact,
        help="merge the tables of a key range into one",
        description="Merge all tables of a key range into one, without what was overwritten, deleted or has expired, "
        "and give back the space. It happens by itself, but not at once.",
    )
    compact.add_argument("partition", type=ID, metavar="PARTITION")
    balance = _add(
        commands,
        "balance",
        run_balance,
        help="pause or resume balancing",
        description="While balancing is paused, nothing is split, merged or moved by itself. Dead servers are still "
        "replaced.",
    )
    balance.add_argument("action", choices=["pause", "resume"])


def _add(commands: Any, name: str, command: Command, *, help: str, description: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description or f"{help[0].upper()}{help[1:]}.",
        parents=[options.connection_options(of_partitions=True)],
        epilog="Exit code: 0 done, 1 the cluster said no or could not, 2 wrong usage, 130 interrupted.",
    )
    parser.add_argument("--json", action="store_true", help="JSON on stdout, for scripts")
    parser.set_defaults(run=lambda args: uvloop.run(_run(command, args)))
    if command in (run_split, run_merge):
        parser.set_defaults(timeout=RESHAPE_S_DEFAULT)
    if command is run_compact:
        parser.set_defaults(timeout=COMPACT_S_DEFAULT)
    return parser


async def _run(command: Command, args: argparse.Namespace) -> int:
    async with linked(args, args.managers, timeout_s=args.timeout) as link:
        return await command(link, args)


@asynccontextmanager
async def linked(
    args: argparse.Namespace, managers: Sequence[str], *, timeout_s: float
) -> AsyncIterator[PartitionLink]:
    """A connection to these partition managers, with the identity from the command line."""
    tls = options.tls_files(args)
    pool = ChannelPool(
        lambda address: WireChannel(address, cluster=args.cluster, token=args.token, tls=tls, agent="neve tools")
    )
    client_options = ClientOptions(call_timeout_s=timeout_s, attempt_timeout_s=min(5.0, timeout_s))
    try:
        yield PartitionLink(pool, managers, options=client_options)
    finally:
        await pool.close()


# --- keys --------------------------------------------------------------------------------------------------------


def key(text: str) -> bytes:
    r"""`apple`, `user\x00\xff`, `back\\slash`."""

    def byte(match: re.Match[bytes]) -> bytes:
        return bytes([int(match[1], 16)]) if match[1] else b"\\"

    return _ESCAPE.sub(byte, text.encode(errors="surrogateescape"))  # bytes that are no text are a key, too


def key_text(data: bytes) -> str:
    """The value that a read of `key` returns."""
    text = data.replace(b"\\", b"\\\\").decode(errors="surrogateescape")
    return "".join(
        c
        if c.isprintable() and not "\udc80" <= c <= "\udcff"
        else "".join(f"\\x{b:02x}" for b in c.encode(errors="surrogateescape"))
        for c in text
    )


# --- commands ----------------------------------------------------------------------------------------------------


async def run_partitions(link: PartitionLink, args: argparse.Namespace) -> int:
    regions, version = await link.regions()
    servers = await link.servers()
    loads = {load.partition_id: load for server in servers for load in server.load}
    judged = FAILED if args.check and (not regions or homeless(regions)) else DONE
    if args.json:
        print_json(
            {
                "version": version,
                "regions": [region_value(region, loads.get(region.partition_id)) for region in regions],
                "servers": [
                    {"server_id": each.server_id, "address": each.wire_address, "grpc_address": each.grpc_address}
                    for each in servers
                ],
            }
        )
        return judged
    title = f"version {version}, {len(regions)} regions, {len(servers)} servers"
    rows = [region_row(region, loads.get(region.partition_id)) for region in regions]
    print_table(COLUMNS, rows, title=title, nothing="no regions: neve bootstrap makes the first")
    return judged


def homeless(regions: Sequence[pm.Region]) -> list[int]:
    """Partitions whose server is not there."""
    return [region.partition_id for region in regions if not region.address]


def summary(regions: Sequence[pm.Region], servers: Sequence[pm.PartitionServerRecord], version: int) -> str:
    """One line for a screen with other things on it."""
    if not regions:
        return f"none yet: neve bootstrap; {len(servers)} servers"
    lost = homeless(regions)
    without = f"; WITHOUT A SERVER: {', '.join(map(str, lost))}" if lost else ""
    return f"{len(regions)} on {len(servers)} servers, version {version}{without}"


async def run_bootstrap(link: PartitionLink, args: argparse.Namespace) -> int:
    return _show(await link.bootstrap(args.split_keys), args)


async def run_split(link: PartitionLink, args: argparse.Namespace) -> int:
    reply = await link.split(args.partition, args.at)
    return _show([reply.left, reply.right], args)


async def run_merge(link: PartitionLink, args: argparse.Namespace) -> int:
    return _show([(await link.merge(args.left, args.right)).region], args)


async def run_move(link: PartitionLink, args: argparse.Namespace) -> int:
    return _show([(await link.move(args.partition, args.server)).region], args)


async def run_compact(link: PartitionLink, args: argparse.Namespace) -> int:
    return _show([await link.compact(args.partition)], args)


async def run_balance(link: PartitionLink, args: argparse.Namespace) -> int:
    paused = args.action == "pause"
    version = await link.set_balancing(paused=paused)
    if args.json:
        print_json({"balancing": not paused, "version": version})
    else:
        print("balancing is paused" if paused else "balancing goes on")
    return DONE


def _show(regions: list[pm.Region], args: argparse.Namespace) -> int:
    if args.json:
        print_json([region_value(region, None) for region in regions])
    else:
        print_table(COLUMNS[:6], [region_row(region, None)[:6] for region in regions])
    return DONE


def region_row(region: pm.Region, load: pm.PartitionLoad | None) -> list[Cell]:
    row: list[Cell] = [
        region.partition_id,
        key_text(region.start) or "-",
        key_text(region.end) or "-",
        region.server_id or "-",
        region.address or "nobody",
        region.version,
    ]
    if load is None:
        return [*row, *["-"] * 4]
    return [
        *row,
        load.keys,
        human_bytes(load.size_bytes),
        f"{load.reads_per_s:.0f}",
        f"{load.writes_per_s:.0f}",
    ]


def region_value(region: pm.Region, load: pm.PartitionLoad | None) -> dict[str, object]:
    value: dict[str, object] = {
        "partition_id": region.partition_id,
        "start": key_text(region.start),
        "end": key_text(region.end),
        "server_id": region.server_id,
        "address": region.address,
        "version": region.version,
        "log_stream_id": region.log_stream_id,
        "row_stream_id": region.row_stream_id,
        "meta_stream_id": region.meta_stream_id,
    }
    if load is not None:
        value |= {
            "keys": load.keys,
            "size_bytes": load.size_bytes,
            "reads_per_s": load.reads_per_s,
            "writes_per_s": load.writes_per_s,
            "bytes_per_s": load.bytes_per_s,
        }
    return value
