"""Blocks: the CRC-framed payloads that an extent is made of. docs/formats/extent.md has the grammar and an example.

    block := crc32c u32 | size u24 | type u8 | payload        little-endian; the CRC covers size, type and payload

Invariants: no valid block begins with zeros, so a hole in a file is never taken for data;
            "cut short by the end" (a torn write) and "wrong" (damage) are never confused, not even when a flipped bit
            in a size makes a whole block seem to reach beyond the end (rule 13);
            nothing here does I/O or keeps a payload.
Not here:   whole extents (block_scan.py), where the blocks of a sealed extent are (index.py).
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
    """0 is none of them, so that zeros are no block."""

    FULL = 1  # a whole record
    FIRST = 2  # the beginning of a record of several blocks,
    MIDDLE = 3  # its inside,
    LAST = 4  # and its end


class BlockRef(NamedTuple):
    """Where a block is, not what is in it."""

    offset: int
    size_total: int  # with its header
    type: int

    @property
    def end(self) -> int:
        return self.offset + self.size_total


class ProblemKind(IntEnum):
    CUT_SHORT = 1  # the buffer ends inside the block: what a torn write leaves
    WRONG_HEADER = 2  # no writer of ours makes such a header
    WRONG_CHECKSUM = 3


class Problem(NamedTuple):
    """The first thing wrong in a run of blocks. All bytes below `offset` are whole blocks."""

    offset: int
    kind: ProblemKind
    detail: str

    def __str__(self) -> str:
        return f"block at offset {self.offset}: {self.detail}"


class BadBlock(ValueError):
    """Raised by `walk` where the headers stop making sense."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class EncodedBlocks(NamedTuple):
    buffers: list[Buffer]  # to send or write one after the other
    block_sizes: list[int]  # with headers, as AppendBlock wants them
    size_bytes: int


_HEADER = struct.Struct("<II")  # crc32c, word
_WORD = struct.Struct("<I")  # size in the low 24 bits, type in the high 8
_TYPE_SHIFT = 24
_SIZE_MASK = PAYLOAD_BYTES_MAX
_TYPE_MIN, _TYPE_MAX = int(min(BlockType)), int(max(BlockType))

# Up to this payload, copying it behind its header costs less than handing the kernel two more buffers (1 KiB blocks:
# 0.6 µs a block joined); above, the copy would.
JOIN_BYTES_MAX = 16 * 1024

# From this payload on, a CRC is derived from another one sooner than computed: some 4 µs for any size, against 3 µs for
# 64 KiB in the cache.
_DERIVE_BYTES_MIN = 128 * 1024

# Below this number of blocks a Python loop (0.2 µs a block) beats NumPy's fixed cost of about 20 µs.
_VECTOR_BLOCKS_MIN = 100


# --- making blocks -------------------------------------------------------------------------------------------


def block_header(payload: Buffer, block_type: int = BlockType.FULL) -> bytes:
    """The 8 bytes that go before `payload`."""
    size_bytes = len(payload)
    if size_bytes > PAYLOAD_BYTES_MAX:
        raise InvalidArgument(what="payload", detail=f"{size_bytes} bytes; a block holds at most {PAYLOAD_BYTES_MAX}")
    word = size_bytes | block_type << _TYPE_SHIFT
    return _HEADER.pack(crc32c(payload, google_crc32c.extend(0, _WORD.pack(word))), word)


def encode_block(payload: Buffer, block_type: int = BlockType.FULL) -> bytes:
    """One block in one piece."""
    return b"".join((block_header(payload, block_type), payload))


