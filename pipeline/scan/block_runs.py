"""The blocks of a slice, some at a time: from a file of this machine, or from nodes.

    any replica     the local file, if there is one; whatever is wrong with it, and all else, comes from the nodes
    one replica     of that node alone, whatever it holds: crc_ok says whether its bytes are valid

Invariants: from any replica, a block comes with the right CRC or the task fails: nothing is left out (T36);
            from one replica, a block that cannot be read, or is wrong, is a row with crc_ok = false;
            memory is bounded by a few batches, however large the slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from neve.client.streams.core.reader import Block, parse_blocks
from neve.pipeline.core.filters import Filters
from neve.pipeline.core.slices import Slice
from neve.pipeline.scan.block_arrays import Offsets, binary_array, check
from neve.pipeline.scan.connections import RANGE_BYTES, Link
from neve.pipeline.scan.local_files import LocalDisks, LocalExtent
from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.blocks import HEADER_BYTES
from neve.proto.errors import OutOfRange, ReplicaError, ReplicaMissing

OPEN_TRIES = 10  # to read an open extent up to an end that one of its replicas has reported
OPEN_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Wanted:
    """The data that a scan needs of each block, and the size of a read."""

    crc: bool
    payload: bool
    batch_rows: int
    batch_bytes: int
    filters: Filters

    @property
    def bytes(self) -> bool:
        return self.crc or self.payload


@dataclass(frozen=True, slots=True)
class Run:
    """Some blocks of one extent, in their order."""

    offsets: Offsets
    sizes: Offsets  # with headers
    types: npt.NDArray[np.uint8]
    crc_ok: npt.NDArray[np.bool_] | None = None
    payloads: pa.Array | None = None


class SliceReader:
    """Reads slices in one task. `first_attempt`: a task that failed once reads no local file; the file may be why."""

    def __init__(self, link: Link, disks: LocalDisks, wanted: Wanted, *, first_attempt: bool = True) -> None:
        self._link = link
        self._disks = disks
        self._wanted = wanted
        self._first_attempt = first_attempt

    def runs(self, piece: Slice) -> Iterator[Run]:
        info = piece.extent.message()
        if piece.extent.sealed:
            local = self._disks.open_sealed(info, piece.node_id) if self._first_attempt else None
            if local is not None:
                yield from self._from_file(local, piece, info)
                return
            if piece.node_id:
                yield from self._from_replica(piece, info)
                return
            if not self._wanted.bytes:
                yield from self._from_index(piece, info)
                return
        elif piece.node_id:
            yield from self._from_open_replica(piece, info)
            return
        yield from self._from_nodes(piece, info, piece.start)

    # --- a local file ----------------------------------------------------------------------------------------

    def _from_file(self, local: LocalExtent, piece: Slice, info: sm.ExtentInfo) -> Iterator[Run]:
        index = local.blocks
        first, last = index.numbers_in(piece.start, piece.end)
        every = Run(
            index.offsets[first:last].astype(np.int64),
            index.sizes[first:last].astype(np.int64),
            index.types[first:last],
        )
        for run in self._in_batches(self._admitted(every)):
            if not self._wanted.bytes:
                yield run
                continue
            begin, end = int(run.offsets[0]), int(run.offsets[-1] + run.sizes[-1])
            checked = self._checked(run, local.view[begin:end], begin)
            assert checked.crc_ok is not None
            if not piece.node_id and not checked.crc_ok.all():
                # This replica is damaged here. The others have it: the client's reader finds one that does.
                at = int(run.offsets[int(checked.crc_ok.argmin())])
                good = run.offsets < at
                yield _picked(checked, good)
                yield from self._from_nodes(piece, info, at)
                return
            yield checked

    # --- any replica, from nodes -----------------------------------------------------------------------------

    def _from_index(self, piece: Slice, info: sm.ExtentInfo) -> Iterator[Run]:
        at = piece.start
        while at < piece.end:
            run, at = self._index_page(piece, info, at)
            yield from self._in_batches(self._admitted(run))

    def _index_page(self, piece: Slice, info: sm.ExtentInfo, at: int) -> tuple[Run, int]:
        """Some of the blocks that begin at or after `at`, and the offset at which to continue."""
        request = en.ReadIndexRequest(extent_id=info.extent_id, start=at, end=piece.end)
        reply, payload, _ = self._link.run(self._link.ask_replicas(info, methods.EXTENT_NODE_READ_INDEX, request))
        if reply.seal.length != info.seal.length or len(payload) != 5 * reply.blocks:
            raise ReplicaMissing(extent_id=info.extent_id, detail="a node's index is not that of this seal")
        sizes = np.frombuffer(payload, dtype="<u4", count=reply.blocks).astype(np.int64)
        types = np.frombuffer(payload, dtype="u1", offset=4 * reply.blocks)
        offsets = reply.first_offset + sizes.cumsum() - sizes
        end = int(offsets[-1] + sizes[-1]) if len(sizes) else at
        # Blocks lie one behind the other up to the end. Only where a block goes on through all of it none begins there.
        short = end < piece.end and not reply.more and len(sizes)
        stuck = not len(sizes) and (reply.more or at == 0)
        if short or stuck or (len(sizes) and not at <= reply.first_offset < piece.end):
            detail = (
                f"a node's index has {len(sizes)} blocks from {reply.first_offset} on, asked for {at} to {piece.end}"
            )
            raise ReplicaMissing(extent_id=info.extent_id, detail=detail)
        return Run(offsets, sizes, types), end if reply.more else piece.end

    def _from_nodes(self, piece: Slice, info: sm.ExtentInfo, start: int) -> Iterator[Run]:
        """By the client's reader: checked, from whichever replica has it."""
        link = self._link
        if piece.extent.sealed and start == piece.start and start:
            page, _ = self._index_page(piece, info, start)
            if not len(page.offsets):
                return
            start = int(page.offsets[0])
        if link.catalog.known(info.extent_id) is None:
            link.catalog.note(info)
        end, tries = piece.end, 0
        while start < end:
            before = start
            chunks = link.reader.chunks(info.extent_id, start, follow=False, stop=end)
            try:
                while start < end and (chunk := link.run(anext(chunks, None))) is not None:
                    blocks = [block for block in chunk.blocks if block.offset < end]
                    if blocks:
                        start = blocks[-1].end
                        yield from self._in_batches(self._admitted(_run_of(blocks, payload=self._wanted.payload)))
            finally:
                link.run(chunks.aclose())
            tries = 0 if start > before else tries + 1
            if start < end and tries >= OPEN_TRIES:
                # A replica has reported that readers may read further, but no replica serves it.
                raise OutOfRange(extent_id=info.extent_id, offset=end, readable=start)
            if start < end:
                link.run(asyncio.sleep(OPEN_PAUSE_S))

    # --- one replica, from its node --------------------------------------------------------------------------

    def _from_replica(self, piece: Slice, info: sm.ExtentInfo) -> Iterator[Run]:
        """Where its blocks are is known from any replica, what they are from this one."""
        address, replica = _replica_of(info, piece.node_id)
        at = piece.start
        while at < piece.end:
            page, at = self._index_page(piece, info, at)
            for run in self._in_batches(self._admitted(page)):
                if not self._wanted.bytes:
                    yield run
                    continue
                yield self._range(run, address, replica, info.extent_id)

    def _range(self, run: Run, address: str, replica: common_pb2.Replica, extent_id: int) -> Run:
        begin, end = int(run.offsets[0]), int(run.offsets[-1] + run.sizes[-1])
        try:
            data = self._link.run(self._link.read_range(address, replica, extent_id, begin, end))
        except ReplicaError:
            if len(run.offsets) > 1:  # which of them is it?
                half = len(run.offsets) // 2
                numbers = np.arange(len(run.offsets))
                left = self._range(_picked(run, numbers < half), address, replica, extent_id)
                right = self._range(_picked(run, numbers >= half), address, replica, extent_id)
                return _joined(left, right)
            nothing = pa.nulls(1, pa.binary()) if self._wanted.payload else None
            return Run(run.offsets, run.sizes, run.types, np.zeros(1, dtype=np.bool_), nothing)
        return self._checked(run, data, begin)

    def _from_open_replica(self, piece: Slice, info: sm.ExtentInfo) -> Iterator[Run]:
        address, replica = _replica_of(info, piece.node_id)
        at = piece.start
        while at < piece.end:
            request = en.ReadBlockRequest(extent_id=info.extent_id, replica=replica, offset=at, max_bytes=RANGE_BYTES)
            _, data = self._link.run(self._link.ask_node(address, methods.EXTENT_NODE_READ_BLOCK, request))
            blocks, problem = parse_blocks(data, at)
            blocks = [block for block in blocks if block.offset < piece.end]
            if blocks:
                at = blocks[-1].end
                yield from self._in_batches(self._admitted(_run_of(blocks, payload=self._wanted.payload)))
            if problem is not None or not blocks:
                size = np.array([HEADER_BYTES], dtype=np.int64)  # its real size is unknown
                nothing = pa.nulls(1, pa.binary()) if self._wanted.payload else None
                bad = Run(np.array([at]), size, np.zeros(1, dtype=np.uint8), np.zeros(1, dtype=np.bool_), nothing)
                yield self._admitted(bad)
                return

    # --- parts of runs ---------------------------------------------------------------------------------------

    def _checked(self, run: Run, view: memoryview, begin: int) -> Run:
        found = check(view, run.offsets - begin, run.sizes, run.types, payload=self._wanted.payload)
        return Run(run.offsets, run.sizes, run.types, found.crc_ok, found.payloads)

    def _admitted(self, run: Run) -> Run:
        filters = self._wanted.filters
        masks = [filters.mask("offset", run.offsets), filters.mask("type", run.types)]
        given = [mask for mask in masks if mask is not None]
        return _picked(run, np.logical_and.reduce(given)) if given else run

    def _in_batches(self, run: Run) -> Iterator[Run]:
        """By rows, and by the bytes from the first to the last block: what lies between them is read, too."""
        count, start = len(run.offsets), 0
        ends = run.offsets + run.sizes
        while start < count:
            last = min(count, start + self._wanted.batch_rows)
            if self._wanted.bytes:
                fitting = int(np.searchsorted(ends, run.offsets[start] + self._wanted.batch_bytes, side="right"))
                last = max(start + 1, min(last, fitting))
            yield _cut(run, start, last)
            start = last


