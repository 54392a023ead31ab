"""The writers of the streams' benchmark, as a program would write them. Each function takes one sample.

Making a stream, opening its writer, first appends to it and deleting it are outside of what is timed; framing,
checksums, all replicas and the acknowledgement are inside. A rate is that of a writer under way: what a process has not
touched for seconds (buffers, windows of connections) is touched by the first appends.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from neve.client import Client, Position, Writer
from tests.bench.node_rows.appends import WARM_UP_CALLS, WARM_UP_S, batches, make_payloads

MIB = 1 << 20
REPLICAS = 3
WARM_UP_BYTES = 48 * MIB  # of a stream whose rate is taken

LARGE_WINDOW = 32  # appends in flight
MANY_RECORDS = 1024  # of one append_many
MANY_WINDOW = 8  # append_many calls in flight
SUBMIT_TURN = 512  # records that a program submits before it lets others run

LATENCY_EXTENT_BYTES = 64 * MIB
STREAM_EXTENT_BYTES = 16 * MIB


class Unexpected(Exception):
    """What no benchmark can go on with."""


@asynccontextmanager
async def new_writer(
    client: Client, *, extent_bytes_max: int, sync: bool, delete: bool = True
) -> AsyncIterator[Writer]:
    """A writer of a new stream that goes afterwards. The extent is large enough for all that is appended."""
    stream = await client.create_stream(replicas=REPLICAS, sync=sync, extent_bytes_max=extent_bytes_max)
    try:
        async with client.writer(stream.id) as writer:
            await writer.append(b"first")  # marks the extents durably as resting on the page cache
            yield writer
            if writer.stats.rolls:
                raise Unexpected(f"the writer went on to another extent {writer.stats.rolls} times")
    finally:
        if delete:
            await client.delete(stream.id)


def _room_bytes(total_bytes: int) -> int:
    """For a sample and what goes before it, with the blocks' headers."""
    return 2 * (WARM_UP_BYTES + total_bytes)


async def _rate(write: Callable[[int], Awaitable[int]], total_bytes: int) -> float:
    """Bytes a second of a writer under way: `write` appends so many bytes, and says how many those were."""
    await write(WARM_UP_BYTES)
    begun_s = time.perf_counter()
    written = await write(total_bytes)
    return written / (time.perf_counter() - begun_s)


async def append(client: Client, *, block_bytes: int, total_bytes: int, delete: bool = True) -> float:
    """Payload bytes a second into one stream, not synced, one append call for each block."""
    blocks = batches(make_payloads(block_bytes), 1)

    async def write(size_bytes: int) -> int:
        count = size_bytes // block_bytes
        pending: deque[asyncio.Future[Position]] = deque()
        for _ in range(count):
            if len(pending) >= LARGE_WINDOW:
                await pending.popleft()
            pending.append(writer.submit(next(blocks)[0]))
        for future in pending:
            await future
        return count * block_bytes

    async with new_writer(client, extent_bytes_max=_room_bytes(total_bytes), sync=False, delete=delete) as writer:
        return await _rate(write, total_bytes)


async def append_many(client: Client, *, block_bytes: int, total_bytes: int) -> float:
    """Payload bytes a second into one stream, not synced, by lists of small records."""
    records = batches(make_payloads(block_bytes), MANY_RECORDS)

    async def write_some(left: Iterator[int]) -> None:
        for _ in left:
            positions = await writer.append_many(next(records))
            if len(positions) != MANY_RECORDS:
                raise Unexpected(f"{len(positions)} positions for {MANY_RECORDS} records")

    async def write(size_bytes: int) -> int:
        lists = size_bytes // (block_bytes * MANY_RECORDS)
        left = iter(range(lists))
        await asyncio.gather(*(write_some(left) for _ in range(MANY_WINDOW)))
        return lists * MANY_RECORDS * block_bytes

    async with new_writer(client, extent_bytes_max=_room_bytes(total_bytes), sync=False) as writer:
        return await _rate(write, total_bytes)


async def submit(client: Client, *, block_bytes: int, total_bytes: int) -> float:
    """Payload bytes a second into one stream, not synced, a future for each small record."""
    records = batches(make_payloads(block_bytes), SUBMIT_TURN)
    window = MANY_WINDOW * MANY_RECORDS // SUBMIT_TURN

    async def write(size_bytes: int) -> int:
        turns = size_bytes // (block_bytes * SUBMIT_TURN)
        pending: deque[list[asyncio.Future[Position]]] = deque()
        for _ in range(turns):
            if len(pending) >= window:
                await _all_done(pending.popleft())
            pending.append([writer.submit(record) for record in next(records)])
        for futures in pending:
            await _all_done(futures)
        return turns * SUBMIT_TURN * block_bytes

    async with new_writer(client, extent_bytes_max=_room_bytes(total_bytes), sync=False) as writer:
        return await _rate(write, total_bytes)


async def _all_done(futures: Sequence[asyncio.Future[Position]]) -> None:
    """Appends are acknowledged in order: after the last one all are, and each is looked at."""
    await futures[-1]
    for future in futures:
        future.result()


async def latency(client: Client, *, block_bytes: int, sync: bool, duration_s: float) -> float:
    """The median time of one append when there is no other."""
    blocks = batches(make_payloads(block_bytes), 1)
    async with new_writer(client, extent_bytes_max=LATENCY_EXTENT_BYTES, sync=sync) as writer:
        for _ in range(WARM_UP_CALLS):
            await writer.append(next(blocks)[0])
        took_s: list[float] = []
        end_s = time.perf_counter() + duration_s
        while not took_s or time.perf_counter() < end_s:
            payload = next(blocks)[0]
            begun_s = time.perf_counter()
            await writer.append(payload)
            took_s.append(time.perf_counter() - begun_s)
    return statistics.median(took_s)


class ManyStreams:
    """Streams with open writers that are used by sample after sample: to make hundreds takes longer than a sample."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._writers: list[Writer] = []

    async def synced_appends(self, *, streams: int, block_bytes: int, duration_s: float) -> float:
        """Appends a second into so many streams, each synced, one in flight for each stream."""
        while len(self._writers) < streams:
            self._writers.append(await self._open())
        writers = self._writers[:streams]
        blocks = batches(make_payloads(block_bytes), 1)
        await self._write(writers, blocks, WARM_UP_S)
        begun_s = time.perf_counter()
        appends = await self._write(writers, blocks, duration_s)
        return appends / (time.perf_counter() - begun_s)

    async def _open(self) -> Writer:
        stream = await self._client.create_stream(replicas=REPLICAS, sync=True, extent_bytes_max=STREAM_EXTENT_BYTES)
        return await self._client.writer(stream.id).open()

    async def _write(self, writers: Sequence[Writer], blocks: Iterator[Sequence[bytes]], for_s: float) -> int:
        end_s = time.perf_counter() + for_s

        async def write(writer: Writer) -> int:
            appends = 0
            while time.perf_counter() < end_s:
                await writer.append(next(blocks)[0])
                appends += 1
            return appends

        return sum(await asyncio.gather(*map(write, writers)))
