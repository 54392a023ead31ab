"""Frames: their segments are taken as each of them alone would be, and the reply comes when all of them are settled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from neve.extent_node.store import append as store_append
from neve.extent_node.store.append import PendingAppend
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from tests.unit.extent_node.store import rig


@dataclass(frozen=True)
class Step:
    """An append; `at` is where from the end of the extent it begins."""

    at: int
    sizes: list[int]
    no_sync: bool
    token: int
    extra: bytes  # bytes that no block size tells of
    told: int  # of `committed`, counted back from the end


STEPS = st.builds(
    Step,
    at=st.sampled_from([0, 0, 0, 0, 0, -20, 9]),
    sizes=st.lists(st.integers(1, 40), min_size=0, max_size=3),
    no_sync=st.booleans(),
    token=st.sampled_from([rig.TOKEN, rig.TOKEN, rig.TOKEN, rig.TOKEN - 1, rig.TOKEN + 1]),
    extra=st.sampled_from([b"", b"", b"", b"x"]),
    told=st.integers(0, 30),
)

EXTENTS = (1, 2, 3)

Frame = list[tuple[int, Step]]  # extent, append


async def carry_out_frames(store: Storage, frames: list[Frame], *, together: bool, brief: bool = False) -> list[object]:
    """Outcomes of frames, or of the same segments one after the other. `brief`: and whether a frame's answer was.

    What was answered with sync is durable. How far beyond that it is durable is not compared: a sync takes along what
    was appended without in the same frame."""
    synced_ends = dict.fromkeys(EXTENTS, 0)
    for extent_id in EXTENTS:
        await rig.create(store, extent_id)
    replicas = store.state.replicas
    outcomes: list[object] = []
    for frame_number, frame in enumerate(frames):
        lengths = {extent_id: replicas[extent_id].state.length for extent_id in EXTENTS}
        segments, bodies = [], []
        for number, (extent_id, step) in enumerate(frame):
            blocks = [rig.block_of(f"{frame_number} {number}", size_bytes) for size_bytes in step.sizes]
            offset = max(lengths[extent_id] + step.at, 0)
            committed = max(lengths[extent_id] - step.told, 0)
            message, body = rig.segment(
                extent_id, offset, blocks, no_sync=step.no_sync, token=step.token, committed=committed
            )
            rig._name_replica(store, message)
            segments.append(message)
            bodies.append(body)
            lengths[extent_id] = max(lengths[extent_id], offset + len(body))
        alone = [([message], body) for message, body in zip(segments, bodies, strict=True)]
        groups = [(segments, b"".join(bodies))] if together else alone
        for group, attachment in groups:
            begun = store_append.begin_append(store.state, group, memoryview(attachment), brief=brief)
            reply = begun if isinstance(begun, pb.AppendBlockReply) else await begun
            for index, each in enumerate(group):
                if not each.no_sync and (reply.all_taken or not reply.results[index].HasField("error")):
                    end = each.offset + sum(each.block_sizes) if each.block_sizes else 0
                    synced_ends[each.extent_id] = max(synced_ends[each.extent_id], end)
            if reply.all_taken:
                assert not reply.results
                # One that tells `committed` alone has no end.
                ends = (each.offset + sum(each.block_sizes) if each.block_sizes else 0 for each in group)
                outcomes += [(end, b"") for end in ends]
            else:
                assert not brief or any(result.HasField("error") for result in reply.results)
                outcomes += [(result.end, result.error.SerializeToString()) for result in reply.results]
    for extent_id in EXTENTS:
        found, state = replicas[extent_id], replicas[extent_id].state
        outcomes.append((state.length, state.committed, state.token, state.unsynced))
        assert synced_ends[extent_id] <= state.durable_end <= state.length
        found.write_deferred()
        outcomes.append(found.read(0, state.length) if state.length else b"")
    counters = store.state.counters
    outcomes.append((counters.appends, counters.appended_bytes, counters.append_refusals))
    return outcomes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from(EXTENTS), STEPS), max_size=5), max_size=4))
def test_segments_of_one_frame_are_taken_as_one_after_the_other(frames: list[Frame]) -> None:
    together, alone = rig.Machine(), rig.Machine()
    assert together.run(lambda store: carry_out_frames(store, frames, together=True)) == alone.run(
        lambda store: carry_out_frames(store, frames, together=False)
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from(EXTENTS), STEPS), max_size=5), max_size=4))
def test_a_brief_answer_says_what_a_long_one_would(frames: list[Frame]) -> None:
    brief, long = rig.Machine(), rig.Machine()
    assert brief.run(lambda store: carry_out_frames(store, frames, together=True, brief=True)) == long.run(
        lambda store: carry_out_frames(store, frames, together=True)
    )


def test_nobody_is_answered_in_brief_who_has_not_asked_for_it() -> None:
    async def work(store: Storage) -> None:
        await rig.create(store, 1)
        replica = store.state.replicas[1]
        for brief in (False, True):
            for no_sync in (False, True):  # when it is durable, and at once
                for _ in range(2):  # the first one without sync takes a task
                    message, body = rig.segment(1, replica.state.length, [rig.block_of("x")], no_sync=no_sync)
                    rig._name_replica(store, message)
                    begun = store_append.begin_append(store.state, [message], memoryview(body), brief=brief)
                    reply = begun if isinstance(begun, pb.AppendBlockReply) else await begun
                    assert (reply.all_taken, len(reply.results)) == ((True, 0) if brief else (False, 1))
        message, body = rig.segment(1, replica.state.length + 9, [rig.block_of("x")])
        begun = store_append.begin_append(store.state, [message], memoryview(body), brief=True)
        assert isinstance(begun, pb.AppendBlockReply)
        assert not begun.all_taken
        assert begun.results[0].HasField("error")

    rig.Machine().run(work)


def test_a_frame_that_is_given_up_leaves_no_line_and_no_answer() -> None:
    async def work(store: Storage) -> None:
        for extent_id in EXTENTS:
            await rig.create(store, extent_id)
        await rig.append(store, 1, 0, rig.block_of("first"))
        held = store.state.replicas[2]
        assert held.lock.enqueue().done()  # somebody else's turn, for as long as it takes
        segments, bodies = [], []
        for extent_id, offset in ((1, store.state.replicas[1].state.length), (2, 0)):
            message, body = rig.segment(extent_id, offset, [rig.block_of(f"of {extent_id}")])
            rig._name_replica(store, message)
            segments.append(message)
            bodies.append(body)
        answer = store_append.begin_append(store.state, segments, memoryview(b"".join(bodies)), brief=False)
        assert isinstance(answer, PendingAppend)
        told: list[object] = []
        answer.then(lambda reply, error: told.append((reply, error)))
        assert held.lock.waiting == 1
        answer.abandon()
        assert held.lock.waiting == 0
        held.lock.release()
        await asyncio.sleep(0.1)
        assert (told, held.state.length) == ([], 0)
        await rig.append(store, 2, 0, rig.block_of("another"))

    rig.Machine().run(work)


def test_a_synced_segment_is_answered_by_whoever_finds_it_durable() -> None:
    async def work(store: Storage) -> None:
        await rig.create(store, 1)
        await rig.append(store, 1, 0, rig.block_of("first"))
        length = store.state.replicas[1].state.length
        message, body = rig.segment(1, length, [rig.block_of("second")])
        rig._name_replica(store, message)
        answer = store_append.begin_append(store.state, [message], memoryview(body), brief=False)
        assert isinstance(answer, PendingAppend)
        told: list[tuple[object, BaseException | None]] = []
        answer.then(lambda reply, error: told.append((reply, error)))
        assert told == []
        state = store.state.replicas[1].state
        while not told:
            assert state.durable_end == length  # not a turn before
            await asyncio.sleep(0.0001)
        ((reply, error),) = told
        assert error is None
        assert isinstance(reply, pb.AppendBlockReply)
        assert [result.end for result in reply.results] == [length + len(body)]
        assert state.durable_end == length + len(body)

    rig.Machine().run(work)


def test_whoever_gives_up_an_answer_leaves_nothing_waiting_and_the_bytes_stay() -> None:
    async def work(store: Storage) -> None:
        await rig.create(store, 1)
        await rig.append(store, 1, 0, rig.block_of("first"))
        replica = store.state.replicas[1]
        message, body = rig.segment(1, replica.state.length, [rig.block_of("second")])
        rig._name_replica(store, message)
        answer = store_append.begin_append(store.state, [message], memoryview(body), brief=False)
        assert isinstance(answer, PendingAppend)
        told: list[object] = []
        answer.then(lambda reply, error: told.append((reply, error)))
        answer.abandon()
        assert replica.commit is None or not replica.commit.waits
        end = replica.state.length
        await rig.append(store, 1, end, rig.block_of("third"))
        assert told == []
        assert replica.state.durable_end == replica.state.length > end

    rig.Machine().run(work)
