"""The readers of the node's benchmark: sealed extents, and every block that arrives is checked by its CRC."""

from __future__ import annotations

import asyncio
import os
import random
import time

from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import HEADER_BYTES, encode_blocks, verify
from neve.rpc.service import Buffer, Reply
from tests.bench.node_rows.appends import MIB, batches, make_payloads
from tests.bench.node_rows.calls import NodeCalls, Unexpected

FILL_WINDOW = 8
WARM_UP_S = 0.2


async def make_sealed(calls: NodeCalls, *, size_bytes: int, block_bytes: int) -> int:
    """A sealed extent of about this size with blocks of one size; its id."""
    blocks_per_frame = max(1, MIB // block_bytes)
    source = batches(make_payloads(block_bytes), blocks_per_frame)
    extent = await calls.create(extent_bytes_max=2 * size_bytes)
    left = iter(range(size_bytes // (blocks_per_frame * block_bytes)))

    async def write() -> None:
        for _ in left:
            await calls.append(extent, encode_blocks(next(source)), no_sync=True)

    await asyncio.gather(*(write() for _ in range(FILL_WINDOW)))
    await calls.seal(extent)
    return extent.extent_id


async def read_through(calls: NodeCalls, *, extent_id: int, read_bytes: int, passes: int) -> float:
    """Bytes a second of reading an extent from its beginning to its end, so many times."""
    begun_s = time.perf_counter()
    read = 0
    for _ in range(passes):
        read += await _read_once(calls, extent_id, read_bytes)
    return read / (time.perf_counter() - begun_s)


async def _read_once(calls: NodeCalls, extent_id: int, read_bytes: int) -> int:
    """The next read leaves when it is known where the last one will end, before its bytes are here, so that two are
    under way or held; the client has one more of a sealed extent."""
    ahead: list[tuple[int, asyncio.Future[Reply[pb.ReadBlockReply]]]] = []

    def ask(offset: int) -> None:
        ahead.append((offset, calls.begin_read(extent_id, offset, max_bytes=read_bytes, on_head=ask_ahead)))

    def ask_ahead(reply: pb.ReadBlockReply) -> None:
        if reply.end < reply.readable:
            ask(reply.end)

    ask(0)
    while True:
        offset, reading = ahead.pop(0)
        reply = await reading
        end = reply.message.end
        if end - offset != len(reply.attachment) or not reply.message.sealed:
            raise Unexpected(f"extent {extent_id} at {offset}: {reply.message}")
        if not ahead:
            ask_ahead(reply.message)  # nobody told, as of an answer that came in one piece
        _check(reply.attachment, extent_id)
        del reply, reading  # lets its memory be used for the next one
        if not ahead:
            return end


def _check(buffer: Buffer, extent_id: int) -> None:
    problem = verify(buffer)
    if problem is not None:
        raise Unexpected(f"extent {extent_id}: {problem}")


async def random_reads_per_second(
    calls: NodeCalls, *, extent_id: int, size_bytes: int, block_bytes: int, window: int, duration_s: float
) -> float:
    """Reads a second of one block each, anywhere in the extent, with so many in flight."""
    block_total = HEADER_BYTES + block_bytes
    blocks = size_bytes // block_total
    draw = random.Random(os.urandom(8)).randrange

    async def read(end_s: float) -> int:
        reads = 0
        while time.perf_counter() < end_s:
            offset = draw(blocks) * block_total
            reply = await calls.read(extent_id, offset, max_bytes=block_total, max_blocks=1)
            if len(reply.attachment) != block_total:
                raise Unexpected(f"extent {extent_id} at {offset}: {len(reply.attachment)} bytes")
            _check(reply.attachment, extent_id)
            reads += 1
        return reads

    async def all_read(for_s: float) -> int:
        end_s = time.perf_counter() + for_s
        return sum(await asyncio.gather(*(read(end_s) for _ in range(window))))

    await all_read(WARM_UP_S)
    begun_s = time.perf_counter()
    reads = await all_read(duration_s)
    return reads / (time.perf_counter() - begun_s)
