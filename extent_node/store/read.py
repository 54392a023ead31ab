"""Reads: whole blocks up to `committed`, or up to the seal (rules 9, 21).

Invariants: nothing beyond `committed` of an open replica, nothing of a doubtful one, and nothing at or above damage;
            block CRCs are the reader's to check; what is answered begins and ends at block boundaries by the headers
            (open) or by the index (sealed);
            a follower waits for `committed` to move, for a bounded time, and at most `followers_max` wait.
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

# Bytes below the end of an open extent that this process wrote a moment ago: they are in the page cache, and reading
# them on the loop is cheaper than a thread (about 5 µs against 40).
HOT_TAIL_BYTES = 8 << 20
INDEX_BLOCKS_MAX = 400_000  # of one answer to ReadIndex: 2 MB
INDEX_BLOCK_BYTES = 5  # there, of each block


class ReadResult(NamedTuple):
    """An answer to ReadBlock. The buffers may be views of a mapping: they live as long as they are held."""

    end: int
    readable: int
    sealed: bool
    blocks: int
    payload: Sequence[Buffer] = ()
    file: SealedRange | None = None  # which has the same bytes
    next_end: int = 0  # of what the reader will ask for next; 0: not known


@dataclass(frozen=True, slots=True)
class RangeResult:
    """An answer to ReadRange: raw bytes of a sealed replica, and their checksum as read from the disk."""

    reply: pb.ReadRangeReply
    payload: list[Buffer]


@dataclass(frozen=True, slots=True)
class IndexResult:
    """An answer to ReadIndex."""

    reply: pb.ReadIndexReply
    payload: list[Buffer]


class Reader:
    def __init__(self, store: StoreState) -> None:
        self._store = store
        self._files = store.sealed_files
        self._followers = 0

    async def follow(self, request: pb.ReadBlockRequest) -> None:
        """Wait, for up to `wait_ms`, until there is something to read at `offset`. Apart from `read`, so that a server
        need not keep room for a reply while it waits."""
        self._store.check_running()
        bounds, found = self._bounds(request)
        if bounds.serve_end == request.offset and not bounds.sealed:
            await self._follow(found, request)

    async def read(self, request: pb.ReadBlockRequest) -> ReadResult:
        self._store.check_running()
        if request.follow:
            await self.follow(request)
        bounds, found = self._bounds(request)
        if bounds.serve_end == request.offset:
            return ReadResult(request.offset, bounds.readable, bounds.sealed, 0)
        max_bytes = self._max_bytes(request)
        if bounds.sealed:
            result = await self._read_sealed(found, request, bounds, max_bytes)
        else:
            result = await self._read_open(found, request, bounds, max_bytes)
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
        """How far this read may go now."""
        extent_id = request.extent_id
        found = self._store.replicas.get(extent_id)
        if found is not None:
            self._store.check_disk(found)
        bounds = core.decide_read(
            self._store.existing(extent_id), wanted=request.replica, extent_id=extent_id, offset=request.offset
        )
        if isinstance(bounds, core.Refuse):
            raise bounds.error
        assert found is not None
        return bounds, found

    # --- sealed ----------------------------------------------------------------------------------------------

    async def _opened(self, found: Replica) -> SealedFile:
        opened = self._files.get(found)
        if opened is None:
            self._store.check_backlog()
            opened = await self._files.open(found)
        return opened

    async def _warm(self, found: Replica, opened: SealedFile, start: int, end: int) -> None:
        """Bring [start, end) into memory, if it is not there."""
        if not self._files.is_warm(found, opened, start, end):
            self._store.check_backlog()
            await self._files.warm(found, opened, start, end)

    async def _read_sealed(
        self, found: Replica, request: pb.ReadBlockRequest, bounds: core.Readable, max_bytes: int
    ) -> ReadResult:
        opened = await self._opened(found)
        end, count = self._run_of_blocks(found, opened, request, bounds, max_bytes)
        await self._warm(found, opened, request.offset, end)
        return self._sealed_result(opened, request, end, count, bounds)

    def _sealed_result(
        self, opened: SealedFile, request: pb.ReadBlockRequest, end: int, count: int, bounds: core.Readable
    ) -> ReadResult:
        part = SealedRange(opened, request.offset, opened.view[request.offset : end])
        next_end = self._next_end(opened, request.next_max_bytes, end, bounds) if request.next_max_bytes else 0
        return ReadResult(end, bounds.readable, True, count, (part.view,), part, next_end)

    def _next_end(self, opened: SealedFile, max_bytes: int, offset: int, bounds: core.Readable) -> int:
        """Where the answer behind the one that ends at `offset` will end: the reader can ask for both, and for what
        follows them, before either has come."""
        max_bytes = min(max_bytes, self._store.config.read_bytes_max, bounds.serve_end - offset)
        run = opened.blocks.blocks_from(offset, max_blocks=0, max_bytes=max_bytes) if max_bytes > 0 else None
        return run[0] if run is not None and run[0] <= bounds.serve_end else 0

    def _run_of_blocks(
        self, found: Replica, opened: SealedFile, request: pb.ReadBlockRequest, bounds: core.Readable, max_bytes: int
    ) -> tuple[int, int]:
        """(end, blocks) of the whole blocks that answer it."""
        max_bytes = min(max_bytes, bounds.serve_end - request.offset)  # damage may be known further up
        run = opened.blocks.blocks_from(request.offset, max_blocks=request.max_blocks, max_bytes=max_bytes)
        if run is None:
            raise InvalidArgument(what="offset", detail=f"no block begins at {request.offset}")
        if run[0] > bounds.serve_end:
            raise ReplicaDamaged(extent_id=found.extent_id, offset=bounds.serve_end)
        return run

    async def read_range(self, request: pb.ReadRangeRequest) -> RangeResult:
        """Raw bytes for a copy (protocol rule 22)."""
        self._store.check_running()
        extent_id = request.extent_id
        found = self._store.replicas.get(extent_id)
        seal = core.decide_read_range(
            self._store.existing(extent_id),
            wanted=request.replica,
            extent_id=extent_id,
            offset=request.offset,
            size_bytes=request.length,
        )
        if isinstance(seal, core.Refuse):
            raise seal.error
        assert found is not None
        self._store.check_disk(found)
        opened = await self._opened(found)
        end = request.offset + request.length
        await self._warm(found, opened, request.offset, end)
        payload = opened.view[request.offset : end]
        self._store.counters.read_bytes += request.length
        return RangeResult(pb.ReadRangeReply(seal=seal, payload_crc32c=crc32c(payload)), [payload])

    async def read_index(self, request: pb.ReadIndexRequest) -> IndexResult:
        """Where blocks are, without their bytes: what a scan of metadata needs."""
        self._store.check_running()
        found = self._store.replicas.get(request.extent_id)
        seal = core.decide_read_range(
            self._store.existing(request.extent_id),
            wanted=request.replica,
            extent_id=request.extent_id,
            offset=0,
            size_bytes=0,
        )
        if isinstance(seal, core.Refuse):
            raise seal.error
        assert found is not None
        self._store.check_disk(found)
        index = (await self._opened(found)).blocks
        first, last = index.numbers_in(request.start, request.end or index.length)
        taken = min(last - first, request.max_blocks or INDEX_BLOCKS_MAX, INDEX_BLOCKS_MAX)
        reply = pb.ReadIndexReply(seal=seal, blocks=taken, more=first + taken < last, total_blocks=index.count)
        if taken:
            reply.first_offset = int(index.offsets[first])
        sizes, types = index.sizes[first : first + taken], index.types[first : first + taken]
        return IndexResult(reply, [sizes.tobytes(), types.tobytes()])

    # --- open ------------------------------------------------------------------------------------------------

    async def _read_open(
        self, found: Replica, request: pb.ReadBlockRequest, bounds: core.Readable, max_bytes: int
    ) -> ReadResult:
        offset = request.offset
        data = await self._pread(found, offset, min(max_bytes, bounds.serve_end - offset))
        end, count = _whole_blocks(data, request.max_blocks)
        if count == 0:
            # The first block comes whole even if it alone is larger than asked for.
            size_total = _first_block_bytes(data)
            if size_total is None or size_total > bounds.serve_end - offset:
                detail = "no whole block begins here: it is damaged, or this is not a block's offset"
                raise ReplicaDamaged(extent_id=found.extent_id, offset=offset, detail=detail)
            if found.gone or found.state.seal is not None:
                # Meanwhile: an open extent's descriptor is closed, and would stay open if it were opened again.
                bounds, found = self._bounds(request)
                return await self._read_sealed(found, request, bounds, max_bytes)
            data = await self._pread(found, offset, size_total)
            end, count = size_total, 1
        if len(data) < end:
            raise ReplicaDamaged(extent_id=found.extent_id, offset=offset + len(data), detail="bytes are missing")
        return ReadResult(offset + end, bounds.readable, False, count, [memoryview(data)[:end]])

    async def _pread(self, found: Replica, offset: int, size_bytes: int) -> bytes:
        self._store.open(found)
        size_bytes = max(size_bytes, blocks.HEADER_BYTES)
        file_bytes = found.file_end - offset
        if size_bytes <= file_bytes:
            deferred = b""
        else:  # copied now, because they may be written to the file while it is read
            file_bytes = max(file_bytes, 0)
            start = offset + file_bytes - found.file_end
            deferred = b"".join(found.deferred)[start : start + size_bytes - file_bytes]
            size_bytes = file_bytes
        try:
            if offset + HOT_TAIL_BYTES >= found.state.length:
                data = found.read(offset, size_bytes) if size_bytes else b""
            else:
                self._store.check_backlog()
                data = await self._store.run_beside(found, found.read, offset, size_bytes)
            return data + deferred if deferred and len(data) == size_bytes else data
        except OSError as error:
            raise self._store.disk_error(found.disk, found.extent_id, error) from error

    # --- following -------------------------------------------------------------------------------------------

    async def _follow(self, found: Replica, request: pb.ReadBlockRequest) -> None:
        """Until there is more than `offset`, the replica changes for good, or the time is over."""
        if self._followers >= self._store.config.followers_max:
            raise Overloaded(what="reads that wait for more")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + request.wait_ms / 1000
        self._followers += 1
        try:
            while self._at_end(found, request.offset) and loop.time() < deadline_s:
                future: asyncio.Future[None] = loop.create_future()
                if found.followers is None:
                    found.followers = []
                found.followers.append(future)
                try:
                    async with asyncio.timeout_at(deadline_s):
                        await future
                except TimeoutError:
                    return
                finally:
                    if found.followers is not None and future in found.followers:
                        found.followers.remove(future)
        finally:
            self._followers -= 1

    def _at_end(self, found: Replica, offset: int) -> bool:
        bounds = core.decide_read(
            None if found.gone else found.state, wanted=found.state.ref(), extent_id=found.extent_id, offset=offset
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
        pass  # the last one is cut by the size that was asked for, or damaged: either way the answer ends before it
    return end, count


def _first_block_bytes(data: bytes) -> int | None:
    if len(data) < blocks.HEADER_BYTES:
        return None
    _, size_bytes, block_type = blocks.parse_header(data)
    known = {kind.value for kind in blocks.BlockType}
    return blocks.HEADER_BYTES + size_bytes if block_type in known else None
