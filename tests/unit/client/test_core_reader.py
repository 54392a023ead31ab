"""The reader's decisions: sound blocks, whole records, the order of replicas. No I/O."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.client.cache import ENTRY_BYTES, BlockCache
from neve.client.core_reader import Block, Quantile, RecordAssembler, SourceHistory, parse_blocks, start_of
from neve.client.types import Extent, PlacedBlocks, Position, Positions, Replica
from neve.proto.blocks import BlockType, encode_block, encode_blocks, split_record
from neve.proto.errors import NotFound, TooLarge

FULL, FIRST, MIDDLE, LAST = BlockType.FULL, BlockType.FIRST, BlockType.MIDDLE, BlockType.LAST


@given(st.lists(st.sampled_from([0, 1, 50, 1000, 16_384, 16_385, 40_000]), max_size=8))
def test_sound_blocks_come_back_with_their_places(sizes: list[int]) -> None:
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    data = b"".join(map(encode_block, payloads))
    found, problem = parse_blocks(memoryview(data), 1000)
    assert problem is None
    assert [bytes(block.payload) for block in found] == payloads
    ends = [1000]
    for payload in payloads:
        ends.append(ends[-1] + len(payload) + 8)
    assert [(block.offset, block.end) for block in found] == list(itertools.pairwise(ends))


@given(st.lists(st.sampled_from([0, 5, 300, 20_000]), min_size=1, max_size=5), st.data())
def test_a_flipped_bit_is_found_and_nothing_behind_it_is_given_out(sizes: list[int], data: st.DataObject) -> None:
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    encoded = bytearray(b"".join(map(encode_block, payloads)))
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    found, problem = parse_blocks(bytes(encoded), 0)
    assert problem is not None
    assert problem.offset <= bit // 8
    assert [bytes(block.payload) for block in found] == payloads[: len(found)]
    assert problem.offset == (found[-1].end if found else 0)


def assemble(blocks: list[tuple[int, bytes]], **how: int) -> list[bytes]:
    assembler = RecordAssembler(record_bytes_max=how.get("record_bytes_max", 1000))
    records = []
    for offset, (block_type, payload) in enumerate(blocks):
        record = assembler.push(1, Block(offset, offset + 1, block_type, payload), copy=True)
        if record is not None:
            records.append(bytes(record.payload))
    return records


@pytest.mark.parametrize(
    ("blocks", "records"),
    [
        ([(FULL, b"a"), (FULL, b"b")], [b"a", b"b"]),
        ([(FIRST, b"a"), (MIDDLE, b"b"), (LAST, b"c")], [b"abc"]),
        ([(FIRST, b"dead"), (MIDDLE, b"x"), (FULL, b"next owner")], [b"next owner"]),
        ([(FIRST, b"dead"), (FIRST, b"a"), (LAST, b"b")], [b"ab"]),
        ([(MIDDLE, b"begun before"), (LAST, b"x"), (FULL, b"a")], [b"a"]),
        ([(FULL, b"a"), (FIRST, b"unfinished")], [b"a"]),
    ],
)
def test_records_are_joined_and_unfinished_ones_passed_over(
    blocks: list[tuple[int, bytes]], records: list[bytes]
) -> None:
    assert assemble(blocks) == records


def test_a_record_that_would_not_fit_into_memory_is_an_error() -> None:
    parts = [(int(kind), bytes(part)) for kind, part in split_record(b"x" * 500, payload_bytes_max=100)]
    with pytest.raises(TooLarge):
        assemble(parts, record_bytes_max=300)


def test_a_joined_record_has_the_position_of_its_first_block_and_goes_on_behind_its_last() -> None:
    assembler = RecordAssembler(record_bytes_max=100)
    assert assembler.push(7, Block(90, 100, FIRST, b"a"), copy=True) is None
    record = assembler.push(8, Block(0, 10, LAST, b"b"), copy=True)
    assert record is not None
    assert (record.position, record.next) == (Position(7, 90), Position(8, 10))


def test_a_start_that_was_cut_off_names_the_first_position_there_is() -> None:
    assert start_of([5, 3, 9], Position(3, 100), stream_id=1) == 1
    assert start_of([5], None, stream_id=1) == 0
    with pytest.raises(NotFound, match="begins at 5:0"):
        start_of([5, 9], Position(3, 100), stream_id=1)


def extent(*addresses: str, extent_id: int = 3, length: int | None = None, confirmed: str = "") -> Extent:
    replicas = tuple(Replica(number, address, address in confirmed) for number, address in enumerate(addresses))
    return Extent(extent_id, 1, replicas, length, 1000)


def addresses(history: SourceHistory, of: Extent, now_s: float = 0.0) -> list[str]:
    return [replica.address for replica in history.order(of, now_s)]


def test_a_replica_that_failed_comes_last_until_that_is_long_ago() -> None:
    history = SourceHistory()
    assert addresses(history, extent("a", "b", "c")) == ["a", "b", "c"]
    history.failed("a", 0.0)
    assert addresses(history, extent("a", "b", "c")) == ["b", "c", "a"]
    assert addresses(history, extent("a", "b", "c"), now_s=100.0) == ["a", "b", "c"]


def test_a_much_slower_replica_comes_later_and_a_little_slower_one_does_not() -> None:
    history = SourceHistory()
    for address, latency_s in (("a", 0.9), ("b", 0.05), ("c", 0.04)):
        history.answered(address, latency_s, size="small")
    assert addresses(history, extent("a", "b", "c")) == ["b", "c", "a"]


def test_only_confirmed_replicas_of_a_sealed_extent_are_asked_if_there_are_any() -> None:
    history = SourceHistory()
    assert sorted(addresses(history, extent("a", "b", "c", length=5, confirmed="bc"))) == ["b", "c"]
    assert sorted(addresses(history, extent("a", "b", "", length=5))) == ["a", "b"]


def test_extents_begin_at_different_replicas() -> None:
    first = {addresses(SourceHistory(), extent("a", "b", "c", extent_id=number))[0] for number in range(3)}
    assert first == {"a", "b", "c"}


def test_the_quantile_follows_the_tail() -> None:
    quantile = Quantile(0.95, first=1.0)
    for number in range(5000):
        quantile.note(0.001 if number % 50 else 0.5)
    assert 0.0005 < quantile.value < 0.1


def test_the_cache_is_bounded_and_keeps_what_was_used_last() -> None:
    cache = BlockCache(10 * (100 + ENTRY_BYTES))
    for offset in range(10):
        cache.put(1, Block(offset, offset + 1, FULL, memoryview(bytes(100))))
    assert cache.get(1, 0) is not None
    cache.put(1, Block(10, 11, FULL, bytes(100)))
    assert cache.get(1, 1) is None
    assert cache.get(1, 0) is not None
    assert len(cache) == 10
    assert cache.used_bytes <= 10 * (100 + ENTRY_BYTES)
    cache.put(2, Block(0, 1, FULL, bytes(5000)))  # as large as a good part of it: not worth it
    assert cache.get(2, 0) is None


@given(st.lists(st.lists(st.integers(8, 100), min_size=1, max_size=5), max_size=4), st.randoms(use_true_random=False))
def test_positions_of_a_batch_are_those_of_its_pieces_in_order(pieces: list[list[int]], rng: object) -> None:
    placed, expected, index = [], [], 0
    for extent_id, sizes in enumerate(pieces):
        placed.append(PlacedBlocks(index, extent_id, 1000, sizes))
        index += len(sizes)
        offset = 1000
        for size in sizes:
            expected.append(Position(extent_id, offset))
            offset += size
    rng.shuffle(placed)  # type: ignore[attr-defined]
    positions = Positions(placed)
    assert list(positions) == expected
    assert [positions[at] for at in range(len(positions))] == expected
    assert positions == expected
    assert positions[1:3] == expected[1:3]
    if expected:
        assert positions[-1] == expected[-1]
    with pytest.raises(IndexError):
        positions[len(expected)]


def test_a_position_is_written_and_read_back() -> None:
    assert Position.parse(str(Position(12, 4096))) == Position(12, 4096)
    assert Position.parse("12") == Position(12, 0)
    for wrong in ("", "x", "1:", "1:x", ":5"):
        with pytest.raises(ValueError, match="position"):
            Position.parse(wrong)


def test_many_equal_blocks_are_encoded_as_one_by_one() -> None:
    """What the writer frames in one go is what the reader checks one by one."""
    payloads: list[bytes] = [b"%04d" % number for number in range(300)]
    data = b"".join(map(bytes, encode_blocks(list(payloads)).buffers))
    found, problem = parse_blocks(data, 0)
    assert problem is None
    assert [block.payload for block in found] == payloads
