"""Blocks: the CRC-framed payloads that make up an extent. docs/formats/extent.md has the grammar and an example.

    block := crc32c u32 | size u24 | type u8 | payload        little-endian; the CRC covers size, type and payload

Invariants: no valid block begins with zeros, so a hole in a file is never taken for data;
            a torn write (the end cuts the block short) is never confused with damage, even when a flipped bit in the
            size makes a whole block seem to reach beyond the end (protocol rule 13);
            the functions do no I/O and keep no payload.
Not here:   scans of whole extents (block_scan.py), the positions of a sealed extent's blocks (index.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import repeat
from typing import NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from neve.proto.crc import Buffer, crc32c, crc32c_bytes, crc32c_of_all, crc32c_shifted
from neve.proto.errors import InvalidArgument

HEADER_BYTES = 8
PAYLOAD_BYTES_MAX = (1 << 24) - 1
BLOCK_BYTES_MAX = HEADER_BYTES + PAYLOAD_BYTES_MAX

DIGEST_BYTES = 32


class BlockType(IntEnum):
    """The types of blocks. 0 is unused, so that zeros are no block."""

    FULL = 1  # a whole record
    FIRST = 2  # the first block of a record of several blocks
    MIDDLE = 3  # a block between the first and the last
    LAST = 4


class BlockRef(NamedTuple):
    """The position of a block, without its content."""

    offset: int
    size_total: int  # with its header
    type: int

    @property
    def end(self) -> int:
        return self.offset + self.size_total


class ProblemKind(IntEnum):
    CUT_SHORT = 1  # the buffer ends inside the block, as after a torn write
    WRONG_HEADER = 2  # no Neve writer makes such a header
    WRONG_CHECKSUM = 3


class Problem(NamedTuple):
    """The first defect in a run of blocks. All bytes below `offset` are whole blocks."""

    offset: int
    kind: ProblemKind
    detail: str

    def __str__(self) -> str:
        return f"block at offset {self.offset}: {self.detail}"


class BadBlock(ValueError):
    """Raised by `walk` at the first invalid header."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class EncodedBlocks(NamedTuple):
    buffers: list[Buffer]  # to send or write in this order
    block_sizes: list[int]  # with headers, as AppendBlock expects them
    size_bytes: int


_HEADER = struct.Struct("<II")  # crc32c, word
_WORD = struct.Struct("<I")  # size in the low 24 bits, type in the high 8
_TYPE_SHIFT = 24
_SIZE_MASK = PAYLOAD_BYTES_MAX
_TYPE_MIN, _TYPE_MAX = int(min(BlockType)), int(max(BlockType))

# Up to this payload size, joining header and payload is cheaper than handing the kernel two more buffers (1 KiB blocks:
# 0.6 µs a block joined). Above it, the copy is more expensive.
JOIN_BYTES_MAX = 16 * 1024

# From this payload size on, deriving a CRC from the block's own is faster than computing it: about 4 µs for any size,
# against 3 µs for 64 KiB in the processor's cache.
_DERIVE_BYTES_MIN = 128 * 1024

# Below this number of blocks a Python loop (0.2 µs a block) beats NumPy's fixed cost of about 20 µs.
_VECTOR_BLOCKS_MIN = 100


# --- making blocks -------------------------------------------------------------------------------------------


def block_header(payload: Buffer, block_type: int = BlockType.FULL) -> bytes:
    """The 8 bytes that precede `payload`."""
    size_bytes = len(payload)
    if size_bytes > PAYLOAD_BYTES_MAX:
        raise InvalidArgument(what="payload", detail=f"{size_bytes} bytes; a block holds at most {PAYLOAD_BYTES_MAX}")
    word = size_bytes | block_type << _TYPE_SHIFT
    return _HEADER.pack(crc32c(payload, google_crc32c.extend(0, _WORD.pack(word))), word)


def encode_block(payload: Buffer, block_type: int = BlockType.FULL) -> bytes:
    """One block as one bytes object."""
    return b"".join((block_header(payload, block_type), payload))


