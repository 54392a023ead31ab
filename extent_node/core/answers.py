"""What a replica may answer: how far readers may read, and what its length is worth.

Protocol rules 9, 14, 18 and 21.

Invariants: an open replica serves no reader beyond `committed`, and only a confirmed replica serves as sealed;
            an error is never length 0: a missing, damaged or doubtful replica is reported as such (G8);
            LENGTH is reported only for bytes on stable storage.
"""

from __future__ import annotations

from typing import NamedTuple

from neve.extent_node.core.state import Existing, Quarantined, Refuse, ReplicaState, Tombstone, wrong_replica
from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import (
    Internal,
    OutOfRange,
    ReplicaDamaged,
    ReplicaDeleted,
    ReplicaDoubtful,
    ReplicaError,
    ReplicaMissing,
    WrongReplica,
)

Kind = pb.LengthAnswer.Kind


class Readable(NamedTuple):
    serve_end: int  # serve whole blocks below this; equal to the offset: nothing yet, and a follower waits
    readable: int  # reported to the reader: how far readers may read
    sealed: bool  # `readable` is final


def decide_read(existing: Existing, *, wanted: common_pb2.Replica, extent_id: int, offset: int) -> Readable | Refuse:
    """The bounds of a read that begins at `offset`. Damage refuses reads at or above it, and hides nothing below it."""
    state = present(existing, wanted=wanted, extent_id=extent_id)
    if not isinstance(state, ReplicaState):
        return Refuse(state)
    if state.doubt is not None:
        return Refuse(ReplicaDoubtful(extent_id=extent_id, detail=state.doubt.name.lower()))
    readable = state.committed if state.seal is None else state.seal.length
    if offset > readable:
        return Refuse(OutOfRange(extent_id=extent_id, offset=offset, readable=readable))
    damaged_at = state.damaged_at
    if damaged_at is not None and damaged_at <= offset < readable:
        return Refuse(ReplicaDamaged(extent_id=extent_id, offset=damaged_at))
    serve_end = readable if damaged_at is None else min(readable, damaged_at)
    return Readable(serve_end=max(serve_end, offset), readable=readable, sealed=state.seal is not None)


def decide_read_range(
    existing: Existing, *, wanted: common_pb2.Replica, extent_id: int, offset: int, size_bytes: int
) -> common_pb2.Seal | Refuse:
    """Whether a copy may read these raw bytes: only from a sealed and confirmed replica, and all of the range.

    Protocol rule 22.
    """
    state = present(existing, wanted=wanted, extent_id=extent_id)
    if not isinstance(state, ReplicaState):
        return Refuse(state)
    if state.seal is None:
        return Refuse(ReplicaMissing(extent_id=extent_id, detail="this replica has not confirmed a seal"))
    if offset + size_bytes > state.seal.length:
        return Refuse(OutOfRange(extent_id=extent_id, offset=offset + size_bytes, readable=state.seal.length))
    # A copy takes each block from any good source, so a damaged one still serves what lies below its damage.
    if state.damaged_at is not None and offset + size_bytes > state.damaged_at:
        return Refuse(ReplicaDamaged(extent_id=extent_id, offset=state.damaged_at))
    return seal_message(state)


def present(
    existing: Existing, *, wanted: common_pb2.Replica, extent_id: int
) -> ReplicaState | ReplicaMissing | ReplicaDeleted | ReplicaDamaged | WrongReplica:
    """The replica that a request names, or the error that says why it cannot be used."""
    if existing is None:
        return ReplicaMissing(extent_id=extent_id)
    if isinstance(existing, Quarantined):
        return in_quarantine(extent_id)
    if isinstance(existing, Tombstone):
        return ReplicaDeleted(extent_id=extent_id, detail=f"by an order of eversion {existing.eversion}")
    return wrong_replica(existing, wanted) or existing


def in_quarantine(extent_id: int) -> ReplicaDamaged:
    return ReplicaDamaged(extent_id=extent_id, offset=0, detail="it turned out wrong and is in quarantine")


def answer_kind(existing: Existing) -> pb.LengthAnswer.Kind:
    """What a length from this replica is worth.

    Doubt outweighs damage: both give a valid prefix, and protocol rule 18 counts the doubtful replicas.
    """
    if existing is None:
        return Kind.NEVER_EXISTED
    if isinstance(existing, Tombstone):
        return Kind.DELETED
    if isinstance(existing, Quarantined):
        return Kind.DAMAGED
    if existing.doubt is not None:
        return Kind.DOUBTFUL
    return Kind.LENGTH if existing.damaged_at is None else Kind.DAMAGED


def length_answer(existing: Existing) -> pb.LengthAnswer:
    """The answer to Raise and Fence, after the steps of `Persist`."""
    kind = answer_kind(existing)
    if not isinstance(existing, ReplicaState):
        return pb.LengthAnswer(kind=kind)
    answer = pb.LengthAnswer(
        kind=kind,
        committed=existing.committed,
        token=existing.token,
        fenced=existing.fenced,
        replica=existing.ref(),
        seal=seal_message(existing) if existing.seal is not None else None,
        conflict=existing.conflict,
    )
    if kind == Kind.LENGTH:
        if existing.durable_end != existing.length:
            # Not an assert: a length from the page cache may be gone when it is used (protocol rule 14).
            detail = f"{existing.length} bytes are here, {existing.durable_end} are durable: sync before answering"
            raise Internal(detail=detail)
        answer.length = existing.length
    else:
        answer.valid_length = existing.valid_length
    return answer


def seal_message(state: ReplicaState) -> common_pb2.Seal:
    assert state.seal is not None, state
    return common_pb2.Seal(length=state.seal.length, eversion=state.seal.eversion, digest=state.seal.digest)


def replica_info(state: ReplicaState) -> pb.ReplicaInfo:
    """The replica's present state for lists and descriptions, durable or not."""
    return pb.ReplicaInfo(
        extent_id=state.extent_id,
        replica=state.ref(),
        eversion=state.eversion_now,
        kind=answer_kind(state),
        length=state.length,
        committed=state.committed,
        token=state.token,
        fenced=state.fenced,
        seal=seal_message(state) if state.seal is not None else None,
        read_only=state.read_only is not None,
        created_ms=state.meta.created_ms,
        stream_id=state.meta.stream_id,
    )


__all__ = [
    "Kind",
    "Readable",
    "ReplicaError",
    "answer_kind",
    "decide_read",
    "decide_read_range",
    "in_quarantine",
    "length_answer",
    "present",
    "replica_info",
    "seal_message",
]