def _cut(run: Run, start: int, end: int) -> Run:
    if start == 0 and end == len(run.offsets):
        return run
    return Run(
        run.offsets[start:end],
        run.sizes[start:end],
        run.types[start:end],
        None if run.crc_ok is None else run.crc_ok[start:end],
        None if run.payloads is None else run.payloads.slice(start, end - start),
    )


def _picked(run: Run, chosen: npt.NDArray[np.bool_]) -> Run:
    return Run(
        run.offsets[chosen],
        run.sizes[chosen],
        run.types[chosen],
        None if run.crc_ok is None else run.crc_ok[chosen],
        None if run.payloads is None else run.payloads.filter(pa.array(chosen)),
    )


def _joined(left: Run, right: Run) -> Run:
    assert left.crc_ok is not None
    assert right.crc_ok is not None
    return Run(
        np.concatenate([left.offsets, right.offsets]),
        np.concatenate([left.sizes, right.sizes]),
        np.concatenate([left.types, right.types]),
        np.concatenate([left.crc_ok, right.crc_ok]),
        None if left.payloads is None else pa.concat_arrays([left.payloads, right.payloads]),
    )


def _run_of(blocks: list[Block], *, payload: bool) -> Run:
    """Of blocks that the client's reader has checked."""
    count = len(blocks)
    offsets = np.fromiter((block.offset for block in blocks), dtype=np.int64, count=count)
    ends = np.fromiter((block.end for block in blocks), dtype=np.int64, count=count)
    types = np.fromiter((block.type for block in blocks), dtype=np.uint8, count=count)
    sizes = ends - offsets
    payloads = None
    if payload:
        payloads = binary_array(b"".join([block.payload for block in blocks]), sizes - HEADER_BYTES)
    return Run(offsets, sizes, types, np.ones(count, dtype=np.bool_), payloads)


def _replica_of(info: sm.ExtentInfo, node_id: int) -> tuple[str, common_pb2.Replica]:
    for each in info.replicas:
        if each.replica.node_id == node_id:
            return each.address, each.replica
    raise ReplicaMissing(extent_id=info.extent_id, detail=f"metadata lists none on node {node_id}")
