"""Scans a whole extent: checks every block, records where each one is, and computes the digest.

Used for seals, on start, by the scrubber and by the inspector.

Invariants: every byte below `valid_length` belongs to a whole block with the right CRC;
            memory is bounded by one block and 5 bytes for each block found, however large the extent;
            bytes are read by `pread`, not from a mapping: a bad sector is then an OSError for this file, not a SIGBUS
            that ends the process.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

from neve.extent_node.disk.file_system import FileSystem
from neve.proto.blocks import (
    BLOCK_BYTES_MAX,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    BlockType,
    ExtentDigest,
    Problem,
    explain_cut,
    verify_block,
)
from neve.proto.crc import Buffer

SCAN_CHUNK_BYTES = 4 << 20  # large enough that a call costs little beside the copy, small enough for the CPU's cache

_HEADER = struct.Struct("<II")
_WORD = struct.Struct("<I")
_TYPE_MIN, _TYPE_MAX = min(BlockType), max(BlockType)

assert array("I").itemsize == 4, "block sizes are kept in 32 bits"
assert BLOCK_BYTES_MAX < 1 << 32


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan found in the bytes that it was fed."""

    length: int  # of all bytes fed
    valid_length: int  # of the whole blocks before the first problem
    problem: Problem | None
    sizes: npt.NDArray[np.uint32]  # of the valid blocks, with headers
    types: npt.NDArray[np.uint8]
    digest: bytes  # over all bytes fed


class Scanner:
    """Scans an extent's bytes from offset 0 on, in pieces of any size. For one use."""

    def __init__(self) -> None:
        self._length = 0
        self._valid_length = 0
        self._problem: Problem | None = None
        self._rest = bytearray()  # the beginning of a block whose other bytes have not arrived
        self._sizes = array("I")
        self._types = array("B")
        self._digest = ExtentDigest()

    @property
    def length(self) -> int:
        """Bytes fed so far."""
        return self._length

    def feed(self, chunk: Buffer) -> None:
        self._digest.update(chunk)
        self._length += len(chunk)
        if self._problem is not None:
            return  # no block boundary is known beyond the problem
        view = memoryview(chunk)
        at = self._complete_rest(view) if self._rest else 0
        if self._problem is None:
            at = self._take_blocks(view, at)
        if self._problem is None:
            self._rest += view[at:]

    def finish(self) -> Scan:
        """The result, after the last byte. A block that is incomplete by now is cut short."""
        if self._rest and self._problem is None:
            self._problem = explain_cut(self._rest, self._valid_length)
        return Scan(
            length=self._length,
            valid_length=self._valid_length,
            problem=self._problem,
            sizes=np.frombuffer(self._sizes, dtype=np.uint32) if self._sizes else np.empty(0, dtype=np.uint32),
            types=np.frombuffer(self._types, dtype=np.uint8) if self._types else np.empty(0, dtype=np.uint8),
            digest=self._digest.digest(),
        )

    def _take_blocks(self, view: memoryview, at: int) -> int:
        """Record all whole blocks of `view`; returns the offset in it of the remaining bytes."""
        bytes_here = np.frombuffer(view, dtype=np.uint8)
        extend, unpack, end = google_crc32c.extend, _HEADER.unpack_from, len(view)
        while end - at >= HEADER_BYTES:
            crc, word = unpack(view, at)
            size_total = HEADER_BYTES + (word & PAYLOAD_BYTES_MAX)
            if not _TYPE_MIN <= word >> 24 <= _TYPE_MAX:
                self._fail(view, at)
                break
            if size_total > end - at:
                break
            if extend(0, bytes_here[at + 4 : at + size_total]) != crc:
                self._fail(view, at)
                break
            self._sizes.append(size_total)
            self._types.append(word >> 24)
            self._valid_length += size_total
            at += size_total
        return at

    def _complete_rest(self, view: memoryview) -> int:
        """Complete the block in `_rest` with bytes of `view`; returns how many were used."""
        taken = 0
        if len(self._rest) < HEADER_BYTES:
            taken = min(HEADER_BYTES - len(self._rest), len(view))
            self._rest += view[:taken]
            if len(self._rest) < HEADER_BYTES:
                return taken
        (word,) = _WORD.unpack_from(self._rest, 4)
        lacking = HEADER_BYTES + (word & PAYLOAD_BYTES_MAX) - len(self._rest)
        more = view[taken : taken + lacking]
        self._rest += more
        taken += len(more)
        is_block = _TYPE_MIN <= word >> 24 <= _TYPE_MAX
        if len(more) == lacking or not is_block:  # a wrong type fails at once, whatever the size beside it
            rest, self._rest = bytes(self._rest), bytearray()
            self._take_blocks(memoryview(rest), 0)
        return taken

    def _fail(self, view: memoryview, at: int) -> None:
        problem = verify_block(view, at)
        assert problem is not None, (self._valid_length, at)
        self._problem = problem._replace(offset=self._valid_length)


def scan_file(fs: FileSystem, fd: int, *, end: int, on_progress: Callable[[int], None] | None = None) -> Scan:
    """Scan the bytes [0, end) of a file, or as many as it has. OSError if they cannot be read."""
    scanner = Scanner()
    while scanner.length < end:
        chunk = fs.pread(fd, min(SCAN_CHUNK_BYTES, end - scanner.length), scanner.length)
        if not chunk:
            break
        scanner.feed(chunk)
        if on_progress is not None:
            on_progress(len(chunk))
    return scanner.finish()