def encode_blocks(payloads: Iterable[Buffer], *, block_type: int = BlockType.FULL) -> EncodedBlocks:
    """A block for each payload. Small blocks are joined; large payloads are not copied, so do not change them.

    This is the client's hottest loop. It makes one object per small payload, and computes the CRC of the size word once
    for each run of payloads of equal size.
    """
    payloads = payloads if isinstance(payloads, list) else list(payloads)
    if len(payloads) == 1 and len(payloads[0]) <= JOIN_BYTES_MAX:
        block = encode_block(payloads[0], block_type)
        return EncodedBlocks([block], [len(block)], len(block))
    if (
        len(payloads) >= _VECTOR_BLOCKS_MIN
        and type(payloads[0]) is bytes
        and (size_bytes := len(payloads[0])) <= JOIN_BYTES_MAX
        and list(map(len, payloads)).count(size_bytes) == len(payloads)
    ):
        with contextlib.suppress(TypeError):  # a later payload is not `bytes`: the loop below handles it
            return _encode_equal(payloads, size_bytes, block_type)
    type_bits = block_type << _TYPE_SHIFT
    extend, pack_header, pack_word = google_crc32c.extend, _HEADER.pack, _WORD.pack
    buffers: list[Buffer] = []
    small: list[Buffer] = []
    block_sizes: list[int] = []
    size_before, word, word_crc = -1, 0, 0
    for payload in payloads:
        size_bytes = len(payload)
        if size_bytes != size_before:
            if size_bytes > PAYLOAD_BYTES_MAX:
                raise InvalidArgument(
                    what="payload", detail=f"{size_bytes} bytes; a block holds at most {PAYLOAD_BYTES_MAX}"
                )
            size_before, word = size_bytes, size_bytes | type_bits
            word_crc = extend(0, pack_word(word))
        crc = extend(word_crc, payload) if type(payload) is bytes else crc32c(payload, word_crc)
        block_sizes.append(HEADER_BYTES + size_bytes)
        small.append(pack_header(crc, word))
        if size_bytes <= JOIN_BYTES_MAX:
            small.append(payload)
        else:
            buffers += (b"".join(small), payload)
            small.clear()
    if small:
        buffers.append(b"".join(small))
    return EncodedBlocks(buffers, block_sizes, sum(block_sizes))


def crc32c_of_blocks(buffers: Sequence[Buffer], block_sizes: Sequence[int]) -> int:
    """The CRC32C of the concatenated blocks. For large payloads it is derived from the CRCs of the blocks."""
    if len(buffers) != 2 * len(block_sizes):
        return crc32c_of_all(buffers)
    # The number fits a header and a payload for each block; the loop checks it by the sizes.
    crc = 0
    for index, size_total in enumerate(block_sizes):
        header, payload = buffers[2 * index], buffers[2 * index + 1]
        size_bytes = len(payload)
        crc = crc32c(header, crc)
        if size_bytes < _DERIVE_BYTES_MIN or len(header) != HEADER_BYTES or HEADER_BYTES + size_bytes != size_total:
            crc = crc32c(payload, crc)
        else:  # the block's CRC covers its size word and its payload: remove the former, shift in the latter
            block_crc, word = _HEADER.unpack(header)
            crc = crc32c_shifted(crc ^ crc32c_bytes(_WORD.pack(word)), size_bytes) ^ block_crc
    return crc


def _encode_equal(payloads: list[Buffer], size_bytes: int, block_type: int) -> EncodedBlocks:
    """Encode many small payloads of one size, which writers of records often have, without a loop over them."""
    count, size_total = len(payloads), HEADER_BYTES + size_bytes
    word = size_bytes | block_type << _TYPE_SHIFT
    headers = np.empty((count, 2), dtype="<u4")
    headers[:, 0] = list(map(google_crc32c.extend, repeat(google_crc32c.extend(0, _WORD.pack(word))), payloads))
    headers[:, 1] = word
    parts: list[Buffer] = [b""] * (2 * count)
    # As strings of 8 bytes. NumPy drops trailing zeros of a string, but a header ends with its type, which is never 0.
    parts[0::2] = headers.reshape(-1).view("S8").tolist()
    parts[1::2] = payloads
    return EncodedBlocks([b"".join(parts)], [size_total] * count, size_total * count)


# --- reading blocks ------------------------------------------------------------------------------------------


def parse_header(buffer: Buffer, offset: int = 0) -> tuple[int, int, int]:
    """(crc, payload size, type) of the header at `offset`, unchecked. The buffer must contain all its 8 bytes."""
    crc, word = _HEADER.unpack_from(buffer, offset)
    return crc, word & _SIZE_MASK, word >> _TYPE_SHIFT


def walk(buffer: Buffer, offset: int = 0, *, end: int | None = None) -> Iterator[BlockRef]:
    """The blocks from `offset` to `end`, by their headers; CRCs are not checked. Raises BadBlock at a wrong header."""
    end = len(buffer) if end is None else end
    while offset < end:
        if end - offset < HEADER_BYTES:
            raise BadBlock(_cut_header(offset, end - offset))
        _, size_bytes, block_type = parse_header(buffer, offset)
        if not _TYPE_MIN <= block_type <= _TYPE_MAX:
            raise BadBlock(_wrong_type(offset, block_type))
        size_total = HEADER_BYTES + size_bytes
        if size_total > end - offset:
            raise BadBlock(_cut_payload(offset, size_total, end - offset))
        yield BlockRef(offset, size_total, block_type)
        offset += size_total


