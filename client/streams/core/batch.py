"""Blocks on their way into an extent: runs of payloads, batches of framed blocks, and tickets of multi-block appends.

    PayloadRun  payloads in the order of their appends, at most one frame's worth → framed when a sender has room
    Batch       the same as blocks, placed in the tail extent once it has room    → kept until all replicas have it
    Ticket      one append of several blocks: a list of records, or one record of several blocks

Invariants: a batch's bytes never change: a block is the same in any extent, because its CRC covers no offset;
            a batch is split at block boundaries only;
            waiters (`waiters`, `Ticket.waiter`) are opaque objects here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from neve.client.streams.types import PlacedBlocks
from neve.proto.blocks import HEADER_BYTES, JOIN_BYTES_MAX, BlockType, crc32c_of_blocks, encode_block, encode_blocks
from neve.proto.crc import Buffer

Waiter = Any


class Ticket:
    """An append of several blocks. `pieces` has the places of the acknowledged ones, in no particular order."""

    __slots__ = ("blocks", "blocks_left", "is_record", "pieces", "waiter")

    def __init__(self, waiter: Waiter, blocks: int, *, is_record: bool) -> None:
        self.waiter = waiter
        self.blocks = self.blocks_left = blocks
        self.is_record = is_record  # the blocks make one record, not one each
        self.pieces: list[PlacedBlocks] = []

    def note(self, piece: PlacedBlocks) -> bool:
        """Note acknowledged blocks. Returns True when all blocks are acknowledged."""
        self.pieces.append(piece)
        self.blocks_left -= len(piece.block_sizes)
        assert self.blocks_left >= 0, self.blocks_left
        return self.blocks_left == 0


class PayloadRun:
    """Payloads of one block type that have no place in an extent yet."""

    __slots__ = ("block_type", "first_index", "payloads", "size_bytes", "ticket", "waiters")

    def __init__(
        self,
        payloads: list[Buffer],
        size_bytes: int,
        *,
        waiters: list[Waiter] | None = None,
        ticket: Ticket | None = None,
        first_index: int = 0,
        block_type: int = BlockType.FULL,
    ) -> None:
        self.payloads = payloads
        self.size_bytes = size_bytes  # with block headers
        self.waiters = waiters  # one for each payload, or None if there is a ticket
        self.ticket = ticket
        self.first_index = first_index  # the first payload's place among the ticket's blocks
        self.block_type = block_type

    def encode(self) -> Batch:
        """Frame the payloads as blocks."""
        payloads = self.payloads
        if len(payloads) == 1 and self.size_bytes <= JOIN_BYTES_MAX:  # same result as `encode_blocks`, in fewer calls
            block = encode_block(payloads[0], self.block_type)
            assert len(block) == self.size_bytes, (len(block), self.size_bytes)
            return Batch([block], [self.size_bytes], self.size_bytes, self.waiters, self.ticket, self.first_index)
        buffers, block_sizes, size_bytes = encode_blocks(payloads, block_type=self.block_type)
        assert size_bytes == self.size_bytes, (size_bytes, self.size_bytes)
        return Batch(buffers, block_sizes, size_bytes, self.waiters, self.ticket, self.first_index)


class Batch:
    """Framed blocks. `offset` is -1 until the batch is placed in an extent."""

    __slots__ = ("_crc32c", "block_sizes", "buffers", "first_index", "offset", "size_bytes", "ticket", "waiters")

    def __init__(
        self,
        buffers: Sequence[Buffer],
        block_sizes: Sequence[int],
        size_bytes: int,
        waiters: list[Waiter] | None,
        ticket: Ticket | None,
        first_index: int,
    ) -> None:
        self.buffers = buffers
        self.block_sizes = block_sizes
        self.size_bytes = size_bytes
        self.waiters = waiters
        self.ticket = ticket
        self.first_index = first_index
        self.offset = -1
        self._crc32c = -1

    @property
    def crc32c(self) -> int:
        """CRC32C of the bytes, computed once for all replicas."""
        if self._crc32c < 0:
            self._crc32c = crc32c_of_blocks(self.buffers, self.block_sizes)
        return self._crc32c

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes

    def blocks_within(self, size_bytes: int) -> int:
        """Return how many of the first blocks fit into this many bytes."""
        count = 0
        for end in accumulate(self.block_sizes):
            if end > size_bytes:
                break
            count += 1
        return count

    def split(self, blocks: int) -> tuple[Batch, Batch]:
        """Return the first `blocks` blocks and the others as two batches, which share the bytes."""
        assert 0 < blocks < len(self.block_sizes), (blocks, len(self.block_sizes))
        head_bytes = sum(self.block_sizes[:blocks])
        head = Batch(
            list(_slice(self.buffers, 0, head_bytes)),
            self.block_sizes[:blocks],
            head_bytes,
            None if self.waiters is None else self.waiters[:blocks],
            self.ticket,
            self.first_index,
        )
        tail = Batch(
            list(_slice(self.buffers, head_bytes, self.size_bytes)),
            self.block_sizes[blocks:],
            self.size_bytes - head_bytes,
            None if self.waiters is None else self.waiters[blocks:],
            self.ticket,
            self.first_index + blocks,
        )
        if self.offset >= 0:
            head.offset, tail.offset = self.offset, self.offset + head_bytes
        return head, tail

    def placed(self, extent_id: int) -> PlacedBlocks:
        return PlacedBlocks(self.first_index, extent_id, self.offset, self.block_sizes)


def cut_runs(payloads: list[Buffer], size_bytes: int, ticket: Ticket, *, run_bytes_max: int) -> Iterator[PayloadRun]:
    """Split the payloads into runs of similar size, each at most about `run_bytes_max` with headers.

    `size_bytes` is the size of all payloads with their headers.
    """
    parts = -(-size_bytes // run_bytes_max)
    if parts == 1:
        yield PayloadRun(payloads, size_bytes, ticket=ticket)
        return
    run_bytes_max = size_bytes // parts  # equal parts: a small remainder would make a frame of its own
    first, run_bytes = 0, 0
    for index, payload in enumerate(payloads):
        if run_bytes >= run_bytes_max:
            yield PayloadRun(payloads[first:index], run_bytes, ticket=ticket, first_index=first)
            first, run_bytes = index, 0
        run_bytes += len(payload) + HEADER_BYTES
    yield PayloadRun(payloads[first:], run_bytes, ticket=ticket, first_index=first)


def _slice(buffers: Sequence[Buffer], start: int, end: int) -> Iterator[Buffer]:
    at = 0
    for buffer in buffers:
        size_bytes = len(buffer)
        low, high = max(start - at, 0), min(end - at, size_bytes)
        if low < high:
            yield buffer if high - low == size_bytes else memoryview(buffer)[low:high]
        at += size_bytes
