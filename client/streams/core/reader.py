"""Decisions of a reader: checks blocks, assembles records, and orders the replicas to ask.

Invariants: `parse_blocks` returns no payload whose CRC does not match;
            a record is returned when its LAST block has been read, and only once; an unfinished record is skipped;
            the order of replicas affects only speed: all of them have the same bytes (protocol rule 21).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from neve.client.streams.types import Extent, Position, Record, Replica, new_position
from neve.proto.blocks import HEADER_BYTES, PAYLOAD_BYTES_MAX, BlockType, Problem, verify_block
from neve.proto.crc import Buffer
from neve.proto.errors import NotFound, TooLarge

_HEADER = struct.Struct("<II")
_WORD = struct.Struct("<I")
_TYPE_SHIFT = 24
_TYPE_MIN, _TYPE_MAX = min(BlockType), max(BlockType)

# Blocks up to this size are copied out of the reply one by one; larger ones are views of it.
COPY_BYTES_MAX = 16 << 10


class Block(NamedTuple):
    """A block whose CRC matched."""

    offset: int
    end: int
    type: int
    payload: bytes | memoryview


def parse_blocks(data: Buffer, offset: int) -> tuple[list[Block], Problem | None]:
    """Return the blocks of `data`, which begins at `offset` of its extent, up to the first bad one, and its problem."""
    view = memoryview(data)
    end = len(view)
    array: npt.NDArray[np.uint8] | None = None  # for large blocks: google-crc32c takes no memoryview
    extend, unpack = google_crc32c.extend, _HEADER.unpack_from
    found: list[Block] = []
    at, word_before, word_crc = 0, -1, 0
    new_block = tuple.__new__  # costs a third of Block(...)
    while end - at >= HEADER_BYTES:
        crc, word = unpack(view, at)
        payload_at = at + HEADER_BYTES
        block_end = payload_at + (word & PAYLOAD_BYTES_MAX)
        block_type = word >> _TYPE_SHIFT
        if block_end > end or not _TYPE_MIN <= block_type <= _TYPE_MAX:
            break
        if word != word_before:  # consecutive blocks often have one size
            word_before, word_crc = word, extend(0, _WORD.pack(word))
        payload: bytes | memoryview
        if block_end - payload_at <= COPY_BYTES_MAX:
            payload = bytes(view[payload_at:block_end])
            crc_here = extend(word_crc, payload)
        else:
            payload = view[payload_at:block_end]
            if array is None:
                array = np.frombuffer(view, dtype=np.uint8)
            crc_here = extend(word_crc, array[payload_at:block_end])
        if crc_here != crc:
            break
        found.append(new_block(Block, (offset + at, offset + block_end, block_type, payload)))
        at = block_end
    if at == end:
        return found, None
    problem = verify_block(view, at)
    assert problem is not None
    return found, problem._replace(offset=offset + at)


class RecordAssembler:
    """Assembles records from the blocks of a stream, in order, across extents."""

    def __init__(self, *, record_bytes_max: int) -> None:
        self._record_bytes_max = record_bytes_max
        self._parts: list[bytes | memoryview] = []
        self._size_bytes = 0
        self._begun = Position(0, 0)
        self.skipped = 0  # blocks of records whose beginning or end is missing

    def push(self, extent_id: int, block: Block, *, copy: bool) -> Record | None:
        """Add a block. Returns the record that it completes, if any."""
        position = Position(extent_id, block.offset)
        if block.type == BlockType.FULL:
            self._drop()
            payload = bytes(block.payload) if copy else block.payload
            return Record(position, payload, Position(extent_id, block.end))
        if block.type == BlockType.FIRST:
            self._drop()
            self._begun = position
        elif not self._parts:
            self.skipped += 1  # its beginning was truncated, or its writer died and another one continued
            return None
        self._parts.append(bytes(block.payload))  # a view would keep the whole reply alive until the record is complete
        self._size_bytes += len(block.payload)
        if self._size_bytes > self._record_bytes_max:
            size_bytes, self._size_bytes = self._size_bytes, 0
            self._parts.clear()
            raise TooLarge(what=f"record at {self._begun}", size_bytes=size_bytes, limit_bytes=self._record_bytes_max)
        if block.type != BlockType.LAST:
            return None
        record = Record(self._begun, b"".join(self._parts), Position(extent_id, block.end))
        self._parts.clear()
        self._size_bytes = 0
        return record

    def push_all(self, extent_id: int, blocks: Sequence[Block], *, copy: bool) -> list[Record]:
        """Add blocks. Returns the records that they complete."""
        records: list[Record] = []
        full, new = int(BlockType.FULL), tuple.__new__  # costs a third of Record(...)
        for block in blocks:
            offset, end, block_type, payload = block
            if block_type == full and not self._parts:
                if copy and type(payload) is not bytes:
                    payload = bytes(payload)
                position = new_position(Position, (extent_id, offset))
                records.append(new(Record, (position, payload, new_position(Position, (extent_id, end)))))
            elif (record := self.push(extent_id, block, copy=copy)) is not None:
                records.append(record)
        return records

    def begin_anew(self) -> None:
        """Drop an unfinished record: an extent was punched out, so the next block does not continue it."""
        self._drop()

    def _drop(self) -> None:
        """Drop the unfinished record of a writer that died."""
        if self._parts:
            self.skipped += len(self._parts)
            self._parts.clear()
            self._size_bytes = 0


def start_of(extent_ids: Sequence[int], start: Position | None, *, stream_id: int) -> int:
    """Return the index of the extent where a read begins.

    Raises NotFound, naming the stream's first position, if the extent is not in the stream.
    """
    if start is None:
        return 0
    try:
        return list(extent_ids).index(start.extent_id)
    except ValueError:
        first = f"it begins at {Position(extent_ids[0], 0)}" if extent_ids else "it is empty"
        detail = f"stream {stream_id} has no such extent, or no longer: {first}"
        raise NotFound(kind="position", name=str(start), detail=detail) from None


# --- the order of replicas -----------------------------------------------------------------------------------


class Quantile:
    """Tracks a quantile of a sequence in one number, which rises after larger values and falls after smaller ones."""

    __slots__ = ("_down", "_up", "value")

    def __init__(self, quantile: float, *, first: float, step: float = 0.2) -> None:
        self.value = first
        self._up = math.exp(step * quantile)
        self._down = math.exp(-step * (1 - quantile))

    def note(self, value: float) -> None:
        self.value *= self._up if value > self.value else self._down


class NodeStats:
    """What a reader has observed of one node."""

    __slots__ = ("failed_s", "failures", "latency_s")

    def __init__(self) -> None:
        self.latency_s = 0.0  # smoothed; 0: unknown
        self.failures = 0.0  # halved with every `FAILURE_HALF_LIFE_S`
        self.failed_s = 0.0


FAILURE_HALF_LIFE_S = 10.0
LATENCY_SHARE = 0.1  # weight of a new value in the smoothed latency
NODES_MAX = 10_000
ORDER_HOLDS_S = 0.1

Size = Literal["small", "large"]  # of a read: the latencies of the two differ too much for one estimate


class SourceHistory:
    """Failures and latencies of nodes, by address, which order the replicas of a read."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeStats] = {}
        self._orders: dict[int, tuple[float, Extent, list[Replica]]] = {}  # by extent id, with the time of sorting
        self.tail_s: dict[Size, Quantile] = {
            "small": Quantile(0.95, first=0.05),
            "large": Quantile(0.95, first=0.05),
        }

    def answered(self, address: str, latency_s: float, *, size: Size) -> None:
        node = self._node(address)
        node.latency_s += (latency_s - node.latency_s) * (LATENCY_SHARE if node.latency_s else 1.0)
        self.tail_s[size].note(latency_s)

    def failed(self, address: str, now_s: float) -> None:
        node = self._node(address)
        node.failures = _decayed(node, now_s) + 1
        node.failed_s = now_s
        self._orders.clear()

    def order(self, extent: Extent, now_s: float) -> list[Replica]:
        """Return the replicas to ask, best first. Cached for a moment, since sorting costs as much as a small read."""
        known = self._orders.get(extent.id)
        if known is not None and known[1] is extent and 0 <= now_s - known[0] < ORDER_HOLDS_S:
            return known[2]
        if len(self._orders) >= NODES_MAX:
            self._orders.clear()
        order = self._sorted(extent, now_s)
        self._orders[extent.id] = (now_s, extent, order)
        return order

    def _sorted(self, extent: Extent, now_s: float) -> list[Replica]:
        """Sort the replicas. Equal ones rotate with the extent id, to spread the load."""
        usable = [replica for replica in extent.replicas if replica.address]
        if extent.sealed and any(replica.confirmed for replica in usable):
            usable = [replica for replica in usable if replica.confirmed]
        turn = extent.id % len(usable) if usable else 0
        rotated = usable[turn:] + usable[:turn]
        return sorted(rotated, key=lambda replica: self._cost(replica.address, now_s))

    def _cost(self, address: str, now_s: float) -> tuple[int, int]:
        node = self._nodes.get(address)
        if node is None:
            return (0, 0)
        # Rounded to powers of four: smaller differences are noise, and switching defeats the nodes' own read-ahead.
        speed = round(math.log(node.latency_s, 4)) if node.latency_s > 0 else -20
        return (round(_decayed(node, now_s)), max(speed, -5))

    def _node(self, address: str) -> NodeStats:
        node = self._nodes.get(address)
        if node is None:
            if len(self._nodes) >= NODES_MAX:
                del self._nodes[next(iter(self._nodes))]
            node = self._nodes[address] = NodeStats()
        return node


def _decayed(node: NodeStats, now_s: float) -> float:
    if not node.failures:
        return 0.0
    return float(node.failures * 0.5 ** ((now_s - node.failed_s) / FAILURE_HALF_LIFE_S))
