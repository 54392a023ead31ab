"""Create, raise, fence, seal, delete, start: all combinations that matter, each against an oracle in words."""

from __future__ import annotations

import itertools
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from neve.extent_node import core
from neve.extent_node.core import (
    Confirm,
    Confirmed,
    CutAndVerify,
    CutTail,
    DoubtTail,
    KeepTail,
    MakeReplica,
    MoveToTrash,
    NotConfirmed,
    NothingToDelete,
    Persist,
    Quarantine,
    Quarantined,
    ReadOnly,
    Ready,
    Refuse,
    ReplicaState,
    SameReplica,
    Tombstone,
)
from neve.extent_node.disk.attributes import Doubt, Seal
from neve.proto import common_pb2, errors
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import Problem, ProblemKind
from tests.unit.extent_node.core.states import (
    ANY,
    DIGEST,
    DISK,
    LENGTH,
    META,
    RIGHT,
    TOKEN,
    WRONG,
    replica,
    sealed_replica,
    told_by,
)

EMPTY: dict[str, Any] = {"length": 0, "durable_end": 0, "journaled_end": 0}
BOTH = (False, True)
READ_ONLY = (None, *ReadOnly)
OTHER_DIGEST = bytes(32)


def error_of(decision: object) -> type | None:
    return told_by(decision) if isinstance(decision, Refuse) else None


def refusal(decision: object) -> errors.NeveError:
    assert isinstance(decision, Refuse)
    return decision.error


# --- create ------------------------------------------------------------------------------------------------------


def create_request(**changes: Any) -> pb.CreateExtentRequest:
    fields: dict[str, Any] = {"extent_id": 42, "eversion": 5, "extent_bytes_max": 1000, "replica": ANY}
    return pb.CreateExtentRequest(**(fields | changes))


def test_nothing_here_makes_a_replica_and_a_tombstone_never_does() -> None:
    assert core.decide_create(None, create_request()) == MakeReplica()
    for eversion in (1, 5, 9):
        decision = core.decide_create(Tombstone(42, 5), create_request(eversion=eversion))
        assert error_of(decision) is errors.ReplicaDeleted


def test_every_existing_replica_is_either_the_one_asked_for_or_refused() -> None:
    same = 0
    for length, fenced, sealed, doubt, damaged, read_only, eversion, disk, limit in itertools.product(
        (0, 10), BOTH, BOTH, (None, Doubt.DAMAGE), BOTH, READ_ONLY, (4, 5, 6), ("", DISK, "other"), (1000, 999)
    ):
        if sealed and doubt:
            continue
        state = replica(length=length, durable_end=length, journaled_end=length, fenced=fenced, doubt=doubt)
        state.damaged_at = 0 if damaged else None
        state.read_only = read_only
        state.seal = Seal(length, 6, DIGEST) if sealed else None
        state.validate()
        request = create_request(eversion=eversion, replica=common_pb2.Replica(disk_uuid=disk), extent_bytes_max=limit)
        decision = core.decide_create(state, request)
        fits = (eversion, limit) == (5, 1000) and disk in ("", DISK)
        is_empty_and_open = length == 0 and not (fenced or sealed or doubt or damaged)
        if not fits or not is_empty_and_open:
            assert error_of(decision) is errors.AlreadyExists
        elif read_only is not None:
            assert error_of(decision) is errors.ReplicaReadOnly
        else:
            assert decision == SameReplica(META.incarnation)
            same += 1
    assert same == 2


def test_a_repeated_create_finds_its_replica_also_after_the_token_was_raised() -> None:
    state = replica(length=0, durable_end=0, journaled_end=0, token=99)
    assert core.decide_create(state, create_request()) == SameReplica(META.incarnation)


def test_an_extent_without_room_is_refused() -> None:
    error = refusal(core.decide_create(None, create_request(extent_bytes_max=0)))
    assert isinstance(error, errors.InvalidArgument)
    assert error.what == "extent_bytes_max"
    assert "must be more than 0" in error.detail


def test_what_is_in_quarantine_is_neither_made_anew_nor_deleted() -> None:
    error = refusal(core.decide_create(Quarantined(42), create_request()))
    assert isinstance(error, errors.ReplicaDamaged)
    assert (error.extent_id, error.offset) == (42, 0)
    assert core.decide_delete(Quarantined(42), delete_request(5)) == NothingToDelete(Tombstone(42, 5))


