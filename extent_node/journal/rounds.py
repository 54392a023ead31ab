"""Rounds of the journal: each writes bytes of many replicas as records, and syncs all of them by one fdatasync.

    calls     frames: their records are written and settled together
    replicas  segments that wait for one replica, in its CommitQueue

No task waits for a round: the end of its sync calls back.

Invariants: one round at a time; what is appended during a round is for the next one;
            a record is written only if everything below it is durable or in the journal (protocol rule 10);
            an error of a round's sync goes to every segment of the round; no retry acknowledges them (scenario T23).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from neve.extent_node import core
from neve.extent_node.disk.file_system import Buffer
from neve.extent_node.journal.commit_queue import AppendCall, CommitQueue
from neve.extent_node.journal.format import Entry
from neve.extent_node.journal.journal import Journal, JournalFailed, SyncTicket
from neve.extent_node.store.config import Counters, StoreConfig
from neve.extent_node.store.replica import Replica
from neve.proto.errors import DiskFailed, ExtentSealed, NeveError, ReplicaMissing, ReplicaReadOnly

# Begins the sync described by the ticket. The loop calls the function once, with the error if there was one.
StartJournalSync = Callable[[SyncTicket, Callable[[OSError | None], None]], None]


class Waiting(Protocol):
    """The methods of the committer that rounds call."""

    def look_at(self, replica: Replica) -> None:
        """Decide again, on the loop's next turn, how it becomes durable."""

    def settle(self, replica: Replica) -> None:
        """Settle the segments whose bytes are durable now."""

    def abandon(self, replica: Replica, error: NeveError) -> None: ...

    def wait_durable(self, replica: Replica, end: int, call: AppendCall, index: int) -> None:
        """Settle the call's segment when [0, end) is durable."""


Batch = list[tuple[Replica, CommitQueue, Entry]]
CallBatch = list[tuple[AppendCall, int, Replica, Entry]]