def verify_block(buffer: Buffer, offset: int = 0, *, end: int | None = None) -> Problem | None:
    """The defect of the block at `offset` of a buffer that ends at `end`, or None."""
    end = len(buffer) if end is None else end
    available = end - offset
    if available < HEADER_BYTES:
        return _cut_header(offset, available)
    crc, size_bytes, block_type = parse_header(buffer, offset)
    if not _TYPE_MIN <= block_type <= _TYPE_MAX:
        return _wrong_type(offset, block_type)
    size_total = HEADER_BYTES + size_bytes
    view = memoryview(buffer)
    if size_total > available:
        return explain_cut(view[offset:end], offset)
    crc_here = crc32c(view[offset + 4 : offset + size_total])
    return None if crc_here == crc else _wrong_checksum(offset, crc, crc_here)


def verify(buffer: Buffer, offset: int = 0, *, end: int | None = None) -> Problem | None:
    """The first defect between `offset` and `end`, or None if all of it is valid, whole blocks."""
    end = len(buffer) if end is None else end
    view = memoryview(buffer)
    # One array for all blocks: google-crc32c accepts no memoryview, and copying each block would cost twice as much.
    array = np.frombuffer(view, dtype=np.uint8)
    extend, unpack = google_crc32c.extend, _HEADER.unpack_from
    while end - offset >= HEADER_BYTES:
        crc, word = unpack(view, offset)
        block_end = offset + HEADER_BYTES + (word & _SIZE_MASK)
        if block_end > end or not _TYPE_MIN <= word >> _TYPE_SHIFT <= _TYPE_MAX:
            break
        if extend(0, array[offset + 4 : block_end]) != crc:
            break
        offset = block_end
    return verify_block(view, offset, end=end) if offset < end else None


def explain_cut(rest: Buffer, offset: int) -> Problem:
    """Why a block reaches beyond the end, when only `rest` of it exists: a torn write, or a flipped bit in its size.

    A node cuts a torn write silently on start, but never damage (protocol rule 13). If flipping one bit of the size
    back gives a block that ends within `rest` and has the right CRC, the block was once whole.
    """
    if len(rest) < HEADER_BYTES:
        return _cut_header(offset, len(rest))
    view = memoryview(rest)
    crc, word = _HEADER.unpack_from(view)
    for bit in range(_TYPE_SHIFT):
        if not word >> bit & 1:
            continue  # setting a bit would make the block even longer
        smaller = word & ~(1 << bit)
        size_total = HEADER_BYTES + (smaller & _SIZE_MASK)
        if size_total <= len(view) and crc32c(view[HEADER_BYTES:size_total], crc32c(_WORD.pack(smaller))) == crc:
            detail = f"its size was {smaller & _SIZE_MASK} and reads {word & _SIZE_MASK}: a flipped bit"
            return Problem(offset, ProblemKind.WRONG_HEADER, detail)
    return _cut_payload(offset, HEADER_BYTES + (word & _SIZE_MASK), len(view))


def check_sizes(buffer: Buffer, block_sizes: Sequence[int]) -> None:
    """Check by the headers that `buffer` consists of blocks of exactly those sizes; otherwise raise InvalidArgument.

    CRCs are not checked: during an append the frame's CRC covers the blocks, and seals, reads and scrubs check them.
    """
    if len(block_sizes) >= _VECTOR_BLOCKS_MIN:
        _check_many_sizes(buffer, block_sizes)
        return
    offset, end = 0, len(buffer)
    unpack = _WORD.unpack_from
    for index, size_total in enumerate(block_sizes[:]):  # a list, because iterating over a protobuf field is slow
        if size_total < HEADER_BYTES or size_total > end - offset:
            raise _wrong_size(index, f"{size_total} bytes, with {end - offset} bytes left")
        (word,) = unpack(buffer, offset + 4)
        if (word & _SIZE_MASK) + HEADER_BYTES != size_total or not _TYPE_MIN <= word >> _TYPE_SHIFT <= _TYPE_MAX:
            raise _wrong_size(index, _disagreement(size_total, word))
        offset += size_total
    if offset != end:
        raise InvalidArgument(what="block_sizes", detail=f"they add up to {offset} of {end} bytes")


def sum_sizes(block_sizes: Sequence[int]) -> int:
    """The total size of blocks of these sizes."""
    count = len(block_sizes)
    if count == 1:
        return block_sizes[0]
    if count < _VECTOR_BLOCKS_MIN:
        return sum(block_sizes[:])
    return int(np.asarray(block_sizes, dtype=np.int64).sum())


