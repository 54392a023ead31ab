"""Create, raise, fence, seal and delete, as the manager orders them, and what a restart does with a replica.

Protocol rules 12 to 14, 17 and 20 to 24. A decision is an effect that states the order of its steps. No append may run
on the replica between a decision and its note: Raise and Fence are atomic with appends (protocol rule 14).

Invariants: fenced and sealed are terminal, and a confirmed seal never changes;
            nothing is cut below bytes that this replica knows to be acknowledged (G8);
            doubt ends only by a seal that verified every byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from neve.extent_node.core.answers import in_quarantine
from neve.extent_node.core.state import (
    Existing,
    Quarantined,
    ReadOnly,
    Refuse,
    ReplicaState,
    Tombstone,
    wrong_replica,
)
from neve.extent_node.disk.attributes import Doubt, Seal
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import Problem, ProblemKind
from neve.proto.errors import (
    AlreadyExists,
    Conflict,
    EversionMismatch,
    InvalidArgument,
    LockedByOther,
    ReplicaDamaged,
    ReplicaDeleted,
    ReplicaReadOnly,
)

# --- create --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MakeReplica:
    """Make a new file with a new incarnation: attributes, fsync, name, fsync of the folder; then reply.

    Protocol rule 17.
    """


@dataclass(frozen=True, slots=True)
class SameReplica:
    """An earlier call made this replica: reply with its incarnation."""

    incarnation: int


def decide_create(existing: Existing, request: pb.CreateExtentRequest) -> MakeReplica | SameReplica | Refuse:
    if request.extent_bytes_max == 0:
        return Refuse(InvalidArgument(what="extent_bytes_max", detail="must be more than 0"))
    if existing is None:
        return MakeReplica()
    if isinstance(existing, Quarantined):
        return Refuse(in_quarantine(existing.extent_id))  # a late order; only a copy may replace the replica
    if isinstance(existing, Tombstone):
        # Whatever its eversion: ids are never reused, so this order precedes the delete (protocol rule 22).
        return Refuse(
            ReplicaDeleted(extent_id=existing.extent_id, detail=f"by an order of eversion {existing.eversion}")
        )
    difference = _difference(existing, request)
    if difference:
        name = str(existing.extent_id)
        return Refuse(AlreadyExists(kind="replica of extent", name=name, detail=f"the one here {difference}"))
    if existing.read_only is not None:
        return Refuse(ReplicaReadOnly(extent_id=existing.extent_id, detail=existing.read_only.value))
    return SameReplica(existing.meta.incarnation)


def _difference(state: ReplicaState, request: pb.CreateExtentRequest) -> str:
    """How the existing replica differs from the one that this request makes; empty if it does not differ."""
    if state.meta.eversion != request.eversion:
        return f"has eversion {state.meta.eversion}, not {request.eversion}"
    if state.meta.extent_bytes_max != request.extent_bytes_max:
        return f"is for {state.meta.extent_bytes_max} bytes, not {request.extent_bytes_max}"
    if request.replica.disk_uuid and request.replica.disk_uuid != state.meta.disk_uuid:
        return f"is on disk {state.meta.disk_uuid}"
    if state.seal is not None:
        return "is sealed"
    if state.fenced:
        return "is fenced"
    if state.length > 0:
        return f"has {state.length} bytes"
    if state.doubtful or state.damaged_at is not None:
        return "is doubtful or damaged"
    return ""


# --- raise and fence -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Persist:
    """The steps, in order, with no append in between (protocol rule 14):

    1. set `token` and `fenced` as given, fsync the file: data, size and attributes;
    2. `note_token`, `note_fenced`, `note_durable(length)`;
    3. if `clear_unsynced`: remove it, fsync again, `note_unsynced(False)`. Step 1 must be durable before: a power cut
       that kept the removal but lost data would leave a short length that looks trustworthy;
    4. reply with `length_answer`.
    """

    token: int | None  # to set, if it is higher than the replica's
    fence: bool
    clear_unsynced: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """All of it is durable already: reply with `length_answer`."""


def decide_raise(state: ReplicaState, request: pb.RaiseTokenRequest) -> Persist | Ready | Refuse:
    """After the reply, no append with a lower token is accepted. The reply says if it is fenced, sealed or doubtful."""
    if request.token == 0:
        return Refuse(InvalidArgument(what="token", detail="0 is no owner's token"))
    return _decide_persist(state, request, fence=False)


def decide_fence(state: ReplicaState, request: pb.FenceRequest) -> Persist | Ready | Refuse:
    """After the reply, no append is ever accepted. Without a token the manager fences on its own behalf."""
    return _decide_persist(state, request, fence=True)


def _decide_persist(
    state: ReplicaState, request: pb.RaiseTokenRequest | pb.FenceRequest, *, fence: bool
) -> Persist | Ready | Refuse:
    wrong = wrong_replica(state, request.replica)
    if wrong is not None:
        return Refuse(wrong)
    if state.seal is not None:
        return Ready()  # a seal is stronger than both; it raised the eversion, so that is not compared
    if request.eversion != state.meta.eversion:
        return Refuse(
            EversionMismatch(extent_id=state.extent_id, eversion=request.eversion, eversion_here=state.meta.eversion)
        )
    if request.token and request.token < state.token:
        return Refuse(LockedByOther(extent_id=state.extent_id, token=request.token, token_seen=state.token))
    if state.read_only is not None and not state.read_only.can_sync:
        # Nothing can be made durable here any more, and only durable replies count.
        return Refuse(ReplicaReadOnly(extent_id=state.extent_id, detail=state.read_only.value))
    persist = Persist(
        token=request.token if request.token > state.token else None,
        fence=fence and not state.fenced,
        clear_unsynced=fence and state.unsynced,
    )
    if persist.token is None and not persist.fence and not persist.clear_unsynced and state.durable_end == state.length:
        return Ready()
    return persist


# --- seal ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The replica was sealed earlier with this seal: reply with it again."""

    seal: Seal