def test_a_replica_of_one_byte_is_not_the_empty_one_that_was_asked_for() -> None:
    state = replica(length=1, durable_end=1, journaled_end=1)
    assert error_of(core.decide_create(state, create_request())) is errors.AlreadyExists


@pytest.mark.parametrize(
    ("state", "changes", "difference"),
    [
        (EMPTY, {"eversion": 6}, "has eversion 5, not 6"),
        (EMPTY, {"extent_bytes_max": 999}, "is for 1000 bytes, not 999"),
        (EMPTY, {"replica": common_pb2.Replica(disk_uuid="other")}, f"is on disk {DISK}"),
        (EMPTY | {"seal": Seal(0, 6, DIGEST)}, {}, "is sealed"),
        (EMPTY | {"fenced": True}, {}, "is fenced"),
        (EMPTY | {"length": 7}, {}, "has 7 bytes"),
        (EMPTY | {"damaged_at": 0}, {}, "is doubtful or damaged"),
    ],
)
def test_a_create_that_finds_another_replica_is_told_how_it_differs(
    state: dict[str, Any], changes: dict[str, Any], difference: str
) -> None:
    error = refusal(core.decide_create(replica(**state), create_request(**changes)))
    assert isinstance(error, errors.AlreadyExists)
    assert (error.kind, error.name) == ("replica of extent", "42")
    assert error.detail == f"the one here {difference}"


def test_a_create_of_what_was_deleted_is_told_by_which_order() -> None:
    error = refusal(core.decide_create(Tombstone(42, 5), create_request()))
    assert isinstance(error, errors.ReplicaDeleted)
    assert (error.extent_id, error.detail) == (42, "by an order of eversion 5")


# --- raise and fence -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fence", BOTH)
def test_every_raise_and_fence(fence: bool) -> None:
    outcomes: set[object] = set()
    for fenced, sealed, doubt, unsynced, read_only, token, eversion, durable_end, identity in itertools.product(
        BOTH,
        BOTH,
        (None, Doubt.POWER_CUT),
        BOTH,
        READ_ONLY,
        (0, TOKEN - 1, TOKEN, TOKEN + 1),
        (4, 5, 6),
        (0, LENGTH),
        (RIGHT, ANY, *WRONG.values()),
    ):
        if sealed:
            state = sealed_replica(fenced=fenced, read_only=read_only)
        else:
            state = replica(fenced=fenced, doubt=doubt, unsynced=unsynced, read_only=read_only, durable_end=durable_end)
        if fence:
            fence_request = pb.FenceRequest(extent_id=42, replica=identity, eversion=eversion, token=token)
            decision = core.decide_fence(state, fence_request)
        else:
            raise_request = pb.RaiseTokenRequest(extent_id=42, replica=identity, eversion=eversion, token=token)
            decision = core.decide_raise(state, raise_request)
        outcomes.add(error_of(decision) or type(decision))

        if token == 0 and not fence:
            assert error_of(decision) is errors.InvalidArgument
        elif identity not in (RIGHT, ANY):
            assert error_of(decision) is errors.WrongReplica
        elif sealed:
            assert decision == Ready()
        elif eversion != 5:
            assert error_of(decision) is errors.EversionMismatch
        elif token == TOKEN - 1:
            assert error_of(decision) is errors.LockedByOther
        elif read_only in (ReadOnly.SYNC_FAILED, ReadOnly.DISK_FAILED):
            assert error_of(decision) is errors.ReplicaReadOnly
        else:
            new_token = token if token == TOKEN + 1 else None
            sets_fence, clears = fence and not fenced, fence and unsynced
            if new_token or sets_fence or clears or durable_end < LENGTH:
                assert decision == Persist(token=new_token, fence=sets_fence, clear_unsynced=clears)
            else:
                assert decision == Ready()
    assert len(outcomes) == (6 if fence else 7)


def carry_out(state: ReplicaState, persist: Persist) -> None:
    """In the order that Persist states."""
    if persist.token is not None:
        state.note_token(persist.token)
    if persist.fence:
        state.note_fenced()
    state.note_durable(state.length)
    if persist.clear_unsynced:
        state.note_unsynced(False)


