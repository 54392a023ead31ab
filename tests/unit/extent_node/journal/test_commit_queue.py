"""The line of those who wait for one replica's durability: each is answered once, when its bytes are durable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neve.extent_node.journal.commit_queue import AppendCall, CommitQueue
from neve.proto.errors import DiskFailed


@given(
    ends=st.lists(st.integers(1, 20), max_size=12),
    durable_ends=st.lists(st.integers(0, 25), max_size=4),
    abandoned=st.booleans(),
)
def test_each_is_answered_once_and_not_before_its_end_is_durable(
    ends: list[int], durable_ends: list[int], abandoned: bool
) -> None:
    queue, call = CommitQueue(), AppendCall(len(ends))
    for number, end in enumerate(ends):
        call.pending += 1
        queue.add(end, call, number, 0, None)
    assert queue.end_wanted == max(ends, default=0)
    durable_end = 0
    for durable_end in sorted(durable_ends):
        queue.settle(durable_end)
        left = [end for end in ends if end > durable_end]
        assert [end for end, _, _ in queue.waits] == left
        assert queue.end_wanted == max(left, default=0)
        assert call.pending == len(left)
    if abandoned:
        queue.abandon(DiskFailed(extent_id=1, disk="d"))
        assert [error is not None for error in call.errors] == [end > durable_end for end in ends]
        assert (call.pending, queue.end_wanted, queue.is_idle) == (0, 0, True)


def test_pieces_are_kept_while_one_lies_behind_the_other_and_dropped_at_a_hole() -> None:
    queue, call = CommitQueue(), AppendCall(4)
    queue.add(104, call, 0, 100, b"0123")
    queue.add(104, call, 1, 104, None)  # a retry: nothing new
    queue.add(106, call, 2, 104, b"45")
    assert (queue.pieces_offset, queue.pieces_bytes, queue.pieces) == (100, 6, [b"0123", b"45"])
    queue.add(123, call, 3, 110, b"beyond a hole")
    assert (queue.pieces_bytes, queue.pieces) == (0, [])


def test_pieces_end_with_the_last_who_waits() -> None:
    queue, call = CommitQueue(), AppendCall(1)
    call.pending = 1
    queue.add(4, call, 0, 0, b"0123")
    queue.settle(3)
    assert queue.pieces == [b"0123"]
    queue.settle(4)
    assert (queue.pieces, call.errors) == ([], [None])


async def test_a_call_waits_until_its_last_segment_is_settled() -> None:
    call = AppendCall(2)
    call.pending = 2
    waiting = call.wait()
    future = waiting.send(None)
    assert future is not None
    call.settle(0, None)
    assert not future.done()
    call.settle(1, DiskFailed(extent_id=1, disk="d"))
    assert future.done()
    assert call.errors[0] is None
    assert isinstance(call.errors[1], DiskFailed)
    waiting.close()