@dataclass(frozen=True, slots=True)
class NotConfirmed:
    """Reply `confirmed = false` with this length, so that a copy fills the replica.

    First, if `fence`: set `fenced`, fsync, `note_fenced`. The extent is sealed, so no append may be accepted any more,
    even though this replica never received a Fence (scenario T8).
    """

    length: int
    fence: bool


@dataclass(frozen=True, slots=True)
class CutAndVerify:
    """The steps, in order: if `fence`, set `fenced`, fsync, `note_fenced`; verify every block of [0, length);
    `decide_verified`.

    The cut belongs to the `Confirm` that follows, so a replica that turns out damaged keeps all its bytes.
    """

    length: int
    cut: bool  # the replica is longer than `length`
    fence: bool


@dataclass(frozen=True, slots=True)
class Confirm:
    """The replica is verified. The steps, in order: write the index; fsync the file's data; set `seal`, fsync; cut to
    the seal's length, fsync; `note_cut`, `note_sealed`; remove `unsynced` and `doubtful`; reply.

    - The seal comes after the data: a power cut must not leave a seal over bytes that are gone.
    - The cut may come after the seal: bytes beyond a seal are not the extent's, and the next start cuts them.
    - The removals may be lost: a seal voids both attributes.
    """

    seal: Seal


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Whole blocks, but not the other replicas' bytes: move it aside, report it to the manager, raise an alarm."""

    error: ReplicaDamaged


def decide_seal(
    state: ReplicaState, request: pb.SealExtentRequest
) -> Confirmed | NotConfirmed | CutAndVerify | Quarantine | Refuse:
    wrong = wrong_replica(state, request.replica)
    if wrong is not None:
        return Refuse(wrong)
    wanted, extent_id = request.seal, state.extent_id
    if state.seal is not None:
        return _decide_sealed_again(state, state.seal, request)
    if wanted.eversion < state.meta.eversion:
        return Refuse(
            EversionMismatch(extent_id=extent_id, eversion=wanted.eversion, eversion_here=state.meta.eversion)
        )
    if wanted.length < state.committed:
        # Protocol rule 18 excludes this. If it happens, the bytes stay for a person to look at (G8).
        detail = f"a seal at {wanted.length} would cut acknowledged bytes: {state.committed} are committed here"
        return Refuse(Conflict(extent_id=extent_id, offset=wanted.length, detail=detail))
    if state.read_only is not None and not state.read_only.can_sync:
        return Refuse(ReplicaReadOnly(extent_id=extent_id, detail=state.read_only.value))
    if state.doubt is Doubt.SYNC_FAILED:
        return NotConfirmed(min(state.valid_length, state.durable_end), fence=not state.fenced)
    if state.valid_length < wanted.length:
        return NotConfirmed(state.valid_length, fence=not state.fenced)
    return CutAndVerify(wanted.length, cut=state.length > wanted.length, fence=not state.fenced)


def _decide_sealed_again(
    state: ReplicaState, seal: Seal, request: pb.SealExtentRequest
) -> Confirmed | NotConfirmed | Quarantine | Refuse:
    """etcd holds an extent's one seal, so the same seal is confirmed on every repetition, whatever its eversion."""
    wanted, extent_id = request.seal, state.extent_id
    if wanted.length != seal.length:
        offset = min(wanted.length, seal.length)
        detail = f"sealed at {seal.length} here, a seal at {wanted.length} is ordered"
        return Refuse(Conflict(extent_id=extent_id, offset=offset, detail=detail))
    if state.damaged_at is not None:
        return NotConfirmed(state.damaged_at, fence=False)
    if wanted.digest and wanted.digest != seal.digest:
        return Quarantine(_digest_differs(extent_id))
    return Confirmed(seal)


