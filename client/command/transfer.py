"""stream-client append, read, tail.

Invariants: append says how much was acknowledged, also when it is interrupted or fails: what it counts is in the
            stream, and what comes after that may be;
            what waits to be acknowledged is bounded by the writer, and by `PENDING_MAX` records.
Neighbours: records.py cuts and shows; neve.client does the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from neve.client.client import Client
from neve.client.command import options, records
from neve.client.command.connection import add_command
from neve.client.command.failures import DONE, CommandFailed
from neve.client.command.feed import Feed
from neve.client.command.streams import add_stream
from neve.client.command.tables import print_json
from neve.client.types import Position, Record, Stream
from neve.client.writer import Writer
from neve.proto.errors import Overloaded

PENDING_MAX = 10_000
EXTENTS_TOLD = 5


def add_parsers(commands: Any) -> None:
    append = add_command(
        commands,
        "append",
        run_append,
        help="append a file, or standard input",
        description="Append a file, or standard input, to a stream: each line is a record, unless you say otherwise.",
    )
    add_stream(append)
    append.add_argument("file", nargs="?", type=Path, metavar="FILE", help="default: standard input")
    cut = append.add_mutually_exclusive_group()
    cut.add_argument("--lines", action="store_true", help="a record for each line (the default)")
    cut.add_argument("--whole", action="store_true", help="all of the input is one record")
    cut.add_argument("--record-size", type=options.record_size_bytes, metavar="SIZE", help="records of this size")
    append.add_argument(
        "--sync", action=argparse.BooleanOptionalAction, default=None, help="default: as the stream says"
    )
    append.add_argument("--takeover", action="store_true", help="take the stream from whoever writes it now")

    read = add_command(commands, "read", run_read, help="print the records of a stream", json_too=False)
    add_stream(read)
    read.add_argument("--from", dest="start", type=options.position, metavar="EXTENT[:OFFSET]")
    read.add_argument("--to", dest="end", type=options.position, metavar="EXTENT[:OFFSET]", help="not included")
    read.add_argument("--count", type=options.whole_number(1, 10**18), metavar="N", help="at most so many")
    read.add_argument("--follow", action="store_true", help="wait for more at the end")
    _add_format(read)

    tail = add_command(
        commands, "tail", run_tail, help="print the last records of a stream, and follow it", json_too=False
    )
    add_stream(tail)
    tail.add_argument("-n", dest="last", type=options.whole_number(0, 1_000_000), default=10, metavar="N")
    tail.add_argument("--no-follow", dest="follow", action="store_false", help="end at the end")
    tail.add_argument("--count", type=options.whole_number(1, 10**18), metavar="N", help="stop after so many")
    _add_format(tail)


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=records.FORMATS, default="text", help="text: a line end behind each record (default)"
    )
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="one line of JSON a record")
    parser.add_argument("--positions", action="store_true", help="a record's position before it")


# --- append ------------------------------------------------------------------------------------------------------


class _Appending:
    """Records on their way; counts what is acknowledged, in order."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._pending: deque[tuple[asyncio.Future[Position], int]] = deque()
        self.count = 0
        self.size_bytes = 0
        self.first: Position | None = None
        self.last: Position | None = None

    async def add(self, payload: bytes) -> None:
        while True:
            try:
                future = self._writer.submit(payload)
                break
            except Overloaded:
                if self._pending:
                    await self._settle_one()
                else:
                    await self._writer.ready(len(payload))
        self._pending.append((future, len(payload)))
        while self._pending and (len(self._pending) > PENDING_MAX or self._pending[0][0].done()):
            await self._settle_one()

    async def finish(self) -> None:
        while self._pending:
            await self._settle_one()

    async def _settle_one(self) -> None:
        future, size_bytes = self._pending[0]
        position = await asyncio.shield(future)
        self._pending.popleft()
        self.first = self.first or position
        self.last = position
        self.count += 1
        self.size_bytes += size_bytes

    def value(self) -> dict[str, object]:
        return {
            "records": self.count,
            "bytes": self.size_bytes,
            "first": str(self.first) if self.first else None,
            "last": str(self.last) if self.last else None,
        }

    def text(self) -> str:
        where = f", {self.first} to {self.last}" if self.first else ""
        return f"{self.count} records, {self.size_bytes} bytes acknowledged{where}"


async def run_append(client: Client, args: argparse.Namespace) -> int:
    cut = _cutter(args)
    source: BinaryIO = sys.stdin.buffer if args.file is None else args.file.open("rb")
    appending: _Appending | None = None
    try:
        stream = await client.stream(args.stream)
        async with client.writer(stream.id, sync=args.sync, takeover=args.takeover) as writer:
            appending = _Appending(writer)
            async for batch in Feed(cut(source)).batches():
                for payload in batch:
                    await appending.add(payload)
            await appending.finish()
    except records.RecordTooLarge as error:
        raise CommandFailed(f"{error}; before it: {appending.text() if appending else 'nothing'}") from error
    except BaseException:
        if appending is not None:
            print(f"stream-client: before it ended: {appending.text()}", file=sys.stderr)
        raise
    finally:
        if args.file is not None:
            source.close()
    if args.json:
        print_json(appending.value())
    else:
        print(appending.text())
    return DONE


def _cutter(args: argparse.Namespace) -> Callable[[BinaryIO], Iterator[bytes]]:
    if args.whole:
        return records.cut_nothing
    if args.record_size:
        return lambda file: records.cut_pieces(file, args.record_size)
    return records.cut_lines


# --- read --------------------------------------------------------------------------------------------------------


async def run_read(client: Client, args: argparse.Namespace) -> int:
    stream = await client.stream(args.stream)
    if args.end is not None and not args.follow and args.end.extent_id not in stream.extent_ids:
        has = ", ".join(map(str, stream.extent_ids[-EXTENTS_TOLD:])) or "none"
        raise CommandFailed(
            f"--to {args.end}: stream {args.stream} has no extent {args.end.extent_id}; its last: {has}"
        )
    await _print_records(client, stream, args, start=args.start, end=args.end)
    return DONE


async def run_tail(client: Client, args: argparse.Namespace) -> int:
    stream = await client.stream(args.stream)
    start = await last_records(client, stream, args.last)
    await _print_records(client, stream, args, start=start, end=None)
    return DONE


async def last_records(client: Client, stream: Stream, count: int) -> Position | None:
    """Where the last `count` records begin; the extents are read from the last one backwards until they are found."""
    found: deque[Position] = deque()
    end: Position | None = None
    at_end: Position | None = None
    for extent_id in reversed(stream.extent_ids):
        here: deque[Position] = deque(maxlen=max(1, count))
        last: Record | None = None
        async for record in client.read(stream.id, start=Position(extent_id, 0), end=end):
            here.append(record.position)
            last = record
        if at_end is None:
            at_end = last.next if last is not None else Position(extent_id, 0)
        found.extendleft(reversed(here))
        if len(found) >= count:
            return found[len(found) - count] if count else at_end
        end = Position(extent_id, 0)
    return found[0] if found else at_end


async def _print_records(
    client: Client, stream: Stream, args: argparse.Namespace, *, start: Position | None, end: Position | None
) -> None:
    out = sys.stdout.buffer
    printed = 0
    try:
        async for record in client.read(stream.id, start=start, follow=args.follow, end=end):
            out.write(records.encode(record, args.format, with_position=args.positions))
            printed += 1
            if args.follow:
                out.flush()  # whoever follows wants to see it now
            if args.count is not None and printed >= args.count:
                break
    finally:
        out.flush()
