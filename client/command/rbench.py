"""stream-client rbench: how fast can a stream be read?

Invariants: every byte that counts was checked by the client, as for any reader;
            sequential readers begin again at the start when they reach the end; random ones read one record at a time
            at positions that were found, evenly, in one pass before.
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

POSITIONS_MAX = 100_000  # of random reads: a sample, if the stream has more
GROUP_RECORDS_MAX = 1_000  # of a sequential sample: one call of the network brings about as many small ones
GROUP_BYTES_MAX = 1 << 20


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "rbench",
        run,
        help="measure reading",
        description="Read a stream again and again for a while, and say how fast it was. A sequential sample is up to "
        f"{GROUP_RECORDS_MAX} records; a random one is one record.",
        json_too=False,
    )
    add_stream(parser)
    add_duration(parser)
    parser.add_argument(
        "--inflight", type=options.whole_number(1, 10_000), default=1, metavar="N", help="readers (default: 1)"
    )
    parser.add_argument("--random", action="store_true", help="single records at random positions")
    parser.set_defaults(cache_bytes_max=0)  # what is to be measured is the cluster, not this process's memory


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
    """Positions of records, each with the same chance (reservoir sampling)."""
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
    """One sequential reader, over and over."""

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
