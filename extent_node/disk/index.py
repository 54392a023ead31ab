"""The index of a sealed extent: where its blocks are. Derived data, stored beside the extent as `<id>.idx`.

    index := header | offsets u64 × count | sizes u32 × count | types u8 × count

Invariants: an index is used only if its CRCs hold and it names the exact seal of its extent (length and digest);
            a missing, torn or foreign index is None, never an error and never a wrong result: a scan rebuilds it;
            an index appears under its name whole or not at all.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neve.extent_node.disk.attributes import Seal
from neve.extent_node.disk.block_scan import Scan
from neve.extent_node.disk.file_system import Buffer, FileSystem
from neve.proto.blocks import DIGEST_BYTES, HEADER_BYTES
from neve.proto.crc import crc32c

MAGIC = b"NEVEIDX1"
VERSION = 1

# magic, version, extent id, seal length, digest, count, crc of the arrays | crc of the header
_FIELDS = struct.Struct(f"<8sIQQ{DIGEST_BYTES}sQI")
_CRC = struct.Struct("<I")
# The arrays begin at a multiple of 8, so that they can be mapped and used without a copy.
HEADER_BYTES_TOTAL = (_FIELDS.size + _CRC.size + 7) // 8 * 8
_PADDING = bytes(HEADER_BYTES_TOTAL - _FIELDS.size - _CRC.size)
_ENTRY_BYTES = 8 + 4 + 1


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """The blocks of one sealed extent, in order. The arrays may be views of a mapped file."""

    extent_id: int
    length: int
    digest: bytes
    offsets: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint32]  # with headers
    types: npt.NDArray[np.uint8]

    @property
    def count(self) -> int:
        return len(self.offsets)

    def find(self, offset: int) -> int | None:
        """The index of the block that begins at `offset`; None if none does."""
        index = int(self.offsets.searchsorted(np.uint64(offset)))
        if index < self.count and int(self.offsets[index]) == offset:
            return index
        return None

    def numbers_in(self, start: int, end: int) -> tuple[int, int]:
        """The indexes [first, last) of the blocks that begin in [start, end)."""
        first = int(self.offsets.searchsorted(np.uint64(start)))
        return first, max(first, int(self.offsets.searchsorted(np.uint64(min(end, self.length)))))

    def blocks_from(self, offset: int, *, max_blocks: int, max_bytes: int) -> tuple[int, int] | None:
        """How far to read from the block at `offset`: (end, blocks); None if no block begins there.

        0 means no bound. The first block is whole even if it alone is larger than `max_bytes`.
        """
        if offset == self.length:
            return offset, 0
        first = self.find(offset)
        if first is None:
            return None
        if max_blocks == 1:
            return offset + int(self.sizes[first]), 1
        last = self.count if max_blocks == 0 else min(self.count, first + max_blocks)
        if max_bytes:
            # A block fits if its end does, and its end is the next block's offset.
            fitting = int(self.offsets.searchsorted(np.uint64(offset + max_bytes), side="right")) - 1
            if self.length <= offset + max_bytes:
                fitting = self.count
            last = min(last, max(fitting, first + 1))
        end = self.length if last == self.count else int(self.offsets[last])
        return end, last - first


def from_scan(extent_id: int, seal: Seal, scan: Scan) -> BlockIndex:
    """The index from a scan that covered exactly the sealed bytes and found no problem."""
    assert scan.problem is None, scan.problem
    assert scan.valid_length == seal.length, (scan.valid_length, seal)
    sizes = scan.sizes.astype(np.uint64)
    offsets = sizes.cumsum() - sizes
    return BlockIndex(extent_id, seal.length, seal.digest, offsets.astype(np.uint64), scan.sizes, scan.types)


def encode(index: BlockIndex) -> bytes:
    arrays = b"".join(
        (index.offsets.astype("<u8").tobytes(), index.sizes.astype("<u4").tobytes(), index.types.astype("u1").tobytes())
    )
    fields = _FIELDS.pack(MAGIC, VERSION, index.extent_id, index.length, index.digest, index.count, crc32c(arrays))
    return b"".join((fields, _CRC.pack(crc32c(fields)), _PADDING, arrays))


def decode(buffer: Buffer, *, extent_id: int, seal: Seal) -> BlockIndex | None:
    """The index in `buffer`, as views of it; None unless every bit is right and it is for this seal of this extent."""
    if len(buffer) < HEADER_BYTES_TOTAL:
        return None
    view = memoryview(buffer)
    magic, version, extent_here, length, digest, count, arrays_crc = _FIELDS.unpack_from(view)
    (fields_crc,) = _CRC.unpack_from(view, _FIELDS.size)
    if magic != MAGIC or version != VERSION or crc32c(view[: _FIELDS.size]) != fields_crc:
        return None
    if (extent_here, length, digest) != (extent_id, seal.length, seal.digest):
        return None
    if len(view) != HEADER_BYTES_TOTAL + count * _ENTRY_BYTES or crc32c(view[HEADER_BYTES_TOTAL:]) != arrays_crc:
        return None
    sizes_at = HEADER_BYTES_TOTAL + 8 * count
    types_at = sizes_at + 4 * count
    index = BlockIndex(
        extent_id=extent_id,
        length=length,
        digest=digest,
        offsets=np.frombuffer(view[HEADER_BYTES_TOTAL:sizes_at], dtype="<u8"),
        sizes=np.frombuffer(view[sizes_at:types_at], dtype="<u4"),
        types=np.frombuffer(view[types_at:], dtype="u1"),
    )
    return index if _is_whole(index) else None


def write(fs: FileSystem, index: BlockIndex, *, path: str, temporary_path: str, folder: str) -> None:
    """Store the index under its name, durably. An old file at `temporary_path` is overwritten."""
    try:
        _write_file(fs, temporary_path, encode(index))
        fs.rename(temporary_path, path)
    except OSError:
        with contextlib.suppress(OSError):  # the file has no use, and a full disk needs the room
            fs.unlink(temporary_path)
        raise
    fs.fsync_dir(folder)


def _write_file(fs: FileSystem, path: str, value: bytes) -> None:
    fd = fs.open(path, create=True)
    try:
        fs.truncate(fd, 0)
        written = 0
        while written < len(value):
            written += fs.pwrite(fd, [memoryview(value)[written:]], written)
        fs.fsync(fd)
    finally:
        fs.close(fd)


def load(fs: FileSystem, path: str, *, extent_id: int, seal: Seal) -> BlockIndex | None:
    """The index at `path`, mapped; None if it is missing or wrong and must be rebuilt. OSError if the disk fails."""
    try:
        fd = fs.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return decode(fs.map(fd, fs.fstat(fd).size_bytes), extent_id=extent_id, seal=seal)
    finally:
        fs.close(fd)


def _is_whole(index: BlockIndex) -> bool:
    """Whether the blocks lie end to end from 0 to the extent's length, as every correct writer leaves them."""
    if index.count == 0:
        return index.length == 0
    ends = index.offsets + index.sizes
    return bool(
        index.offsets[0] == 0
        and ends[-1] == index.length
        and (ends[:-1] == index.offsets[1:]).all()
        and (index.sizes >= HEADER_BYTES).all()
    )
