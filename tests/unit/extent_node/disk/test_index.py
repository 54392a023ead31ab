"""The index of a sealed extent: right, or not used at all."""

from __future__ import annotations

import errno
import random
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.extent_node.disk import index
from neve.extent_node.disk.attributes import Seal
from neve.extent_node.disk.block_scan import Scanner
from neve.extent_node.disk.file_system import RealFileSystem
from neve.extent_node.disk.index import BlockIndex
from neve.proto import blocks
from neve.proto.crc import crc32c
from tests.sim.disks.disk import SimFileSystem, SimulatedCrash
from tests.sim.disks.faults import When
from tests.sim.disks.nodes import PowerCutMode

EXTENT_ID = 0x1234


def sealed(payloads: list[bytes]) -> tuple[bytes, Seal, BlockIndex]:
    buffer = b"".join(blocks.encode_blocks(payloads).buffers)
    scanner = Scanner()
    scanner.feed(buffer)
    scan = scanner.finish()
    seal = Seal(length=len(buffer), eversion=2, digest=scan.digest)
    return buffer, seal, index.from_scan(EXTENT_ID, seal, scan)


def equal(one: BlockIndex, other: BlockIndex | None) -> bool:
    return (
        other is not None
        and (one.extent_id, one.length, one.digest) == (other.extent_id, other.length, other.digest)
        and np.array_equal(one.offsets, other.offsets)
        and np.array_equal(one.sizes, other.sizes)
        and np.array_equal(one.types, other.types)
    )


@given(payloads=st.lists(st.binary(max_size=50), max_size=20))
def test_an_index_comes_back_and_names_every_block(payloads: list[bytes]) -> None:
    buffer, seal, made = sealed(payloads)
    loaded = index.decode(index.encode(made), extent_id=EXTENT_ID, seal=seal)
    assert equal(made, loaded)
    assert loaded is not None
    assert [*zip(loaded.offsets, loaded.sizes, loaded.types, strict=True)] == [
        (ref.offset, ref.size_total, ref.type) for ref in blocks.walk(buffer)
    ]


def test_the_arrays_can_be_mapped_by_numpy() -> None:
    _, _, made = sealed([b"a", b"bb", b"ccc"])
    value, start = index.encode(made), index.HEADER_BYTES_TOTAL
    assert start % 8 == 0
    assert np.frombuffer(value, "<u8", count=3, offset=start).tolist() == [0, 9, 19]
    assert np.frombuffer(value, "<u4", count=3, offset=start + 24).tolist() == [9, 10, 11]
    assert np.frombuffer(value, "u1", count=3, offset=start + 36).tolist() == [1, 1, 1]


def test_every_flipped_bit_and_every_cut_makes_it_none() -> None:
    _, seal, made = sealed([b"one", b"two"])
    value = index.encode(made)
    padding = range(index.HEADER_BYTES_TOTAL - len(index._PADDING), index.HEADER_BYTES_TOTAL)
    for at in set(range(len(value))) - set(padding):
        for bit in range(8):
            broken = bytearray(value)
            broken[at] ^= 1 << bit
            assert index.decode(broken, extent_id=EXTENT_ID, seal=seal) is None, (at, bit)
    for size_bytes in range(len(value)):
        assert index.decode(value[:size_bytes], extent_id=EXTENT_ID, seal=seal) is None
    assert index.decode(value + b"\0", extent_id=EXTENT_ID, seal=seal) is None


def test_the_index_of_another_extent_or_seal_is_none() -> None:
    _, seal, made = sealed([b"one", b"two"])
    value = index.encode(made)
    assert index.decode(value, extent_id=EXTENT_ID, seal=Seal(seal.length, 99, seal.digest)) is not None
    assert index.decode(value, extent_id=EXTENT_ID + 1, seal=seal) is None
    assert index.decode(value, extent_id=EXTENT_ID, seal=Seal(seal.length + 1, seal.eversion, seal.digest)) is None
    assert index.decode(value, extent_id=EXTENT_ID, seal=Seal(seal.length, seal.eversion, bytes(32))) is None


@pytest.mark.parametrize(("at", "value"), [(0, b"NEVEIDX2"), (8, b"\2")])
def test_another_magic_or_version_is_none_though_its_checksum_is_right(at: int, value: bytes) -> None:
    _, seal, made = sealed([b"one"])
    other = bytearray(index.encode(made))
    other[at : at + len(value)] = value
    other[72:76] = crc32c(other[:72]).to_bytes(4, "little")
    assert index.decode(other, extent_id=EXTENT_ID, seal=seal) is None
    other[at : at + len(value)] = index.encode(made)[at : at + len(value)]
    other[72:76] = crc32c(other[:72]).to_bytes(4, "little")
    assert index.decode(other, extent_id=EXTENT_ID, seal=seal) is not None


@pytest.mark.parametrize(
    ("offsets", "sizes"),
    [([0, 9], [9, 9]), ([1, 10], [9, 10]), ([0, 10], [9, 9]), ([0, 16], [16, 3]), ([0], [11]), ([], [])],
)
def test_blocks_that_do_not_fill_the_extent_make_it_none(offsets: list[int], sizes: list[int]) -> None:
    """With right checksums: such an index comes from a bug, and must not become a wrong answer."""
    _, seal, made = sealed([b"a", b"bb"])
    assert seal.length == 19
    wrong = BlockIndex(
        EXTENT_ID,
        made.length,
        made.digest,
        np.array(offsets, dtype=np.uint64),
        np.array(sizes, dtype=np.uint32),
        np.ones(len(sizes), dtype=np.uint8),
    )
    assert index.decode(index.encode(wrong), extent_id=EXTENT_ID, seal=seal) is None


