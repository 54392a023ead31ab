"""Segments that all replicas were sent in step are acknowledged by the last answer, and fall apart where one differs.

A tail as writers have it, its lanes and senders, on wires whose answers the test gives. Appends are of one byte: a
block has 9. The Hypothesis test plays the same answers to lanes that are in step and to some that never are.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import random
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.client.manager_link import ManagerLink
from neve.client.streams.core.batch import Batch
from neve.client.streams.core.writer import Taken, Verdict, WriterCore
from neve.client.streams.options import ClientOptions
from neve.client.streams.reading.replica_history import NodeHistory
from neve.client.streams.sending.append_frame import AppendFrame, SharedSegment
from neve.client.streams.sending.node_sender import NodeSenders
from neve.client.streams.sending.replica_lane import ReplicaLane
from neve.client.streams.writer_tail import WriterTail
from neve.meta.lock import Lock
from neve.proto import errors
from neve.proto import extent_node_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.coroutine_driver import OnDone
from neve.proto.errors import ConnectionLost, Gap, LeaseLost, NeveError
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Reply

BLOCK_BYTES = 9
LARGE = bytes(40)  # more than a quarter of a frame: each lane takes it by itself
OPTIONS = ClientOptions(append_retry_delay_s=1e-6, committed_idle_s=3600.0)
LOST = ConnectionLost(address="node")
ORDERS = list(permutations(range(3)))
FENCED = errors.ExtentFenced(extent_id=7)


class Wire:
    """A channel that keeps its frames until they are answered."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.begun: list[tuple[pb.AppendBlockRequest, OnDone[Reply[Any]]]] = []
        self.places: list[list[tuple[int, list[int]]]] = []  # of all that was sent: offsets and block sizes

    def begin(self, _: object, request: bytes, on_done: OnDone[Reply[Any]], **how: object) -> Wire:
        message = pb.AppendBlockRequest.FromString(request)
        self.begun.append((message, on_done))
        self.places.append([(each.offset, list(each.block_sizes)) for each in message.segments])
        return self

    def cancel(self) -> None:
        """The frame stays: nobody looks at it any more."""

    def all_taken(self, frame: int = 0) -> None:
        self.begun.pop(frame)[1](Reply(pb.AppendBlockReply(all_taken=True)), None)

    def results(self, frame: int = 0, error: NeveError | None = None, length: int = 0) -> None:
        request, on_done = self.begun.pop(frame)
        results = []
        for each in request.segments:
            end = each.offset + sum(each.block_sizes)
            if error is None:
                results.append(pb.SegmentResult(end=end, length=end))
            else:
                results.append(pb.SegmentResult(length=length, error=errors.to_message(error)))
        on_done(Reply(pb.AppendBlockReply(results=results)), None)

    def fail(self, frame: int = 0, error: NeveError = LOST) -> None:
        self.begun.pop(frame)[1](None, error)


class FakeLock:
    name, token = "lock", 5
    lost = False

    def ensure(self) -> None:
        if self.lost:
            raise LeaseLost()


class FakeLink:
    client_id = 1

    async def order(self, *what: object, **how: object) -> None:
        await asyncio.Event().wait()


class Apart(WriterCore):
    """Its lanes are never in step."""

    def take_for_all(self) -> Taken | None:
        return None


