"""Reads: whole blocks up to `committed`, or up to the seal (protocol rules 9 and 21).

Invariants: nothing beyond `committed` of an open replica, nothing of a doubtful one, and nothing at or above damage;
            the reader checks the blocks' CRCs; a reply begins and ends at block boundaries, by the headers (open) or
            by the index (sealed);
            a follower waits for `committed` to advance, for a bounded time, and at most `followers_max` wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neve.extent_node import core
from neve.extent_node.disk.file_system import Buffer
from neve.extent_node.store.open_files import SealedFile, SealedRange
from neve.extent_node.store.replica import Replica
from neve.extent_node.store.state import StoreState
from neve.proto import blocks
from neve.proto import extent_node_pb2 as pb
from neve.proto.crc import crc32c
from neve.proto.errors import InvalidArgument, Overloaded, ReplicaDamaged

# Up to this far below its end, an open extent's bytes were written by this process a moment ago. They are in the page
# cache, and reading them on the loop is cheaper than in a thread (about 5 µs, not 40).
HOT_TAIL_BYTES = 8 << 20
INDEX_BLOCKS_MAX = 400_000  # in one reply to ReadIndex: 2 MB
INDEX_BLOCK_BYTES = 5  # per block in that reply


class ReadResult(NamedTuple):
    """The reply to ReadBlock. The buffers may be views of a mapping, which lives as long as they do."""

    end: int
    readable: int
    sealed: bool
    blocks: int
    payload: Sequence[Buffer] = ()
    file: SealedRange | None = None  # the same bytes, for sendfile
    next_end: int = 0  # where the reply to the reader's next request will end; 0: not known


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The reply to ReadRange: raw bytes of a sealed replica, and their checksum as read from the disk."""

    reply: pb.ReadRangeReply
    payload: list[Buffer]


@dataclass(frozen=True, slots=True)
class IndexResult:
    """The reply to ReadIndex."""

    reply: pb.ReadIndexReply
    payload: list[Buffer]


