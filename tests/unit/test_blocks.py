"""Blocks: every byte of the format, and everything that can be wrong with them."""

from __future__ import annotations

import hashlib
import random
import struct

import crcmod.predefined
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.proto import blocks
from neve.proto.blocks import HEADER_BYTES, BlockRef, BlockType, ProblemKind
from neve.proto.errors import InvalidArgument
from tests.unit.joined_records import join_records

crc32c_by_crcmod = crcmod.predefined.mkCrcFun("crc-32c")

PAYLOADS = st.lists(st.binary(max_size=300), max_size=40)


def joined(payloads: list[bytes]) -> bytes:
    return b"".join(blocks.encode_blocks(payloads).buffers)


def three_blocks() -> bytes:
    return joined([b"first block", b"", b"the third and last block"])


# --- the format ------------------------------------------------------------------------------------------------


@given(payload=st.binary(max_size=2000), block_type=st.sampled_from(BlockType))
def test_a_block_is_crc_size_type_payload_and_crcmod_agrees(payload: bytes, block_type: BlockType) -> None:
    block = blocks.encode_block(payload, block_type)
    body = len(payload).to_bytes(3, "little") + bytes([block_type]) + payload
    assert block == struct.pack("<I", crc32c_by_crcmod(body)) + body


def test_types_keep_their_numbers_for_ever() -> None:
    assert {t.name: t.value for t in BlockType} == {"FULL": 1, "FIRST": 2, "MIDDLE": 3, "LAST": 4}


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("size_bytes", [0, 1, 8192, 8193, 100_000])
def test_any_kind_of_buffer_gives_the_same_block(make: type, size_bytes: int) -> None:
    payload = random.Random(size_bytes).randbytes(size_bytes)
    expected = blocks.encode_block(payload)
    assert blocks.encode_block(make(payload)) == expected
    assert joined([make(payload)]) == expected


