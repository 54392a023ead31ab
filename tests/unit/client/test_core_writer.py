"""The writer's decisions: what is placed where, what is acknowledged, what a seal settles. No I/O.

The Hypothesis test plays a writer against replicas that follow rule 4, over connections that lose, delay and repeat,
with seals at every length that rule 18 allows, and then looks at what the stream holds.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.client.core_batch import Batch, Run
from neve.client.core_writer import Settlement, Tail, Taken, Verdict, WriterCore
from neve.proto import blocks
from neve.proto.crc import Buffer
from neve.proto.errors import (
    AcknowledgedLost,
    Conflict,
    ConnectionLost,
    DeadlineExceeded,
    DiskFull,
    ExtentFenced,
    Gap,
    Internal,
    LockedByOther,
    NeveError,
    Overloaded,
)

TAIL = Tail(extent_id=1, limit_bytes=10_000, node_ids=(1, 2, 3))


def make_core(tail: Tail = TAIL, *, length: int = 0, run_bytes_max: int = 100, attempts_max: int = 3) -> WriterCore:
    core = WriterCore(run_bytes_max=run_bytes_max, payload_bytes_max=50, attempts_max=attempts_max)
    core.open(tail, length)
    return core


def waiters_of(batches: list[Batch]) -> list[object]:
    found: list[object] = []
    for batch in batches:
        found += batch.waiters or []
    return found


def take(core: WriterCore, replica: int, bytes_max: int = 1000) -> Taken:
    taken = core.take(replica, bytes_max)
    assert taken is not None
    return taken


def take_all(core: WriterCore) -> list[Taken]:
    return [take(core, replica) for replica in range(3)]


def test_a_block_is_acknowledged_when_the_last_replica_has_answered() -> None:
    core = make_core()
    core.push(b"one", "w1")
    first, second, third = take_all(core)
    assert (first.offset, first.end) == (0, 11)
    assert core.on_answer(0, first) == []
    assert core.on_answer(2, third) == []
    assert waiters_of(core.on_answer(1, second)) == ["w1"]
    assert core.committed == 11
    core.validate()


def test_answers_that_overtake_each_other_count_by_the_highest_end() -> None:
    core = make_core()
    core.push(b"one", "w1")
    early = take_all(core)
    core.push(b"two", "w2")
    late = take_all(core)
    assert core.on_answer(0, late[0]) == []
    assert core.on_answer(1, late[1]) == []
    assert waiters_of(core.on_answer(2, late[2])) == ["w1", "w2"]
    assert [core.on_answer(replica, taken) for replica, taken in enumerate(early)] == [[], [], []]
    core.validate()


def test_a_gap_sends_again_from_the_length_that_the_replica_has() -> None:
    core = make_core()
    for number in range(3):
        core.push(b"%d" % number, number)
        take(core, 0)
    lost = Taken(2, 0, 18, 27, [], False)
    assert core.on_failure(0, lost, Gap(extent_id=1, offset=18, length=9), length=9) is Verdict.RESEND
    again = take(core, 0)
    assert (again.offset, again.end) == (9, 27)


def test_a_replica_that_has_less_than_it_answered_for_is_replaced() -> None:
    core = make_core()
    core.push(b"one", "w1")
    core.on_answer(0, take(core, 0))
    core.push(b"two", "w2")
    taken = take(core, 0)
    assert core.on_failure(0, taken, Gap(extent_id=1, offset=11, length=0), length=0) is Verdict.REPLACE


def test_failures_of_frames_that_are_sent_again_already_count_once() -> None:
    core = make_core(attempts_max=3)
    frames = []
    for number in range(5):
        core.push(b"%d" % number, number)
        frames.append(take(core, 0))
    lost = ConnectionLost(address="a")
    assert [core.on_failure(0, frame, lost) for frame in frames] == [Verdict.RETRY] + [Verdict.NONE] * 4
    again = take(core, 0)
    assert (again.offset, again.end) == (0, 45)


def test_an_earlier_frame_that_fails_later_is_sent_again_too() -> None:
    core = make_core()
    core.push(b"one", "w1")
    first = take(core, 0)
    core.push(b"two", "w2")
    second = take(core, 0)
    assert core.on_failure(0, second, Overloaded(what="x")) is Verdict.RETRY
    assert core.on_failure(0, first, Overloaded(what="x")) is Verdict.RETRY
    assert take(core, 0).offset == 0


def test_a_replica_is_given_up_after_some_attempts_and_progress_counts_anew() -> None:
    core = make_core(attempts_max=2)
    core.push(b"one", "w1")
    timeout = DeadlineExceeded(method="m", timeout_ms=1)
    assert core.on_failure(0, take(core, 0), timeout) is Verdict.RETRY
    core.on_answer(0, take(core, 0))
    core.push(b"two", "w2")
    assert core.on_failure(0, take(core, 0), timeout) is Verdict.RETRY
    assert core.on_failure(0, take(core, 0), timeout) is Verdict.REPLACE


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Conflict(extent_id=1, offset=3), Verdict.STOP),
        (LockedByOther(extent_id=1, token=1, token_seen=2), Verdict.STOP),
        (ExtentFenced(extent_id=1), Verdict.SEALED),
        (DiskFull(extent_id=1), Verdict.REPLACE),
    ],
)
def test_what_a_refusal_means(error: NeveError, verdict: Verdict) -> None:
    core = make_core()
    core.push(b"one", "w1")
    assert core.on_failure(0, take(core, 0), error) is verdict


def test_nothing_is_acknowledged_between_the_request_to_seal_and_its_reply() -> None:
    core = make_core()
    core.push(b"one", "w1")
    taken = take_all(core)
    core.on_answer(0, taken[0])
    core.on_answer(1, taken[1])
    assert core.begin_seal() == 0
    assert core.on_answer(2, taken[2]) == []
    assert core.take(0, 1000) is None
    settled = core.settle(sealed_length=11, all_took_part=True)
    assert waiters_of(settled.acknowledged) == ["w1"]


def test_blocks_below_a_seal_in_which_not_all_took_part_wait_for_every_confirmation() -> None:
    core = make_core()
    core.push(b"one", "w1")
    take_all(core)
    core.begin_seal()
    settled = core.settle(sealed_length=11, all_took_part=False)
    assert settled.acknowledged == []
    assert core.held_bytes == 0
    assert waiters_of(core.on_confirmed(1)) == ["w1"]
    assert core.on_confirmed(1) == []


def test_what_a_seal_leaves_out_goes_first_into_the_successor() -> None:
    core = make_core()
    core.push(b"one", "w1")
    core.push(b"two", "w2")
    take_all(core)
    core.push(b"three", "w3")
    core.begin_seal()
    settled = core.settle(sealed_length=11, all_took_part=True)  # inside of a batch of two blocks
    assert waiters_of(settled.acknowledged) == ["w1"]
    assert settled.resent_bytes == 11
    core.open(Tail(2, 10_000, (4, 5, 6)), 0)
    taken = take_all(core)
    assert b"".join(map(bytes, [b for batch in taken[0].batches for b in batch.buffers])) == b"".join(
        map(blocks.encode_block, (b"two", b"three"))
    )
    acknowledged: list[Batch] = []
    for replica, each in enumerate(taken):
        acknowledged += core.on_answer(replica, each)
    assert waiters_of(acknowledged) == ["w2", "w3"]
    core.validate()


@pytest.mark.parametrize(
    ("sealed_length", "error"), [(5, AcknowledgedLost), (10, AcknowledgedLost), (12, Internal), (40, Internal)]
)
def test_a_seal_that_contradicts_what_we_know_is_an_error(sealed_length: int, error: type[NeveError]) -> None:
    core = make_core()
    core.push(b"one", "w1")
    for replica, taken in enumerate(take_all(core)):
        core.on_answer(replica, taken)
    core.push(b"two", "w2")
    take_all(core)
    core.begin_seal()
    with pytest.raises(error):
        core.settle(sealed_length=sealed_length, all_took_part=True)


def test_a_full_extent_takes_no_more_and_says_so() -> None:
    core = make_core(Tail(1, 30, (1, 2, 3)))
    for number in range(3):
        core.push(b"four", number)
    taken = take(core, 0)
    assert taken.end == 24
    assert core.full
    assert not core.has_more(0)
    assert core.has_more(1)
    core.validate()


def test_a_record_larger_than_a_block_is_acknowledged_with_its_last_block() -> None:
    core = make_core()
    core.push_record(b"x" * 120, "big")
    first = take_all(core)
    acknowledged: list[Batch] = []
    for replica, taken in enumerate(first):
        acknowledged += core.on_answer(replica, taken)
    ticket = acknowledged[0].ticket
    assert ticket is not None
    assert all(batch.ticket is ticket for batch in acknowledged)
    done = [ticket.note(batch.placed(1)) for batch in acknowledged]
    rest: list[Batch] = []
    for replica, more in enumerate([core.take(replica, 1000) for replica in range(3)]):
        rest += core.on_answer(replica, more) if more is not None else []
    done += [ticket.note(batch.placed(1)) for batch in rest]
    assert done == [False] * (len(done) - 1) + [True]
    assert len(done) == 3


def test_whoever_waits_is_told_once_when_the_writer_is_over() -> None:
    core = make_core()
    core.push_record(b"x" * 120, "big")
    core.push(b"one", "w1")
    core.push_many([b"a", b"b"], 18, "many")
    core.take(0, 50)
    assert core.abandon() == ["big", "w1", "many"]
    assert core.abandon() == []
    assert core.held_bytes == 0


def copy_of(core: WriterCore) -> WriterCore:
    """Of its own, but for the bytes."""
    kept: list[Buffer] = []
    for item in (*core._queue, *core._placed, *(batch for each in core._confirming.values() for batch in each)):
        kept += item.payloads if isinstance(item, Run) else item.buffers
    return copy.deepcopy(core, {id(buffer): buffer for buffer in kept})


def content(taken: Taken) -> tuple[object, ...]:
    sizes = [batch.block_sizes for batch in taken.batches]
    waiters = [batch.waiters or (batch.ticket and batch.ticket.waiter) for batch in taken.batches]
    return (*taken[:4], taken.more, sizes, [bytes(each) for batch in taken.batches for each in batch.buffers], waiters)


def test_replicas_that_are_not_in_step_are_asked_one_by_one() -> None:
    core = make_core()
    assert core.take_for_all() is None  # there is nothing
    core.push(b"one", "w1")
    take(core, 0)
    assert core.take_for_all() is None  # one of them has it
    take(core, 1), take(core, 2)
    core.push(b"two", "w2")
    second = core.take_for_all()
    assert second is not None
    core.on_failure(1, second, Overloaded(what="x"))
    core.push(b"three", "w3")
    assert core.take_for_all() is None  # one has to be sent again what the others have
    assert take(core, 1).offset == 11


def test_what_is_too_large_or_too_much_for_one_batch_is_taken_one_by_one() -> None:
    core = make_core(run_bytes_max=100)
    core.push(b"x" * 18, "w1")  # with its header a quarter of a frame, and one byte
    assert core.take_for_all() is None
    take_all(core)
    core.push_many([b"x" * 50] * 3, 3 * 58, "w2")
    assert core.take_for_all() is None
    core.begin_seal()
    assert core.take_for_all() is None


# --- against replicas ----------------------------------------------------------------------------------------


@dataclass
class Replica:
    data: bytearray = field(default_factory=bytearray)
    durable_answer: int = 0

    def append(self, offset: int, body: bytes) -> NeveError | None:
        if offset > len(self.data):
            return Gap(extent_id=0, offset=offset, length=len(self.data))
        overlap = bytes(self.data[offset : offset + len(body)])
        assert overlap == body[: len(overlap)], "a writer of ours never makes a conflict"
        self.data += body[len(overlap) :]
        return None


@dataclass
class World:
    """Each replica has frames on their way to it, in order, and answers on their way back, in any order."""

    core: WriterCore
    extents: list[tuple[int, bytes]] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    sent: list[list[Taken]] = field(default_factory=list)
    answers: list[tuple[int, Taken, NeveError | None, int]] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    unconfirmed: list[int] = field(default_factory=list)
    next_extent: int = 1
    next_record: int = 0

    def open(self, limit_bytes: int) -> None:
        self.core.open(Tail(self.next_extent, limit_bytes, (1, 2, 3)), 0)
        self.replicas = [Replica() for _ in range(3)]
        self.sent = [[] for _ in range(3)]
        self.answers = []
        self.next_extent += 1

    def note(self, batches: list[Batch], *, everywhere: bool) -> None:
        for batch in batches:
            if everywhere:
                for replica in self.replicas:
                    assert len(replica.data) >= batch.end, "acknowledged, but not on every replica"
            if batch.waiters is not None:
                self.acknowledged += batch.waiters
            elif batch.ticket is not None and batch.ticket.note(batch.placed(0)):
                self.acknowledged += batch.ticket.waiter

    def take_for_all(self) -> None:
        """What all replicas are given at once is what each would have been given by itself."""
        twin = copy_of(self.core)
        taken = self.core.take_for_all()
        if taken is None:
            return
        assert taken.end - taken.offset <= self.core.small_bytes_max
        for replica in range(3):
            alone = twin.take(replica, 1, at_least_one=False)  # as small as that, it goes into any frame
            assert alone is not None
            assert content(alone) == content(taken)
            self.sent[replica].append(taken)
        assert [self.core.has_more(replica) for replica in range(3)] == [False] * 3
        assert (twin.end, twin.full) == (self.core.end, self.core.full)

    def deliver(self, replica: int, *, lose: bool, twice: bool) -> None:
        if not self.sent[replica]:
            return
        taken = self.sent[replica].pop(0)
        if lose:
            self.answers.append((replica, taken, ConnectionLost(address="x"), 0))
            return
        body = b"".join(bytes(buffer) for batch in taken.batches for buffer in batch.buffers)
        assert len(body) == taken.end - taken.offset
        error = self.replicas[replica].append(taken.offset, body)
        if twice:
            self.replicas[replica].append(taken.offset, body)
        self.answers.append((replica, taken, error, len(self.replicas[replica].data)))

    def answer(self, index: int, *, lose: bool, limit_bytes: int) -> None:
        if not self.answers:
            return
        replica, taken, error, length = self.answers.pop(index % len(self.answers))
        if lose:
            error = DeadlineExceeded(method="m", timeout_ms=1)
        if error is None:
            self.note(self.core.on_answer(replica, taken), everywhere=True)
        elif self.core.on_failure(replica, taken, error, length=length) in (Verdict.REPLACE, Verdict.SEALED):
            self.roll(length_choice=0, all_took_part=True, limit_bytes=limit_bytes)

    def roll(self, *, length_choice: int, all_took_part: bool, limit_bytes: int) -> None:
        """Fence, choose a length that rule 18 may choose, settle, go on."""
        end_acknowledged = self.core.begin_seal()
        lengths = sorted(len(replica.data) for replica in self.replicas)
        assert lengths[0] >= end_acknowledged, "a seal would lose what was acknowledged"
        # All took part: the minimum. Not all: any of the lengths that the others have.
        length = lengths[0] if all_took_part else lengths[length_choice % 3]
        longest = max(self.replicas, key=lambda replica: len(replica.data))
        settled: Settlement = self.core.settle(sealed_length=length, all_took_part=all_took_part)
        self.extents.append((settled.extent_id, bytes(longest.data[:length])))
        for replica in self.replicas:
            replica.data = longest.data[:length]  # cut, or filled from a confirmed one
        self.note(settled.acknowledged, everywhere=True)
        if settled.confirm:
            self.unconfirmed.append(settled.extent_id)
        self.open(limit_bytes)

    def records(self) -> list[bytes]:
        """What a reader of the sealed extents finds."""
        parts = []
        for _, data in self.extents:
            assert blocks.verify(data) is None
            parts += [(ref.type, data[ref.offset + blocks.HEADER_BYTES : ref.end]) for ref in blocks.walk(data)]
        return [bytes(record) for record in blocks.join_records(parts)]


ACTIONS = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 60)),
    st.tuples(st.just("many"), st.lists(st.integers(0, 40), min_size=1, max_size=6)),
    st.tuples(st.just("record"), st.integers(61, 180)),
    st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 200)),
    st.tuples(st.just("take for all")),
    st.tuples(st.just("deliver"), st.integers(0, 2), st.sampled_from(["ok", "ok", "ok", "lose", "twice"])),
    st.tuples(st.just("answer"), st.integers(0, 50), st.sampled_from([False, False, False, True])),
    st.tuples(st.just("roll"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("confirm")),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(ACTIONS, max_size=120), st.integers(200, 900))
def test_every_record_is_in_the_stream_once_in_order_and_the_acknowledged_ones_are_everywhere(
    actions: list[tuple[Any, ...]], limit_bytes: int
) -> None:
    world = World(WriterCore(run_bytes_max=100, payload_bytes_max=60, attempts_max=3))
    world.open(limit_bytes)
    core = world.core
    written: list[bytes] = []

    def payload(size: int) -> bytes:
        made = b"%06d" % world.next_record
        made += b"." * max(0, size - len(made))
        world.next_record += 1
        written.append(made)
        return made

    for action, *how in actions:
        first = world.next_record
        if action == "push":
            core.push(payload(how[0]), first)
        elif action == "many":
            made: list[Buffer] = [payload(size) for size in how[0]]
            core.push_many(made, sum(map(len, made)) + 8 * len(made), list(range(first, first + len(made))))
        elif action == "record":
            core.push_record(payload(how[0]), [first])
        elif action == "take":
            taken = core.take(how[0], how[1])
            if taken is not None:
                world.sent[how[0]].append(taken)
        elif action == "take for all":
            world.take_for_all()
        elif action == "deliver":
            world.deliver(how[0], lose=how[1] == "lose", twice=how[1] == "twice")
        elif action == "answer":
            world.answer(how[0], lose=bool(how[1]), limit_bytes=limit_bytes)
        elif action == "roll":
            world.roll(length_choice=how[0], all_took_part=bool(how[1]), limit_bytes=limit_bytes)
        else:
            for extent_id in world.unconfirmed:
                world.note(core.on_confirmed(extent_id), everywhere=False)
            world.unconfirmed.clear()
        core.validate()

    # Everything heals: all is sent and answered, and the last extent is sealed, too.
    for _ in range(2000):
        if core.is_drained and not core.held_bytes:
            break
        for replica in range(3):
            taken = core.take(replica, 10_000)
            if taken is not None:
                world.sent[replica].append(taken)
            world.deliver(replica, lose=False, twice=False)
        while world.answers:
            world.answer(0, lose=False, limit_bytes=limit_bytes)
        if core.full and core.is_drained:
            world.roll(length_choice=0, all_took_part=True, limit_bytes=limit_bytes)
        core.validate()
    world.roll(length_choice=0, all_took_part=True, limit_bytes=limit_bytes)
    for extent_id in world.unconfirmed:
        world.note(core.on_confirmed(extent_id), everywhere=False)
    assert world.records() == written
    assert sorted(world.acknowledged) == list(range(world.next_record))
    assert core.abandon() == []
