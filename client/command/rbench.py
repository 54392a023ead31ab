"""stream-client rbench: measures how fast a stream can be read.

Invariants: the client has checked every byte that is counted, as for any reader;
            sequential readers start again when they reach the end; random readers read single records, at positions
            that one pass over the stream has sampled evenly.
"""

from __future__ import annotations

import argparse
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

from neve.client.command import options
from neve.client.command.bench import Operation, stop_on_interrupt, unless_stopped
from neve.client.command.connection import add_command
from neve.client.command.failures import CommandFailed
from neve.client.command.streams import add_stream
from neve.client.command.wbench import add_duration, measure
from neve.client.streams.client import Client
from neve.client.streams.types import Position, Record

POSITIONS_MAX = 100_000  # of random reads; sampled if the stream has more records
GROUP_RECORDS_MAX = 1_000  # records of a sequential sample; about as many small ones as one reply contains
GROUP_BYTES_MAX = 1 << 20


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "rbench",
        run,
        help="measure reading",
        description="Read a stream repeatedly for a while and report the speed. A sequential sample is up to "
        f"{GROUP_RECORDS_MAX} records; a random one is one record.",
        json_too=False,
    )
    add_stream(parser)
    add_duration(parser)
    parser.add_argument(
        "--inflight", type=options.whole_number(1, 10_000), default=1, metavar="N", help="readers (default: 1)"
    )
    parser.add_argument("--random", action="store_true", help="single records at random positions")
    parser.set_defaults(cache_bytes_max=0)  # measures the cluster, not this process's cache


async def run(client: Client, args: argparse.Namespace) -> int:
    async with stop_on_interrupt() as stop, contextlib.AsyncExitStack() as stack:
        stream = await client.stream(args.stream)
        operations: list[Operation]
        if args.random:
            positions = await unless_stopped(_sample(client, stream.id), stop)
            operations = [_random_reads(client, stream.id, positions) for _ in range(args.inflight)]
        else:
            await unless_stopped(_first(client, stream.id), stop)
            readers = [_Scan(client, stream.id) for _ in range(args.inflight)]
            for reader in readers:
                stack.push_async_callback(reader.close)
            operations = [reader.read_some for reader in readers]
        title = f"rbench {'random' if args.random else 'sequential'} × {args.inflight}"
        return await measure(operations, args, kind="rbench", title=title, stop=stop)


async def _first(client: Client, stream_id: int) -> None:
    async with contextlib.aclosing(client.read(stream_id)) as found:  # type: ignore[type-var]  # it is a generator
        async for _ in found:
            return
    raise CommandFailed(f"stream {stream_id} has no record to read")


async def _sample(client: Client, stream_id: int) -> list[Position]:
    """Return positions of records, each equally likely (reservoir sampling)."""
    rng = random.Random(0)
    kept: list[Position] = []
    number = 0
    async for record in client.read(stream_id):
        number += 1
        if len(kept) < POSITIONS_MAX:
            kept.append(record.position)
        elif (at := rng.randrange(number)) < POSITIONS_MAX:
            kept[at] = record.position
    if not kept:
        raise CommandFailed(f"stream {stream_id} has no record to read")
    rng.shuffle(kept)
    return kept


def _random_reads(client: Client, stream_id: int, positions: list[Position]) -> Operation:
    rng = random.Random()

    async def read_one() -> tuple[int, int]:
        record = await client.read_record(stream_id, rng.choice(positions))
        return 1, len(record.payload)

    return read_one


class _Scan:
    """One sequential reader, which starts again at the end."""

    def __init__(self, client: Client, stream_id: int) -> None:
        self._client = client
        self._stream_id = stream_id
        self._records: AsyncIterator[Record] | None = None

    async def read_some(self) -> tuple[int, int]:
        count = size_bytes = 0
        while count < GROUP_RECORDS_MAX and size_bytes < GROUP_BYTES_MAX:
            if self._records is None:
                self._records = aiter(self._client.read(self._stream_id))
            try:
                record = await anext(self._records)
            except StopAsyncIteration:
                self._records = None
                if count:
                    break
                continue
            except BaseException:
                self._records = None
                raise
            count += 1
            size_bytes += len(record.payload)
        return count, size_bytes

    async def close(self) -> None:
        records = self._records
        if records is not None and hasattr(records, "aclose"):
            await records.aclose()
