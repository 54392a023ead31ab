"""Scanning a whole extent, in pieces of any size, finds the same as looking at it at once."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.extent_node.disk import block_scan as scan
from neve.extent_node.disk.block_scan import Scan, Scanner, scan_file
from neve.proto import blocks
from neve.proto.blocks import BlockType, ProblemKind
from tests.sim.disks.disk import SimFileSystem


def scanned(buffer: bytes, chunk_sizes: list[int]) -> Scan:
    scanner, at, turn = Scanner(), 0, 0
    while at < len(buffer):
        size_bytes = chunk_sizes[turn % len(chunk_sizes)]
        scanner.feed(buffer[at : at + size_bytes])
        at, turn = at + size_bytes, turn + 1
    return scanner.finish()


def extent(payloads: list[bytes]) -> bytes:
    return b"".join(blocks.encode_blocks(payloads).buffers)


@settings(max_examples=200)
@given(
    payloads=st.lists(st.binary(max_size=60), max_size=12),
    chunk_sizes=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    cut=st.integers(0, 20),
    flip=st.none() | st.tuples(st.integers(0, 10_000), st.integers(0, 7)),
)
def test_pieces_of_any_size_find_the_same_as_the_whole(
    payloads: list[bytes], chunk_sizes: list[int], cut: int, flip: tuple[int, int] | None
) -> None:
    buffer = bytearray(extent(payloads))
    del buffer[len(buffer) - min(cut, len(buffer)) :]
    if flip is not None and buffer:
        buffer[flip[0] % len(buffer)] ^= 1 << flip[1]
    result = scanned(bytes(buffer), chunk_sizes)
    problem = blocks.verify(buffer)
    assert result.problem == problem
    assert result.length == len(buffer)
    assert result.valid_length == (len(buffer) if problem is None else problem.offset)
    refs = list(blocks.walk(buffer, end=result.valid_length))
    assert result.sizes.tolist() == [ref.size_total for ref in refs]
    assert result.types.tolist() == [ref.type for ref in refs]
    assert result.digest == blocks.extent_digest([buffer])


def test_types_of_a_long_record_are_found() -> None:
    parts = blocks.split_record(bytes(100), payload_bytes_max=40)
    buffer = b"".join(blocks.encode_block(payload, block_type) for block_type, payload in parts)
    assert scanned(buffer, [7]).types.tolist() == [BlockType.FIRST, BlockType.MIDDLE, BlockType.LAST]


def test_an_empty_extent_is_whole() -> None:
    result = Scanner().finish()
    assert (result.length, result.valid_length, result.problem, len(result.sizes)) == (0, 0, None, 0)
    assert result.sizes.dtype == np.uint32
    assert result.types.dtype == np.uint8


@pytest.mark.parametrize("size_bytes", [scan.SCAN_CHUNK_BYTES - 8, scan.SCAN_CHUNK_BYTES, 2 * scan.SCAN_CHUNK_BYTES])
def test_a_file_is_scanned_in_chunks_and_blocks_may_straddle_them(size_bytes: int) -> None:
    fs = SimFileSystem()
    buffer = extent([b"small", random.Random(1).randbytes(size_bytes), b"last"])
    fd = fs.open("/x", create=True)
    fs.pwrite(fd, [buffer], 0)
    progress: list[int] = []
    result = scan_file(fs, fd, end=len(buffer), on_progress=progress.append)
    assert (result.problem, result.valid_length, len(result.sizes)) == (None, len(buffer), 3)
    assert sum(progress) == len(buffer)
    assert scan_file(fs, fd, end=13).length == 13  # no more than asked for
    assert max(progress) <= scan.SCAN_CHUNK_BYTES
    torn = scan_file(fs, fd, end=len(buffer) - 1).problem
    assert torn is not None
    assert (torn.kind, torn.offset) == (ProblemKind.CUT_SHORT, len(buffer) - 12)


def test_a_file_shorter_than_asked_ends_where_it_ends() -> None:
    fs = SimFileSystem()
    fd = fs.open("/x", create=True)
    fs.pwrite(fd, [extent([b"one"])], 0)
    assert scan_file(fs, fd, end=1000).length == 11
