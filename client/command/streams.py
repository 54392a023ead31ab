"""stream-client create, list, info, truncate, seal and delete.

Invariants: irreversible operations (truncate, seal, delete) ask for confirmation or need --yes. On a stream of the
            key-value store they need --force.
"""

from __future__ import annotations

import argparse
from typing import Any

from neve.client.command import options
from neve.client.command.confirm import add_force, add_yes, confirm, refuse_partition
from neve.client.command.connection import add_command
from neve.client.command.failures import DONE
from neve.client.command.tables import human_bytes, human_time, print_json, print_table
from neve.client.streams.client import Client
from neve.client.streams.types import Extent, Stream
from neve.proto.placement import placement_help

REPLICAS_MAX = 7  # the managers' limit, checked before any call
PAGE = 500
COLUMNS = ("stream", "name", "extents", "replicas", "sync", "sealed", "created", "labels")


def add_parsers(commands: Any) -> None:
    create = add_command(commands, "create", run_create, help="create a stream")
    create.add_argument("name", nargs="?", type=options.new_stream_name, metavar="NAME", help="unique, if given")
    add_policy(create)
    create.add_argument(
        "--extent-size", type=options.positive_size_bytes, default=0, metavar="SIZE", help="limit of an extent"
    )
    create.add_argument(
        "--label", type=options.label, action="append", default=[], metavar="KEY=VALUE", help="may be repeated"
    )
    create.add_argument("--placement", default="", metavar="POLICY", help=placement_help())
    create.add_argument("--strict", action="store_true", help="fail where the placement policy cannot be met")

    listing = add_command(commands, "list", run_list, help="list the streams")
    listing.add_argument(
        "--label", type=options.label, action="append", default=[], metavar="KEY=VALUE", help="only streams with it"
    )
    info = add_command(commands, "info", run_info, help="show a stream and its extents")
    add_stream(info)

    truncate = add_command(
        commands,
        "truncate",
        run_truncate,
        help="forget the beginning of a stream",
        description="Forget the beginning of a stream: every extent that is completely before a position.",
    )
    add_stream(truncate)
    truncate.add_argument("--before", type=options.position, required=True, metavar="EXTENT[:OFFSET]")
    _add_consent(truncate)
    seal = add_command(commands, "seal", run_seal, help="end a stream: it takes no more appends")
    add_stream(seal)
    _add_consent(seal)
    delete = add_command(commands, "delete", run_delete, help="delete a stream and its data")
    add_stream(delete)
    _add_consent(delete)


