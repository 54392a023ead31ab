"""Copy: what an order to make or replace a sealed replica does, given the replica that a node already has. No I/O.

Protocol rules 20, 22 and 24. The manager sends the order after the seal is in etcd. The node decides when it receives
the order, and again when the copy is complete, so that changes in the meantime count.

    nothing, or in quarantine          make one
    a tombstone older than the order   make one: the manager chose the node again after the delete
    a tombstone as new or newer        refuse: the order precedes the delete and is late
    not sealed: short, doubtful, …     replace it (protocol rule 20: shorter replicas are filled)
    sealed, the same digest            verify it: a file's existence proves nothing (scenario T35)
    the same, older than the order     replace it: a delete order for it may be under way (protocol rule 24)
    sealed, damaged or other bytes     replace it
    sealed at another length           refuse: an extent has one seal, so a person must look

Invariants: bytes that this node knows to be acknowledged are never replaced by fewer (G8);
            a copy moves what it replaces aside and never removes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from neve.extent_node.core.state import Existing, Quarantined, Refuse, ReplicaState, Tombstone
from neve.extent_node.disk.attributes import Seal
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import DIGEST_BYTES
from neve.proto.errors import Conflict, EversionMismatch, InvalidArgument, ReplicaDeleted


class Aside(Enum):
    """Where a replaced replica goes."""

    TRASH = "trash"  # a prefix of its replacement: removed after the trash's delay
    QUARANTINE = "quarantine"  # damaged, or other bytes: kept, because a person may want to know why


@dataclass(frozen=True, slots=True)
class MakeCopy:
    """The node has nothing that the copy would replace."""


@dataclass(frozen=True, slots=True)
class ReplaceBy:
    """Replace the existing file. The steps, in order: the copy is whole, verified and fsynced; the old file is moved
    aside; the copy gets the name; the folder is fsynced; the store adopts the new one.

    A crash in between leaves the old replica, none, or the new one.
    """

    aside: Aside
    reason: str


@dataclass(frozen=True, slots=True)
class VerifyHere:
    """The existing replica may be what is ordered. The order is done only after every byte has been verified."""

    seal: Seal


@dataclass(frozen=True, slots=True)
class QuarantineFirst:
    """Sealed and whole, but not the bytes that the others confirmed: no reader may get them during the copy."""

    reason: str


CopyDecision = MakeCopy | ReplaceBy | VerifyHere | QuarantineFirst | Refuse


def order_eversion(request: pb.StartCopyRequest) -> int:
    """The eversion of the metadata that will list the copy. Delete orders at or above it apply to the copy."""
    return request.eversion or request.seal.eversion


def check_copy(request: pb.StartCopyRequest) -> InvalidArgument | None:
    """What is wrong with the order itself, whatever replica exists."""
    if request.task_id == 0:
        return InvalidArgument(what="task_id", detail="0 is no task's id")
    if len(request.seal.digest) not in (0, DIGEST_BYTES):
        return InvalidArgument(what="seal.digest", detail=f"{len(request.seal.digest)} bytes, not {DIGEST_BYTES}")
    if not request.HasField("seal"):
        return InvalidArgument(what="seal", detail="only a sealed extent is copied")
    if not request.sources:
        return InvalidArgument(what="sources", detail="none is given")
    return None


def decide_copy(existing: Existing, request: pb.StartCopyRequest) -> CopyDecision:
    if existing is None or isinstance(existing, Quarantined):
        return MakeCopy()
    if isinstance(existing, Tombstone):
        # Ids are never reused and eversions only rise, so an order above the tombstone follows the delete: the manager
        # wants a replica here again (protocol rules 22 and 24). The tombstone stays, because late Creates may arrive.
        if existing.eversion < order_eversion(request):
            return MakeCopy()
        detail = f"by an order of eversion {existing.eversion}, and this one has {order_eversion(request)}"
        return Refuse(ReplicaDeleted(extent_id=existing.extent_id, detail=detail))
    if existing.seal is not None:
        return _decide_sealed(existing, existing.seal, request)
    return _decide_unsealed(existing, request)


def _decide_sealed(state: ReplicaState, seal: Seal, request: pb.StartCopyRequest) -> CopyDecision:
    wanted = request.seal
    if seal.length != wanted.length:
        detail = f"sealed at {seal.length} here, a copy sealed at {wanted.length} is ordered"
        return Refuse(Conflict(extent_id=state.extent_id, offset=min(seal.length, wanted.length), detail=detail))
    if wanted.digest and wanted.digest != seal.digest:
        return QuarantineFirst("its digest is not the one that the first replica confirmed")
    if state.damaged_at is not None:
        return ReplaceBy(Aside.QUARANTINE, f"damaged at {state.damaged_at}")
    if state.eversion_now < order_eversion(request):
        # The manager took this node off the list and put it on again. The first delete order may still arrive and would
        # apply: a file's eversion never changes, so only a new file is safe from it.
        return ReplaceBy(Aside.TRASH, f"of eversion {state.eversion_now}, {order_eversion(request)} is ordered")
    return VerifyHere(seal)


def _decide_unsealed(state: ReplicaState, request: pb.StartCopyRequest) -> CopyDecision:
    wanted, extent_id = request.seal, state.extent_id
    if wanted.eversion < state.meta.eversion:
        return Refuse(
            EversionMismatch(extent_id=extent_id, eversion=wanted.eversion, eversion_here=state.meta.eversion)
        )
    if wanted.length < state.committed:
        # Protocol rule 18 excludes this. If it happens, the bytes stay (G8), as they do at a seal.
        detail = f"{state.committed} bytes are committed here, a copy sealed at {wanted.length} is ordered"
        return Refuse(Conflict(extent_id=extent_id, offset=wanted.length, detail=detail))
    if state.damaged_at is not None:
        return ReplaceBy(Aside.QUARANTINE, f"damaged at {state.damaged_at}")
    return ReplaceBy(Aside.TRASH, f"{state.length} of {wanted.length} bytes, not sealed")