def encode_blocks(payloads: Iterable[Buffer], *, block_type: int = BlockType.FULL) -> EncodedBlocks:
    """A block for each payload. Small ones come joined, large payloads are passed on uncopied: do not change them.

    The loop is the client's hottest one: it makes one object per small payload and computes the CRC of the size word
    once for each run of payloads of one size.
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
        with contextlib.suppress(TypeError):  # one of them is not of `bytes`: the long way takes it
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
    """The CRC32C of encoded blocks as one row of bytes, by way of their own CRCs where their payloads are large."""
    if len(buffers) != 2 * len(block_sizes):
        return crc32c_of_all(buffers)
    # As many as a header and a payload for each block: that is what they are, if the sizes say so.
    crc = 0
    for index, size_total in enumerate(block_sizes):
        header, payload = buffers[2 * index], buffers[2 * index + 1]
        size_bytes = len(payload)
        crc = crc32c(header, crc)
        if size_bytes < _DERIVE_BYTES_MIN or len(header) != HEADER_BYTES or HEADER_BYTES + size_bytes != size_total:
            crc = crc32c(payload, crc)
        else:  # the block's CRC covers its size word and its payload: take the former out, move the rest in
            block_crc, word = _HEADER.unpack(header)
            crc = crc32c_shifted(crc ^ crc32c_bytes(_WORD.pack(word)), size_bytes) ^ block_crc
    return crc


def _encode_equal(payloads: list[Buffer], size_bytes: int, block_type: int) -> EncodedBlocks:
    """Many small payloads of one size, as a writer of records has them: nothing is decided for each of them."""
    count, size_total = len(payloads), HEADER_BYTES + size_bytes
    word = size_bytes | block_type << _TYPE_SHIFT
    headers = np.empty((count, 2), dtype="<u4")
    headers[:, 0] = list(map(google_crc32c.extend, repeat(google_crc32c.extend(0, _WORD.pack(word))), payloads))
    headers[:, 1] = word
    parts: list[Buffer] = [b""] * (2 * count)
    # As strings of 8 bytes. NumPy drops zeros at a string's end, and the last byte of a header is its type: never 0.
    parts[0::2] = headers.reshape(-1).view("S8").tolist()
    parts[1::2] = payloads
    return EncodedBlocks([b"".join(parts)], [size_total] * count, size_total * count)


# --- reading blocks ------------------------------------------------------------------------------------------


def parse_header(buffer: Buffer, offset: int = 0) -> tuple[int, int, int]:
    """(crc, payload size, type) of the header at `offset`, unchecked; its 8 bytes must be there."""
    crc, word = _HEADER.unpack_from(buffer, offset)
    return crc, word & _SIZE_MASK, word >> _TYPE_SHIFT


def walk(buffer: Buffer, offset: int = 0, *, end: int | None = None) -> Iterator[BlockRef]:
    """The blocks from `offset` to `end`, by their headers alone. BadBlock where they do not fit; no CRC is checked."""
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
    """What is wrong with the block at `offset` of a buffer that ends at `end`, or None."""
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
    """The first thing wrong between `offset` and `end`, or None: then both are block boundaries."""
    end = len(buffer) if end is None else end
    view = memoryview(buffer)
    # One array for all: google-crc32c takes no memoryview, and copying each block would cost twice as much.
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
    """Why a block, of which `rest` is there, reaches beyond the end: a torn write, or a flipped bit in its size?

    A torn write is cut silently on start, damage never is (rule 13). If turning one bit of the size back makes a block
    that ends within `rest` and has the right CRC, the block was whole once.
    """
    if len(rest) < HEADER_BYTES:
        return _cut_header(offset, len(rest))
    view = memoryview(rest)
    crc, word = _HEADER.unpack_from(view)
    for bit in range(_TYPE_SHIFT):
        if not word >> bit & 1:
            continue  # setting a bit would make it even longer
        smaller = word & ~(1 << bit)
        size_total = HEADER_BYTES + (smaller & _SIZE_MASK)
        if size_total <= len(view) and crc32c(view[HEADER_BYTES:size_total], crc32c(_WORD.pack(smaller))) == crc:
            detail = f"its size was {smaller & _SIZE_MASK} and reads {word & _SIZE_MASK}: a flipped bit"
            return Problem(offset, ProblemKind.WRONG_HEADER, detail)
    return _cut_payload(offset, HEADER_BYTES + (word & _SIZE_MASK), len(view))


def check_sizes(buffer: Buffer, block_sizes: Sequence[int]) -> None:
    """That `buffer` is exactly blocks of those sizes, by their headers; InvalidArgument otherwise.

    CRCs are not checked: at append the frame's CRC stands for them, and who seals, reads or scrubs checks them.
    """
    if len(block_sizes) >= _VECTOR_BLOCKS_MIN:
        _check_many_sizes(buffer, block_sizes)
        return
    offset, end = 0, len(buffer)
    unpack = _WORD.unpack_from
    for index, size_total in enumerate(block_sizes[:]):  # a list: protobuf's own sequences are slow to go over
        if size_total < HEADER_BYTES or size_total > end - offset:
            raise _wrong_size(index, f"{size_total} bytes, with {end - offset} bytes left")
        (word,) = unpack(buffer, offset + 4)
        if (word & _SIZE_MASK) + HEADER_BYTES != size_total or not _TYPE_MIN <= word >> _TYPE_SHIFT <= _TYPE_MAX:
            raise _wrong_size(index, _disagreement(size_total, word))
        offset += size_total
    if offset != end:
        raise InvalidArgument(what="block_sizes", detail=f"they add up to {offset} of {end} bytes")


def sum_sizes(block_sizes: Sequence[int]) -> int:
    """What blocks of these sizes take together."""
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
    # Every offset as a 32-bit word, though unaligned: one gather then takes all the headers' words.
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
    """Whether all blocks are of one size and one kind, as a writer of records has them, and as announced: six times
    quicker than to look at each."""
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
    """The blocks, as (type, payload), that a record of any size becomes. The payloads are views of it."""
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
    """BLAKE2b-256 over an extent's bytes [0, L): what replicas of a sealed extent compare (rule 20)."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def update(self, chunk: Buffer) -> None:
        self._hash.update(chunk)

    def digest(self) -> bytes:
        return self._hash.digest()


def extent_digest(chunks: Iterable[Buffer]) -> bytes:
    """The digest of the chunks as if they were one."""
    whole = ExtentDigest()
    for chunk in chunks:
        whole.update(chunk)
    return whole.digest()


# --- words for what is wrong ---------------------------------------------------------------------------------


def _cut_header(offset: int, available: int) -> Problem:
    detail = f"{available} of the header's {HEADER_BYTES} bytes are there"
    return Problem(offset, ProblemKind.CUT_SHORT, detail)


def _cut_payload(offset: int, size_total: int, available: int) -> Problem:
    return Problem(offset, ProblemKind.CUT_SHORT, f"{available} of its {size_total} bytes are there")


def _wrong_type(offset: int, block_type: int) -> Problem:
    return Problem(offset, ProblemKind.WRONG_HEADER, f"type {block_type} is none")


def _wrong_checksum(offset: int, crc: int, crc_here: int) -> Problem:
    detail = f"its CRC32C is {crc_here:08x}, its header says {crc:08x}"
    return Problem(offset, ProblemKind.WRONG_CHECKSUM, detail)


def _wrong_size(index: int, detail: str) -> InvalidArgument:
    return InvalidArgument(what="block_sizes", detail=f"block {index}: {detail}")


def _disagreement(size_total: int, word: int) -> str:
    size_bytes, block_type = word & _SIZE_MASK, word >> _TYPE_SHIFT
    return f"{size_total} bytes, but its header says type {block_type} and {HEADER_BYTES} + {size_bytes} bytes"
