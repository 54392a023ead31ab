"""The writers of the node's benchmark. Each function takes one sample and returns one number.

Framing, block CRCs and the frame's CRC are inside of what is timed: every writer has to pay for them. Making an extent,
its first append (which marks it durably as resting on the page cache) and removing it are outside: an extent of 1 GiB
pays for them once.
"""

from __future__ import annotations

import asyncio
import functools
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from neve.proto.blocks import encode_blocks
from tests.bench.node_rows.calls import NodeCalls, OpenExtent

MIB = 1 << 20

Payloads = Iterator[Sequence[bytes]]  # of one frame after the other

# Payloads come from as many bytes as this, over and over: more than a core's own cache holds, as a writer's data would.
SOURCE_BYTES = 16 * MIB
LATENCY_EXTENT_BYTES = 64 * MIB
MANY_EXTENT_BYTES = 4 * MIB  # each; a node reserves their blocks when it makes them

WARM_UP_CALLS = 50
WARM_UP_S = 0.2


@functools.cache  # to draw them takes as long as to append them
def make_payloads(block_bytes: int, source_bytes: int = SOURCE_BYTES) -> list[bytes]:
    source = os.urandom(source_bytes)
    return [source[at : at + block_bytes] for at in range(0, source_bytes - block_bytes + 1, block_bytes)]


def batches(payloads: Sequence[bytes], blocks_per_frame: int) -> Payloads:
    """Frames' worth of payloads, for ever."""
    assert 0 < blocks_per_frame <= len(payloads), (blocks_per_frame, len(payloads))
    starts = range(0, len(payloads) - blocks_per_frame + 1, blocks_per_frame)
    while True:
        for start in starts:
            yield payloads[start : start + blocks_per_frame]


async def bytes_per_second(
    calls: NodeCalls, *, block_bytes: int, frame_bytes: int, window: int, total_bytes: int
) -> float:
    """Payload bytes a second into one extent, not synced, with so many frames in flight."""
    blocks_per_frame = frame_bytes // block_bytes
    frames = total_bytes // frame_bytes
    payloads = make_payloads(block_bytes)
    source = batches(payloads, blocks_per_frame)
    extent = await calls.create(extent_bytes_max=4 * total_bytes)
    await calls.append(extent, encode_blocks(payloads[:1]), no_sync=True)
    left = iter(range(frames))

    async def write() -> None:
        for _ in left:
            await calls.append(extent, encode_blocks(next(source)), no_sync=True)

    begun_s = time.perf_counter()
    await asyncio.gather(*(write() for _ in range(window)))
    took_s = time.perf_counter() - begun_s
    await calls.delete(extent)
    return frames * blocks_per_frame * block_bytes / took_s


async def latency(calls: NodeCalls, *, block_bytes: int, sync: bool, duration_s: float) -> float:
    """The median time of one append when there is no other."""
    payloads = batches(make_payloads(block_bytes), 1)
    extent = await calls.create(extent_bytes_max=LATENCY_EXTENT_BYTES)
    took_s = await _median_s(lambda: calls.append(extent, encode_blocks(next(payloads)), no_sync=not sync), duration_s)
    await calls.delete(extent)
    return took_s


async def echo_latency(calls: NodeCalls, *, block_bytes: int, duration_s: float) -> float:
    """The same for a call that does nothing: what an append cannot be faster than."""
    payloads = batches(make_payloads(block_bytes), 1)
    return await _median_s(lambda: calls.echo(next(payloads)), duration_s)


async def _median_s(call: Callable[[], Awaitable[None]], duration_s: float) -> float:
    for _ in range(WARM_UP_CALLS):
        await call()
    took_s: list[float] = []
    end_s = time.perf_counter() + duration_s
    while not took_s or time.perf_counter() < end_s:
        begun_s = time.perf_counter()
        await call()
        took_s.append(time.perf_counter() - begun_s)
    return statistics.median(took_s)


# --- many extents, one append in flight each -----------------------------------------------------------------


class ManyExtents:
    """Extents of one node that are used by sample after sample: to make hundreds of them takes longer than a sample."""

    def __init__(self, calls: NodeCalls) -> None:
        self._calls = calls
        self._extents: list[OpenExtent] = []

    async def synced_appends_per_second(
        self, *, extents: int, block_bytes: int, frame_extents: int, duration_s: float
    ) -> float:
        """Appends a second into so many extents, each synced, one in flight for each extent.

        A frame carries one append for each of `frame_extents` extents, as a client sends together what its streams have
        appended in one turn of its loop; the next one with the same extents leaves when it is answered.
        """
        await self._make_room(extents)
        payloads = batches(make_payloads(block_bytes), 1)
        groups = [self._extents[first : first + frame_extents] for first in range(0, extents, frame_extents)]
        await self._write(groups, payloads, WARM_UP_S)
        begun_s = time.perf_counter()
        appends = await self._write(groups, payloads, duration_s)
        return appends / (time.perf_counter() - begun_s)

    async def _make_room(self, count: int) -> None:
        """There are at least so many, and each has room for a sample."""
        full = [extent for extent in self._extents if extent.end > MANY_EXTENT_BYTES // 2]
        self._extents = [extent for extent in self._extents if extent not in full]
        await asyncio.gather(*(self._calls.delete(extent) for extent in full))
        lacking = range(count - len(self._extents))
        self._extents += await asyncio.gather(
            *(self._calls.create(extent_bytes_max=MANY_EXTENT_BYTES) for _ in lacking)
        )

    async def _write(self, groups: Sequence[Sequence[OpenExtent]], payloads: Payloads, for_s: float) -> int:
        end_s = time.perf_counter() + for_s

        async def write(extents: Sequence[OpenExtent]) -> int:
            appends = 0
            while time.perf_counter() < end_s:
                frame = [(extent, encode_blocks(next(payloads))) for extent in extents]
                await self._calls.append_all(frame, no_sync=False)
                appends += len(frame)
            return appends

        return sum(await asyncio.gather(*(write(extents) for extents in groups)))


# --- many writers, each with a connection --------------------------------------------------------------------


@dataclass(slots=True)
class Writers:
    """Connected once, then told to write several times."""

    writers: list[tuple[NodeCalls, OpenExtent]] = field(default_factory=list)

    async def connect(self, address: str, *, count: int, extent_bytes_max: int) -> int:
        async def one() -> tuple[NodeCalls, OpenExtent]:
            calls = NodeCalls(address)
            return calls, await calls.create(extent_bytes_max=extent_bytes_max)

        self.writers = list(await asyncio.gather(*(one() for _ in range(count))))
        return len(self.writers)

    async def write(self, *, block_bytes: int, window: int, duration_s: float) -> float:
        """Payload bytes a second over all writers, each append synced. All of them have `window` frames in flight."""
        frame = encode_blocks([os.urandom(block_bytes)])
        begun_s = time.perf_counter()
        end_s = begun_s + duration_s

        async def one(calls: NodeCalls, extent: OpenExtent) -> int:
            appends = 0
            while time.perf_counter() < end_s:
                await calls.append(extent, frame, no_sync=False)
                appends += 1
            return appends

        appends = await asyncio.gather(*(one(calls, extent) for calls, extent in self.writers for _ in range(window)))
        return sum(appends) * block_bytes / (time.perf_counter() - begun_s)

    async def close(self) -> int:
        closed, self.writers = self.writers, []
        await asyncio.gather(*(calls.close() for calls, _ in closed))
        return len(closed)
