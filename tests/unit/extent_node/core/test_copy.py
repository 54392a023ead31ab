"""An order to copy, against all that may be here: made, replaced, verified, or refused (rules 20, 22, 24)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.extent_node.core import Quarantined, Refuse, ReplicaState, Tombstone
from neve.extent_node.core.copy import (
    Aside,
    CopyDecision,
    MakeCopy,
    QuarantineFirst,
    ReplaceBy,
    VerifyHere,
    check_copy,
    decide_copy,
    order_eversion,
)
from neve.extent_node.core.state import Existing
from neve.extent_node.disk.attributes import Doubt, Seal
from neve.proto import common_pb2, errors
from neve.proto import extent_node_pb2 as pb
from tests.unit.extent_node.core.states import DIGEST, LENGTH, META, replica, sealed_replica, told_by

EXTENT = META.extent_id
OTHER_DIGEST = bytes(32)
SEAL = Seal(length=LENGTH, eversion=6, digest=DIGEST)  # as `sealed_replica` has it, and as it is ordered
SOURCE = pb.CopySource(address="a:1")


def order(
    *,
    length: int = SEAL.length,
    digest: bytes = SEAL.digest,
    eversion_of_seal: int = SEAL.eversion,
    eversion: int = 0,
) -> pb.StartCopyRequest:
    """To copy an extent that was sealed at 100 bytes, in eversion 6."""
    seal = common_pb2.Seal(length=length, eversion=eversion_of_seal, digest=digest)
    return pb.StartCopyRequest(task_id=1, extent_id=EXTENT, seal=seal, sources=[SOURCE], eversion=eversion)


def of_eversion(eversion: int, state: ReplicaState) -> ReplicaState:
    state.meta = replace(state.meta, eversion=eversion)
    return state


def kind_of(decision: CopyDecision) -> object:
    """What is to be done, without the words for people, which are there."""
    if isinstance(decision, Refuse):
        assert decision.error.detail or isinstance(decision.error, errors.EversionMismatch)
        return told_by(decision)
    if isinstance(decision, (ReplaceBy, QuarantineFirst)):
        assert decision.reason
    return decision.aside if isinstance(decision, ReplaceBy) else type(decision)


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        (None, MakeCopy),
        (Quarantined(EXTENT), MakeCopy),
        (Tombstone(EXTENT, 5), MakeCopy),
        (Tombstone(EXTENT, 6), errors.ReplicaDeleted),
        (Tombstone(EXTENT, 7), errors.ReplicaDeleted),
        (replica(), Aside.TRASH),
        (replica(length=0, durable_end=0, journaled_end=0), Aside.TRASH),
        (replica(length=900), Aside.TRASH),
        (replica(fenced=True, doubt=Doubt.POWER_CUT), Aside.TRASH),
        (replica(damaged_at=50, doubt=Doubt.DAMAGE), Aside.QUARANTINE),
        (replica(damaged_at=0), Aside.QUARANTINE),
        (replica(committed=LENGTH), Aside.TRASH),
        (replica(length=200, committed=101), errors.Conflict),
        (replica(length=200, committed=101, damaged_at=50), errors.Conflict),
        (of_eversion(6, replica()), Aside.TRASH),
        (of_eversion(7, replica()), errors.EversionMismatch),
        (of_eversion(7, replica(length=200, committed=101)), errors.EversionMismatch),
        (sealed_replica(), VerifyHere),
        (of_eversion(7, sealed_replica()), VerifyHere),
        (sealed_replica(seal=replace(SEAL, eversion=7)), VerifyHere),
        (sealed_replica(seal=replace(SEAL, eversion=5)), Aside.TRASH),
        (sealed_replica(damaged_at=3), Aside.QUARANTINE),
        (sealed_replica(damaged_at=0), Aside.QUARANTINE),
        (sealed_replica(damaged_at=3, seal=replace(SEAL, eversion=5)), Aside.QUARANTINE),
        (sealed_replica(seal=replace(SEAL, digest=OTHER_DIGEST)), QuarantineFirst),
        (sealed_replica(seal=replace(SEAL, digest=OTHER_DIGEST), damaged_at=3), QuarantineFirst),
        (sealed_replica(length=99), errors.Conflict),
        (sealed_replica(length=101), errors.Conflict),
        (sealed_replica(length=101, damaged_at=3), errors.Conflict),
    ],
)
def test_the_order_is_decided_by_what_is_here(existing: Existing, expected: object) -> None:
    assert kind_of(decide_copy(existing, order())) == expected


def test_what_is_verified_is_the_seal_that_is_here() -> None:
    here = replace(SEAL, eversion=7)
    assert decide_copy(sealed_replica(seal=here), order()) == VerifyHere(here)


def test_an_order_without_a_digest_verifies_what_is_here_by_its_own_seal() -> None:
    assert decide_copy(sealed_replica(), order(digest=b"")) == VerifyHere(SEAL)


def test_the_orders_own_eversion_counts_where_it_has_one() -> None:
    own = order(eversion=9)
    assert (order_eversion(own), order_eversion(order())) == (9, 6)
    assert decide_copy(Tombstone(EXTENT, 8), own) == MakeCopy()
    assert kind_of(decide_copy(Tombstone(EXTENT, 9), own)) is errors.ReplicaDeleted
    assert kind_of(decide_copy(of_eversion(8, sealed_replica()), own)) is Aside.TRASH
    assert kind_of(decide_copy(of_eversion(9, sealed_replica()), own)) is VerifyHere


def test_an_unsealed_replica_is_judged_by_the_seals_eversion_and_not_the_orders() -> None:
    """The order's own is of the list that the copy will be on: it says nothing of the bytes."""
    assert kind_of(decide_copy(of_eversion(7, replica()), order(eversion=9))) is errors.EversionMismatch
    assert kind_of(decide_copy(of_eversion(7, replica()), order(eversion=9, eversion_of_seal=7))) is Aside.TRASH