class Stage:
    """The tail of a stream with three replicas."""

    def __init__(
        self,
        core_class: type[WriterCore] = WriterCore,
        *,
        addresses: Sequence[str] = "abc",
        options: ClientOptions = OPTIONS,
    ) -> None:
        self.core = core_class(run_bytes_max=100, payload_bytes_max=100, attempts_max=3)
        self.lock = FakeLock()
        self.wires = {address: Wire(address) for address in addresses}
        self.acknowledged: list[object] = []
        self.unknown: list[object] = []
        self.ends: list[NeveError] = []
        self.troubles: list[tuple[int, Verdict]] = []
        self.senders = NodeSenders(cast(ChannelPool, self), options)
        self.tail = WriterTail(
            self.core,
            stream_id=1,
            lock=cast(Lock, self.lock),
            no_sync=False,
            link=cast(ManagerLink, FakeLink()),
            senders=self.senders,
            history=NodeHistory(asyncio.get_running_loop().time, window_s=1.0),
            options=options,
            rng=random.Random(1),
            on_acknowledged=lambda _, batches: self.acknowledged.extend(waiters_of(batches)),
            on_unknown=lambda batches: self.unknown.extend(waiters_of(batches)),
            on_settled=lambda: None,
            on_end=self._on_end,
        )
        on_replica_failed = self.tail.on_replica_failed

        def note_trouble(lane: ReplicaLane, verdict: Verdict, error: NeveError) -> None:
            self.troubles.append((lane.replica, verdict))
            on_replica_failed(lane, verdict, error)

        self.tail.on_replica_failed = note_trouble  # type: ignore[method-assign]
        info = sm.ExtentInfo(extent_id=7, eversion=1, extent_bytes_max=1 << 20)
        for number, address in enumerate(addresses):
            info.replicas.add(address=address).replica.node_id = number + 1
        self.tail._use(info, 0)

    def _on_end(self, error: NeveError) -> None:
        self.ends.append(error)
        self.tail.close()

    def channel(self, address: str) -> Wire:
        return self.wires[address]

    def wire(self, number: int) -> Wire:
        return list(self.wires.values())[number]

    async def append(self, waiter: object, payload: bytes = b"x") -> None:
        self.core.push(payload, waiter)
        self.tail.wake()
        await self.turn()

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        self.core.validate()

    async def healed(self, timeout_s: float = 1.0) -> None:
        """After a pause there is something on a wire."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while loop.time() < end_s:
            await asyncio.sleep(1e-5)
            if any(wire.begun for wire in self.wires.values()):
                return

    @property
    def in_step(self) -> list[SharedSegment]:
        return self.tail._lanes[0]._shared_segments

    def acked_ends(self) -> list[int]:
        return [max(each, self.core._all_acked_end) for each in self.core._acked_ends]

    async def close(self) -> None:
        self.tail.close()
        await self.tail.closed()
        self.senders.close()


def waiters_of(batches: list[Batch]) -> Iterator[object]:
    for batch in batches:
        yield from batch.waiters or ()


@pytest.mark.parametrize("order", ORDERS)
async def test_the_last_answer_acknowledges_and_no_other_one(order: tuple[int, ...]) -> None:
    stage = Stage()
    await stage.append("one")
    assert len(stage.in_step) == 1
    for number in order[:2]:
        stage.wire(number).all_taken()
        assert stage.acknowledged == []
        assert stage.core.committed == 0
    stage.wire(order[2]).all_taken()
    assert stage.acknowledged == ["one"]
    assert stage.core.committed == BLOCK_BYTES
    assert stage.in_step == []
    stage.core.validate()
    await stage.close()


async def test_what_all_have_is_told_to_the_core_at_once() -> None:
    asked: list[str] = []

    class Counting(WriterCore):
        def on_answer(self, replica: int, taken: Taken) -> list[Batch]:
            asked.append("one")
            return super().on_answer(replica, taken)

        def on_all_answered(self, taken: Taken) -> list[Batch]:
            asked.append("all")
            return super().on_all_answered(taken)

    stage = Stage(Counting)
    await stage.append("one")
    for number in range(3):
        stage.wire(number).all_taken()
    assert asked == ["all"]
    await stage.close()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("before", range(3))
async def test_a_replica_that_fails_is_sent_the_segment_again_and_the_others_are_not(
    before: int, order: tuple[int, ...]
) -> None:
    """Also if it is the last one, after all others have answered; and the others' answers count, before and after."""
    stage = Stage()
    await stage.append("one")
    for number in order[:before]:
        stage.wire(number).all_taken()
    failing = order[before]
    stage.wire(failing).fail()
    answered = [BLOCK_BYTES if number in order[:before] else 0 for number in range(3)]
    assert stage.acked_ends() == answered
    assert stage.in_step == []
    for number in order[before + 1 :]:
        stage.wire(number).all_taken()
    assert stage.acknowledged == []
    await stage.healed()
    assert [len(stage.wire(number).begun) for number in range(3)] == [int(number == failing) for number in range(3)]
    stage.wire(failing).all_taken()
    assert stage.acknowledged == ["one"]
    assert stage.tail.resends == 1
    stage.core.validate()
    await stage.close()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("by_results", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}])
