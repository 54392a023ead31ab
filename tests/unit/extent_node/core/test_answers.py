"""What a replica may say of itself: read bounds and lengths, for every state."""

from __future__ import annotations

import itertools

import pytest

from neve.extent_node import core
from neve.extent_node.core import Quarantined, Readable, ReadOnly, Refuse, ReplicaState, Tombstone
from neve.extent_node.disk.attributes import Attributes, Doubt, Seal
from neve.proto import common_pb2, errors
from neve.proto import extent_node_pb2 as pb
from tests.unit.extent_node.core.states import (
    ANY,
    DIGEST,
    LENGTH,
    META,
    RIGHT,
    TOKEN,
    WRONG,
    replica,
    sealed_replica,
    told_by,
)

Kind = pb.LengthAnswer.Kind


def read(existing: core.Existing, offset: int, wanted: common_pb2.Replica = ANY) -> Readable | type:
    decision = core.decide_read(existing, wanted=wanted, extent_id=42, offset=offset)
    return told_by(decision) if isinstance(decision, Refuse) else decision


# --- reads -------------------------------------------------------------------------------------------------------


def test_every_read_is_bounded_by_committed_or_the_seal() -> None:
    for sealed, fenced, doubt, damaged_at, committed, offset in itertools.product(
        (False, True), (False, True), (None, *Doubt), (None, 0, 40, 60), (0, 50, LENGTH), range(LENGTH + 2)
    ):
        if sealed and doubt:
            continue
        state = sealed_replica() if sealed else replica(doubt=doubt)
        state.fenced, state.damaged_at, state.committed = fenced, damaged_at, committed
        answer = read(state, offset)
        bound = LENGTH if sealed else committed
        if doubt is not None:
            assert answer is errors.ReplicaDoubtful
        elif offset > bound:
            assert answer is errors.OutOfRange
        elif damaged_at is not None and damaged_at <= offset < bound:
            assert answer is errors.ReplicaDamaged
        else:
            assert isinstance(answer, Readable)
            assert (answer.readable, answer.sealed) == (bound, sealed)
            assert answer.serve_end == (max(offset, min(bound, LENGTH if damaged_at is None else damaged_at)))
            assert answer.serve_end <= bound


def test_an_open_replica_shows_nothing_after_a_restart_until_it_is_told() -> None:
    """T9: bytes that are here and not known to be everywhere may be sealed away."""
    restored = ReplicaState.restore(replica(unsynced=True).attributes(), file_bytes=LENGTH)
    assert read(restored, 0) == Readable(serve_end=0, readable=0, sealed=False)
    assert read(restored, 1) is errors.OutOfRange


def test_who_is_not_here_is_not_read() -> None:
    assert read(None, 0) is errors.ReplicaMissing
    assert read(Quarantined(42), 0) is errors.ReplicaDamaged
    assert read(Tombstone(42, 5), 0) is errors.ReplicaDeleted
    for wanted in WRONG.values():
        assert read(sealed_replica(), 0, wanted) is errors.WrongReplica
    assert isinstance(read(sealed_replica(), 0, RIGHT), Readable)


@pytest.mark.parametrize(
    ("offset", "size_bytes", "damaged_at", "error"),
    [
        (0, LENGTH, None, None),
        (LENGTH, 0, None, None),
        (1, LENGTH, None, errors.OutOfRange),
        (0, 40, 40, None),
        (0, 41, 40, errors.ReplicaDamaged),
        (50, 10, 40, errors.ReplicaDamaged),
    ],
)
def test_copies_take_ranges_of_confirmed_bytes_only(
    offset: int, size_bytes: int, damaged_at: int | None, error: type | None
) -> None:
    def ask(state: core.Existing) -> object:
        return core.decide_read_range(state, wanted=ANY, extent_id=42, offset=offset, size_bytes=size_bytes)

    decision = ask(sealed_replica(damaged_at=damaged_at))
    if error is None:
        assert decision == common_pb2.Seal(length=LENGTH, eversion=6, digest=DIGEST)
    else:
        assert isinstance(decision, Refuse)
        assert told_by(decision) is error
        facts = decision.error.facts()
        assert facts["offset"] == (40 if error is errors.ReplicaDamaged else offset + size_bytes)
    for absent, expected in ((None, errors.ReplicaMissing), (replica(), errors.ReplicaMissing)):
        refusal = ask(absent)
        assert isinstance(refusal, Refuse)
        assert told_by(refusal) is expected