class Reader:
    """Serves ReadBlock, ReadRange and ReadIndex from a store's replicas."""

    def __init__(self, store: StoreState) -> None:
        self._store = store
        self._files = store.sealed_files
        self._followers = 0

    async def follow(self, request: pb.ReadBlockRequest) -> None:
        """Wait, for up to `wait_ms`, until there is something to read at `offset`.

        Separate from `read`, so that a server need not reserve room for a reply meanwhile.
        """
        self._store.check_running()
        bounds, replica = self._bounds(request)
        if bounds.serve_end == request.offset and not bounds.sealed:
            await self._follow(replica, request)

    async def read(self, request: pb.ReadBlockRequest) -> ReadResult:
        self._store.check_running()
        if request.follow:
            await self.follow(request)
        bounds, replica = self._bounds(request)
        if bounds.serve_end == request.offset:
            return ReadResult(request.offset, bounds.readable, bounds.sealed, 0)
        max_bytes = self._max_bytes(request)
        if bounds.sealed:
            result = await self._read_sealed(replica, request, bounds, max_bytes)
        else:
            result = await self._read_open(replica, request, bounds, max_bytes)
        self._count(result.end - request.offset)
        return result

    def _max_bytes(self, request: pb.ReadBlockRequest) -> int:
        limit = self._store.config.read_bytes_max
        return min(request.max_bytes or limit, limit)

    def _count(self, size_bytes: int) -> None:
        counters = self._store.counters
        counters.reads += 1
        counters.read_bytes += size_bytes

    def _bounds(self, request: pb.ReadBlockRequest) -> tuple[core.Readable, Replica]:
        """How far this read may go now, and its replica."""
        extent_id = request.extent_id
        replica = self._store.replicas.get(extent_id)
        if replica is not None:
            self._store.check_disk(replica)
        bounds = core.decide_read(
            self._store.existing(extent_id), wanted=request.replica, extent_id=extent_id, offset=request.offset
        )
        if isinstance(bounds, core.Refuse):
            raise bounds.error
        assert replica is not None
        return bounds, replica

    # --- sealed ----------------------------------------------------------------------------------------------

    async def _opened(self, replica: Replica) -> SealedFile:
        opened = self._files.get(replica)
        if opened is None:
            self._store.check_backlog()
            opened = await self._files.open(replica)
        return opened

    async def _warm(self, replica: Replica, opened: SealedFile, start: int, end: int) -> None:
        """Bring [start, end) into memory, unless it is there."""
        if not self._files.is_warm(replica, opened, start, end):
            self._store.check_backlog()
            await self._files.warm(replica, opened, start, end)

    async def _read_sealed(
        self, replica: Replica, request: pb.ReadBlockRequest, bounds: core.Readable, max_bytes: int
    ) -> ReadResult:
        opened = await self._opened(replica)
        end, count = self._block_range(replica, opened, request, bounds, max_bytes)
        await self._warm(replica, opened, request.offset, end)
        return self._sealed_result(opened, request, end, count, bounds)

    def _sealed_result(
        self, opened: SealedFile, request: pb.ReadBlockRequest, end: int, count: int, bounds: core.Readable
    ) -> ReadResult:
        part = SealedRange(opened, request.offset, opened.view[request.offset : end])
        next_end = self._next_end(opened, request.next_max_bytes, end, bounds) if request.next_max_bytes else 0
        return ReadResult(end, bounds.readable, True, count, (part.view,), part, next_end)

    def _next_end(self, opened: SealedFile, max_bytes: int, offset: int, bounds: core.Readable) -> int:
        """Where the reply after the one that ends at `offset` will end.

        With it, the reader can request both, and what follows them, before either arrives.
        """
        max_bytes = min(max_bytes, self._store.config.read_bytes_max, bounds.serve_end - offset)
        run = opened.blocks.blocks_from(offset, max_blocks=0, max_bytes=max_bytes) if max_bytes > 0 else None
        return run[0] if run is not None and run[0] <= bounds.serve_end else 0

    def _block_range(
        self, replica: Replica, opened: SealedFile, request: pb.ReadBlockRequest, bounds: core.Readable, max_bytes: int
    ) -> tuple[int, int]:
        """The whole blocks for the reply: (end, blocks)."""
        max_bytes = min(max_bytes, bounds.serve_end - request.offset)  # known damage may limit it further
        run = opened.blocks.blocks_from(request.offset, max_blocks=request.max_blocks, max_bytes=max_bytes)
        if run is None:
            raise InvalidArgument(what="offset", detail=f"no block begins at {request.offset}")
        if run[0] > bounds.serve_end:
            raise ReplicaDamaged(extent_id=replica.extent_id, offset=bounds.serve_end)
        return run

    async def read_range(self, request: pb.ReadRangeRequest) -> RangeResult:
        """Raw bytes for a copy (protocol rule 22)."""
        self._store.check_running()
        extent_id = request.extent_id
        replica = self._store.replicas.get(extent_id)
        seal = core.decide_read_range(
            self._store.existing(extent_id),
            wanted=request.replica,
            extent_id=extent_id,
            offset=request.offset,
            size_bytes=request.length,
        )
        if isinstance(seal, core.Refuse):
            raise seal.error
        assert replica is not None
        self._store.check_disk(replica)
        opened = await self._opened(replica)
        end = request.offset + request.length
        await self._warm(replica, opened, request.offset, end)
        payload = opened.view[request.offset : end]
        self._store.counters.read_bytes += request.length
        return RangeResult(pb.ReadRangeReply(seal=seal, payload_crc32c=crc32c(payload)), [payload])

    async def read_index(self, request: pb.ReadIndexRequest) -> IndexResult:
        """The places of blocks, without their bytes, for scans of metadata."""
        self._store.check_running()
        replica = self._store.replicas.get(request.extent_id)
        seal = core.decide_read_range(
            self._store.existing(request.extent_id),
            wanted=request.replica,
            extent_id=request.extent_id,
            offset=0,
            size_bytes=0,
        )
        if isinstance(seal, core.Refuse):
            raise seal.error
        assert replica is not None
        self._store.check_disk(replica)
        index = (await self._opened(replica)).blocks
        first, last = index.numbers_in(request.start, request.end or index.length)
        taken = min(last - first, request.max_blocks or INDEX_BLOCKS_MAX, INDEX_BLOCKS_MAX)
        reply = pb.ReadIndexReply(seal=seal, blocks=taken, more=first + taken < last, total_blocks=index.count)
        if taken:
            reply.first_offset = int(index.offsets[first])
        sizes, types = index.sizes[first : first + taken], index.types[first : first + taken]
        return IndexResult(reply, [sizes.tobytes(), types.tobytes()])

    # --- open ------------------------------------------------------------------------------------------------

    async def _read_open(
        self, replica: Replica, request: pb.ReadBlockRequest, bounds: core.Readable, max_bytes: int
    ) -> ReadResult:
        offset = request.offset
        data = await self._pread(replica, offset, min(max_bytes, bounds.serve_end - offset))
        end, count = _whole_blocks(data, request.max_blocks)
        if count == 0:
            # The first block is returned whole even if it alone exceeds the requested size.
            size_total = _first_block_bytes(data)
            if size_total is None or size_total > bounds.serve_end - offset:
                detail = "no whole block begins here: it is damaged, or this is not a block's offset"
                raise ReplicaDamaged(extent_id=replica.extent_id, offset=offset, detail=detail)
            if replica.gone or replica.state.seal is not None:
                # Removed or sealed meanwhile: its descriptor is closed, and would leak if it were opened again.
                bounds, replica = self._bounds(request)
                return await self._read_sealed(replica, request, bounds, max_bytes)
            data = await self._pread(replica, offset, size_total)
            end, count = size_total, 1
        if len(data) < end:
            raise ReplicaDamaged(extent_id=replica.extent_id, offset=offset + len(data), detail="bytes are missing")
        return ReadResult(offset + end, bounds.readable, False, count, [memoryview(data)[:end]])

    async def _pread(self, replica: Replica, offset: int, size_bytes: int) -> bytes:
        self._store.open(replica)
        size_bytes = max(size_bytes, blocks.HEADER_BYTES)
        file_bytes = replica.file_end - offset
        if size_bytes <= file_bytes:
            deferred = b""
        else:  # copied now, because deferred bytes may be written to the file during the read
            file_bytes = max(file_bytes, 0)
            start = offset + file_bytes - replica.file_end
            deferred = b"".join(replica.deferred)[start : start + size_bytes - file_bytes]
            size_bytes = file_bytes
        try:
            if offset + HOT_TAIL_BYTES >= replica.state.length:
                data = replica.read(offset, size_bytes) if size_bytes else b""
            else:
                self._store.check_backlog()
                data = await self._store.run_beside(replica, replica.read, offset, size_bytes)
            return data + deferred if deferred and len(data) == size_bytes else data
        except OSError as error:
            raise self._store.disk_error(replica.disk, replica.extent_id, error) from error

    # --- following -------------------------------------------------------------------------------------------

    async def _follow(self, replica: Replica, request: pb.ReadBlockRequest) -> None:
        """Wait until there are bytes behind `offset`, the replica changes permanently, or the time is over."""
        if self._followers >= self._store.config.followers_max:
            raise Overloaded(what="reads that wait for more")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + request.wait_ms / 1000
        self._followers += 1
        try:
            while self._at_end(replica, request.offset) and loop.time() < deadline_s:
                future: asyncio.Future[None] = loop.create_future()
                if replica.followers is None:
                    replica.followers = []
                replica.followers.append(future)
                try:  # not asyncio.timeout, for which a handler needs a task
                    await asyncio.wait([future], timeout=deadline_s - loop.time())
                finally:
                    if replica.followers is not None and future in replica.followers:
                        replica.followers.remove(future)
        finally:
            self._followers -= 1

    def _at_end(self, replica: Replica, offset: int) -> bool:
        bounds = core.decide_read(
            None if replica.gone else replica.state,
            wanted=replica.state.ref(),
            extent_id=replica.extent_id,
            offset=offset,
        )
        return isinstance(bounds, core.Readable) and bounds.serve_end == offset and not bounds.sealed


def _whole_blocks(data: bytes, max_blocks: int) -> tuple[int, int]:
    """(bytes, blocks) of the whole blocks at the start, by their headers."""
    end = count = 0
    try:
        for block in blocks.walk(data):
            end, count = block.end, count + 1
            if count == max_blocks:
                break
    except blocks.BadBlock:
        pass  # the last block is cut by the requested size, or damaged: in both cases the reply ends before it
    return end, count


def _first_block_bytes(data: bytes) -> int | None:
    if len(data) < blocks.HEADER_BYTES:
        return None
    _, size_bytes, block_type = blocks.parse_header(data)
    known = {kind.value for kind in blocks.BlockType}
    return blocks.HEADER_BYTES + size_bytes if block_type in known else None