async def test_a_node_that_answers_by_results_counts_as_much(order: tuple[int, ...], by_results: set[int]) -> None:
    stage = Stage()
    await stage.append("one")
    for number in order:
        assert stage.acknowledged == []
        wire = stage.wire(number)
        if number in by_results:
            wire.results()
        else:
            wire.all_taken()
    assert stage.acknowledged == ["one"]
    assert stage.acked_ends() == [BLOCK_BYTES] * 3
    await stage.append("two")  # nobody has failed: they are in step again
    assert len(stage.in_step) == 1
    await stage.close()


async def test_a_gap_in_place_of_the_third_answer_is_filled() -> None:
    stage = Stage()
    await stage.append("one")
    stage.wire(0).all_taken()
    stage.wire(1).all_taken()
    stage.wire(2).results(error=Gap(extent_id=7, offset=0, length=0), length=0)
    await stage.turn()
    assert stage.wire(2).places == [[(0, [BLOCK_BYTES])]] * 2
    stage.wire(2).all_taken()
    assert stage.acknowledged == ["one"]
    await stage.close()


async def test_answers_that_have_not_been_told_yet_count_when_a_failure_is_judged() -> None:
    """A replica has answered for the first segment; the others have not. Then it says that it has nothing."""
    stage = Stage()
    await stage.append("one")
    await stage.append("two")
    stage.wire(0).all_taken()
    stage.wire(0).results(error=Gap(extent_id=7, offset=BLOCK_BYTES, length=0), length=0)
    assert stage.troubles == [(0, Verdict.REPLACE)]
    await stage.close()


async def test_they_count_as_well_when_what_fails_was_sent_by_one_lane_alone() -> None:
    stage = Stage()
    await stage.append("one")
    await stage.append("two", LARGE)
    assert len(stage.in_step) == 1
    stage.wire(0).all_taken()
    stage.wire(0).results(error=Gap(extent_id=7, offset=BLOCK_BYTES, length=0), length=0)
    assert stage.troubles == [(0, Verdict.REPLACE)]
    await stage.close()


async def test_a_segment_behind_that_all_have_acknowledges_those_before_it_in_order() -> None:
    stage = Stage()
    for waiter in ("one", "two", "three"):
        await stage.append(waiter)
    for number in range(3):
        stage.wire(number).all_taken(1)
    assert stage.acknowledged == ["one", "two"]
    assert len(stage.in_step) == 2
    for number in range(3):
        stage.wire(number).all_taken(0)
    assert stage.acknowledged == ["one", "two"]
    for number in range(3):
        stage.wire(number).all_taken(0)
    assert stage.acknowledged == ["one", "two", "three"]
    await stage.close()


async def test_an_acknowledgement_that_waited_for_a_frame_comes_when_that_fails() -> None:
    """Each replica has answered for the first segment or for one behind it, though not all with the same frame."""
    stage = Stage()
    await stage.append("one")
    await stage.append("two")
    stage.wire(0).all_taken(0)
    stage.wire(1).all_taken(0)
    stage.wire(2).all_taken(1)
    assert stage.acknowledged == []
    stage.wire(2).fail(0)
    assert stage.acknowledged == ["one"]
    await stage.close()


async def test_late_answers_acknowledge_nothing_once_the_extent_is_being_sealed() -> None:
    stage = Stage()
    await stage.append("one")
    stage.wire(0).all_taken()
    stage.wire(1).all_taken()
    assert stage.tail.freeze() == (7, 0)
    stage.wire(2).all_taken()
    assert stage.acknowledged == []
    assert stage.core.committed == 0
    await stage.close()


async def test_a_replica_that_is_fenced_begins_a_roll_and_the_last_answer_changes_nothing() -> None:
    stage = Stage()
    await stage.append("one")
    stage.wire(0).all_taken()
    stage.wire(1).results(error=FENCED)
    assert stage.troubles == [(1, Verdict.SEALED)]
    assert stage.core.sealing
    stage.wire(2).all_taken()
    assert stage.acknowledged == []
    settled = stage.core.settle(sealed_length=BLOCK_BYTES, all_took_part=True)
    assert list(waiters_of(settled.acknowledged)) == ["one"]
    await stage.close()


