"""Runs, batches and tickets: where lists are cut, what a cut keeps of bytes, places and who waits. No I/O."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.client.streams.core.batch import Batch, PayloadRun, Ticket, cut_runs
from neve.client.streams.types import PlacedBlocks
from neve.proto.blocks import HEADER_BYTES, BlockType, encode_block
from neve.proto.crc import Buffer


def batch_of(buffers: list[bytes], block_sizes: list[int], *, first_index: int = 0, offset: int | None = None) -> Batch:
    waiters = [f"w{number}" for number in range(len(block_sizes))]
    batch = Batch(buffers, block_sizes, sum(block_sizes), waiters, None, first_index)
    if offset is not None:
        batch.offset = offset
    return batch


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Of any bytes: buffers end anywhere, within blocks too. Placed, or not yet."""
    block_sizes = draw(st.lists(st.integers(1, 20), min_size=2, max_size=6))
    size_bytes = sum(block_sizes)
    whole = bytes(range(1, size_bytes + 1))
    cuts = draw(st.lists(st.integers(1, size_bytes - 1), unique=True, max_size=5).map(sorted))
    buffers = [whole[start:end] for start, end in itertools.pairwise([0, *cuts, size_bytes])]
    return batch_of(
        buffers, block_sizes, first_index=draw(st.integers(0, 9)), offset=draw(st.none() | st.integers(0, 9))
    )