def refusal(existing: Existing, request: pb.StartCopyRequest) -> errors.NeveError:
    decision = decide_copy(existing, request)
    assert isinstance(decision, Refuse)
    return decision.error


def test_a_refusal_says_what_is_here_and_what_was_ordered() -> None:
    deleted = refusal(Tombstone(EXTENT, 8), order(eversion=7))
    assert isinstance(deleted, errors.ReplicaDeleted)
    assert deleted.extent_id == EXTENT
    assert "eversion 8" in deleted.detail
    assert "has 7" in deleted.detail

    newer = refusal(of_eversion(7, replica()), order())
    assert isinstance(newer, errors.EversionMismatch)
    assert (newer.extent_id, newer.eversion, newer.eversion_here) == (EXTENT, 6, 7)

    for here, wanted in ((99, 100), (101, 100)):  # other bytes than were sealed begin where the shorter one ends
        other = refusal(sealed_replica(length=here), order(length=wanted))
        assert isinstance(other, errors.Conflict)
        assert (other.extent_id, other.offset) == (EXTENT, min(here, wanted))
        assert f"sealed at {here} here" in other.detail
        assert f"at {wanted} is ordered" in other.detail

    less = refusal(replica(length=200, committed=150), order())
    assert isinstance(less, errors.Conflict)
    assert (less.extent_id, less.offset) == (EXTENT, 100)
    assert "150 bytes are committed here" in less.detail


def test_a_replacement_says_why() -> None:
    reasons = {
        "damaged at 3": sealed_replica(damaged_at=3),
        "damaged at 5": replica(damaged_at=5),
        "of eversion 5, 6 is ordered": sealed_replica(seal=replace(SEAL, eversion=5)),
        "40 of 100 bytes, not sealed": replica(length=40, durable_end=0, journaled_end=0),
    }
    for reason, existing in reasons.items():
        decision = decide_copy(existing, order())
        assert isinstance(decision, ReplaceBy)
        assert decision.reason == reason


# --- all of it, against the rules in other words ---------------------------------------------------------------------

EVERSIONS = st.integers(1, 4)
LENGTHS = st.integers(0, 3)
DIGESTS = st.sampled_from([DIGEST, OTHER_DIGEST])


@st.composite
def unsealed(draw: st.DrawFn) -> ReplicaState:
    length = draw(LENGTHS)
    return of_eversion(
        draw(EVERSIONS),
        replica(
            length=length,
            durable_end=0,
            journaled_end=0,
            committed=draw(st.integers(0, length)),
            damaged_at=draw(st.none() | st.integers(0, length)),
            fenced=draw(st.booleans()),
            doubt=draw(st.sampled_from([None, Doubt.POWER_CUT])),
        ),
    )