@pytest.mark.parametrize("last", ["all taken", "results", "fails"])
async def test_late_answers_of_the_last_extent_say_nothing_of_the_next_one(last: str) -> None:
    stage = Stage()
    await stage.append("one")
    lanes = stage.tail._lanes
    stage.tail.freeze()
    stage.core.settle(sealed_length=0, all_took_part=True)
    info = sm.ExtentInfo(extent_id=8, eversion=1, extent_bytes_max=1 << 20)
    for number, address in enumerate(stage.wires):
        info.replicas.add(address=address).replica.node_id = number + 1
    stage.tail._rolling = False
    stage.tail._use(info, 0)
    await stage.turn()
    assert stage.tail._lanes is not lanes
    stage.wire(0).all_taken()
    stage.wire(1).all_taken()
    {"all taken": stage.wire(2).all_taken, "results": stage.wire(2).results, "fails": stage.wire(2).fail}[last]()
    assert stage.acknowledged == []
    assert stage.acked_ends() == [0, 0, 0]
    assert len(stage.in_step) == 1
    for number in range(3):
        stage.wire(number).all_taken()
    assert stage.acknowledged == ["one"]
    await stage.close()


async def test_nothing_is_acknowledged_once_the_lock_may_be_lost() -> None:
    stage = Stage()
    await stage.append("one")
    stage.wire(0).all_taken()
    stage.wire(1).all_taken()
    stage.lock.lost = True
    stage.wire(2).all_taken()
    assert stage.acknowledged == []
    assert stage.unknown == ["one"]
    assert [type(error) for error in stage.ends] == [LeaseLost]
    await stage.close()


async def test_a_lock_that_is_lost_when_the_segments_fall_apart_ends_the_story() -> None:
    stage = Stage()
    await stage.append("one")
    await stage.append("two")
    stage.wire(0).all_taken(0)
    stage.wire(1).all_taken(0)
    stage.wire(2).all_taken(1)
    stage.lock.lost = True
    stage.wire(2).fail(0, FENCED)
    assert stage.unknown == ["one"]
    assert stage.troubles == []  # the writer is over: a failure of its lanes says nothing any more
    await stage.close()


async def test_so_does_one_that_is_lost_when_a_lane_fails_by_itself() -> None:
    stage = Stage()
    await stage.append("one")
    await stage.append("two", LARGE)
    stage.wire(0).all_taken(0)
    stage.wire(1).all_taken(0)
    stage.wire(2).all_taken(1)
    stage.lock.lost = True
    stage.wire(0).fail(0, FENCED)
    assert stage.unknown == ["one"]
    assert stage.troubles == []
    await stage.close()


async def test_a_bug_met_over_an_answer_ends_the_writer_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    await stage.append("one")

    def break_off(_: object) -> list[Batch]:
        raise RuntimeError("a bug")

    stage.core.on_all_answered = break_off  # type: ignore[method-assign,assignment]
    for number in range(3):
        stage.wire(number).all_taken()
    assert stage.acknowledged == []
    (end,) = stage.ends
    assert isinstance(end, errors.Internal)
    assert "RuntimeError: a bug" in end.detail
    assert "lane_broken" in caplog.text
    await stage.close()


async def test_two_replicas_behind_one_address_are_told_each_by_itself() -> None:
    stage = Stage(addresses="aba")
    await stage.append("one")
    a, b = stage.wires.values()
    assert [len(request.segments) for request, _ in a.begun] == [2]
    b.all_taken()
    _, on_done = a.begun.pop()
    results = [
        pb.SegmentResult(end=BLOCK_BYTES),
        pb.SegmentResult(error=errors.to_message(Gap(extent_id=7, offset=0, length=0)), length=0),
    ]
    on_done(Reply(pb.AppendBlockReply(results=results)), None)
    assert stage.acked_ends() == [BLOCK_BYTES, BLOCK_BYTES, 0]
    await stage.turn()
    ((again, _),) = a.begun
    assert [each.replica.node_id for each in again.segments] == [3]
    a.all_taken()
    assert stage.acknowledged == ["one"]
    await stage.close()


async def test_a_segment_that_all_have_leaves_nothing_to_the_garbage_collector() -> None:
    stage = Stage()
    for how in ("all taken", "fails"):
        await stage.append("one")
        gc.collect()
        gc.disable()
        try:
            for number in range(2):
                stage.wire(number).all_taken()
            if how == "fails":
                stage.wire(2).fail()
                await stage.healed()
            stage.wire(2).all_taken()
            await stage.turn()
            assert not [each for each in gc.get_objects() if isinstance(each, (SharedSegment, AppendFrame))]
        finally:
            gc.enable()
    await stage.close()


