"""What a reader decides without I/O: are these blocks sound, which replica first, where does the next record begin.

Invariants: a payload whose CRC does not fit never leaves `parse_blocks`;
            a record is given when its LAST block is there, and never twice; one that nobody finished is passed over;
            the order of replicas is a matter of speed alone: any of them gives the same bytes (rule 21).
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

# Blocks up to this size are copied out of the answer one by one, larger ones are views of it.
COPY_BYTES_MAX = 16 << 10


class Block(NamedTuple):
    """A block that was checked."""

    offset: int
    end: int
    type: int
    payload: bytes | memoryview


def parse_blocks(data: Buffer, offset: int) -> tuple[list[Block], Problem | None]:
    """All blocks of `data`, which begins at `offset` of its extent, up to the first that is not sound."""
    view = memoryview(data)
    end = len(view)
    array: npt.NDArray[np.uint8] | None = None  # for large blocks: google-crc32c takes no memoryview
    extend, unpack = google_crc32c.extend, _HEADER.unpack_from
    found: list[Block] = []
    at, word_before, word_crc = 0, -1, 0
    new_block = tuple.__new__  # a third of the cost of Block(...)
    while end - at >= HEADER_BYTES:
        crc, word = unpack(view, at)
        payload_at = at + HEADER_BYTES
        block_end = payload_at + (word & PAYLOAD_BYTES_MAX)
        block_type = word >> _TYPE_SHIFT
        if block_end > end or not _TYPE_MIN <= block_type <= _TYPE_MAX:
            break
        if word != word_before:  # blocks of one size come in rows
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
    """Makes records of the blocks of a stream, in their order, over the ends of extents."""

    def __init__(self, *, record_bytes_max: int) -> None:
        self._record_bytes_max = record_bytes_max
        self._parts: list[bytes | memoryview] = []
        self._size_bytes = 0
        self._begun = Position(0, 0)
        self.skipped = 0  # blocks of records without a beginning, or without an end

    def push(self, extent_id: int, block: Block, *, copy: bool) -> Record | None:
        """The record that this block completes."""
        position = Position(extent_id, block.offset)
        if block.type == BlockType.FULL:
            self._drop()
            payload = bytes(block.payload) if copy else block.payload
            return Record(position, payload, Position(extent_id, block.end))
        if block.type == BlockType.FIRST:
            self._drop()
            self._begun = position
        elif not self._parts:
            self.skipped += 1  # its beginning was cut off, or its writer died and another one went on
            return None
        self._parts.append(bytes(block.payload))  # a view would pin a whole answer for as long as the record grows
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
        """The records that these blocks complete."""
        records: list[Record] = []
        full, new = int(BlockType.FULL), tuple.__new__  # a third of the cost of Record(...)
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
        """What comes now was not written behind what came so far: an extent in between was taken out of the stream."""
        self._drop()

    def _drop(self) -> None:
        """A record that nobody finished: its writer died."""
        if self._parts:
            self.skipped += len(self._parts)
            self._parts.clear()
            self._size_bytes = 0


def start_of(extent_ids: Sequence[int], start: Position | None, *, stream_id: int) -> int:
    """The index of the extent where a read begins; NotFound, naming the first position there is, if it is gone."""
    if start is None:
        return 0
    try:
        return list(extent_ids).index(start.extent_id)
    except ValueError:
        first = f"it begins at {Position(extent_ids[0], 0)}" if extent_ids else "it is empty"
        detail = f"stream {stream_id} has no such extent, or not any more: {first}"
        raise NotFound(kind="position", name=str(start), detail=detail) from None


# --- which replica -------------------------------------------------------------------------------------------


class Quantile:
    """Follows a quantile of a sequence in one number: up a little when a value is above it, down when below."""

    __slots__ = ("_down", "_up", "value")

    def __init__(self, quantile: float, *, first: float, step: float = 0.2) -> None:
        self.value = first
        self._up = math.exp(step * quantile)
        self._down = math.exp(-step * (1 - quantile))

    def note(self, value: float) -> None:
        self.value *= self._up if value > self.value else self._down


class NodeRecord:
    """What was seen of one node as a reader's source."""

    __slots__ = ("failed_s", "failures", "latency_s")

    def __init__(self) -> None:
        self.latency_s = 0.0  # smoothed; 0: not known
        self.failures = 0.0  # halved with every `FAILURE_HALF_LIFE_S`
        self.failed_s = 0.0


FAILURE_HALF_LIFE_S = 10.0
LATENCY_SHARE = 0.1  # of a new value in the smoothed one
NODES_MAX = 10_000
ORDER_HOLDS_S = 0.1

Size = Literal["small", "large"]  # of a read: how long they take differs too much for one figure


class SourceHistory:
    """Failures and latencies of nodes, by address, for the order in which a reader asks them."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeRecord] = {}
        self._orders: dict[int, tuple[float, Extent, list[Replica]]] = {}  # by extent id, with when it was made
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
        """The replicas to ask, the best first. It holds for a moment: to sort them costs as much as a small read."""
        known = self._orders.get(extent.id)
        if known is not None and known[1] is extent and 0 <= now_s - known[0] < ORDER_HOLDS_S:
            return known[2]
        if len(self._orders) >= NODES_MAX:
            self._orders.clear()
        order = self._sorted(extent, now_s)
        self._orders[extent.id] = (now_s, extent, order)
        return order

    def _sorted(self, extent: Extent, now_s: float) -> list[Replica]:
        """Of equal ones another extent gets another first one."""
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
        # In steps of four: what differs less is noise, and going to and fro spoils the nodes' own read-ahead.
        speed = round(math.log(node.latency_s, 4)) if node.latency_s > 0 else -20
        return (round(_decayed(node, now_s)), max(speed, -5))

    def _node(self, address: str) -> NodeRecord:
        node = self._nodes.get(address)
        if node is None:
            if len(self._nodes) >= NODES_MAX:
                del self._nodes[next(iter(self._nodes))]
            node = self._nodes[address] = NodeRecord()
        return node


def _decayed(node: NodeRecord, now_s: float) -> float:
    if not node.failures:
        return 0.0
    return float(node.failures * 0.5 ** ((now_s - node.failed_s) / FAILURE_HALF_LIFE_S))
