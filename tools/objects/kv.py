"""neve kv get, put, delete, head, scan, bench: objects from the command line.

Invariants: keys are typed and shown as `neve partitions` does: \\xNN stands for any byte;
            get and put stream: a value of any size passes through with a few MiB of memory;
            get writes the object's bytes and nothing else to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, BinaryIO

import uvloop

from neve.client.command import options
from neve.client.command.failures import DONE, FAILED, CommandFailed
from neve.client.command.feed import Feed, closing, standard_input
from neve.client.command.records import cut_pieces
from neve.client.command.tables import human_bytes, human_time, print_json, print_table
from neve.client.objects.client import KeyValueClient
from neve.client.objects.options import KeyValueOptions
from neve.client.objects.types import VERSION_MAX, ObjectInfo
from neve.tools.objects import kv_bench
from neve.tools.objects.partitions import key, key_text

Command = Callable[[KeyValueClient, argparse.Namespace], Coroutine[Any, Any, int]]
PIECE_BYTES = 1 << 20
TABLE_ROWS_MAX = 10_000  # of a table, which is laid out as a whole


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("kv", help="read and write objects", description="Read and write objects.")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    get = add_command(verbs, "get", run_get, help="write an object to stdout or a file", json_too=False)
    _add_key(get)
    get.add_argument("-o", "--output", type=Path, metavar="FILE", help="(default: stdout)")
    get.add_argument("--offset", type=options.size_bytes, default=0, metavar="SIZE", help="from there on")
    get.add_argument("--length", type=options.positive_size_bytes, metavar="SIZE", help="so much of it")
    put = add_command(verbs, "put", run_put, help="store an object from a file, stdin or the command line")
    _add_key(put)
    source = put.add_mutually_exclusive_group()
    source.add_argument("file", type=Path, nargs="?", metavar="FILE", help="(default: stdin)")
    source.add_argument("--value", type=os.fsencode, metavar="TEXT", help="the value itself")
    put.add_argument("--ttl", type=options.duration_s, metavar="DURATION", help="gone after so long (default: never)")
    condition = put.add_mutually_exclusive_group()
    condition.add_argument("--if-absent", action="store_true", help="only if there is none")
    _add_if_version(condition)
    delete = add_command(verbs, "delete", run_delete, help="delete an object", json_too=False)
    _add_key(delete)
    _add_if_version(delete)
    head = add_command(verbs, "head", run_head, help="show what is known of an object")
    _add_key(head)
    scan = add_command(verbs, "scan", run_scan, help="list objects in the order of their keys", json_too=False)
    scan.add_argument("prefix", nargs="?", type=key, default=b"", metavar="PREFIX", help="only keys that begin so")
    scan.add_argument("--start", type=key, default=b"", metavar="KEY", help="from this key on")
    scan.add_argument("--end", type=key, default=b"", metavar="KEY", help="before this key")
    scan.add_argument("--limit", type=options.whole_number(1, 10**15), metavar="N", help="at most so many")
    scan.add_argument("--keys", action="store_true", help="keys alone, one a line")
    scan.add_argument("--json", action="store_true", help="one line of JSON an object")
    kv_bench.add_arguments(
        add_command(
            verbs,
            "bench",
            kv_bench.run,
            help="measure with the mixes of YCSB",
            description="Load objects, work on them for a while with a mix of YCSB, and say how fast it was. "
            "Ctrl-C ends it early, with a report.",
            json_too=False,
        )
    )


def add_command(
    commands: Any, name: str, command: Command, *, help: str, description: str = "", json_too: bool = True
) -> argparse.ArgumentParser:
    """A sub-command that reads or writes objects."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description or f"{help[0].upper()}{help[1:]}.",
        parents=[options.connection_options(of_partitions=True)],
        epilog="Exit code: 0 done, 1 the cluster said no or could not, 2 wrong usage, 130 interrupted.",
    )
    if json_too:
        parser.add_argument("--json", action="store_true", help="JSON on stdout, for scripts")
    parser.set_defaults(run=lambda args: uvloop.run(_run(command, args)))
    return parser


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", type=key, metavar="KEY", help="text; \\xNN stands for any byte")


