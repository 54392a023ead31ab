"""Copy: what an order to make or replace a sealed replica means for what is here (rules 20, 22, 24). No I/O.

The order comes from the manager, after etcd has the seal. It is decided when it comes, and again when the copy is
whole: whatever happened to the extent meanwhile then counts.

    nothing here, or in quarantine     make one
    a tombstone, older than the order  make one: the node was chosen again, after the delete
    a tombstone, as new or newer       refuse: the order was given before the delete and is late
    not sealed: short, doubtful, …     replace it (rule 20: shorter replicas are filled)
    sealed, the same digest            verify it: that a file exists proves nothing (T35)
    the same, older than the order     replace it: a delete order for the old one may be on its way (rule 24)
    sealed, damaged or other bytes     replace it
    sealed at another length           refuse: one seal is decided for an extent, so that a person must look

Invariants: nothing that this node knows to be acknowledged is replaced by less (G8);
            what is replaced is moved aside, never removed by a copy itself.
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

    TRASH = "trash"  # a prefix of what replaces it: removed after the trash's delay
    QUARANTINE = "quarantine"  # damaged, or other bytes: a person may want to know why


@dataclass(frozen=True, slots=True)
class MakeCopy:
    """Nothing is in the way."""


@dataclass(frozen=True, slots=True)
class ReplaceBy:
    """In this order: the copy is whole, verified and fsynced; the old file goes aside; the copy gets the name; the
    folder is fsynced; then the store knows the new one. A crash in between leaves the old one, none, or the new one."""

    aside: Aside
    reason: str


@dataclass(frozen=True, slots=True)
class VerifyHere:
    """The replica here may be what is ordered: done after every byte of it was verified, and not before."""

    seal: Seal


@dataclass(frozen=True, slots=True)
class QuarantineFirst:
    """Sealed, whole, and not the bytes that the others confirmed: no reader may get them while the copy is made."""

    reason: str


CopyDecision = MakeCopy | ReplaceBy | VerifyHere | QuarantineFirst | Refuse


def order_eversion(request: pb.StartCopyRequest) -> int:
    """Of the metadata that will list the copy: delete orders at or above it are for it, lower ones are not."""
    return request.eversion or request.seal.eversion


def check_copy(request: pb.StartCopyRequest) -> InvalidArgument | None:
    """What is wrong with the order itself, whatever is here."""
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
        # Ids are not used again and eversions only rise: an order above the tombstone was given after the delete, by a
        # manager who wants a replica here once more (rules 22, 24). The tombstone stays: late Creates still come.
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
        # This node was taken off the list and is put on it again. The delete order of the first may still come, and
        # would be obeyed: a file's eversion is for ever, so that only a new file is safe from it.
        return ReplaceBy(Aside.TRASH, f"of eversion {state.eversion_now}, {order_eversion(request)} is ordered")
    return VerifyHere(seal)


def _decide_unsealed(state: ReplicaState, request: pb.StartCopyRequest) -> CopyDecision:
    wanted, extent_id = request.seal, state.extent_id
    if wanted.eversion < state.meta.eversion:
        return Refuse(
            EversionMismatch(extent_id=extent_id, eversion=wanted.eversion, eversion_here=state.meta.eversion)
        )
    if wanted.length < state.committed:
        # Cannot be, by rule 18; if it is, the bytes stay where they are (G8), as they do at a seal.
        detail = f"{state.committed} bytes are committed here, a copy sealed at {wanted.length} is ordered"
        return Refuse(Conflict(extent_id=extent_id, offset=wanted.length, detail=detail))
    if state.damaged_at is not None:
        return ReplaceBy(Aside.QUARANTINE, f"damaged at {state.damaged_at}")
    return ReplaceBy(Aside.TRASH, f"{state.length} of {wanted.length} bytes, not sealed")