class JournalRounds:
    """The journal's current round and the queue for the next one."""

    def __init__(
        self,
        journal: Journal,
        config: StoreConfig,
        counters: Counters,
        waiting: Waiting,
        *,
        start_sync: StartJournalSync,
        journal_failed: Callable[[], None],
        wake_checkpointer: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._config = config
        self._counters = counters
        self._waiting = waiting
        self._start_sync = start_sync
        self._journal_failed = journal_failed
        self._wake_checkpointer = wake_checkpointer
        # Larger entries are synced in place, by choice or because no record can hold them.
        self._payload_bytes_max = min(config.in_place_bytes_min - 1, journal.payload_bytes_max)
        self.next: dict[Replica, None] = {}  # replicas for the next round
        self.calls: dict[AppendCall, None] = {}  # frames for the next round, written before those
        self.running = False  # a round is under way

    def takes_frame(self, call: AppendCall) -> bool:
        """Whether the segments of a frame go to the journal, if each of them can."""
        return (
            len(call.ends) > 1 or self.running or bool(self.calls) or self._config.journal_extents_min <= 1
        ) and not self._journal.failed

    def add_record(
        self, replica: Replica, decision: core.Append, call: AppendCall, index: int, new_bytes: Buffer
    ) -> bool:
        """Add a segment's record to its frame; False if the segment must wait in its replica's queue instead.

        It can go with its frame if nothing else waits for the replica, and all bytes below are durable, in the journal,
        or queued for it. Queued bytes may never get there: `_take_calls` checks again.
        """
        state, size_bytes, offset = replica.state, len(new_bytes), decision.write_offset
        if (
            replica.commit is not None
            or not (offset <= state.journaled_end or offset <= replica.queued_end)
            or size_bytes > self._payload_bytes_max
            or offset + size_bytes != decision.durable_to
        ):
            return False
        meta = state.meta
        fields = (replica, replica.disk.short_id, meta.extent_id, meta.incarnation, offset, [new_bytes], size_bytes)
        call.records.append((index, replica, Entry(*fields)))
        replica.queued_end = decision.durable_to
        return True

    def may_take(self, replica: Replica, queue: CommitQueue) -> bool:
        """Whether the queue's bytes may go through the journal, and are worth it."""
        size_bytes = queue.pieces_bytes
        return (
            0 < size_bytes <= self._payload_bytes_max
            and queue.pieces_offset + size_bytes >= queue.end_wanted
            and core.may_journal(replica.state, queue.pieces_offset)
            and not self._journal.failed
        )

    def start(self) -> None:
        """Begin a round, unless one runs: its end begins the next."""
        if self.running:
            return
        self.running = True
        begun = False
        try:
            while (self.calls or self.next) and not begun:
                of_calls = self._take_calls()
                begun = self._begin(of_calls, self._take())
        finally:
            self.running = begun

    def _take_calls(self) -> CallBatch:
        """The frames' entries for the next round, noted as journaled so that later entries may rest on them."""
        batch: CallBatch = []
        size_bytes, size_bytes_max = 0, self._config.journal_round_bytes_max
        while self.calls and size_bytes < size_bytes_max:
            call = next(iter(self.calls))
            del self.calls[call]
            records, call.records = call.records, []
            for index, replica, entry in records:
                state, offset, payload_bytes = replica.state, entry.offset, entry.payload_bytes
                end = offset + payload_bytes
                if end <= state.durable_end:  # a sync in place was faster
                    call.settle(index, _loss(replica, end))
                elif offset > state.journaled_end or end > state.length or replica.gone or state.read_only is not None:
                    self._in_place(call, index, replica, end)
                else:
                    state.note_journaled(end)
                    batch.append((call, index, replica, entry))
                    size_bytes += payload_bytes
        return batch

    def _in_place(self, call: AppendCall, index: int, replica: Replica, end: int) -> None:
        """The journal does not take the segment: let it wait for a sync of its own file, if that has the bytes."""
        error = _loss(replica, end)
        if error is not None:
            call.settle(index, error)
        else:
            self._waiting.wait_durable(replica, end, call, index)

    def _take(self) -> Batch:
        """The replicas' entries for the next round. Later appends are for the round after it."""
        batch: Batch = []
        size_bytes, size_bytes_max = 0, self._config.journal_round_bytes_max
        taken = 0
        for replica in self.next:
            if size_bytes >= size_bytes_max:
                break
            taken += 1
            queue = replica.commit
            if queue is None or not queue.waits:
                continue  # settled by another sync meanwhile
            if not self.may_take(replica, queue):
                self._waiting.look_at(replica)
                continue
            meta, payload_bytes = replica.state.meta, queue.pieces_bytes
            offset, pieces = queue.pieces_offset, queue.pieces
            fields = (replica, replica.disk.short_id, meta.extent_id, meta.incarnation, offset, pieces, payload_bytes)
            batch.append((replica, queue, Entry(*fields)))
            size_bytes += payload_bytes
        if taken == len(self.next):
            self.next = {}
        else:
            for replica in list(self.next)[:taken]:
                del self.next[replica]
        return batch

    def _begin(self, of_calls: CallBatch, batch: Batch) -> bool:
        """Write the records of a round and begin to sync them; False if there is nothing to sync."""
        entries = [entry for _, _, _, entry in of_calls]
        entries += [entry for _, _, entry in batch]
        if not entries:
            return False
        try:
            taken = self._journal.append(entries)
        except (OSError, JournalFailed):
            # Nothing was promised for these records. The extents' own files are intact: sync them.
            self._journal_failed()
            taken = 0
        if taken < len(entries):
            self._wake_checkpointer()
            self._not_taken(of_calls[taken:], batch[max(0, taken - len(of_calls)) :])
            del batch[max(0, taken - len(of_calls)) :]
            del of_calls[taken:]
        if not taken:
            return False
        counters, size_bytes = self._counters, 0
        for _, _, _, entry in of_calls:
            size_bytes += entry.payload_bytes
        for replica, queue, entry in batch:
            size_bytes += entry.payload_bytes
            replica.state.note_journaled(entry.offset + entry.payload_bytes)
            queue.drop_pieces()
            queue.journaling = True
        counters.journal_rounds += 1
        counters.journal_entries += taken
        counters.journal_bytes += size_bytes
        ticket = self._journal.begin_sync()
        self._start_sync(ticket, partial(self._on_synced, of_calls, batch, ticket))
        return True

    def _not_taken(self, of_calls: CallBatch, batch: Batch) -> None:
        """Send entries for which the journal has no room to their own files."""
        self._counters.journal_full += len(of_calls) + len(batch)
        for _, _, replica, _ in of_calls:  # before any is settled: settling may let its caller append to another one
            replica.state.note_journal_lost()
        for call, index, replica, entry in of_calls:
            self._in_place(call, index, replica, entry.end)
        for replica, queue, _ in batch:
            queue.drop_pieces()
            self._waiting.look_at(replica)

    def _on_synced(self, of_calls: CallBatch, batch: Batch, ticket: SyncTicket, error: OSError | None) -> None:
        try:
            self._finish(of_calls, batch, ticket, error)
        finally:
            self.running = False
            self.start()

    def _finish(self, of_calls: CallBatch, batch: Batch, ticket: SyncTicket, error: OSError | None) -> None:
        """Settle the segments of a round."""
        if error is not None:
            self._fail(of_calls, batch, error)
            return
        try:
            self._journal.finish_sync(ticket)
        except JournalFailed as failed:  # the journal failed elsewhere during this sync
            self._fail(of_calls, batch, failed)
            return
        for call, index, replica, entry in of_calls:
            state, end = replica.state, entry.offset + entry.payload_bytes
            state.note_durable(end)
            if replica.commit is not None:
                self._waiting.settle(replica)
            call.settle(index, _loss(replica, end))
        for replica, queue, entry in batch:
            queue.journaling = False
            replica.state.note_durable(entry.offset + entry.payload_bytes)
            self._waiting.settle(replica)
        if self._journal.ready_count == 0:
            self._wake_checkpointer()

    def _fail(self, of_calls: CallBatch, batch: Batch, error: Exception) -> None:
        self._journal.fail(f"sync: {error}")
        detail = f"the sync of the journal failed: {error}"
        for _, _, replica, _ in of_calls:
            replica.state.note_journal_lost()
        for call, index, replica, _ in of_calls:
            call.settle(index, DiskFailed(extent_id=replica.extent_id, disk="journal", detail=detail))
        for replica, queue, _ in batch:
            queue.journaling = False
            replica.state.note_journal_lost()
            self._waiting.abandon(replica, DiskFailed(extent_id=replica.extent_id, disk="journal", detail=detail))
        self._counters.sync_failures += 1
        self._journal_failed()


def _loss(replica: Replica, end: int) -> NeveError | None:
    """Why the replica's bytes up to `end` were lost or cannot become durable; None if neither."""
    state, extent_id = replica.state, replica.extent_id
    if end > state.length:  # only a seal cuts a replica that accepts appends
        return ExtentSealed(extent_id=extent_id, length=state.length)
    if replica.gone:
        return ReplicaMissing(extent_id=extent_id)
    if state.read_only is not None and not state.read_only.can_sync:
        return ReplicaReadOnly(extent_id=extent_id, detail=state.read_only.value)
    return None