@given(payloads=PAYLOADS)
def test_many_blocks_are_the_same_as_one_by_one(payloads: list[bytes]) -> None:
    encoded = blocks.encode_blocks(payloads)
    assert b"".join(encoded.buffers) == b"".join(blocks.encode_block(payload) for payload in payloads)
    assert encoded.block_sizes == [HEADER_BYTES + len(payload) for payload in payloads]
    assert encoded.size_bytes == sum(encoded.block_sizes)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(blocks._VECTOR_BLOCKS_MIN - 1, blocks._VECTOR_BLOCKS_MIN + 3),
    size_bytes=st.sampled_from([0, 1, 7, 256, 4096, blocks.JOIN_BYTES_MAX]),
    other=st.sampled_from(["none", "longer", "bytearray"]),
    block_type=st.sampled_from(BlockType),
)
def test_many_blocks_of_one_size_are_the_same_as_one_by_one(
    count: int, size_bytes: int, other: str, block_type: BlockType
) -> None:
    rng = random.Random(count * size_bytes)
    payloads: list[bytes | bytearray] = [rng.randbytes(size_bytes) for _ in range(count)]
    if other == "longer":
        payloads[count // 2] = rng.randbytes(size_bytes + 1)
    elif other == "bytearray":
        payloads[-1] = bytearray(payloads[-1])
    encoded = blocks.encode_blocks(payloads, block_type=block_type)
    made = b"".join(encoded.buffers)
    assert made == b"".join(blocks.encode_block(payload, block_type) for payload in payloads)
    assert encoded.block_sizes == [HEADER_BYTES + len(payload) for payload in payloads]
    assert encoded.size_bytes == len(made) == blocks.sum_sizes(encoded.block_sizes)
    blocks.check_sizes(made, encoded.block_sizes)


def has_sizes(buffer: bytes | bytearray, sizes: list[int]) -> bool:
    try:
        blocks.check_sizes(buffer, sizes)
    except InvalidArgument:
        return False
    return True


@given(data=st.data(), size_bytes=st.integers(0, 40))
def test_many_blocks_of_one_size_are_checked_like_few(data: st.DataObject, size_bytes: int) -> None:
    """Each is looked at: a flipped bit in the header of any is found, whatever it makes of it."""
    count, size_total = 2 * blocks._VECTOR_BLOCKS_MIN, HEADER_BYTES + size_bytes
    buffer = bytearray(blocks.encode_block(bytes(size_bytes)) * count)
    sizes = [size_total] * count
    assert has_sizes(buffer, sizes)
    wrong, bit = data.draw(st.integers(0, count - 1)), data.draw(st.integers(32, 63))
    buffer[wrong * size_total + bit // 8] ^= 1 << bit % 8
    lone = bytes(buffer[wrong * size_total : (wrong + 1) * size_total])
    assert has_sizes(buffer, sizes) == has_sizes(lone, [size_total])
    assert not has_sizes(buffer[:-1], sizes)
    assert not has_sizes(buffer, [*sizes[:-1], size_total + 1])
    assert not has_sizes(buffer, [size_total + 1, *sizes[1:]])
    assert not has_sizes(buffer, sizes[:-1])


def test_large_payloads_are_passed_on_uncopied_and_small_ones_joined() -> None:
    large = bytes(blocks.JOIN_BYTES_MAX + 1)
    encoded = blocks.encode_blocks([b"a", large[:-1], large, b"c", b"d"])
    assert [len(buffer) for buffer in encoded.buffers] == [9 + 8 + blocks.JOIN_BYTES_MAX + 8, len(large), 18]
    assert encoded.buffers[1] is large
    assert blocks.verify(b"".join(encoded.buffers)) is None


def test_the_largest_payload_fits_and_one_byte_more_is_refused() -> None:
    largest = bytes(blocks.PAYLOAD_BYTES_MAX)
    block = blocks.encode_block(largest)
    assert len(block) == blocks.BLOCK_BYTES_MAX == 16 * 2**20 + 7
    assert blocks.verify(block) is None
    assert blocks.encode_blocks([largest]).block_sizes == [blocks.BLOCK_BYTES_MAX]
    with pytest.raises(InvalidArgument):
        blocks.encode_block(largest + b"x")
    with pytest.raises(InvalidArgument):
        blocks.encode_blocks([largest + b"x"])


# --- reading -----------------------------------------------------------------------------------------------------


@given(payloads=PAYLOADS, lead=st.binary(max_size=20))
def test_walk_finds_what_was_encoded_from_any_offset(payloads: list[bytes], lead: bytes) -> None:
    buffer = lead + joined(payloads)
    refs = list(blocks.walk(buffer, len(lead)))
    assert [buffer[ref.offset + HEADER_BYTES : ref.end] for ref in refs] == payloads
    assert all(ref.type == BlockType.FULL for ref in refs)
    assert blocks.verify(buffer, len(lead)) is None
    for ref in refs:
        assert blocks.verify_block(buffer, ref.offset) is None
        assert blocks.parse_header(buffer, ref.offset)[1:] == (ref.size_total - HEADER_BYTES, ref.type)


def test_blocks_of_every_type_and_size_are_read() -> None:
    buffer = b"".join(blocks.encode_block(bytes(n), t) for n in (0, 1, 50) for t in BlockType)
    refs = list(blocks.walk(buffer))
    assert [ref.type for ref in refs] == 3 * list(BlockType)
    assert blocks.verify(buffer) is None
    for ref in refs:
        assert blocks.verify_block(buffer, ref.offset, end=ref.end) is None
        assert blocks.verify(buffer, ref.offset, end=ref.end) is None
    for count in (len(refs), 10 * blocks._VECTOR_BLOCKS_MIN):
        blocks.check_sizes(buffer * count, [ref.size_total for ref in refs] * count)


def test_a_block_of_another_type_is_no_block() -> None:
    for block_type in {*range(256)} - set(BlockType):
        block = blocks.encode_block(b"payload", block_type)  # with a right checksum
        for buffer in (block, block[:10]):  # a wrong type is told whether the block is whole or not
            problem = blocks.verify(buffer)
            assert problem is not None
            assert problem.kind is ProblemKind.WRONG_HEADER
            assert blocks.verify_block(buffer) == problem
            with pytest.raises(blocks.BadBlock):
                list(blocks.walk(buffer))


def test_walk_stops_at_the_end_it_is_given() -> None:
    buffer = three_blocks()
    refs = list(blocks.walk(buffer))
    assert list(blocks.walk(buffer, end=refs[1].offset)) == refs[:1]
    assert blocks.verify(buffer, end=refs[1].offset) is None
    assert refs[0] == BlockRef(0, HEADER_BYTES + 11, BlockType.FULL)


def test_cut_at_every_byte_is_cut_short_there_or_whole() -> None:
    buffer = three_blocks()
    boundaries = {0, len(buffer), *(ref.offset for ref in blocks.walk(buffer))}
    for end in range(len(buffer) + 1):
        problem = blocks.verify(buffer, end=end)
        if end in boundaries:
            assert problem is None
            assert sum(ref.size_total for ref in blocks.walk(buffer, end=end)) == end
            continue
        assert problem is not None
        assert problem.kind is ProblemKind.CUT_SHORT
        assert problem.offset == max(boundary for boundary in boundaries if boundary < end)
        with pytest.raises(blocks.BadBlock) as caught:
            list(blocks.walk(buffer, end=end))
        assert caught.value.problem == problem


def test_every_flipped_bit_is_found_where_it_is_and_never_taken_for_a_torn_write() -> None:
    """Rule 13: a torn write is cut silently, so a flipped bit that looked like one would lose acknowledged blocks."""
    buffer = three_blocks()
    refs = list(blocks.walk(buffer))
    for at in range(len(buffer)):
        block = next(ref for ref in refs if ref.offset <= at < ref.end)
        for bit in range(8):
            damaged = bytearray(buffer)
            damaged[at] ^= 1 << bit
            problem = blocks.verify(damaged)
            assert problem is not None
            assert problem.offset == block.offset
            assert problem.kind is not ProblemKind.CUT_SHORT, (at, bit)
            assert blocks.verify_block(damaged, block.offset) == problem


def test_zeros_are_no_block() -> None:
    problem = blocks.verify(three_blocks() + bytes(64))
    assert problem is not None
    assert (problem.offset, problem.kind) == (len(three_blocks()), ProblemKind.WRONG_HEADER)


def test_problems_say_what_is_wrong() -> None:
    block = bytearray(blocks.encode_block(b"payload"))
    assert "3 of the header's 8 bytes" in str(blocks.verify(block[:3]))
    assert "10 of its 15 bytes" in str(blocks.verify(block[:10]))
    block[-1] ^= 1
    assert "CRC32C" in str(blocks.verify(block))
    block[7] = 9
    assert "type 9" in str(blocks.verify(block))


# --- sizes at append -----------------------------------------------------------------------------------------------

# Both the loop and the NumPy way.
COUNTS = [1, 3, blocks._VECTOR_BLOCKS_MIN, 3 * blocks._VECTOR_BLOCKS_MIN]


@pytest.mark.parametrize("count", COUNTS)
def test_right_sizes_pass(count: int) -> None:
    rng = random.Random(count)
    encoded = blocks.encode_blocks([rng.randbytes(rng.randrange(50)) for _ in range(count)])
    body = b"".join(encoded.buffers)
    for buffer in (body, bytearray(body), memoryview(b"xyz" + body)[3:]):
        blocks.check_sizes(buffer, encoded.block_sizes)


@pytest.mark.parametrize("count", COUNTS)
def test_any_wrong_size_type_or_sum_is_refused(count: int) -> None:
    rng = random.Random(count)
    encoded = blocks.encode_blocks([rng.randbytes(20) for _ in range(count)])
    body, sizes = b"".join(encoded.buffers), encoded.block_sizes
    at = rng.randrange(count)

    def refused(buffer: bytes | bytearray, block_sizes: list[int], words: str = "") -> None:
        with pytest.raises(InvalidArgument, match=f"block_sizes.*{words}"):
            blocks.check_sizes(buffer, block_sizes)

    refused(body + b"x", sizes)
    refused(body[:-1], sizes)
    refused(body, [*sizes, HEADER_BYTES])
    refused(body, [*sizes[:at], sizes[at] + 1, *sizes[at + 1 :]])
    refused(body, [*sizes[:at], 7, *sizes[at + 1 :]])
    refused(body, [*sizes[:at], 0, *sizes[at:]])
    if count > 1:
        merged = sizes[1:]
        merged[0] += sizes[0]
        refused(body, merged)
        for size_total in range(8):  # the sum is right, the last header is not there
            refused(body, [*sizes[:-2], sizes[-2] + sizes[-1] - size_total, size_total])
    for wrong_type in (0, 5, 255):
        changed = bytearray(body)
        changed[at * 28 + 7] = wrong_type
        refused(changed, sizes, words=f"block {at}: 28 bytes, but its header says type {wrong_type}")
    changed = bytearray(body)
    changed[at * 28 + 4] ^= 4  # the size in the header
    refused(changed, sizes, words=f"block {at}: 28 bytes, but its header says type 1 and 8 . 16 bytes")


def test_no_sizes_are_right_for_no_bytes_only() -> None:
    blocks.check_sizes(b"", [])
    with pytest.raises(InvalidArgument):
        blocks.check_sizes(b"x", [])


# --- records -------------------------------------------------------------------------------------------------------


@given(record=st.binary(max_size=300), payload_bytes_max=st.integers(1, 100))
def test_a_record_of_any_size_comes_back(record: bytes, payload_bytes_max: int) -> None:
    parts = blocks.split_record(record, payload_bytes_max=payload_bytes_max)
    assert all(len(payload) <= payload_bytes_max for _, payload in parts)
    types = [block_type for block_type, _ in parts]
    if len(record) <= payload_bytes_max:
        assert types == [BlockType.FULL]
    else:
        assert types == [BlockType.FIRST, *[BlockType.MIDDLE] * (len(types) - 2), BlockType.LAST]
    assert [*join_records((kind, bytes(payload)) for kind, payload in parts)] == [record]


def test_a_record_larger_than_the_largest_block_is_split() -> None:
    record = bytes(blocks.PAYLOAD_BYTES_MAX + 1)
    parts = blocks.split_record(record)
    assert [(block_type, len(payload)) for block_type, payload in parts] == [
        (BlockType.FIRST, blocks.PAYLOAD_BYTES_MAX),
        (BlockType.LAST, 1),
    ]


# --- the digest ----------------------------------------------------------------------------------------------------


def test_the_digest_is_blake2b_256_over_the_bytes_however_they_are_cut() -> None:
    data = random.Random(1).randbytes(1000)
    expected = hashlib.blake2b(data, digest_size=32).digest()
    assert blocks.extent_digest([data]) == expected
    assert blocks.extent_digest([data[:10], memoryview(data)[10:11], bytearray(data[11:])]) == expected
