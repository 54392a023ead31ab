"""Append decisions: all combinations of state and request against an oracle, and a model whose bytes never change.

The oracle works on words ("the offset is above"), the code on numbers: agreeing on all combinations, they say the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neve.extent_node import core
from neve.extent_node.core import Append, CompareOverlap, PersistToken, ReadOnly, Refuse
from neve.extent_node.disk.attributes import Doubt, Seal
from neve.proto import blocks, errors
from neve.proto import extent_node_pb2 as pb
from tests.unit.extent_node.core.states import (
    ANY,
    DIGEST,
    LENGTH,
    META,
    RIGHT,
    TOKEN,
    WRONG,
    body_of,
    replica,
    sealed_replica,
    told_by,
)

SIZE = 40


class Case(NamedTuple):
    sealed: bool
    fenced: bool
    doubtful: bool
    damaged: bool
    read_only: ReadOnly | None
    token: str  # lower, equal, higher
    eversion: str  # lower, equal, higher
    identity: str  # right, any, node, disk, incarnation
    place: str  # inside, across, at, above; or empty: no blocks at all
    sizes: str  # right, wrong
    room: bool


def all_cases() -> Iterator[Case]:
    flags = itertools.product((False, True), repeat=4)
    for sealed, fenced, doubtful, damaged in flags:
        yield from (
            Case(sealed, fenced, doubtful, damaged, *rest)
            for rest in itertools.product(
                (None, ReadOnly.DISK_FULL, ReadOnly.SYNC_FAILED),
                ("lower", "equal", "higher"),
                ("lower", "equal", "higher"),
                ("right", "any", "node", "disk", "incarnation"),
                ("inside", "across", "at", "above", "empty"),
                ("right", "wrong"),
                (True, False),
            )
        )


OFFSETS = {
    "inside": LENGTH - SIZE - 3,
    "across": LENGTH - SIZE + 15,
    "at": LENGTH,
    "above": LENGTH + 1,
    "empty": LENGTH,
}
RELATION = {"lower": -1, "equal": 0, "higher": 1}
REPLICAS = {"right": RIGHT, "any": ANY, **WRONG}
BODY, SIZES = body_of(SIZE)


def oracle(case: Case) -> type:
    """The type of decision or error that rule 4 asks for, by the words of the case."""
    refusals: list[tuple[bool, type]] = [
        (case.identity not in ("right", "any"), errors.WrongReplica),
        (case.sealed, errors.ExtentSealed),
        (case.fenced, errors.ExtentFenced),
        (case.doubtful, errors.ReplicaDoubtful),
        (case.damaged, errors.ReplicaDamaged),
        (case.read_only is not None and case.place != "empty", errors.ReplicaReadOnly),
        (case.token == "lower", errors.LockedByOther),
        (case.eversion != "equal", errors.EversionMismatch),
        (case.sizes == "wrong", errors.InvalidArgument),
        (case.place == "above", errors.Gap),
        (case.place != "empty" and not case.room, errors.ExtentFull),
    ]
    for applies, error in refusals:
        if applies:
            return error
    if case.place == "empty":
        return Append
    if case.token == "higher":
        return PersistToken
    return CompareOverlap if case.place in ("inside", "across") else Append


def set_up(case: Case) -> tuple[core.ReplicaState, pb.Segment, bytes]:
    body, sizes = (b"", []) if case.place == "empty" else (BODY, list(SIZES))
    if case.sizes == "wrong":
        sizes = [10] if case.place == "empty" else [sizes[0] + 1, *sizes[1:]]
    end = OFFSETS[case.place] + len(body)
    state = replica()
    state.meta = replace(META, extent_bytes_max=max(LENGTH, end if case.room else end - 1))
    state.fenced = case.fenced
    state.read_only = case.read_only
    state.doubt = Doubt.POWER_CUT if case.doubtful else None
    state.damaged_at = 50 if case.damaged else None
    state.seal = Seal(LENGTH, 6, DIGEST) if case.sealed else None
    segment = pb.Segment(
        extent_id=META.extent_id,
        replica=REPLICAS[case.identity],
        eversion=META.eversion + RELATION[case.eversion],
        token=TOKEN + RELATION[case.token],
        offset=OFFSETS[case.place],
        block_sizes=sizes,
    )
    return state, segment, body


def test_every_combination_of_state_and_segment_is_decided_as_rule_4_says() -> None:
    outcomes: set[type] = set()
    for case in all_cases():
        if case.place == "inside" and not case.room:
            continue  # bytes that are here have had room
        state, segment, body = set_up(case)
        decision = core.decide_append(state, segment, body)
        found = told_by(decision) if isinstance(decision, Refuse) else type(decision)
        assert found is oracle(case), (case, decision)
        outcomes.add(found)
    assert len(outcomes) == 14  # every kind of outcome occurs


def segment_at(offset: int, size_bytes: int = SIZE, **changes: Any) -> tuple[pb.Segment, bytes]:
    body, sizes = body_of(size_bytes)
    segment = pb.Segment(
        extent_id=42, replica=RIGHT, eversion=5, token=TOKEN, offset=offset, block_sizes=sizes, **changes
    )
    return segment, body


def accepted(state: core.ReplicaState, segment: pb.Segment, body: bytes) -> Append:
    """The Append for a segment whose overlap, if any, is equal."""
    decision = core.decide_append(state, segment, body)
    if isinstance(decision, CompareOverlap):
        decision = core.decide_append(state, segment, body, core.Compared(decision.end, differs_at=None))
    assert isinstance(decision, Append), decision
    return decision


# --- facts in the refusals -------------------------------------------------------------------------------------


def refused(state: core.ReplicaState, segment: pb.Segment, body: bytes) -> errors.NeveError:
    decision = core.decide_append(state, segment, body)
    assert isinstance(decision, Refuse), decision
    return decision.error


def test_refusals_carry_what_the_writer_needs() -> None:
    gap = refused(replica(), *segment_at(101))
    assert isinstance(gap, errors.Gap)
    assert (gap.extent_id, gap.offset, gap.length) == (42, 101, 100)
    locked = refused(replica(token=11), *segment_at(100))
    assert isinstance(locked, errors.LockedByOther)
    assert (locked.token, locked.token_seen) == (10, 11)
    eversion = refused(replica(meta=replace(META, eversion=6)), *segment_at(100))
    assert isinstance(eversion, errors.EversionMismatch)
    assert (eversion.eversion, eversion.eversion_here) == (5, 6)
    full = refused(replica(), *segment_at(100, 901))
    assert isinstance(full, errors.ExtentFull)
    assert (full.length, full.limit_bytes) == (100, 1000)
    assert "sync" in str(refused(replica(read_only=ReadOnly.SYNC_FAILED), *segment_at(100)))
    sealed = refused(sealed_replica(90), *segment_at(90))
    assert isinstance(sealed, errors.ExtentSealed)
    assert (sealed.extent_id, sealed.length) == (42, 90)
    damaged = refused(replica(damaged_at=30), *segment_at(100))
    assert isinstance(damaged, errors.ReplicaDamaged)
    assert (damaged.extent_id, damaged.offset) == (42, 30)
    assert "power_cut" in str(refused(replica(doubt=Doubt.POWER_CUT), *segment_at(100)))
    empty = refused(replica(), segment_at(100)[0], b"")
    assert isinstance(empty, errors.InvalidArgument)
    assert empty.what == "block_sizes"
    assert "but no bytes" in empty.detail


@pytest.mark.parametrize("offset", [80, LENGTH])
def test_blocks_of_another_extent_are_never_taken(offset: int) -> None:
    segment, body = segment_at(offset)
    segment.extent_id = 43
    with pytest.raises(AssertionError):
        core.decide_append(replica(), segment, body)


def test_a_refusal_changes_nothing() -> None:
    for case in itertools.islice(all_cases(), 0, None, 97):
        state, segment, body = set_up(case)
        before = deepcopy(state)
        core.decide_append(state, segment, body)
        assert state == before, case


# --- retries ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "write_offset", "skip_bytes", "write_bytes"),
    [(100, 100, 0, 40), (80, 100, 20, 20), (60, 100, 40, 0), (20, 100, 40, 0)],
)
def test_only_what_is_not_here_is_written_and_always_at_the_length(
    offset: int, write_offset: int, skip_bytes: int, write_bytes: int
) -> None:
    decision = accepted(replica(), *segment_at(offset))
    assert decision[:4] == (write_offset, skip_bytes, write_bytes, offset + SIZE)


def test_the_overlap_is_compared_before_anything_else_happens() -> None:
    segment, body = segment_at(80)
    assert core.decide_append(replica(), segment, body) == CompareOverlap(80, 100)
    assert core.decide_append(replica(), *segment_at(20)) == CompareOverlap(20, 60)
    decision = core.decide_append(replica(), segment, body, core.Compared(100, differs_at=93))
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, errors.Conflict)
    assert (decision.error.extent_id, decision.error.offset) == (42, 93)


def test_a_replica_that_grew_during_the_comparison_is_compared_again() -> None:
    segment, body = segment_at(80)
    state = replica()
    overlap = core.decide_append(state, segment, body)
    assert isinstance(overlap, CompareOverlap)
    state.note_appended(110)
    compared = core.Compared(overlap.end, differs_at=None)
    assert core.decide_append(state, segment, body, compared) == CompareOverlap(80, 110)


def test_a_replica_fenced_during_the_comparison_takes_nothing() -> None:
    segment, body = segment_at(80)
    state = replica(fenced=True)
    decision = core.decide_append(state, segment, body, core.Compared(100, differs_at=None))
    assert isinstance(decision, Refuse)
    assert isinstance(decision.error, errors.ExtentFenced)


def test_compare_finds_the_first_different_byte() -> None:
    segment, body = segment_at(80)
    overlap = CompareOverlap(80, 100)
    assert core.compare(segment, body, body[:20], overlap) == (100, None)
    assert core.compare(segment, memoryview(body), bytearray(body[:20]), overlap) == (100, None)
    for at in range(20):
        other = bytearray(body[:20])
        other[at] ^= 1
        assert core.compare(segment, body, other, overlap) == (100, 80 + at)
        assert core.compare(segment, body, body[:at], overlap) == (100, 80 + at)


def test_a_higher_token_is_persisted_first_then_the_same_segment_is_taken() -> None:
    state = replica()
    segment, body = segment_at(100)
    segment.token = 15
    assert core.decide_append(state, segment, body) == PersistToken(15)
    state.note_token(15)
    assert isinstance(core.decide_append(state, segment, body), Append)


# --- what an answer waits for ------------------------------------------------------------------------------------


@pytest.mark.parametrize("no_sync", [False, True])
@pytest.mark.parametrize("unsynced", [False, True])
@pytest.mark.parametrize("durable_end", [0, 79, 80, 99, 100])
@pytest.mark.parametrize("offset", [40, 60, 80, 100])
def test_durability_before_the_answer(no_sync: bool, unsynced: bool, durable_end: int, offset: int) -> None:
    """Rules 5 and 10, retries included: the bytes of a retry may be in the page cache only."""
    state = replica(durable_end=durable_end, unsynced=unsynced)
    decision = accepted(state, *segment_at(offset, no_sync=no_sync))
    end = offset + SIZE
    is_durable = end <= durable_end
    assert decision.durable_to == (0 if no_sync or is_durable else end)
    assert decision.mark_unsynced == (no_sync and not is_durable and not unsynced)


def test_a_journal_entry_rests_on_durable_or_journaled_bytes_only() -> None:
    state = replica(durable_end=50, journaled_end=80)
    assert [core.may_journal(state, offset) for offset in (0, 50, 80, 81, 100)] == [True, True, True, False, False]
    state.note_journal_lost()
    assert [core.may_journal(state, offset) for offset in (50, 51)] == [True, False]
    state.note_durable(100)
    assert core.may_journal(state, 100)


# --- committed -----------------------------------------------------------------------------------------------------


def test_committed_is_told_alone_also_when_nothing_can_be_written() -> None:
    segment = pb.Segment(extent_id=42, replica=RIGHT, eversion=5, token=TOKEN, committed=70)
    for read_only in (None, *ReadOnly):
        decision = core.decide_append(replica(read_only=read_only), segment, b"")
        assert decision == Append(LENGTH, 0, 0, end=0, committed=70, mark_unsynced=False, durable_to=0)


@pytest.mark.parametrize(("told", "expected"), [([70], 70), ([70, 60], 70), ([101], 100), ([2**63, 0], 100), ([0], 0)])
def test_committed_is_never_above_the_length_and_never_goes_back(told: list[int], expected: int) -> None:
    state = replica()
    for committed in told:
        state.note_committed(committed)
        state.validate()
    assert state.committed == expected


# --- a model whose bytes never change --------------------------------------------------------------------------


class ReplicaModel(RuleBasedStateMachine):
    """Appends, retries, late duplicates, liars and new owners drive one replica in memory.

    Whatever comes in whatever order, bytes once written stay, and every acknowledged segment is there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = replica(length=0, durable_end=0, journaled_end=0, token=1)
        self.content = bytearray()
        self.before = b""
        self.sent: list[tuple[pb.Segment, bytes]] = []

    @rule(
        seed=st.integers(0, 3),
        shift=st.sampled_from([0, 0, 0, -1, 1, -30, 30]),
        size_bytes=st.integers(18, 60),
        token=st.integers(0, 3),
        committed=st.integers(0, 400),
        no_sync=st.booleans(),
    )
    def append(self, seed: int, shift: int, size_bytes: int, token: int, committed: int, no_sync: bool) -> None:
        body, sizes = body_of(size_bytes, seed=seed)
        segment = pb.Segment(
            extent_id=42,
            replica=RIGHT,
            eversion=5,
            token=max(0, self.state.token + token - 1),
            offset=max(0, len(self.content) + shift),
            committed=committed,
            no_sync=no_sync,
            block_sizes=sizes,
        )
        self.sent.append((segment, body))
        self.deliver(segment, body)

    @rule(which=st.integers(0, 1000))
    def duplicate(self, which: int) -> None:
        if self.sent:
            self.deliver(*self.sent[which % len(self.sent)])

    @rule(which=st.integers(0, 1000), cut=st.integers(1, 2))
    def regrouped_retry(self, which: int, cut: int) -> None:
        """The same blocks in other batches: what follows the first block, or only the first."""
        if not self.sent:
            return
        segment, body = self.sent[which % len(self.sent)]
        again = pb.Segment()
        again.CopyFrom(segment)
        again.token = self.state.token
        first = segment.block_sizes[0]
        del again.block_sizes[:]
        again.block_sizes.extend(segment.block_sizes[1:] if cut == 1 else segment.block_sizes[:1])
        again.offset += first if cut == 1 else 0
        self.deliver(again, body[first:] if cut == 1 else body[:first])

    def deliver(self, segment: pb.Segment, body: bytes) -> None:
        """What replica.py does, without a disk."""
        decision = core.decide_append(self.state, segment, body)
        while not isinstance(decision, (Append, Refuse)):
            if isinstance(decision, PersistToken):
                self.state.note_token(decision.token)
                decision = core.decide_append(self.state, segment, body)
            else:
                here = bytes(self.content[decision.start : decision.end])
                compared = core.compare(segment, body, here, decision)
                decision = core.decide_append(self.state, segment, body, compared)
        if isinstance(decision, Refuse):
            return
        assert decision.write_offset == len(self.content)
        self.content += body[decision.skip_bytes : decision.skip_bytes + decision.write_bytes]
        self.state.note_appended(len(self.content))
        self.state.note_committed(decision.committed)
        if decision.mark_unsynced:
            self.state.note_unsynced(True)
        if decision.durable_to:
            self.state.note_durable(len(self.content))
            assert self.state.durable_end >= decision.durable_to
        assert decision.end == segment.offset + len(body)
        assert self.content[segment.offset : decision.end] == body  # acknowledged means here, bit for bit
        assert self.state.unsynced or self.state.durable_end >= decision.end

    @invariant()
    def bytes_never_change(self) -> None:
        assert self.content[: len(self.before)] == self.before
        self.before = bytes(self.content)

    @invariant()
    def the_state_is_true(self) -> None:
        self.state.validate()
        assert self.state.length == len(self.content)
        assert blocks.verify(self.content) is None


ReplicaModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestReplicaModel = ReplicaModel.TestCase
