"""What a node knows of one replica, and how it changes. Plain data: no I/O, no clock, no chance.

Invariants: `validate()` says them, and tests call it after every event;
            a `note_…` method is called after what it notes has been done, never before: state that runs ahead of the
            disk would let a reply promise what a crash takes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from neve.extent_node.disk.attributes import Attributes, Doubt, Meta, Seal
from neve.proto import common_pb2
from neve.proto.errors import NeveError, WrongReplica


class ReadOnly(Enum):
    """Why no append is taken. The value is for people."""

    DISK_FULL = "the disk is past its usage mark"  # attributes, seals and copies still may be written, from a reserve
    DISK_FAILED = "the disk failed"
    # For ever in this process: after a failed fsync a second one may succeed without the bytes being there (T23).
    SYNC_FAILED = "a sync of this file failed"

    @property
    def can_sync(self) -> bool:
        """Attributes can still be made durable."""
        return self is ReadOnly.DISK_FULL


@dataclass(slots=True)
class ReplicaState:
    """One replica that is here. The first block of fields is durable, the second one is this process's knowledge."""

    meta: Meta
    length: int = 0  # bytes in the file; of a sealed replica its seal's length, unless bytes are missing
    token: int = 0  # the highest seen
    fenced: bool = False
    seal: Seal | None = None  # set means confirmed: cut, verified, indexed, digested, fsynced
    unsynced: bool = False  # answers may have rested on the page cache
    doubt: Doubt | None = None

    committed: int = 0  # acknowledged by all replicas, as told since the process started
    # Two ends, each a promise about all bytes below it. `journaled_end` counts entries that were handed to the journal,
    # synced or not: entries are replayed in order and never beyond a gap, so the next may rest on them (rule 10).
    durable_end: int = 0  # on stable storage, in the file or in a synced journal: what a sync answer waits for
    journaled_end: int = 0  # durable, or in the journal
    damaged_at: int | None = None  # the first offset known to be wrong or missing: only bytes below are valid
    read_only: ReadOnly | None = None
    conflict: bool = False  # an append met other bytes here: whoever asks for the length is told (rule 7)

    @classmethod
    def restore(cls, attributes: Attributes, *, file_bytes: int) -> ReplicaState:
        """As found on start: nothing is known to be durable except what a seal made so.

        A seal voids `unsynced` and `doubtful`: a crash between setting it and removing them leaves both. Bytes beyond a
        seal are none of the extent's; too few bytes are damage.
        """
        seal = attributes.seal
        length = file_bytes if seal is None else min(file_bytes, seal.length)
        return cls(
            meta=attributes.meta,
            length=length,
            token=attributes.token,
            fenced=attributes.fenced,
            seal=seal,
            unsynced=attributes.unsynced and seal is None,
            doubt=attributes.doubt if seal is None else None,
            durable_end=0 if seal is None else length,
            journaled_end=0 if seal is None else length,
            damaged_at=None if seal is None or length == seal.length else length,
        )

    @property
    def extent_id(self) -> int:
        return self.meta.extent_id

    @property
    def eversion_now(self) -> int:
        """Of the newest metadata that this replica has heard of: a delete order below it is not for it (rule 24)."""
        return self.meta.eversion if self.seal is None else max(self.meta.eversion, self.seal.eversion)

    @property
    def doubtful(self) -> bool:
        return self.doubt is not None

    @property
    def is_open(self) -> bool:
        """Neither fenced nor sealed."""
        return not self.fenced and self.seal is None

    @property
    def valid_length(self) -> int:
        """The longest prefix of valid blocks, as far as it is known."""
        return self.length if self.damaged_at is None else self.damaged_at

    def ref(self) -> common_pb2.Replica:
        return common_pb2.Replica(
            node_id=self.meta.node_id, disk_uuid=self.meta.disk_uuid, incarnation=self.meta.incarnation
        )

    def attributes(self) -> Attributes:
        """The durable half, as attributes."""
        return Attributes(
            meta=self.meta,
            token=self.token,
            fenced=self.fenced,
            seal=self.seal,
            unsynced=self.unsynced,
            doubt=self.doubt,
        )

    # What has happened. Each is called when it is true.

    def note_appended(self, end: int) -> None:
        """Bytes up to `end` were written to the file; nothing is durable by that."""
        assert end >= self.length, (end, self)
        self.length = end

    def note_committed(self, committed: int) -> None:
        """Never above the length: readers get nothing that is not here. Never back: they have seen it (rule 9, G4)."""
        committed = committed if committed < self.length else self.length  # min and max are calls, and this is hot
        if committed > self.committed:
            self.committed = committed

    def note_journaled(self, end: int) -> None:
        """An entry for bytes up to `end` was handed to the journal; it rested on `may_journal`."""
        end = end if end < self.length else self.length
        if end > self.journaled_end:
            self.journaled_end = end

    def note_durable(self, end: int) -> None:
        """Bytes [0, end) are on stable storage. A seal may have cut below `end` since that sync began."""
        end = end if end < self.length else self.length
        if end > self.durable_end:
            self.durable_end = end
            if end > self.journaled_end:
                self.journaled_end = end

    def note_journal_lost(self) -> None:
        """The journal's unsynced entries are not going to be durable: the next byte may not rest on them."""
        self.journaled_end = self.durable_end

    def note_token(self, token: int) -> None:
        assert token >= self.token, (token, self)
        self.token = token

    def note_fenced(self) -> None:
        self.fenced = True

    def note_unsynced(self, unsynced: bool) -> None:
        self.unsynced = unsynced

    def note_doubt(self, doubt: Doubt) -> None:
        """Sealed replicas are damaged or not, never doubtful. The first reason stays: a later one adds nothing."""
        assert self.seal is None, self
        self.doubt = self.doubt or doubt

    def note_damaged(self, offset: int) -> None:
        self.damaged_at = offset if self.damaged_at is None else min(self.damaged_at, offset)

    def note_read_only(self, reason: ReadOnly | None) -> None:
        """None when there is room again. A failed sync or disk is for ever in this process."""
        if self.read_only is None or self.read_only.can_sync:
            self.read_only = reason

    def note_cut(self, length: int) -> None:
        """By a seal, or of a torn last block on start: nothing else shortens a replica."""
        assert length <= self.length, (length, self)
        self.length = length
        self.durable_end = min(self.durable_end, length)
        self.journaled_end = min(self.journaled_end, length)
        self.committed = min(self.committed, length)
        if self.damaged_at is not None and self.damaged_at >= length:
            self.damaged_at = None

    def note_sealed(self, seal: Seal) -> None:
        """After cut, verification and fsync of data and seal; whatever was doubtful has been verified by that."""
        assert self.length == seal.length, (seal, self)
        assert self.damaged_at is None, self
        self.seal = seal
        self.unsynced = False
        self.doubt = None
        self.durable_end = self.journaled_end = seal.length

    def validate(self) -> None:
        assert self.meta.extent_bytes_max > 0, self
        assert 0 <= self.length <= self.meta.extent_bytes_max, self
        assert 0 <= self.committed <= self.length, self
        assert 0 <= self.durable_end <= self.journaled_end, self
        assert self.journaled_end <= self.length, self
        assert self.token >= 0, self
        if self.damaged_at is not None:
            assert 0 <= self.damaged_at <= self.length, self
        if self.seal is not None:
            assert not self.unsynced, self
            assert self.doubt is None, self
            assert self.durable_end == self.length, self
            if self.damaged_at is None:
                assert self.length == self.seal.length, self