# --- lengths -----------------------------------------------------------------------------------------------------


def test_an_error_is_not_length_zero() -> None:
    """T1: what is missing, deleted, damaged or doubtful never answers LENGTH."""
    assert core.length_answer(None) == pb.LengthAnswer(kind=Kind.NEVER_EXISTED)
    assert core.length_answer(Tombstone(42, 5)) == pb.LengthAnswer(kind=Kind.DELETED)
    for doubt in Doubt:
        assert core.length_answer(replica(doubt=doubt)).kind == Kind.DOUBTFUL
    assert core.length_answer(replica(damaged_at=0)).kind == Kind.DAMAGED


def test_every_length_answer_of_a_replica() -> None:
    for sealed, fenced, doubt, damaged_at, committed, durable_end in itertools.product(
        (False, True), (False, True), (None, *Doubt), (None, 40), (0, 50), (0, 99, LENGTH)
    ):
        if sealed and (doubt or durable_end < LENGTH):
            continue
        state = sealed_replica() if sealed else replica(doubt=doubt, durable_end=durable_end)
        state.fenced, state.damaged_at, state.committed = fenced, damaged_at, committed
        if doubt is None and damaged_at is None and durable_end < LENGTH:
            with pytest.raises(errors.Internal):  # rule 14: a length from the page cache is no length
                core.length_answer(state)
            continue
        answer = core.length_answer(state)
        kind = Kind.DOUBTFUL if doubt else Kind.LENGTH if damaged_at is None else Kind.DAMAGED
        seal = common_pb2.Seal(length=LENGTH, eversion=6, digest=DIGEST) if sealed else None
        assert answer == pb.LengthAnswer(
            kind=kind,
            length=LENGTH if kind == Kind.LENGTH else 0,
            valid_length=0 if kind == Kind.LENGTH else LENGTH if damaged_at is None else damaged_at,
            committed=committed,
            token=10,
            fenced=fenced,
            seal=seal,
            replica=RIGHT,
        )
        assert answer.HasField("seal") == sealed


def test_a_replica_sealed_at_zero_is_told_from_one_that_is_not_sealed() -> None:
    """T6."""
    answer = core.length_answer(sealed_replica(length=0))
    assert (answer.kind, answer.length, answer.HasField("seal")) == (Kind.LENGTH, 0, True)
    empty = replica(length=0, durable_end=0, journaled_end=0)
    assert not core.length_answer(empty).HasField("seal")


def test_a_description_tells_what_is_here_now() -> None:
    info = core.replica_info(replica(durable_end=0, committed=30, read_only=ReadOnly.DISK_FULL))
    assert info == pb.ReplicaInfo(
        extent_id=42,
        replica=RIGHT,
        eversion=5,
        kind=Kind.LENGTH,
        length=LENGTH,
        committed=30,
        token=10,
        read_only=True,
        created_ms=META.created_ms,
        stream_id=7,
    )
    assert core.replica_info(sealed_replica()).seal.digest == DIGEST
    assert core.replica_info(sealed_replica()).eversion == 6
    assert core.replica_info(replica(fenced=True)).fenced
    assert core.length_answer(replica(conflict=True)).conflict


# --- what is restored --------------------------------------------------------------------------------------------


def test_durable_state_comes_back_and_nothing_else_is_believed() -> None:
    state = replica(fenced=True, unsynced=True, doubt=Doubt.DAMAGE, committed=50, read_only=ReadOnly.DISK_FULL)
    restored = ReplicaState.restore(state.attributes(), file_bytes=LENGTH)
    restored.validate()
    assert state.attributes() == Attributes(
        meta=META, token=TOKEN, fenced=True, seal=None, unsynced=True, doubt=Doubt.DAMAGE
    )
    assert restored.attributes() == state.attributes()
    sealed = sealed_replica()
    assert ReplicaState.restore(sealed.attributes(), file_bytes=LENGTH).seal == sealed.seal is not None
    assert (restored.length, restored.committed, restored.durable_end, restored.journaled_end) == (LENGTH, 0, 0, 0)
    assert restored.read_only is None