def decide_verified(
    state: ReplicaState, request: pb.SealExtentRequest, *, problem: Problem | None, digest: bytes
) -> Confirm | NotConfirmed | Quarantine:
    """The next step after `CutAndVerify`.

    `problem` is the first fault below the seal's length, and `digest` covers these bytes. On NotConfirmed the caller
    has noted the damage; the copy that follows replaces the file.
    """
    wanted = request.seal
    if problem is not None:
        assert problem.offset <= wanted.length, (problem, wanted)
        return NotConfirmed(problem.offset, fence=False)
    if wanted.digest and wanted.digest != digest:
        return Quarantine(_digest_differs(state.extent_id))
    return Confirm(Seal(length=wanted.length, eversion=wanted.eversion, digest=digest))


def _digest_differs(extent_id: int) -> ReplicaDamaged:
    return ReplicaDamaged(
        extent_id=extent_id, offset=0, detail="its digest is not the one that the first replica confirmed"
    )


# --- delete --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoveToTrash:
    """Write the tombstone and fsync it, move the file to the trash, fsync both folders; reply `deleted`."""

    tombstone: Tombstone


@dataclass(frozen=True, slots=True)
class NothingToDelete:
    """Reply `deleted = false`. Leave a tombstone, because a delayed Create may still arrive; None if one is there."""

    tombstone: Tombstone | None


def decide_delete(existing: Existing, request: pb.DeleteExtentRequest) -> MoveToTrash | NothingToDelete | Refuse:
    """An order removes only a replica whose eversion is at most the order's (protocol rule 24)."""
    tombstone = Tombstone(request.extent_id, request.eversion)
    if existing is None or isinstance(existing, Quarantined):  # what is in quarantine is kept for a person
        return NothingToDelete(tombstone)
    if isinstance(existing, Tombstone):
        return NothingToDelete(tombstone if tombstone.eversion > existing.eversion else None)
    wrong = wrong_replica(existing, request.replica)
    if wrong is not None:
        return Refuse(wrong)
    if request.eversion < existing.eversion_now:
        return Refuse(
            EversionMismatch(
                extent_id=existing.extent_id, eversion=request.eversion, eversion_here=existing.eversion_now
            )
        )
    return MoveToTrash(tombstone)


# --- start ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeepTail:
    """The file ends with a whole block."""


@dataclass(frozen=True, slots=True)
class CutTail:
    """A torn write: truncate to `length` and fsync. No reply ever covered these bytes."""

    length: int


@dataclass(frozen=True, slots=True)
class DoubtTail:
    """Damage, not a torn write: set `doubtful`, fsync, `note_doubt`, `note_damaged`. The bytes stay.

    Protocol rule 13.
    """

    damaged_at: int


def decide_tail(*, problem: Problem | None, known_durable_end: int) -> KeepTail | CutTail | DoubtTail:
    """What to do with the end of an open replica on start. `known_durable_end` is what journal and disk can prove."""
    if problem is None:
        return KeepTail()
    if problem.kind is ProblemKind.CUT_SHORT and problem.offset >= known_durable_end:
        return CutTail(problem.offset)
    return DoubtTail(problem.offset)


def doubt_on_start(state: ReplicaState, *, page_cache_kept: bool, stopped_cleanly: bool) -> Doubt | None:
    """The doubt to make durable before the new boot id is stored; None: leave the attribute unchanged.

    Protocol rule 12. `page_cache_kept`: the same boot, and the disk has been neither offline nor remounted since.
    """
    if state.seal is not None or page_cache_kept:
        return None
    if state.doubt is Doubt.SYNC_FAILED:
        return Doubt.POWER_CUT  # reads now come from the disk itself, so a seal may verify it again
    if state.unsynced and not stopped_cleanly and state.doubt is None:
        return Doubt.POWER_CUT
    return None


def doubt_after_failed_sync(state: ReplicaState) -> Doubt | None:
    """The doubt after a failed sync of this file: `note_read_only(SYNC_FAILED)`, then try to make the doubt durable.

    If the disk failed earlier, the replica keeps that reason, and the doubt is the same.
    """
    assert state.read_only in (ReadOnly.SYNC_FAILED, ReadOnly.DISK_FAILED), state
    return Doubt.SYNC_FAILED if state.seal is None else None
