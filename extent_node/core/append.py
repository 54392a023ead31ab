"""Append: whether a replica accepts a segment, and what must be durable before the reply.

Protocol rules 4, 5, 9 and 10. A decision is one next step for the present state. After a step that takes time, the
caller decides again:

    decide_append ─→ Refuse                         reply with the error
                  ─→ PersistToken ─→ fsync ─→ note_token ─→ decide again
                  ─→ CompareOverlap ─→ read ─→ compare ─→ decide again, with the outcome
                  ─→ Append ─→ write ─→ note_appended ─→ durability ─→ reply

Invariants: a byte below `length` is never written again, whatever a writer sends: Append begins exactly at `length`;
            a refusal comes before anything changes the replica;
            a retry waits for the same durability as the append that it repeats (protocol rule 5).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neve.extent_node.core.state import Refuse, ReplicaState, wrong_replica
from neve.proto import blocks
from neve.proto import extent_node_pb2 as pb
from neve.proto.crc import Buffer
from neve.proto.errors import (
    Conflict,
    EversionMismatch,
    ExtentFenced,
    ExtentFull,
    ExtentSealed,
    Gap,
    InvalidArgument,
    LockedByOther,
    NeveError,
    ReplicaDamaged,
    ReplicaDoubtful,
    ReplicaReadOnly,
)


class PersistToken(NamedTuple):
    """Set and fsync the attribute `token` before any byte of its owner is written; then decide again.

    Protocol rule 4.
    """

    token: int


class CompareOverlap(NamedTuple):
    """Compare the segment's first bytes with the replica's bytes [start, end); then decide again with the outcome."""

    start: int
    end: int


class Append(NamedTuple):
    """The segment is accepted. The steps, in order:

    write, `note_appended(end)`, `note_committed`, what `mark_unsynced` and `durable_to` require, reply `end`.
    With `write_bytes` 0 nothing is written, and the other steps remain.
    """

    write_offset: int  # the replica's length
    skip_bytes: int  # of the body: the replica has these already, and they are equal
    write_bytes: int
    end: int  # of the segment, and the reply's; at most the length after the write
    committed: int  # to note: the writer's claim of how far all replicas have acknowledged
    mark_unsynced: bool  # set the attribute `unsynced` and fsync it before the reply (protocol rule 10)
    durable_to: int  # reply when `durable_end` has reached this; 0 when the page cache is enough


class Compared(NamedTuple):
    """The outcome of a comparison: it covered the bytes up to `end`; `differs_at` is the first different one."""

    end: int
    differs_at: int | None


AppendDecision = Refuse | PersistToken | CompareOverlap | Append

NOT_COMPARED = Compared(end=0, differs_at=None)


def decide_append(
    state: ReplicaState, segment: pb.Segment, body: Buffer, compared: Compared = NOT_COMPARED
) -> AppendDecision:
    """The next step for a segment whose blocks are `body`. An empty segment only advances `committed`.

    `compared` is the outcome of the comparison that CompareOverlap requested. If the replica has grown since, the
    decision is to compare again.
    """
    meta, size_bytes = state.meta, len(body)
    assert segment.extent_id == meta.extent_id, (segment.extent_id, state)
    error = _refusal(state, segment, writes=size_bytes > 0)
    if error is not None:
        return Refuse(error)
    offset, length = segment.offset, state.length
    end = offset + size_bytes
    if not size_bytes:
        if len(segment.block_sizes) > 0:
            return Refuse(InvalidArgument(what="block_sizes", detail="sizes of blocks are given, but no bytes"))
        # Nothing durable depends on this reply, so a higher token need not be fsynced first.
        return Append(length, 0, 0, end=0, committed=segment.committed, mark_unsynced=False, durable_to=0)
    try:
        blocks.check_sizes(body, segment.block_sizes)
    except InvalidArgument as wrong:
        return Refuse(wrong)
    if offset > length:
        return Refuse(Gap(extent_id=state.extent_id, offset=offset, length=length))
    if end > meta.extent_bytes_max:
        return Refuse(ExtentFull(extent_id=meta.extent_id, length=length, limit_bytes=meta.extent_bytes_max))
    if segment.token > state.token:
        return PersistToken(segment.token)
    if compared.differs_at is not None:
        return Refuse(Conflict(extent_id=state.extent_id, offset=compared.differs_at))
    overlap_end = min(end, length)
    if offset < overlap_end and compared.end < overlap_end:
        return CompareOverlap(offset, overlap_end)
    sync, is_durable = not segment.no_sync, end <= state.durable_end
    return Append(
        write_offset=length,
        skip_bytes=overlap_end - offset,
        write_bytes=end - overlap_end,
        end=end,
        committed=segment.committed,
        mark_unsynced=not sync and not is_durable and not state.unsynced,
        durable_to=end if sync and not is_durable else 0,
    )


def compare(segment: pb.Segment, body: Buffer, here: Buffer, overlap: CompareOverlap) -> Compared:
    """Compare the segment with `here`, the replica's bytes of the overlap. Missing bytes count as different."""
    sent = np.frombuffer(body, dtype=np.uint8, count=overlap.end - overlap.start)
    stored = np.frombuffer(here, dtype=np.uint8)
    if len(stored) < len(sent):
        return Compared(overlap.end, differs_at=overlap.start + len(stored))
    differs = sent != stored[: len(sent)]
    at = int(differs.argmax()) if len(differs) else 0
    return Compared(overlap.end, differs_at=overlap.start + at if len(differs) and differs[at] else None)


def may_journal(state: ReplicaState, offset: int) -> bool:
    """Whether a journal entry may begin at `offset`: only if all bytes below are durable or in the journal.

    Protocol rule 10. Otherwise a power cut would leave a hole below the bytes that the journal restores. In that case
    the file is synced in place.
    """
    return offset <= state.journaled_end


def _refusal(state: ReplicaState, segment: pb.Segment, *, writes: bool) -> NeveError | None:
    """Why this replica refuses this writer. The most final reason comes first, because the writer can use it most."""
    extent_id = state.extent_id
    wrong = wrong_replica(state, segment.replica)
    if wrong is not None:
        return wrong
    if state.seal is not None:
        return ExtentSealed(extent_id=extent_id, length=state.seal.length)
    if state.fenced:
        return ExtentFenced(extent_id=extent_id)
    if state.doubt is not None:
        return ReplicaDoubtful(extent_id=extent_id, detail=state.doubt.name.lower())
    if state.damaged_at is not None:  # not in protocol rule 4: a damaged replica should end soon, not grow
        return ReplicaDamaged(extent_id=extent_id, offset=state.damaged_at)
    if state.read_only is not None and writes:
        return ReplicaReadOnly(extent_id=extent_id, detail=state.read_only.value)
    if segment.token < state.token:
        return LockedByOther(extent_id=extent_id, token=segment.token, token_seen=state.token)
    if segment.eversion != state.meta.eversion:
        return EversionMismatch(extent_id=extent_id, eversion=segment.eversion, eversion_here=state.meta.eversion)
    return None