def joined(buffers: list[Buffer]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


@given(batches(), st.data())
def test_a_split_batch_has_the_same_bytes_places_and_waiters(batch: Batch, data: st.DataObject) -> None:
    blocks = data.draw(st.integers(1, len(batch.block_sizes) - 1))
    head, tail = batch.split(blocks)
    head_bytes = sum(batch.block_sizes[:blocks])
    assert (head.size_bytes, tail.size_bytes) == (head_bytes, batch.size_bytes - head_bytes)
    assert joined(list(head.buffers)) + joined(list(tail.buffers)) == joined(list(batch.buffers))
    assert sum(map(len, head.buffers)) == head_bytes
    assert [*head.block_sizes, *tail.block_sizes] == batch.block_sizes
    assert len(head.block_sizes) == blocks
    assert (head.waiters or []) + (tail.waiters or []) == batch.waiters
    assert len(head.waiters or []) == blocks
    assert (head.first_index, tail.first_index) == (batch.first_index, batch.first_index + blocks)
    if batch.offset < 0:  # where they go is not known: nobody may take a number for a place
        assert head.offset < 0
        assert tail.offset < 0
    else:
        assert (head.offset, head.end) == (batch.offset, tail.offset)
        assert tail.end == batch.end


@given(batches(), st.data())
def test_a_split_copies_no_bytes_and_gives_no_empty_buffer(batch: Batch, data: st.DataObject) -> None:
    blocks = data.draw(st.integers(1, len(batch.block_sizes) - 1))
    own = [id(buffer) for buffer in batch.buffers]
    for part in batch.split(blocks):
        for buffer in part.buffers:
            assert len(buffer) > 0
            if isinstance(buffer, memoryview):  # a part of one: a whole one is passed on as it is
                assert id(buffer.obj) in own
                assert len(buffer) < len(buffer.obj)  # type: ignore[arg-type]
            else:
                assert id(buffer) in own


@pytest.mark.parametrize("blocks", [-1, 0, 3, 4])
def test_a_batch_is_not_split_into_nothing_and_the_rest(blocks: int) -> None:
    with pytest.raises(AssertionError):
        batch_of([b"abc"], [1, 1, 1]).split(blocks)


def test_a_split_keeps_the_ticket_of_both_parts() -> None:
    ticket = Ticket("w", 2, is_record=False)
    head, tail = Batch([b"abcd"], [2, 2], 4, None, ticket, 5).split(1)
    assert head.ticket is tail.ticket is ticket
    assert head.waiters is tail.waiters is None


def test_so_many_blocks_fit_as_end_within() -> None:
    batch = batch_of([bytes(60)], [10, 20, 30])
    assert [batch.blocks_within(size_bytes) for size_bytes in (0, 9, 10, 29, 30, 59, 60, 61)] == [
        *(0, 0, 1, 1, 2, 2, 3, 3)
    ]


def test_a_batch_tells_where_its_blocks_are() -> None:
    assert batch_of([b"abcd"], [1, 3], first_index=7, offset=100).placed(9) == PlacedBlocks(7, 9, 100, [1, 3])


@pytest.mark.parametrize("is_record", [False, True])
def test_a_ticket_is_done_with_its_last_block_and_has_all_pieces(is_record: bool) -> None:
    ticket = Ticket("w", 3, is_record=is_record)
    pieces = [PlacedBlocks(2, 1, 0, [9]), PlacedBlocks(0, 1, 9, [9, 9])]
    assert [ticket.note(piece) for piece in pieces] == [False, True]
    assert ticket.pieces == pieces
    assert (ticket.waiter, ticket.blocks, ticket.is_record) == ("w", 3, is_record)
    with pytest.raises(AssertionError):
        ticket.note(PlacedBlocks(3, 1, 27, [9]))


def test_a_run_becomes_blocks_of_its_type_for_the_same_waiters() -> None:
    waiters: list[object] = ["w1", "w2"]
    batch = PayloadRun([b"one", b"three"], 24, waiters=waiters).encode()
    assert joined(list(batch.buffers)) == encode_block(b"one") + encode_block(b"three")
    assert (batch.block_sizes, batch.size_bytes, batch.first_index) == ([11, 13], 24, 0)
    assert (batch.waiters, batch.ticket) == (waiters, None)
    assert batch.offset < 0
    ticket = Ticket("w", 2, is_record=True)
    part = PayloadRun([b"one"], 11, ticket=ticket, first_index=1, block_type=BlockType.LAST).encode()
    assert joined(list(part.buffers)) == encode_block(b"one", BlockType.LAST)
    assert (part.ticket, part.first_index, part.waiters) == (ticket, 1, None)
    with pytest.raises(AssertionError):
        PayloadRun([b"one"], 12).encode()


# --- lists that are cut into runs ----------------------------------------------------------------------------------


def runs_of(sizes: list[int], run_bytes_max: int) -> list[PayloadRun]:
    """Runs of blocks of these sizes."""
    payloads: list[Buffer] = [bytes([number]) * (size - HEADER_BYTES) for number, size in enumerate(sizes)]
    ticket = Ticket("w", len(payloads), is_record=False)
    runs = list(cut_runs(payloads, sum(sizes), ticket, run_bytes_max=run_bytes_max))
    at = 0
    for run in runs:
        assert run.payloads == payloads[at : at + len(run.payloads)]
        assert run.payloads
        assert run.size_bytes == sum(len(payload) + HEADER_BYTES for payload in run.payloads)
        assert (run.first_index, run.ticket, run.waiters, run.block_type) == (at, ticket, None, BlockType.FULL)
        at += len(run.payloads)
    assert at == len(payloads)
    return runs


@given(st.lists(st.integers(8, 60), min_size=1, max_size=30), st.integers(10, 200))
def test_no_run_is_larger_than_its_share_by_a_block_and_there_are_no_more_than_needed(
    sizes: list[int], run_bytes_max: int
) -> None:
    runs = runs_of(sizes, run_bytes_max)
    parts_min = -(-sum(sizes) // run_bytes_max)
    assert len(runs) <= parts_min + 1
    share_bytes = sum(sizes) // parts_min
    if parts_min == 1:
        assert len(runs) == 1
    for run in runs[:-1]:
        assert run.size_bytes >= share_bytes
    for run in runs if parts_min > 1 else []:
        assert run.size_bytes - len(run.payloads[-1]) - HEADER_BYTES < share_bytes


@pytest.mark.parametrize(
    ("sizes", "run_bytes_max", "cut"),
    [
        ([10, 10], 20, [20]),  # it fits
        ([10, 10], 19, [10, 10]),
        ([10, 10], 10, [10, 10]),
        ([10, 11], 15, [10, 11]),  # a share of ten and a half
        ([10] * 11, 100, [60, 50]),  # no frame for a small rest
        ([10] * 30, 100, [100, 100, 100]),
        ([100], 10, [100]),  # a block is not cut
    ],
)
def test_where_a_list_is_cut(sizes: list[int], run_bytes_max: int, cut: list[int]) -> None:
    assert [run.size_bytes for run in runs_of(sizes, run_bytes_max)] == cut
