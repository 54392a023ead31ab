"""stream-client wbench: measures how fast a cluster can be written to.

Invariants: the streams that it creates have the label bench=wbench and are deleted at the end, unless --keep is given;
            each stream has --inflight pending calls, each with --batch records of --size bytes;
            the written bytes cannot be compressed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from neve.client.command import options
from neve.client.command.bench import Bench, Operation, stop_on_interrupt, unless_stopped
from neve.client.command.connection import add_command
from neve.client.command.core_statistics import Report
from neve.client.command.failures import DONE, FAILED, sentence
from neve.client.command.live import LiveLine, report_lines
from neve.client.command.samples import SampleWriter
from neve.client.command.streams import add_policy
from neve.client.streams.client import Client
from neve.client.streams.types import Stream
from neve.client.streams.writer import Writer
from neve.proto.errors import NeveError
from neve.rpc.entry import INTERRUPTED

LABELS = {"bench": "wbench"}
PAYLOADS = 8  # different ones, so that no two consecutive records are equal
PAYLOADS_BYTES_MAX = 256 << 20  # of all payloads; a single one may be larger


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "wbench",
        run,
        help="measure writing",
        description="Append to new streams for a while and report the speed. Ctrl-C ends the run early, with a report.",
        json_too=False,
    )
    add_duration(parser)
    parser.add_argument(
        "--size", type=options.record_size_bytes, default=1024, metavar="SIZE", help="size of a record (default: 1KiB)"
    )
    parser.add_argument(
        "--batch", type=options.whole_number(1, 100_000), default=1, metavar="N", help="records per call (default: 1)"
    )
    parser.add_argument(
        "--inflight",
        type=options.whole_number(1, 100_000),
        default=16,
        metavar="N",
        help="pending calls for each stream (default: 16)",
    )
    parser.add_argument("--streams", type=options.whole_number(1, 10_000), default=1, metavar="N")
    add_policy(parser)
    parser.add_argument("--keep", action="store_true", help="do not delete the streams at the end")


def add_duration(parser: argparse.ArgumentParser) -> None:
    """Add the options that wbench and rbench have in common."""
    parser.add_argument("--duration", type=options.duration_s, default=10.0, metavar="SECONDS", help="(default: 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to this file, for plot")


async def run(client: Client, args: argparse.Namespace) -> int:
    async with (
        stop_on_interrupt() as stop,
        bench_streams(client, args, stop) as streams,
        contextlib.AsyncExitStack() as stack,
    ):
        writers = await unless_stopped(_open(client, streams, args, stack), stop)
        payloads = [os.urandom(args.size) for _ in range(payload_count(args.size, args.batch))]
        operations = [_operation(writer, payloads, args.batch) for writer in writers for _ in range(args.inflight)]
        title = f"wbench {args.streams} × {args.inflight} × {args.batch} × {args.size} B"
        return await measure(operations, args, kind="wbench", title=title, stop=stop, operations_each=args.batch)


@contextlib.asynccontextmanager
async def bench_streams(client: Client, args: argparse.Namespace, stop: asyncio.Event) -> AsyncIterator[list[Stream]]:
    """Create streams, and delete them at the end; after an interrupt, as far as possible."""
    streams: list[Stream] = []

    async def create() -> None:
        for first in range(0, args.streams, 64):
            count = min(64, args.streams - first)
            made = await asyncio.gather(
                *(client.create_stream(replicas=args.replicas, sync=args.sync, labels=LABELS) for _ in range(count)),
                return_exceptions=True,
            )
            streams.extend(stream for stream in made if isinstance(stream, Stream))
            for failure in made:
                if isinstance(failure, BaseException):
                    raise failure

    try:
        await unless_stopped(create(), stop)
        yield streams
    finally:
        if not args.keep:
            outcomes = await asyncio.gather(*(client.delete(stream.id) for stream in streams), return_exceptions=True)
            for stream, outcome in zip(streams, outcomes, strict=True):
                if isinstance(outcome, NeveError):
                    print(f"stream-client: stream {stream.id} was not deleted: {sentence(outcome)}", file=sys.stderr)
                elif isinstance(outcome, BaseException):
                    raise outcome


async def _open(
    client: Client, streams: list[Stream], args: argparse.Namespace, stack: contextlib.AsyncExitStack
) -> list[Writer]:
    writers = []
    for stream in streams:
        writer = client.writer(stream.id, sync=args.sync)
        await writer.open()
        stack.push_async_callback(_close, writer)
        writers.append(writer)
    return writers


async def _close(writer: Writer) -> None:
    """Close the writer. Its errors are in the report already."""
    with contextlib.suppress(NeveError):
        await writer.close()


def payload_count(size_bytes: int, batch: int) -> int:
    """Return how many payloads to make: no more than a call needs and than memory allows."""
    return max(1, min(PAYLOADS, batch, PAYLOADS_BYTES_MAX // size_bytes))


def _operation(writer: Writer, payloads: list[bytes], batch: int) -> Operation:
    if batch == 1:
        (payload,) = payloads[:1]

        async def append() -> tuple[int, int]:
            await writer.append(payload)
            return 1, len(payload)

        return append
    records = [payloads[number % len(payloads)] for number in range(batch)]
    size_bytes = sum(map(len, records))

    async def append_many() -> tuple[int, int]:
        await writer.append_many(records)
        return batch, size_bytes

    return append_many


async def measure(
    operations: list[Operation],
    args: argparse.Namespace,
    *,
    kind: str,
    title: str,
    stop: asyncio.Event,
    operations_each: int = 1,
) -> int:
    """Run, show progress and report. Returns the exit code."""
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(LiveLine(kind, args.duration))
        sink = None
        if args.json is not None:
            settings = {name: value for name, value in vars(args).items() if isinstance(value, (int, float, str))}
            settings.pop("token", None)
            sink = stack.enter_context(SampleWriter(args.json, kind=kind, options=settings))
        bench = Bench(duration_s=args.duration, operations_each=operations_each, sink=sink, live=live, stop=stop)
        report = await bench.run(operations)
        if sink is not None:
            sink.finish(report)
    _print(title, report, bench)
    if bench.interrupted:
        return INTERRUPTED
    return FAILED if report.errors_total else DONE


def _print(title: str, report: Report, bench: Bench) -> None:
    last_error = sentence(bench.last_error) if bench.last_error is not None else ""
    for line in report_lines(title, report, last_error=last_error):
        print(line)