def test_a_fence_repeated_is_ready_and_appends_stay_refused() -> None:
    state = replica(unsynced=True, durable_end=0)
    request = pb.FenceRequest(extent_id=42, replica=RIGHT, eversion=5, token=12)
    decision = core.decide_fence(state, request)
    assert decision == Persist(token=12, fence=True, clear_unsynced=True)
    carry_out(state, decision)
    state.validate()
    assert (state.token, state.fenced, state.unsynced, state.durable_end) == (12, True, False, LENGTH)
    assert core.decide_fence(state, request) == Ready()
    assert core.length_answer(state).length == LENGTH


def test_a_raise_and_a_fence_that_are_refused_are_told_the_facts() -> None:
    def fenced_by(state: ReplicaState, eversion: int, token: int) -> errors.NeveError:
        return refusal(
            core.decide_fence(state, pb.FenceRequest(extent_id=42, replica=RIGHT, eversion=eversion, token=token))
        )

    nobody = refusal(core.decide_raise(replica(), pb.RaiseTokenRequest(extent_id=42, replica=RIGHT, eversion=5)))
    assert isinstance(nobody, errors.InvalidArgument)
    assert nobody.what == "token"
    assert "no owner" in nobody.detail
    older = fenced_by(replica(), 4, 12)
    assert isinstance(older, errors.EversionMismatch)
    assert (older.extent_id, older.eversion, older.eversion_here) == (42, 4, 5)
    locked = fenced_by(replica(), 5, TOKEN - 1)
    assert isinstance(locked, errors.LockedByOther)
    assert (locked.extent_id, locked.token, locked.token_seen) == (42, TOKEN - 1, TOKEN)


@pytest.mark.parametrize("read_only", [ReadOnly.SYNC_FAILED, ReadOnly.DISK_FAILED])
def test_who_meets_a_replica_that_cannot_be_written_is_told_why(read_only: ReadOnly) -> None:
    state = replica(read_only=read_only)
    empty = replica(**EMPTY, read_only=read_only)
    for decision in (
        core.decide_create(empty, create_request()),
        core.decide_fence(state, pb.FenceRequest(extent_id=42, replica=RIGHT, eversion=5)),
        core.decide_seal(state, seal_request()),
    ):
        error = refusal(decision)
        assert isinstance(error, errors.ReplicaReadOnly)
        assert (error.extent_id, error.detail) == (42, read_only.value)


# --- seal --------------------------------------------------------------------------------------------------------


def seal_request(
    length: int = LENGTH, *, eversion: int = 6, digest: bytes = b"", wanted: common_pb2.Replica = RIGHT
) -> pb.SealExtentRequest:
    seal = common_pb2.Seal(length=length, eversion=eversion, digest=digest)
    return pb.SealExtentRequest(extent_id=42, replica=wanted, seal=seal)


def test_every_seal_of_an_unsealed_replica() -> None:
    outcomes: set[object] = set()
    for length, fenced, doubt, damaged_at, read_only, committed, eversion, identity, durable in itertools.product(
        (0, LENGTH - 1, LENGTH, LENGTH + 1),
        BOTH,
        (None, *Doubt),
        (None, LENGTH - 10, LENGTH - 1),
        READ_ONLY,
        (0, LENGTH - 1, LENGTH),
        (4, 5, 6),
        (RIGHT, ANY, WRONG["incarnation"]),
        BOTH,
    ):
        state = replica(
            fenced=fenced,
            doubt=doubt,
            damaged_at=damaged_at,
            read_only=read_only,
            committed=committed,
            unsynced=True,
            durable_end=LENGTH if durable else 30,
        )
        before = deepcopy(state)
        decision = core.decide_seal(state, seal_request(length, eversion=eversion, wanted=identity))
        assert state == before
        outcomes.add(error_of(decision) or type(decision))

        valid = LENGTH if damaged_at is None else damaged_at
        if identity == WRONG["incarnation"]:
            assert error_of(decision) is errors.WrongReplica
        elif eversion < 5:
            assert error_of(decision) is errors.EversionMismatch
        elif length < committed:
            assert error_of(decision) is errors.Conflict
        elif read_only in (ReadOnly.SYNC_FAILED, ReadOnly.DISK_FAILED):
            assert error_of(decision) is errors.ReplicaReadOnly
        elif doubt is Doubt.SYNC_FAILED:
            assert decision == NotConfirmed(min(valid, state.durable_end), fence=not fenced)
        elif valid < length:
            assert decision == NotConfirmed(valid, fence=not fenced)
        else:
            assert decision == CutAndVerify(length, cut=length < LENGTH, fence=not fenced)
    assert len(outcomes) == 6