# --- what an idle writer tells -------------------------------------------------------------------------------------


async def test_a_writer_whose_caller_goes_on_when_it_hears_needs_no_timer() -> None:
    stage = Stage()
    loop = asyncio.get_running_loop()
    for number in range(3):
        await stage.append(number)
        for wire in stage.wires.values():
            wire.all_taken()
        loop.call_soon(lambda: stage.core.push(b"x", "next"))  # as a caller who is woken does
        await stage.turn()
        assert stage.senders.when_idle._buckets == {}
        stage.tail.wake()
        await stage.turn()
        for wire in stage.wires.values():
            wire.all_taken()
    assert len(stage.acknowledged) == 6
    await stage.turn()
    assert len(stage.senders.when_idle._buckets) == 1  # for the last one nobody goes on
    await stage.close()
    assert stage.senders.when_idle._buckets == {}


async def test_a_writer_that_is_idle_tells_every_replica_how_far_readers_may_go() -> None:
    stage = Stage(options=dataclasses.replace(OPTIONS, committed_idle_s=1e-3))
    await stage.append("one")
    for wire in stage.wires.values():
        wire.all_taken()
    await stage.healed(timeout_s=5.0)
    for wire in stage.wires.values():
        ((request, _),) = wire.begun
        assert [(each.committed, list(each.block_sizes)) for each in request.segments] == [(BLOCK_BYTES, [])]
        wire.all_taken()
    await asyncio.sleep(5e-3)
    assert not any(wire.begun for wire in stage.wires.values())
    await stage.close()


async def test_a_client_that_is_closed_asks_for_no_timer_any_more() -> None:
    stage = Stage()
    await stage.append("one")
    for wire in stage.wires.values():
        wire.all_taken()
    await stage.close()
    await stage.turn()
    assert stage.senders.when_idle._buckets == {}


# --- beside lanes that are never in step ---------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([b"x", b"x", b"x", LARGE])),
        st.tuples(st.just("append"), st.sampled_from([b"x", b"x", b"x", LARGE])),
        st.tuples(
            st.just("answer"),
            st.integers(0, 2),
            st.integers(0, 3),
            st.sampled_from(["all taken"] * 6 + ["results"] * 2 + ["lost", "gap", "short"]),
        ),
    ),
    min_size=10,
    max_size=60,
)


async def play(core_class: type[WriterCore], steps: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """What was sent and acknowledged, what was known when something failed, and how it ended."""
    stage = Stage(core_class)
    known: list[object] = []
    appends = 0
    answered = [0, 0, 0]  # for so much
    for action, *how in steps:
        if stage.troubles:
            break
        if action == "append":
            await stage.append(appends, how[0])
            appends += 1
            continue
        number, frame, fate = how
        wire = stage.wire(number)
        if not wire.begun:
            continue
        frame %= len(wire.begun)
        last = wire.begun[frame][0].segments[-1]
        if fate in ("all taken", "results"):
            answered[number] = max(answered[number], last.offset + sum(last.block_sizes))
        if fate == "all taken":
            wire.all_taken(frame)
        elif fate == "results":
            wire.results(frame)
        else:
            length = answered[number] if fate == "gap" else 0
            if fate == "lost":
                wire.fail(frame)
            else:
                wire.results(frame, Gap(extent_id=7, offset=1, length=length), length)
            known.append((stage.acked_ends(), [stage.core.failures(each) for each in range(3)], list(stage.troubles)))
            await asyncio.sleep(1e-4)  # longer than its pause
        await stage.turn()
    while not stage.troubles and any(wire.begun for wire in stage.wires.values()):
        for wire in stage.wires.values():
            while wire.begun:
                wire.all_taken()
        await stage.turn()
        await asyncio.sleep(1e-4)
    known.append((stage.core.committed, stage.acknowledged))
    sent = [wire.places for wire in stage.wires.values()]
    await stage.close()
    return sent, known, stage.troubles, stage.tail.resends


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_lanes_in_step_come_to_what_lanes_by_themselves_come_to(steps: list[tuple[Any, ...]]) -> None:
    assert asyncio.run(play(WriterCore, steps)) == asyncio.run(play(Apart, steps))