@pytest.mark.parametrize("file_bytes", [0, LENGTH - 1, LENGTH, LENGTH + 1])
def test_a_sealed_file_is_what_its_seal_says_or_damaged(file_bytes: int) -> None:
    """T26: bytes beyond a seal are none of the extent's. A seal also voids marks that a crash left beside it."""
    attributes = sealed_replica().attributes()
    marked = type(attributes)(
        meta=attributes.meta, token=10, fenced=True, seal=attributes.seal, unsynced=True, doubt=Doubt.POWER_CUT
    )
    state = ReplicaState.restore(marked, file_bytes=file_bytes)
    state.validate()
    assert (state.unsynced, state.doubt) == (False, None)
    assert state.length == min(file_bytes, LENGTH)
    assert state.damaged_at == (file_bytes if file_bytes < LENGTH else None)
    assert core.answer_kind(state) == (Kind.DAMAGED if file_bytes < LENGTH else Kind.LENGTH)


def test_a_sync_that_began_before_a_cut_proves_no_more_than_there_is() -> None:
    state = replica(durable_end=50, journaled_end=60)
    state.note_durable(500)
    state.validate()
    assert (state.durable_end, state.journaled_end) == (LENGTH, LENGTH)


def test_journaled_bytes_are_below_the_length_and_never_fewer() -> None:
    state = replica(durable_end=50, journaled_end=60)
    for end, expected in ((70, 70), (65, 70), (500, LENGTH)):
        state.note_journaled(end)
        state.validate()
        assert (state.durable_end, state.journaled_end) == (50, expected)


def test_open_means_neither_fenced_nor_sealed() -> None:
    assert replica().is_open
    assert replica(doubt=Doubt.DAMAGE).is_open
    assert not replica(fenced=True).is_open
    assert not sealed_replica(fenced=False).is_open
    assert not sealed_replica().is_open


@pytest.mark.parametrize(("damaged_at", "valid_length"), [(79, 79), (80, 80), (81, 80)])
def test_damage_at_or_above_a_cut_is_gone(damaged_at: int, valid_length: int) -> None:
    state = replica(damaged_at=damaged_at)
    state.note_cut(80)
    state.validate()
    assert state.valid_length == valid_length
    assert core.answer_kind(state) == (Kind.DAMAGED if damaged_at < 80 else Kind.LENGTH)


def test_a_cut_takes_with_it_what_was_known_above() -> None:
    state = replica(committed=70, damaged_at=90)
    state.note_damaged(95)
    assert state.valid_length == 90  # the first damage counts
    state.note_cut(80)
    state.validate()
    assert (state.length, state.durable_end, state.committed, state.valid_length) == (80, 80, 70, 80)
    assert core.answer_kind(state) == Kind.LENGTH


@pytest.mark.parametrize("first", [ReadOnly.SYNC_FAILED, ReadOnly.DISK_FAILED])
@pytest.mark.parametrize("later", [None, *ReadOnly])
def test_a_full_disk_may_become_writable_again_a_failed_sync_is_for_ever(
    first: ReadOnly, later: ReadOnly | None
) -> None:
    state = replica(read_only=ReadOnly.DISK_FULL)
    state.note_read_only(None)
    assert state == replica()
    state.note_read_only(first)
    state.note_read_only(later)
    assert state == replica(read_only=first)


def test_the_first_reason_to_doubt_stays() -> None:
    state = replica()
    state.note_doubt(Doubt.POWER_CUT)
    state.note_doubt(Doubt.DAMAGE)
    assert state == replica(doubt=Doubt.POWER_CUT)


@pytest.mark.parametrize(
    "wrong",
    [
        {"committed": 101},
        {"durable_end": 101},
        {"durable_end": 70, "journaled_end": 60},
        {"journaled_end": 101},
        {"length": 1001},
        {"damaged_at": 101},
        {"token": -1},
        {"seal": Seal(LENGTH, 6, DIGEST), "unsynced": True},
        {"seal": Seal(LENGTH, 6, DIGEST), "doubt": Doubt.DAMAGE},
        {"seal": Seal(LENGTH, 6, DIGEST), "durable_end": 10},
        {"seal": Seal(LENGTH - 1, 6, DIGEST)},
    ],
)
def test_validate_sees_a_state_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        replica(**wrong)
