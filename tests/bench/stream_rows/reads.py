"""The readers of the streams' benchmark. Every block is checked by the client, as for any reader.

Streams are written and sealed once, before the first sample; their extents are in the nodes' page cache then.
"""

from __future__ import annotations

import asyncio
import random
import time

from neve.client import Client, Position
from tests.bench.node_rows.appends import make_payloads
from tests.bench.stream_rows.writes import MIB, REPLICAS, Unexpected

BATCH_BYTES = 1 * MIB
CONFIRM_POLL_S = 0.05
CONFIRM_TIMEOUT_S = 120.0

_positions: dict[int, list[Position]] = {}  # of the records of sealed streams, by stream id


async def make_sealed(client: Client, *, size_bytes: int, block_bytes: int) -> float:
    """A sealed stream of one extent with so many bytes of payload; returns its id."""
    payloads = make_payloads(block_bytes)
    per_batch = max(1, BATCH_BYTES // block_bytes)
    stream = await client.create_stream(replicas=REPLICAS, sync=False, extent_bytes_max=2 * size_bytes)
    positions = _positions[stream.id] = []
    async with client.writer(stream.id) as writer:
        while len(positions) * block_bytes < size_bytes:
            first = len(positions) % max(1, len(payloads) - per_batch)
            positions += await writer.append_many(payloads[first : first + per_batch])
    await client.seal(stream.id)
    if len({position.extent_id for position in positions}) != 1:
        raise Unexpected("the stream is not in one extent")
    await until_confirmed(client, positions[0].extent_id)
    return stream.id


async def until_confirmed(client: Client, extent_id: int) -> None:
    """Every replica has confirmed the seal: any of them may be read."""
    async with asyncio.timeout(CONFIRM_TIMEOUT_S):
        while True:
            (extent,) = await client.admin.describe_extents([extent_id])
            if all(replica.confirmed for replica in extent.replicas):
                return
            await asyncio.sleep(CONFIRM_POLL_S)


async def read_through(client: Client, *, stream_id: int, passes: int) -> float:
    """Payload bytes a second, from the first record to the last."""
    expected = len(_positions[stream_id])
    begun_s = time.perf_counter()
    size_bytes = 0
    for _ in range(passes):
        records = 0
        async for record in client.read(stream_id, copy=False):
            records += 1
            size_bytes += len(record.payload)
        if records != expected:
            raise Unexpected(f"{records} records were read, {expected} were written")
    return size_bytes / (time.perf_counter() - begun_s)


async def random_reads(client: Client, *, stream_id: int, window: int, duration_s: float) -> float:
    """Reads a second of single records anywhere in the stream, so many in flight."""
    positions = _positions[stream_id]
    draw = random.Random(window)
    begun_s = time.perf_counter()
    end_s = begun_s + duration_s

    async def read() -> int:
        reads = 0
        while time.perf_counter() < end_s:
            position = positions[draw.randrange(len(positions))]
            record = await client.read_record(stream_id, position)
            if record.position != position:
                raise Unexpected(f"{record.position} was read in place of {position}")
            reads += 1
        return reads

    reads = sum(await asyncio.gather(*(read() for _ in range(window))))
    return reads / (time.perf_counter() - begun_s)
