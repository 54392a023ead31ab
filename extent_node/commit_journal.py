"""Rounds of the journal: the bytes of many replicas as records, and one fdatasync for all of them.

Invariants: one round at a time; what is appended while it runs is for the next one;
            a record is written only if everything below it is durable or in the journal (rule 10);
            an error of a round's sync goes to everyone whom the round was for: nobody is acknowledged by trying again
            (T23).
Neighbours: `commit` decides who goes to the journal and answers who waited; `journal` has the segments.

No task waits for a round: whoever carries out its sync calls back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from neve.extent_node import core
from neve.extent_node.commit_queue import CommitQueue
from neve.extent_node.journal import Journal, JournalFailed, SyncTicket
from neve.extent_node.journal_format import Entry
from neve.extent_node.replica import Replica
from neve.extent_node.store_config import Counters, StoreConfig
from neve.proto.errors import DiskFailed, NeveError

# Begins what the ticket asks for, and tells whoever is named how it ended: once, from the loop.
StartJournalSync = Callable[[SyncTicket, Callable[[OSError | None], None]], None]


class Waiting(Protocol):
    """What rounds want of the committer."""

    def look_at(self, replica: Replica) -> None:
        """Decide again, on the loop's next turn, how it becomes durable."""

    def settle(self, replica: Replica) -> None:
        """Answer who waits for what is durable now."""

    def abandon(self, replica: Replica, error: NeveError) -> None: ...


Batch = list[tuple[Replica, CommitQueue, Entry]]

_new_entry = tuple.__new__  # a third of the cost of Entry(…)


class JournalRounds:
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
        # Larger ones go in place, by choice or because no record can hold them.
        self._payload_bytes_max = min(config.in_place_bytes_min - 1, journal.payload_bytes_max)
        self.next: dict[Replica, None] = {}  # in the next round
        self.running = False  # a round is under way

    def may_take(self, replica: Replica, queue: CommitQueue) -> bool:
        """Whether its bytes may go through the journal, and whether they are worth it."""
        size_bytes = queue.pieces_bytes
        return (
            0 < size_bytes <= self._payload_bytes_max
            and queue.pieces_offset + size_bytes >= queue.end_wanted
            and core.may_journal(replica.state, queue.pieces_offset)
            and not self._journal.failed
        )

    def start(self) -> None:
        """Begin a round of whoever is in `next`, unless one runs: then they are in the one after it."""
        if self.running:
            return
        self.running = True
        begun = False
        try:
            while self.next and not begun:
                begun = self._begin(self._take())
        finally:
            self.running = begun

    def _take(self) -> Batch:
        """The entries of the next round. What is appended from now on is for the one after it."""
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
            batch.append((replica, queue, _new_entry(Entry, fields)))
            size_bytes += payload_bytes
        if taken == len(self.next):
            self.next = {}
        else:
            for replica in list(self.next)[:taken]:
                del self.next[replica]
        return batch

    def _begin(self, batch: Batch) -> bool:
        """Write the records of a round and begin to sync them; False if there is nothing to wait for."""
        if not batch:
            return False
        try:
            taken = self._journal.append([entry for _, _, entry in batch])
        except (OSError, JournalFailed):
            # Nothing was promised of these records. The extents' own files are as good as before: sync them.
            self._journal_failed()
            taken = 0
        if taken < len(batch):
            for replica, queue, _ in batch[taken:]:
                self._counters.journal_full += 1
                queue.drop_pieces()
                self._waiting.look_at(replica)
            self._wake_checkpointer()
            del batch[taken:]
        if not taken:
            return False
        counters, size_bytes = self._counters, 0
        for replica, queue, entry in batch:
            size_bytes += entry.payload_bytes
            replica.state.note_journaled(entry.offset + entry.payload_bytes)
            queue.drop_pieces()
            queue.journaling = True
        counters.journal_rounds += 1
        counters.journal_entries += taken
        counters.journal_bytes += size_bytes
        ticket = self._journal.begin_sync()
        self._start_sync(ticket, partial(self._on_synced, batch, ticket))
        return True

    def _on_synced(self, batch: Batch, ticket: SyncTicket, error: OSError | None) -> None:
        try:
            self._finish(batch, ticket, error)
        finally:
            self.running = False
            self.start()

    def _finish(self, batch: Batch, ticket: SyncTicket, error: OSError | None) -> None:
        """Answer whoever the round was for."""
        if error is not None:
            self._fail(batch, error)
            return
        try:
            self._journal.finish_sync(ticket)
        except JournalFailed as failed:  # by something else, while this sync ran
            self._fail(batch, failed)
            return
        for replica, queue, entry in batch:
            queue.journaling = False
            replica.state.note_durable(entry.offset + entry.payload_bytes)
            self._waiting.settle(replica)
        if self._journal.ready_count == 0:
            self._wake_checkpointer()

    def _fail(self, batch: Batch, error: Exception) -> None:
        self._journal.fail(f"sync: {error}")
        for replica, queue, _ in batch:
            queue.journaling = False
            replica.state.note_journal_lost()
            detail = f"the sync of the journal failed: {error}"
            self._waiting.abandon(replica, DiskFailed(extent_id=replica.extent_id, disk="journal", detail=detail))
        self._counters.sync_failures += 1
        self._journal_failed()
