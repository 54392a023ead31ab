"""The encoder of AppendBlock requests. It joins parts that are each encoded once.

    request := (tag, size, segment)*                       the field `segments` of an AppendBlockRequest
    segment := owner place                                 the fields of a message may come in any order
    owner   := extent, replica, eversion, token, no_sync   the same for as long as a writer stays on an extent
    place   := offset, committed, block sizes              the same for all replicas with one `committed`

Encoding a list of a thousand block sizes takes longer than checking a megabyte, and three replicas need the list.

Invariants: the bytes are a valid encoding of the same AppendBlockRequest, whichever parts were reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from neve.client.streams.core.batch import Batch
from neve.proto import extent_node_pb2 as pb

_LENGTH_DELIMITED = 2
_SEGMENT_TAG = pb.AppendBlockRequest.SEGMENTS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
assert _SEGMENT_TAG < 0x80, "the tag is one byte"

_VARINT = 0
_OFFSET_TAG = bytes((pb.Segment.OFFSET_FIELD_NUMBER << 3 | _VARINT,))
_COMMITTED_TAG = bytes((pb.Segment.COMMITTED_FIELD_NUMBER << 3 | _VARINT,))

_SMALL_HEADS = [bytes((_SEGMENT_TAG, size_bytes)) for size_bytes in range(0x80)]


PLACE_KEPT_BYTES_MAX = 16 << 10  # for each of perhaps thousands of writers; a full frame of 1 KiB records needs 2 KiB


class PlaceEncoder:
    """Encodes the places of one extent's segments and keeps the last: its lanes mostly need the same one in a row."""

    __slots__ = ("_committed", "_encoded", "_end", "_offset")

    def __init__(self) -> None:
        self._offset = self._end = self._committed = -1
        self._encoded = b""

    def encode(self, batches: Sequence[Batch], committed: int) -> bytes:
        offset, end = batches[0].offset, batches[-1].end
        if offset != self._offset or end != self._end or committed != self._committed:
            sizes = batches[0].block_sizes
            if len(batches) > 1:
                sizes = [size for batch in batches for size in batch.block_sizes]
            encoded = encode_place(offset, committed, sizes)
            if len(encoded) > PLACE_KEPT_BYTES_MAX:
                return encoded
            self._encoded = encoded
            self._offset, self._end, self._committed = offset, end, committed
        return self._encoded


def encode_place(offset: int, committed: int, block_sizes: Sequence[int]) -> bytes:
    if len(block_sizes) == 1 and offset and committed:  # protobuf omits a field that is 0
        encoded_offset = _varint(offset)
        encoded_committed = encoded_offset if committed == offset else _varint(committed)  # equal for single appends
        return b"".join((_OFFSET_TAG, encoded_offset, _COMMITTED_TAG, encoded_committed, _one_size(block_sizes[0])))
    return pb.Segment(offset=offset, committed=committed, block_sizes=block_sizes).SerializeToString()


@lru_cache(maxsize=256)
def _one_size(size_bytes: int) -> bytes:
    """The encoded field `block_sizes` of one block. Cached, because records mostly have few sizes."""
    return pb.Segment(block_sizes=[size_bytes]).SerializeToString()


def _varint(value: int) -> bytes:
    """A protobuf varint. Unrolled below 256 MiB, where most offsets are: the loop takes twice as long."""
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value < 1 << 28:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))
    low = value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21 & 0x7F | 0x80
    return bytes(low) + _varint(value >> 28)


def encode_committed(committed: int) -> bytes:
    """The place of a segment that has `committed` alone."""
    return pb.Segment(committed=committed).SerializeToString()


def join_segment(owner: bytes, place: bytes) -> bytes:
    """A segment as encoded in a request: tag, size, owner fields, place."""
    size_bytes = len(owner) + len(place)
    if size_bytes < 0x80:
        return b"".join((_SMALL_HEADS[size_bytes], owner, place))
    head = bytearray((_SEGMENT_TAG,))
    while size_bytes >= 0x80:
        head.append(size_bytes & 0x7F | 0x80)
        size_bytes >>= 7
    head.append(size_bytes)
    return b"".join((head, owner, place))