@st.composite
def sealed(draw: st.DrawFn) -> ReplicaState:
    length = draw(LENGTHS)
    seal = Seal(length=length, eversion=draw(EVERSIONS), digest=draw(DIGESTS))
    made = sealed_replica(length, seal=seal, damaged_at=draw(st.none() | st.integers(0, length)))
    return of_eversion(draw(EVERSIONS), made)


ORDERS = st.builds(
    order,
    eversion=st.integers(0, 4),
    length=LENGTHS,
    eversion_of_seal=EVERSIONS,
    digest=DIGESTS | st.just(b""),
)


@given(unsealed() | sealed(), ORDERS)
def test_nothing_that_is_known_to_be_acknowledged_or_sealed_is_replaced_by_less_or_by_other_lengths(
    state: ReplicaState, request: pb.StartCopyRequest
) -> None:
    """G8, and one seal for an extent."""
    decision = decide_copy(state, request)
    known = state.committed if state.seal is None else state.seal.length
    if not isinstance(decision, Refuse):
        assert request.seal.length >= known
        assert state.seal is None or request.seal.length == known


@given(sealed(), ORDERS)
def test_a_sealed_replica_is_kept_only_if_it_is_what_was_ordered_and_safe_from_older_delete_orders(
    state: ReplicaState, request: pb.StartCopyRequest
) -> None:
    assert state.seal is not None
    same_length = state.seal.length == request.seal.length
    same_bytes = request.seal.digest in (b"", state.seal.digest)
    newest = max(state.meta.eversion, state.seal.eversion)
    safe = newest >= (request.eversion or request.seal.eversion)
    whole = state.damaged_at is None
    decision = decide_copy(state, request)
    assert isinstance(decision, Refuse) == (not same_length)
    assert isinstance(decision, QuarantineFirst) == (same_length and not same_bytes)
    assert (decision == VerifyHere(state.seal)) == (same_length and same_bytes and whole and safe)
    if isinstance(decision, ReplaceBy):
        assert decision.aside is (Aside.TRASH if whole else Aside.QUARANTINE)
        assert not (whole and safe)


@given(unsealed(), ORDERS)
def test_an_unsealed_replica_gives_way_to_any_copy_that_is_not_older_and_has_what_is_committed(
    state: ReplicaState, request: pb.StartCopyRequest
) -> None:
    older = request.seal.eversion < state.meta.eversion
    less = request.seal.length < state.committed
    decision = decide_copy(state, request)
    assert isinstance(decision, Refuse) == (older or less)
    if isinstance(decision, Refuse):
        assert told_by(decision) is (errors.EversionMismatch if older else errors.Conflict)
    else:
        assert isinstance(decision, ReplaceBy)
        assert decision.aside is (Aside.TRASH if state.damaged_at is None else Aside.QUARANTINE)


# --- the order itself -------------------------------------------------------------------------------------------------


def changed(**fields: Any) -> pb.StartCopyRequest:
    request = order()
    for name, value in fields.items():
        if value is None:
            request.ClearField(name)
        else:
            setattr(request, name, value)
    return request


@pytest.mark.parametrize(
    ("request_", "what", "words"),
    [
        (changed(task_id=0), "task_id", "0 is no task's id"),
        (order(digest=DIGEST[:-1]), "seal.digest", "31 bytes, not 32"),
        (order(digest=DIGEST + b"x"), "seal.digest", "33 bytes, not 32"),
        (order(digest=b"x"), "seal.digest", "1 bytes, not 32"),
        (changed(seal=None), "seal", "only a sealed extent is copied"),
        (changed(sources=None), "sources", "none is given"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_told_why(request_: pb.StartCopyRequest, what: str, words: str) -> None:
    wrong = check_copy(request_)
    assert wrong is not None
    assert (wrong.what, wrong.detail) == (what, words)


@pytest.mark.parametrize(
    "request_",
    [
        order(),
        order(digest=b""),
        order(length=0),  # an extent without a block can be sealed
        order(eversion=9),
        changed(task_id=2**63),
    ],
)
def test_an_order_with_all_that_it_needs_is_taken(request_: pb.StartCopyRequest) -> None:
    assert check_copy(request_) is None