def add_stream(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", type=options.stream_id_or_name, metavar="STREAM", help="id or name")


def _add_consent(parser: argparse.ArgumentParser) -> None:
    add_yes(parser)
    add_force(parser)


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add the options that create and wbench have in common."""
    parser.add_argument(
        "--replicas",
        type=options.whole_number(1, REPLICAS_MAX),
        default=0,
        metavar="N",
        help="copies of each extent (default: the cluster's)",
    )
    parser.add_argument(
        "--sync",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="acknowledge records on stable storage of all replicas, or already in their memory",
    )


async def run_create(client: Client, args: argparse.Namespace) -> int:
    stream = await client.create_stream(
        name=args.name or "",
        replicas=args.replicas,
        sync=args.sync,
        extent_bytes_max=args.extent_size,
        labels=dict(args.label),
        placement=args.placement,
        strict=args.strict,
    )
    if args.json:
        print_json(value(stream))
    else:
        named = f" {stream.name!r}" if stream.name else ""
        print(f"stream {stream.id}{named}, {stream.replicas} replicas, {'sync' if stream.sync else 'no sync'}")
    return DONE


async def run_list(client: Client, args: argparse.Namespace) -> int:
    found = [stream async for stream in client.streams(labels=dict(args.label) or None)]
    if args.json:
        print_json([value(stream) for stream in found])
    else:
        print_table(COLUMNS, [row(stream) for stream in found], nothing="no streams")
    return DONE


async def run_info(client: Client, args: argparse.Namespace) -> int:
    stream = await client.stream(args.stream)
    extents = await _extents(client, stream)
    if args.json:
        print_json({**value(stream), "extents": [extent_value(extent) for extent in extents]})
        return DONE
    print_table(COLUMNS, [row(stream)])
    print()
    rows = [
        [
            extent.id,
            "sealed" if extent.sealed else "open",
            human_bytes(extent.length) if extent.length is not None else "-",
            " ".join(f"{each.node_id}{'' if each.confirmed or not extent.sealed else '?'}" for each in extent.replicas),
        ]
        for extent in extents
    ]
    print_table(("extent", "state", "length", "replicas on nodes"), rows, nothing="no extents")
    return DONE


async def _extents(client: Client, stream: Stream) -> list[Extent]:
    """Return the extents in the stream's order."""
    found: dict[int, Extent] = {}
    for first in range(0, len(stream.extent_ids), PAGE):
        for info in await client.admin.describe_extents(stream.extent_ids[first : first + PAGE]):
            found[info.extent_id] = Extent.of(info)
    return [found[extent_id] for extent_id in stream.extent_ids if extent_id in found]


async def run_truncate(client: Client, args: argparse.Namespace) -> int:
    stream = await client.stream(args.stream)
    refuse_partition(stream.id, stream.labels, args)
    confirm(f"Everything before extent {args.before.extent_id} will be removed from stream {stream.id}.", args)
    await client.truncate(stream.id, before=args.before)
    return await _show_changed(client, args, stream.id, f"stream {stream.id} begins at extent {args.before.extent_id}")


async def run_seal(client: Client, args: argparse.Namespace) -> int:
    stream = await client.stream(args.stream)
    refuse_partition(stream.id, stream.labels, args)
    confirm(f"Stream {stream.id} {stream.name!r} will be sealed: it will never take appends again.", args)
    await client.seal(stream.id)
    return await _show_changed(client, args, stream.id, f"stream {stream.id} is sealed")


async def run_delete(client: Client, args: argparse.Namespace) -> int:
    stream = await client.stream(args.stream)
    refuse_partition(stream.id, stream.labels, args)
    confirm(f"Stream {stream.id} {stream.name!r} and its {len(stream.extent_ids)} extents will be deleted.", args)
    await client.delete(stream.id)
    if args.json:
        print_json({"stream_id": stream.id, "deleted": True})
    else:
        print(f"stream {stream.id} is deleted")
    return DONE


async def _show_changed(client: Client, args: argparse.Namespace, stream_id: int, text: str) -> int:
    if args.json:
        print_json(value(await client.stream(stream_id)))
    else:
        print(text)
    return DONE


def value(stream: Stream) -> dict[str, object]:
    """Return a stream as JSON."""
    return {
        "stream_id": stream.id,
        "name": stream.name,
        "lock": stream.lock,
        "extent_ids": list(stream.extent_ids),
        "sealed": stream.sealed,
        **stream.policy.json(),
        "labels": dict(stream.labels),
        "created_ms": stream.created_ms,
        "truncated_before": stream.truncated_before,
    }


def extent_value(extent: Extent) -> dict[str, object]:
    return {
        "extent_id": extent.id,
        "sealed": extent.sealed,
        "length": extent.length,
        "eversion": extent.eversion,
        "replicas": [
            {"node_id": each.node_id, "address": each.address, "confirmed": each.confirmed} for each in extent.replicas
        ],
    }


def row(stream: Stream) -> list[str | int | bool]:
    """Return a stream as a table row under COLUMNS."""
    return [
        stream.id,
        stream.name,
        len(stream.extent_ids),
        stream.replicas,
        stream.sync,
        stream.sealed,
        human_time(stream.created_ms),
        " ".join(f"{key}={text}" for key, text in sorted(stream.labels.items())),
    ]