def assert_other_digest(decision: object) -> None:
    assert isinstance(decision, Quarantine)
    assert isinstance(decision.error, errors.ReplicaDamaged)
    assert (decision.error.extent_id, decision.error.offset) == (42, 0)
    assert "its digest is not the one" in decision.error.detail


def test_every_seal_of_a_sealed_replica() -> None:
    for length, eversion, digest, damaged_at, identity in itertools.product(
        (0, LENGTH - 1, LENGTH, LENGTH + 1),
        (1, 5, 6, 7),
        (b"", DIGEST, OTHER_DIGEST),
        (None, 7),
        (RIGHT, ANY, WRONG["disk"]),
    ):
        state = sealed_replica(damaged_at=damaged_at)
        request = seal_request(length, eversion=eversion, digest=digest, wanted=identity)
        decision = core.decide_seal(state, request)
        if identity == WRONG["disk"]:
            assert error_of(decision) is errors.WrongReplica
        elif length != LENGTH:
            assert error_of(decision) is errors.Conflict
            error = refusal(decision)
            assert isinstance(error, errors.Conflict)
            assert (error.extent_id, error.offset) == (42, min(length, LENGTH))
            assert error.detail == f"sealed at {LENGTH} here, a seal at {length} is ordered"
        elif damaged_at is not None:
            assert decision == NotConfirmed(7, fence=False)
        elif digest == OTHER_DIGEST:
            assert_other_digest(decision)
        else:
            assert decision == Confirmed(Seal(LENGTH, 6, DIGEST))


@pytest.mark.parametrize("length", [0, LENGTH - 1, LENGTH])
@pytest.mark.parametrize("wanted_digest", [b"", DIGEST])
@pytest.mark.parametrize("doubt", [None, Doubt.POWER_CUT, Doubt.DAMAGE])
def test_a_verified_replica_is_confirmed_and_its_doubt_ends(
    length: int, wanted_digest: bytes, doubt: Doubt | None
) -> None:
    """T6: also at length 0, which is sealed and not the same as open."""
    state = replica(doubt=doubt, unsynced=True, durable_end=0, journaled_end=0)
    request = seal_request(length, digest=wanted_digest)
    decision = core.decide_seal(state, request)
    assert isinstance(decision, CutAndVerify)
    state.note_fenced()
    if decision.cut:
        state.note_cut(decision.length)
    confirm = core.decide_verified(state, request, problem=None, digest=DIGEST)
    assert confirm == Confirm(Seal(length, 6, DIGEST))
    state.note_sealed(confirm.seal)
    state.validate()
    assert (state.length, state.unsynced, state.doubt, state.durable_end) == (length, False, None, length)
    assert core.decide_seal(state, request) == Confirmed(confirm.seal)
    assert core.length_answer(state).seal.length == length
    assert core.length_answer(state).HasField("seal")


def test_damage_found_by_the_verification_is_not_confirmed() -> None:
    problem = Problem(40, ProblemKind.WRONG_CHECKSUM, "x")
    decision = core.decide_verified(replica(), seal_request(), problem=problem, digest=DIGEST)
    assert decision == NotConfirmed(40, fence=False)


def test_a_seal_that_is_no_block_boundary_is_not_confirmed() -> None:
    problem = Problem(90, ProblemKind.CUT_SHORT, "x")
    assert core.decide_verified(replica(), seal_request(99), problem=problem, digest=DIGEST) == NotConfirmed(90, False)


def test_whole_blocks_with_another_digest_are_quarantined() -> None:
    decision = core.decide_verified(replica(), seal_request(digest=OTHER_DIGEST), problem=None, digest=DIGEST)
    assert_other_digest(decision)


def test_a_seal_that_is_refused_is_told_the_facts() -> None:
    older = refusal(core.decide_seal(replica(), seal_request(eversion=4)))
    assert isinstance(older, errors.EversionMismatch)
    assert (older.extent_id, older.eversion, older.eversion_here) == (42, 4, 5)
    less = refusal(core.decide_seal(replica(committed=60), seal_request(59)))
    assert isinstance(less, errors.Conflict)
    assert (less.extent_id, less.offset) == (42, 59)
    assert "60 are committed here" in less.detail


