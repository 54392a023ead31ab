"""The state of one replica on a node, and how it changes. Plain data: no I/O, no clock, no randomness.

Invariants: `validate()` states them, and tests call it after every event;
            a `note_…` method is called after what it notes has happened, never before: if the state were ahead of the
            disk, a reply could promise what a crash takes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from neve.extent_node.disk.attributes import Attributes, Doubt, Meta, Seal
from neve.proto import common_pb2
from neve.proto.errors import NeveError, WrongReplica


class ReadOnly(Enum):
    """Why a replica accepts no append. The value is for people."""

    DISK_FULL = "the disk is past its usage mark"  # attributes, seals and copies may still use the reserve
    DISK_FAILED = "the disk failed"
    # Permanent in this process: after a failed fsync, a second one may succeed with the bytes lost (scenario T23).
    SYNC_FAILED = "a sync of this file failed"

    @property
    def can_sync(self) -> bool:
        """Attributes can still be made durable."""
        return self is ReadOnly.DISK_FULL


@dataclass(slots=True)
class ReplicaState:
    """One replica that exists. The first block of fields is durable, the second is known to this process only."""

    meta: Meta
    length: int = 0  # bytes in the file; if sealed, the seal's length, unless bytes are missing
    token: int = 0  # the highest seen
    fenced: bool = False
    seal: Seal | None = None  # set means confirmed: cut, verified, indexed, digested, fsynced
    unsynced: bool = False  # some replies may have relied on the page cache
    doubt: Doubt | None = None

    committed: int = 0  # acknowledged by all replicas, as reported to this process since it started
    # Two ends, each a promise about all bytes below it. `journaled_end` counts entries that were handed to the journal,
    # synced or not: entries are replayed in order and never beyond a gap, so later ones may rest on them. That is
    # protocol rule 10.
    durable_end: int = 0  # on stable storage, in the file or in a synced journal: a synced append's reply waits for it
    journaled_end: int = 0  # durable, or in the journal
    damaged_at: int | None = None  # the first offset known to be wrong or missing: only bytes below are valid
    read_only: ReadOnly | None = None
    conflict: bool = False  # an append differed from stored bytes; every reported length says so (protocol rule 7)

    @classmethod
    def restore(cls, attributes: Attributes, *, file_bytes: int) -> ReplicaState:
        """The state on start. Nothing counts as durable except the bytes of a sealed replica.

        A seal voids `unsynced` and `doubtful`: a crash between setting it and removing them leaves both. Bytes beyond a
        seal are not the extent's; too few bytes are damage.
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
        """The eversion of the newest metadata that this replica knows. A lower delete order is not for it.

        Protocol rule 24.
        """
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
        """The longest known prefix of valid blocks."""
        return self.length if self.damaged_at is None else self.damaged_at

    def ref(self) -> common_pb2.Replica:
        return common_pb2.Replica(
            node_id=self.meta.node_id, disk_uuid=self.meta.disk_uuid, incarnation=self.meta.incarnation
        )

    def attributes(self) -> Attributes:
        """The durable part, as attributes."""
        return Attributes(
            meta=self.meta,
            token=self.token,
            fenced=self.fenced,
            seal=self.seal,
            unsynced=self.unsynced,
            doubt=self.doubt,
        )

    # Events. Each method is called after its event has happened.

    def note_appended(self, end: int) -> None:
        """Bytes up to `end` have been written to the file; that alone makes nothing durable."""
        assert end >= self.length, (end, self)
        self.length = end

    def note_committed(self, committed: int) -> None:
        """Never above the length: readers get only stored bytes. Never back: readers have seen it.

        Protocol rule 9, G4.
        """
        committed = committed if committed < self.length else self.length  # hot: min and max would be calls
        if committed > self.committed:
            self.committed = committed

    def note_journaled(self, end: int) -> None:
        """The journal has accepted an entry for bytes up to `end`; `may_journal` had allowed it."""
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
        """The journal's unsynced entries will not become durable: later entries may not rest on them."""
        self.journaled_end = self.durable_end

    def note_token(self, token: int) -> None:
        assert token >= self.token, (token, self)
        self.token = token

    def note_fenced(self) -> None:
        self.fenced = True

    def note_unsynced(self, unsynced: bool) -> None:
        self.unsynced = unsynced

    def note_doubt(self, doubt: Doubt) -> None:
        """Sealed replicas are damaged or not, never doubtful. The first reason stays, a later one adds nothing."""
        assert self.seal is None, self
        self.doubt = self.doubt or doubt

    def note_damaged(self, offset: int) -> None:
        self.damaged_at = offset if self.damaged_at is None else min(self.damaged_at, offset)

    def note_read_only(self, reason: ReadOnly | None) -> None:
        """None when there is room again. A failed sync or disk is permanent in this process."""
        if self.read_only is None or self.read_only.can_sync:
            self.read_only = reason

    def note_cut(self, length: int) -> None:
        """A seal, or the start after a torn last block, has cut the file. Nothing else shortens a replica."""
        assert length <= self.length, (length, self)
        self.length = length
        self.durable_end = min(self.durable_end, length)
        self.journaled_end = min(self.journaled_end, length)
        self.committed = min(self.committed, length)
        if self.damaged_at is not None and self.damaged_at >= length:
            self.damaged_at = None

    def note_sealed(self, seal: Seal) -> None:
        """After the cut, verification, and fsync of data and seal. The verification ends any doubt."""
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
    """What remains of a deleted replica."""

    extent_id: int
    eversion: int  # of the order that deleted it


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A replica that turned out wrong; its bytes are set aside for a person.

    It is not "never existed": it may have held acknowledged bytes, so that an empty replica in its place would report
    a false length (G8).
    """

    extent_id: int


Existing = ReplicaState | Tombstone | Quarantined | None  # what a node has of an extent; None: never had it


@dataclass(frozen=True, slots=True)
class Refuse:
    """The decision, for every kind of request, to reply with this error and change nothing."""

    error: NeveError


def wrong_replica(state: ReplicaState, wanted: common_pb2.Replica) -> WrongReplica | None:
    """The refusal if the request names another node, disk or incarnation; empty fields match any (scenario T32)."""
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