def _add_if_version(parser: Any) -> None:
    parser.add_argument(
        "--if-version", type=options.whole_number(1, VERSION_MAX), metavar="N", help="only if it has this version"
    )


async def _run(command: Command, args: argparse.Namespace) -> int:
    kv_options = KeyValueOptions(operation_timeout_s=args.timeout)
    async with KeyValueClient(
        args.managers, cluster=args.cluster, token=args.token, tls=options.tls_files(args), options=kv_options
    ) as client:
        return await command(client, args)


def info_value(info: ObjectInfo) -> dict[str, object]:
    return {
        "key": key_text(info.key),
        "version": info.version,
        "size_bytes": info.size_bytes,
        "modified_ms": info.modified_ms,
        "expires_ms": info.expires_ms,
        "crc32c": f"{info.crc32c:08x}",
    }


async def run_get(client: KeyValueClient, args: argparse.Namespace) -> int:
    stream = await client.get_stream(args.key, offset=args.offset, length=args.length)
    with contextlib.ExitStack() as stack:
        out: BinaryIO = stack.enter_context(args.output.open("wb")) if args.output else sys.stdout.buffer
        async for chunk in stream:
            out.write(chunk)
        out.flush()
    return DONE


async def run_put(client: KeyValueClient, args: argparse.Namespace) -> int:
    how: dict[str, Any] = {"ttl_s": args.ttl, "if_absent": args.if_absent, "if_version": args.if_version}
    if args.value is not None:
        info = await client.put(args.key, args.value, **how)
    else:
        source: BinaryIO = args.file.open("rb") if args.file else standard_input()
        info = await client.put_stream(args.key, _pieces(source), **how)
    if args.json:
        print_json(info_value(info))
    else:
        print(f"{key_text(args.key)}: {info.size_bytes} bytes, version {info.version}")
    return DONE


async def _pieces(source: BinaryIO) -> AsyncIterator[bytes]:
    async for batch in Feed(closing(source, lambda file: cut_pieces(file, PIECE_BYTES))).batches():
        for piece in batch:
            yield piece


async def run_delete(client: KeyValueClient, args: argparse.Namespace) -> int:
    if not await client.delete(args.key, if_version=args.if_version):
        raise CommandFailed(f"no such object: {key_text(args.key)}", FAILED)
    return DONE


async def run_head(client: KeyValueClient, args: argparse.Namespace) -> int:
    info = await client.head(args.key)
    if args.json:
        print_json(info_value(info))
        return DONE
    rows = [
        ("key", key_text(info.key)),
        ("version", str(info.version)),
        ("size", f"{info.size_bytes} ({human_bytes(info.size_bytes)})"),
        ("modified", human_time(info.modified_ms)),
        ("expires", human_time(info.expires_ms)),
        ("crc32c", f"{info.crc32c:08x}"),
    ]
    for name, value in rows:
        print(f"{name:<10}{value}")
    return DONE


async def run_scan(client: KeyValueClient, args: argparse.Namespace) -> int:
    found = client.scan(
        prefix=args.prefix,
        start=args.start,
        end=args.end,
        limit=args.limit,
    )
    rows: list[tuple[str | int, ...]] = []
    async for info in found:
        if len(rows) == TABLE_ROWS_MAX:
            print(f"neve: there are more than {TABLE_ROWS_MAX}; --keys or --json lists them all", file=sys.stderr)
            break
        if args.json:
            print(json.dumps(info_value(info)))
        elif args.keys:
            print(key_text(info.key))
        else:
            rows.append((key_text(info.key), info.size_bytes, info.version, human_time(info.modified_ms)))
    if not args.json and not args.keys:
        print_table(("key", "bytes", "version", "modified"), rows, nothing="no objects")
    return DONE