def test_a_problem_may_begin_at_the_end_of_the_seal_and_not_behind_it() -> None:
    at_end = Problem(LENGTH, ProblemKind.CUT_SHORT, "x")
    assert core.decide_verified(replica(), seal_request(), problem=at_end, digest=DIGEST) == NotConfirmed(LENGTH, False)
    with pytest.raises(AssertionError):
        core.decide_verified(replica(), seal_request(LENGTH - 1), problem=at_end, digest=DIGEST)


# --- delete ------------------------------------------------------------------------------------------------------


def delete_request(eversion: int, wanted: common_pb2.Replica = ANY) -> pb.DeleteExtentRequest:
    return pb.DeleteExtentRequest(extent_id=42, eversion=eversion, replica=wanted)


@pytest.mark.parametrize("eversion", [0, 4, 5, 6, 7])
@pytest.mark.parametrize("sealed", BOTH)
@pytest.mark.parametrize("identity", [RIGHT, ANY, *WRONG.values()])
def test_an_order_removes_only_the_replica_it_means_at_or_below_its_eversion(
    eversion: int, sealed: bool, identity: common_pb2.Replica
) -> None:
    state = sealed_replica() if sealed else replica()
    decision = core.decide_delete(state, delete_request(eversion, identity))
    if identity not in (RIGHT, ANY):
        assert error_of(decision) is errors.WrongReplica
    elif eversion < (6 if sealed else 5):
        error = refusal(decision)
        assert isinstance(error, errors.EversionMismatch)
        assert (error.extent_id, error.eversion, error.eversion_here) == (42, eversion, 6 if sealed else 5)
    else:
        assert decision == MoveToTrash(Tombstone(42, eversion))


def test_a_copy_made_for_a_newer_eversion_outlives_an_older_order() -> None:
    copy = sealed_replica(meta=replace(META, eversion=9))
    assert error_of(core.decide_delete(copy, delete_request(8))) is errors.EversionMismatch
    assert core.decide_delete(copy, delete_request(9)) == MoveToTrash(Tombstone(42, 9))


def test_deleting_what_is_not_here_leaves_a_tombstone_against_a_late_create() -> None:
    assert core.decide_delete(None, delete_request(5)) == NothingToDelete(Tombstone(42, 5))
    assert core.decide_delete(Tombstone(42, 5), delete_request(5)) == NothingToDelete(None)
    assert core.decide_delete(Tombstone(42, 5), delete_request(4)) == NothingToDelete(None)
    assert core.decide_delete(Tombstone(42, 5), delete_request(6)) == NothingToDelete(Tombstone(42, 6))


# --- start -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ProblemKind)
@pytest.mark.parametrize("known_durable_end", [0, 59, 60, 61, 100])
def test_only_a_torn_block_above_the_durable_end_is_cut(kind: ProblemKind, known_durable_end: int) -> None:
    decision = core.decide_tail(problem=Problem(60, kind, "x"), known_durable_end=known_durable_end)
    if kind is ProblemKind.CUT_SHORT and known_durable_end <= 60:
        assert decision == CutTail(60)
    else:
        assert decision == DoubtTail(60)


def test_a_whole_file_is_kept() -> None:
    assert core.decide_tail(problem=None, known_durable_end=0) == KeepTail()


def test_doubt_on_start_for_every_state() -> None:
    for unsynced, fenced, doubt, kept, clean in itertools.product(BOTH, BOTH, (None, *Doubt), BOTH, BOTH):
        state = replica(unsynced=unsynced, fenced=fenced, doubt=doubt)
        found = core.doubt_on_start(state, page_cache_kept=kept, stopped_cleanly=clean)
        if kept:
            assert found is None
        elif doubt is Doubt.SYNC_FAILED:
            assert found is Doubt.POWER_CUT
        elif doubt is None and unsynced and not clean:
            assert found is Doubt.POWER_CUT  # fenced ones too: a cut between the two fsyncs of a fence leaves both
        else:
            assert found is None
        assert core.doubt_on_start(sealed_replica(), page_cache_kept=kept, stopped_cleanly=clean) is None


def test_a_failed_sync_makes_an_unsealed_replica_doubtful() -> None:
    assert core.doubt_after_failed_sync(replica(read_only=ReadOnly.SYNC_FAILED)) is Doubt.SYNC_FAILED
    assert core.doubt_after_failed_sync(replica(read_only=ReadOnly.DISK_FAILED)) is Doubt.SYNC_FAILED  # failed before
    assert core.doubt_after_failed_sync(sealed_replica(read_only=ReadOnly.SYNC_FAILED)) is None
