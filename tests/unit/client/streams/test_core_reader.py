"""The reader's decisions: sound blocks, whole records, the order of replicas. No I/O."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.client.streams.core import reader as core_reader
from neve.client.streams.core.reader import (
    COPY_BYTES_MAX,
    Block,
    Quantile,
    RecordAssembler,
    Size,
    SourceHistory,
    parse_blocks,
    start_of,
)
from neve.client.streams.reading.block_cache import ENTRY_BYTES, BlockCache
from neve.client.streams.types import Extent, PlacedBlocks, Position, Positions, Record, Replica
from neve.proto.blocks import BlockType, ProblemKind, encode_block, encode_blocks, split_record
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


@pytest.mark.parametrize("block_type", list(BlockType))
def test_blocks_of_every_type_are_sound(block_type: BlockType) -> None:
    found, problem = parse_blocks(encode_block(b"a", block_type) + encode_block(b"b"), 0)
    assert problem is None
    assert [(block.type, block.payload) for block in found] == [(block_type, b"a"), (FULL, b"b")]


@pytest.mark.parametrize("block_type", [0, 5, 255])
def test_a_block_of_no_type_is_not_given_out_though_its_checksum_fits(block_type: int) -> None:
    found, problem = parse_blocks(encode_block(b"a") + encode_block(b"b", block_type), 1000)
    assert [block.payload for block in found] == [b"a"]
    assert problem is not None
    assert (problem.offset, problem.kind) == (1009, ProblemKind.WRONG_HEADER)


def test_small_payloads_are_copies_and_large_ones_views_of_the_answer() -> None:
    sizes = [COPY_BYTES_MAX, COPY_BYTES_MAX + 1, 10, COPY_BYTES_MAX]
    data = b"".join(encode_block(bytes(size)) for size in sizes)
    found, problem = parse_blocks(data, 0)
    assert problem is None
    assert [type(block.payload) for block in found] == [bytes, memoryview, bytes, bytes]
    assert [len(block.payload) for block in found] == sizes


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


def push_record(assembler: RecordAssembler, size_bytes: int) -> Record | None:
    """In two blocks."""
    assembler.push(1, Block(0, 10, FIRST, bytes(1)), copy=True)
    return assembler.push(1, Block(10, 20, LAST, bytes(size_bytes - 1)), copy=True)


def test_a_record_of_exactly_the_limit_is_given_whatever_came_before_it() -> None:
    assembler = RecordAssembler(record_bytes_max=10)
    assert push_record(assembler, 10) is not None
    assert push_record(assembler, 10) is not None  # behind another one
    with pytest.raises(TooLarge) as raised:
        push_record(assembler, 11)
    assert (raised.value.what, raised.value.size_bytes, raised.value.limit_bytes) == ("record at 1:0", 11, 10)
    assert push_record(assembler, 10) is not None  # behind one that was too large
    for drop in (Block(0, 10, FULL, b"x"), None):
        assembler.push(1, Block(0, 10, FIRST, b"x" * 9), copy=True)
        if drop is not None:
            assembler.push(1, drop, copy=True)
        else:
            assembler.begin_anew()
        assert push_record(assembler, 10) is not None  # behind one that nobody finished


def test_what_comes_of_a_record_that_was_too_large_is_passed_over() -> None:
    assembler = RecordAssembler(record_bytes_max=10)
    assembler.push(1, Block(0, 10, FIRST, bytes(9)), copy=True)
    with pytest.raises(TooLarge):
        assembler.push(1, Block(10, 20, MIDDLE, bytes(9)), copy=True)
    assert assembler.push(1, Block(20, 30, LAST, bytes(9)), copy=True) is None


def test_nothing_is_joined_over_a_hole_in_the_stream() -> None:
    assembler = RecordAssembler(record_bytes_max=100)
    assembler.push(1, Block(0, 10, FIRST, b"a"), copy=True)
    assembler.begin_anew()
    assert assembler.push(3, Block(0, 10, LAST, b"b"), copy=True) is None


def test_blocks_that_were_passed_over_are_counted() -> None:
    assembler = RecordAssembler(record_bytes_max=100)
    assert assembler.skipped == 0
    counts = []
    for block_type in (MIDDLE, LAST, FIRST, MIDDLE, FULL, FIRST, FIRST, LAST, FULL):
        assembler.push(1, Block(0, 10, block_type, b"a"), copy=True)
        counts.append(assembler.skipped)
    assert counts == [1, 2, 2, 2, 4, 4, 5, 5, 5]


@pytest.mark.parametrize("copy", [False, True])
def test_a_record_of_one_block_is_a_view_only_if_that_was_asked_for(copy: bool) -> None:
    view = memoryview(b"a")
    record = RecordAssembler(record_bytes_max=100).push(7, Block(90, 100, FULL, view), copy=copy)
    assert record is not None
    assert record == Record(Position(7, 90), b"a", Position(7, 100))
    assert (record.payload is view) == (not copy)
    assert isinstance(record.payload, bytes) == copy


@given(
    st.lists(st.tuples(st.sampled_from([FULL, FULL, FIRST, MIDDLE, LAST]), st.booleans()), max_size=12), st.booleans()
)
def test_many_blocks_at_once_give_the_records_that_they_give_one_by_one(
    kinds: list[tuple[BlockType, bool]], copy: bool
) -> None:
    blocks = []
    for number, (block_type, is_view) in enumerate(kinds):
        payload = b"%d" % number
        blocks.append(Block(10 * number, 10 * number + 10, block_type, memoryview(payload) if is_view else payload))
    single, together = RecordAssembler(record_bytes_max=100), RecordAssembler(record_bytes_max=100)
    wanted = [record for block in blocks if (record := single.push(5, block, copy=copy)) is not None]
    records = together.push_all(5, blocks, copy=copy)
    assert records == wanted
    assert [(type(each), type(each.position), type(each.next)) for each in records] == [
        (Record, Position, Position) for _ in wanted
    ]
    assert [type(each.payload) for each in records] == [type(each.payload) for each in wanted]
    assert together.skipped == single.skipped


def test_many_blocks_at_once_give_records_with_their_positions() -> None:
    blocks = [
        Block(0, 9, FULL, memoryview(b"a")),
        Block(9, 18, FIRST, b"b"),
        Block(18, 27, LAST, b"c"),
        Block(27, 36, FIRST, b"dead"),
        Block(36, 45, FULL, memoryview(b"d")),
    ]
    records = RecordAssembler(record_bytes_max=100).push_all(5, blocks, copy=True)
    assert records == [
        Record(Position(5, 0), b"a", Position(5, 9)),
        Record(Position(5, 9), b"bc", Position(5, 27)),
        Record(Position(5, 36), b"d", Position(5, 45)),
    ]
    assert all(type(record.payload) is bytes for record in records)


def test_a_start_that_was_cut_off_names_the_first_position_there_is() -> None:
    assert start_of([5, 3, 9], Position(3, 100), stream_id=1) == 1
    assert start_of([5], None, stream_id=1) == 0
    with pytest.raises(NotFound, match="begins at 5:0") as raised:
        start_of([5, 9], Position(3, 100), stream_id=1)
    assert (raised.value.kind, raised.value.name) == ("position", "3:100")
    with pytest.raises(NotFound, match="it is empty"):
        start_of([], Position(3, 100), stream_id=1)


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


@pytest.mark.parametrize(
    ("slower_s", "faster_s", "matters"),
    [
        (0.13, 0.10, True),  # on two sides of the border between steps of four
        (0.016, 0.010, False),
        (0.0009, 0.0002, False),  # below a millisecond all are the same
        (0.004, 0.0009, True),
    ],
)
def test_latencies_matter_in_steps_of_four(slower_s: float, faster_s: float, matters: bool) -> None:
    history = SourceHistory()
    history.answered("slower", slower_s, size="small")
    history.answered("faster", faster_s, size="small")
    first = ["faster", "slower"] if matters else ["slower", "faster"]
    assert addresses(history, extent("slower", "faster", extent_id=2)) == first


def test_one_that_was_never_asked_comes_behind_quick_ones_and_before_slow_and_failing_ones() -> None:
    history = SourceHistory()
    history.answered("quick", 0.01, size="small")
    history.answered("a second", 1.0, size="small")
    history.answered("slow", 4.0, size="small")
    history.failed("failing", 0.0)
    asked = extent("failing", "slow", "new", "a second", "quick", extent_id=5)
    assert addresses(history, asked) == ["quick", "new", "a second", "slow", "failing"]


def test_one_that_failed_before_it_ever_answered_is_asked_first_when_that_is_long_ago() -> None:
    history = SourceHistory()
    history.failed("a", 0.0)
    assert addresses(history, extent("b", "a", extent_id=2), now_s=100.0) == ["a", "b"]


@pytest.mark.parametrize(("now_s", "is_last"), [(100.0, True), (104.0, True), (109.0, True), (111.0, False)])
def test_a_failure_counts_for_its_half_life(now_s: float, is_last: bool) -> None:
    history = SourceHistory()
    history.failed("a", 100.0)
    assert addresses(history, extent("a", "b", extent_id=2), now_s=now_s) == (["b", "a"] if is_last else ["a", "b"])


def test_failures_add_up_and_are_halved_with_time() -> None:
    history = SourceHistory()
    history.failed("a", 100.0)
    history.failed("a", 110.0)
    assert history._node("a").failures == pytest.approx(1.5)
    history.failed("b", 110.0)
    assert addresses(history, extent("a", "b", extent_id=2), now_s=110.0) == ["b", "a"]


def test_latencies_are_smoothed_from_the_first_one_on() -> None:
    history = SourceHistory()
    history.answered("a", 0.1, size="small")
    assert history._node("a").latency_s == pytest.approx(0.1)
    history.answered("a", 1.1, size="small")
    assert history._node("a").latency_s == pytest.approx(0.2)
    history.answered("a", 0.1, size="small")
    assert history._node("a").latency_s == pytest.approx(0.19)


@pytest.mark.parametrize(("size", "other"), [("small", "large"), ("large", "small")])
def test_how_long_reads_take_is_followed_for_each_size_by_itself(size: Size, other: Size) -> None:
    history = SourceHistory()
    assert history.tail_s[size].value == 0.05
    history.answered("a", 0.001, size=size)
    assert 0.045 < history.tail_s[size].value < 0.05
    history.answered("a", 1.0, size=size)
    assert 0.05 < history.tail_s[size].value < 0.1
    assert history.tail_s[other].value == 0.05


def test_an_order_holds_for_a_moment_and_until_a_failure() -> None:
    history, asked = SourceHistory(), extent("a", "b", extent_id=2)
    order = history.order(asked, 100.0)
    history.answered("b", 0.01, size="small")
    assert history.order(asked, 100.0) is order
    assert history.order(asked, 100.09) is order
    assert addresses(history, extent("a", "b", extent_id=2), now_s=100.0) == ["b", "a"]  # what was told of it is newer
    later = history.order(asked, 200.0)
    assert later is not order
    assert history.order(asked, 199.0) is not later  # a clock that was set back
    history.failed("b", 199.0)
    assert addresses(history, asked, now_s=199.0) == ["a", "b"]


def test_an_order_is_made_anew_when_its_time_is_over() -> None:
    history, asked = SourceHistory(), extent("a", "b", extent_id=2)
    order = history.order(asked, 0.0)
    assert history.order(asked, core_reader.ORDER_HOLDS_S) is not order


def test_what_is_known_of_nodes_and_extents_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_reader, "NODES_MAX", 3)
    history = SourceHistory()
    for number in range(10):
        history.answered(f"n{number}", 0.01, size="small")
        history.order(extent("a", extent_id=number), 0.0)
        assert len(history._nodes) <= 3
        assert len(history._orders) <= 3
    assert list(history._nodes) == ["n7", "n8", "n9"]  # the oldest goes


def test_an_extent_without_an_address_has_nobody_to_ask() -> None:
    assert SourceHistory().order(extent("", ""), 0.0) == []


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


@pytest.mark.parametrize(("quantile", "above", "below"), [(0.5, 1, 1), (0.75, 1, 3), (0.95, 1, 19)])
def test_a_quantile_stays_where_it_is_if_its_share_of_values_is_below(quantile: float, above: int, below: int) -> None:
    follows = Quantile(quantile, first=1.0)
    for value in [1000.0] * above + [0.0] * below:
        follows.note(value)
    assert follows.value == pytest.approx(1.0)


def test_a_quantile_moves_by_little_and_down_when_it_is_met() -> None:
    follows = Quantile(0.5, first=1.0)
    follows.note(1.0)
    assert follows.value == pytest.approx(math.exp(-0.1))


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
