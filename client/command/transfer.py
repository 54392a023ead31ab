"""stream-client append, read and tail.

Invariants: append reports how much was acknowledged, also if it is interrupted or fails: the records it counts are in
            the stream, and later ones may be;
            unacknowledged records are bounded by the writer and by PENDING_MAX.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from neve.client.command import options, records
from neve.client.command.connection import add_command
from neve.client.command.failures import DONE, CommandFailed
from neve.client.command.feed import Feed, closing, standard_input
from neve.client.command.streams import add_stream
from neve.client.command.tables import print_json
from neve.client.streams.client import Client
from neve.client.streams.types import Position, Record, Stream
from neve.client.streams.writer import Writer
from neve.proto.errors import Overloaded

PENDING_MAX = 10_000
INTERRUPTED_WAIT_S = 1.0  # for pending appends after Ctrl-C; a second Ctrl-C does not wait
EXTENTS_TOLD = 5


def add_parsers(commands: Any) -> None:
    append = add_command(
        commands,
        "append",
        run_append,
        help="append a file, or standard input",
        description="Append a file, or standard input, to a stream. By default each line is a record.",
    )
    add_stream(append)
    append.add_argument("file", nargs="?", type=Path, metavar="FILE", help="default: standard input")
    cut = append.add_mutually_exclusive_group()
    cut.add_argument("--lines", action="store_true", help="a record for each line (the default)")
    cut.add_argument("--whole", action="store_true", help="all of the input is one record")
    cut.add_argument("--record-size", type=options.record_size_bytes, metavar="SIZE", help="records of this size")
    append.add_argument(
        "--sync", action=argparse.BooleanOptionalAction, default=None, help="default: the stream's policy"
    )
    append.add_argument("--takeover", action="store_true", help="take over the stream from its present writer")

    read = add_command(commands, "read", run_read, help="print the records of a stream", json_too=False)
    add_stream(read)
    read.add_argument("--from", dest="start", type=options.position, metavar="EXTENT[:OFFSET]")
    read.add_argument("--to", dest="end", type=options.position, metavar="EXTENT[:OFFSET]", help="exclusive end")
    read.add_argument("--count", type=options.whole_number(1, 10**18), metavar="N", help="at most N records")
    read.add_argument("--follow", action="store_true", help="wait for more at the end")
    _add_format(read)

    tail = add_command(
        commands, "tail", run_tail, help="print the last records of a stream, and follow it", json_too=False
    )
    add_stream(tail)
    tail.add_argument("-n", dest="last", type=options.whole_number(0, 1_000_000), default=10, metavar="N")
    tail.add_argument("--no-follow", dest="follow", action="store_false", help="stop at the end")
    tail.add_argument("--count", type=options.whole_number(1, 10**18), metavar="N", help="stop after N records")
    _add_format(tail)


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=records.FORMATS, default="text", help="text: a line end after each record (default)"
    )
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="one line of JSON a record")
    parser.add_argument("--positions", action="store_true", help="a record's position before it")


# --- append ------------------------------------------------------------------------------------------------------


class _Appending:
    """Pending appends of a command; counts the acknowledged ones, in order."""

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

    async def wait(self, timeout_s: float) -> None:
        """Wait for the pending appends, up to the timeout."""
        if self._pending:
            await asyncio.wait([future for future, _ in self._pending], timeout=timeout_s)

    def settle_done(self) -> None:
        """Count the acknowledged records, up to the first unacknowledged one."""
        while self._pending and _is_acknowledged(self._pending[0][0]):
            future, size_bytes = self._pending.popleft()
            self._count(future.result(), size_bytes)

    async def _settle_one(self) -> None:
        future, size_bytes = self._pending[0]
        position = await asyncio.shield(future)
        self._pending.popleft()
        self._count(position, size_bytes)

    def _count(self, position: Position, size_bytes: int) -> None:
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


def _is_acknowledged(future: asyncio.Future[Position]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


async def run_append(client: Client, args: argparse.Namespace) -> int:
    cut = _cutter(args)
    appending: _Appending | None = None
    try:
        with contextlib.ExitStack() as stack:
            source: BinaryIO = stack.enter_context(standard_input() if args.file is None else args.file.open("rb"))
            stream = await client.stream(args.stream)
            async with client.writer(stream.id, sync=args.sync, takeover=args.takeover) as writer:
                appending = _Appending(writer)
                stack.pop_all()  # the feed's thread owns the file now: closing it here would wait for its read
                await _append_all(appending, Feed(closing(source, cut)))
    except records.RecordTooLarge as error:
        assert appending is not None  # it is what reads the records
        appending.settle_done()
        raise CommandFailed(f"{error}; before that: {appending.text()}") from error
    except BaseException:
        if appending is not None:
            appending.settle_done()
            print(f"stream-client: before the end: {appending.text()}", file=sys.stderr)
        raise
    if args.json:
        print_json(appending.value())
    else:
        print(appending.text())
    return DONE


async def _append_all(appending: _Appending, feed: Feed) -> None:
    try:
        async for batch in feed.batches():
            for payload in batch:
                await appending.add(payload)
        await appending.finish()
    except asyncio.CancelledError:
        await appending.wait(INTERRUPTED_WAIT_S)  # before the writer is aborted, which abandons them
        raise


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
            f"--to {args.end}: stream {args.stream} has no extent {args.end.extent_id}; its last extents: {has}"
        )
    await _print_records(client, stream, args, start=args.start, end=args.end)
    return DONE


async def run_tail(client: Client, args: argparse.Namespace) -> int:
    stream = await client.stream(args.stream)
    start = await last_records(client, stream, args.last)
    await _print_records(client, stream, args, start=start, end=None)
    return DONE


async def last_records(client: Client, stream: Stream, count: int) -> Position | None:
    """Return where the last `count` records begin. Reads the extents backwards until there are enough."""
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
                out.flush()  # a user who follows expects it now
            if args.count is not None and printed >= args.count:
                break
    finally:
        out.flush()