def _check_many_sizes(buffer: Buffer, block_sizes: Sequence[int]) -> None:
    sizes = np.asarray(block_sizes, dtype=np.int64)
    if _are_equal_blocks(buffer, sizes):
        return
    if int(sizes.min()) < HEADER_BYTES:
        raise _wrong_size(int(sizes.argmin()), f"{int(sizes.min())} bytes, less than a header")
    ends = sizes.cumsum()
    if int(ends[-1]) != len(buffer):
        raise InvalidArgument(what="block_sizes", detail=f"they add up to {int(ends[-1])} of {len(buffer)} bytes")
    # A view with a 32-bit word at every offset, although unaligned: one gather then reads the words of all headers.
    words_at: npt.NDArray[np.uint32] = np.ndarray(
        shape=(len(buffer) - 3,), dtype="<u4", buffer=memoryview(buffer), strides=(1,)
    )
    words = words_at[ends - sizes + 4]
    types = words >> _TYPE_SHIFT
    wrong = ((words & _SIZE_MASK) + np.int64(HEADER_BYTES) != sizes) | (types < _TYPE_MIN) | (types > _TYPE_MAX)
    if wrong.any():
        index = int(wrong.argmax())
        raise _wrong_size(index, _disagreement(block_sizes[index], int(words[index])))


def _are_equal_blocks(buffer: Buffer, sizes: npt.NDArray[np.int64]) -> bool:
    """Whether all blocks have the announced size and one common header word, which is usual for writers of records.

    Six times faster than the check of each block.
    """
    count, size_total = len(sizes), int(sizes[0])
    if size_total < HEADER_BYTES or count * size_total != len(buffer) or not (sizes == size_total).all():
        return False
    words = np.ndarray((count,), "<u4", memoryview(buffer), offset=4, strides=(size_total,))
    word = int(words[0])
    if (word & _SIZE_MASK) + HEADER_BYTES != size_total or not _TYPE_MIN <= word >> _TYPE_SHIFT <= _TYPE_MAX:
        return False
    return bool((words == word).all())


# --- records of several blocks -------------------------------------------------------------------------------


def split_record(record: Buffer, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> list[tuple[BlockType, Buffer]]:
    """The blocks of a record of any size, as (type, payload). The payloads are views of the record."""
    assert 0 < payload_bytes_max <= PAYLOAD_BYTES_MAX, payload_bytes_max
    if len(record) <= payload_bytes_max:
        return [(BlockType.FULL, record)]
    view = memoryview(record)
    starts = range(0, len(view), payload_bytes_max)
    parts: list[tuple[BlockType, Buffer]] = [(BlockType.MIDDLE, view[at : at + payload_bytes_max]) for at in starts]
    parts[0] = (BlockType.FIRST, parts[0][1])
    parts[-1] = (BlockType.LAST, parts[-1][1])
    return parts


# --- the digest of a sealed extent ---------------------------------------------------------------------------


class ExtentDigest:
    """BLAKE2b-256 over the bytes [0, L) of a sealed extent, to compare its replicas (protocol rule 20)."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def update(self, chunk: Buffer) -> None:
        self._hash.update(chunk)

    def digest(self) -> bytes:
        return self._hash.digest()


def extent_digest(chunks: Iterable[Buffer]) -> bytes:
    """The digest of the concatenated chunks."""
    whole = ExtentDigest()
    for chunk in chunks:
        whole.update(chunk)
    return whole.digest()


# --- descriptions of defects ---------------------------------------------------------------------------------


def _cut_header(offset: int, available: int) -> Problem:
    detail = f"only {available} of the header's {HEADER_BYTES} bytes exist"
    return Problem(offset, ProblemKind.CUT_SHORT, detail)


def _cut_payload(offset: int, size_total: int, available: int) -> Problem:
    return Problem(offset, ProblemKind.CUT_SHORT, f"only {available} of its {size_total} bytes exist")


def _wrong_type(offset: int, block_type: int) -> Problem:
    return Problem(offset, ProblemKind.WRONG_HEADER, f"there is no block type {block_type}")


def _wrong_checksum(offset: int, crc: int, crc_here: int) -> Problem:
    detail = f"its CRC32C is {crc_here:08x}, its header says {crc:08x}"
    return Problem(offset, ProblemKind.WRONG_CHECKSUM, detail)


def _wrong_size(index: int, detail: str) -> InvalidArgument:
    return InvalidArgument(what="block_sizes", detail=f"block {index}: {detail}")


def _disagreement(size_total: int, word: int) -> str:
    size_bytes, block_type = word & _SIZE_MASK, word >> _TYPE_SHIFT
    return f"{size_total} bytes, but its header says type {block_type} and {HEADER_BYTES} + {size_bytes} bytes"