def taken_by_a_walk(buffer: bytes, offset: int, *, max_blocks: int, max_bytes: int) -> tuple[int, int]:
    taken, end = 0, offset
    for ref in blocks.walk(buffer, offset):
        if (max_blocks and taken == max_blocks) or (max_bytes and taken and ref.end - offset > max_bytes):
            break
        taken, end = taken + 1, ref.end
    return end, taken


@given(payloads=st.lists(st.binary(max_size=30), max_size=12), data=st.data())
def test_blocks_from_is_what_a_walk_would_take(payloads: list[bytes], data: st.DataObject) -> None:
    buffer, _, made = sealed(payloads)
    offset = data.draw(st.sampled_from([*(ref.offset for ref in blocks.walk(buffer)), len(buffer)]))
    max_blocks, max_bytes = data.draw(st.integers(0, 14)), data.draw(st.integers(0, 400))
    expected = taken_by_a_walk(buffer, offset, max_blocks=max_blocks, max_bytes=max_bytes)
    assert made.blocks_from(offset, max_blocks=max_blocks, max_bytes=max_bytes) == expected


def test_blocks_from_with_every_bound() -> None:
    buffer, _, made = sealed([b"a", b"", b"ccc", b"dd"])
    for offset in [*(ref.offset for ref in blocks.walk(buffer)), len(buffer)]:
        for max_bytes in range(len(buffer) + 2):
            for max_blocks in range(6):
                expected = taken_by_a_walk(buffer, offset, max_blocks=max_blocks, max_bytes=max_bytes)
                assert made.blocks_from(offset, max_blocks=max_blocks, max_bytes=max_bytes) == expected


def test_no_block_begins_inside_another_or_beyond_the_end() -> None:
    _, _, made = sealed([b"a", b"bb"])
    assert [made.find(offset) for offset in (0, 1, 8, 9, 10, 19, 20)] == [0, None, None, 1, None, None, None]
    assert made.blocks_from(1, max_blocks=1, max_bytes=0) is None
    assert made.blocks_from(20, max_blocks=1, max_bytes=0) is None
    assert made.blocks_from(19, max_blocks=1, max_bytes=0) == (19, 0)


def test_write_and_load_on_the_machines_file_system(tmp_path: object) -> None:
    fs, folder = RealFileSystem(), str(tmp_path)
    _, seal, made = sealed([random.Random(n).randbytes(n) for n in range(100)])
    path = f"{folder}/x.idx"
    assert index.load(fs, path, extent_id=EXTENT_ID, seal=seal) is None
    index.write(fs, made, path=path, temporary_path=f"{folder}/x.tmp", folder=folder)
    assert equal(made, index.load(fs, path, extent_id=EXTENT_ID, seal=seal))
    assert fs.list_dir(folder) == ["x.idx"]


def test_a_crash_or_power_cut_at_any_step_leaves_the_old_index_or_the_new_one_whole() -> None:
    _, old_seal, old = sealed([b"old"])
    _, new_seal, new = sealed([b"new", b"one"])
    steps = 0
    stops: tuple[When, ...] = ("before", "after", "torn")
    ends: tuple[PowerCutMode | Literal["crash"], ...] = ("crash", "lose_all", "random")
    for step in range(1, 100):
        for when in stops:
            for mode in ends:
                fs = SimFileSystem(random.Random(step))
                fs.make_dirs("/d")
                fs.fsync_dir("/")
                index.write(fs, old, path="/d/x.idx", temporary_path="/d/x.tmp", folder="/d")
                first = fs.steps
                fs.stop_at(first + step, when)
                done = False
                try:
                    index.write(fs, new, path="/d/x.idx", temporary_path="/d/x.tmp", folder="/d")
                    done, steps = True, fs.steps - first
                except SimulatedCrash:
                    pass
                if mode == "crash":
                    fs.crash()
                else:
                    fs.power_cut(mode)
                new_here = equal(new, index.load(fs, "/d/x.idx", extent_id=EXTENT_ID, seal=new_seal))
                old_here = equal(old, index.load(fs, "/d/x.idx", extent_id=EXTENT_ID, seal=old_seal))
                assert new_here if done else new_here != old_here, (step, when, mode)
        if steps and step > steps:
            return
    raise AssertionError("the write never ended")


def test_short_writes_are_completed() -> None:
    fs = SimFileSystem(random.Random(3))
    fs.short_write_chance = 0.9
    _, seal, made = sealed([b"x" * n for n in range(50)])
    index.write(fs, made, path="/x.idx", temporary_path="/x.tmp", folder="/")
    assert equal(made, index.load(fs, "/x.idx", extent_id=EXTENT_ID, seal=seal))


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename"])
def test_an_index_that_cannot_be_written_leaves_nothing_behind(call: str) -> None:
    """On a full disk it would take room until the next start (found by a simulated story)."""
    fs = SimFileSystem(random.Random(1))
    fs.make_dirs("/d")
    fs.fail(errno.ENOSPC, match=lambda operation, path: operation == call)
    _, _, made = sealed([b"abc"])
    with pytest.raises(OSError, match="No space"):
        index.write(fs, made, path="/d/x.idx", temporary_path="/d/x.tmp", folder="/d")
    assert fs.list_dir("/d") == []