@dataclass(frozen=True, slots=True)
class Tombstone:
    """All that is left of a deleted replica."""

    extent_id: int
    eversion: int  # of the order that deleted it


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A replica was here and turned out wrong: its bytes are aside, for a person. Not "never existed": it may have held
    acknowledged bytes, so that an empty one in its place would answer a length that is a lie (G8)."""

    extent_id: int


Existing = ReplicaState | Tombstone | Quarantined | None  # what a node has of an extent; None: nothing was ever here


@dataclass(frozen=True, slots=True)
class Refuse:
    """The decision of every kind of request: answer this error, change nothing."""

    error: NeveError


def wrong_replica(state: ReplicaState, wanted: common_pb2.Replica) -> WrongReplica | None:
    """The refusal if the request names another node, disk or making of the file; empty fields are not checked (T32)."""
    meta, incarnation, disk_uuid, node_id = state.meta, wanted.incarnation, wanted.disk_uuid, wanted.node_id
    if incarnation and incarnation != meta.incarnation:
        detail = f"incarnation {incarnation:016x} is wanted, {meta.incarnation:016x} is here"
    elif disk_uuid and disk_uuid != meta.disk_uuid:
        detail = f"disk {disk_uuid} is wanted, the replica is on {meta.disk_uuid}"
    elif node_id and node_id != meta.node_id:
        detail = f"node {node_id} is wanted, this is node {meta.node_id}"
    else:
        return None
    return WrongReplica(extent_id=meta.extent_id, detail=detail)
