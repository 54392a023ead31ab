"""Group commit: makes many appends durable by one fdatasync.

    one extent alone, or a large batch      fdatasync of the extent's file, in place
    several extents                         their bytes as records of the journal, one fdatasync for all

Appends that arrive during a sync are gathered for the next one. In both ways, a segment is settled when its replica's
`durable_end` has reached the segment's end, and not before.

Invariants: bytes go to the journal only if everything below them is durable or in it (protocol rule 10); a replica
            with other bytes below, in the page cache, is synced in place;
            an error of a sync goes to every segment that the sync was for; no retry acknowledges them (scenario T23);
            at most one sync runs for each file, and one for the journal; the queues are bounded by the waiting calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial

from neve.extent_node import core
from neve.extent_node.disk.file_system import Buffer
from neve.extent_node.journal.commit_queue import AppendCall, CommitQueue
from neve.extent_node.journal.journal import Journal
from neve.extent_node.journal.rounds import JournalRounds, StartJournalSync
from neve.extent_node.store.config import Counters, StoreConfig
from neve.extent_node.store.dirty_bytes import DirtyBytes
from neve.extent_node.store.replica import Replica
from neve.proto.errors import NeveError, ReplicaReadOnly

# Begins an fdatasync of the replica's file. The loop calls the function once, with the error if there was one.
StartSync = Callable[[Replica, Callable[[OSError | None], None]], None]


class Committer:
    """Decides how each replica's appends become durable, and settles their segments when they are."""

    def __init__(
        self,
        journal: Journal,
        config: StoreConfig,
        counters: Counters,
        dirty: DirtyBytes,
        *,
        start_sync: StartSync,
        start_journal_sync: StartJournalSync,
        sync_failed: Callable[[Replica, OSError], NeveError],
        journal_failed: Callable[[], None],
        wake_checkpointer: Callable[[], None],
    ) -> None:
        self.journal = journal
        self._config = config
        self._in_place_bytes_min = config.in_place_bytes_min
        self._counters = counters
        self._dirty = dirty
        self._start_sync = start_sync
        self._sync_failed = sync_failed
        self.rounds = JournalRounds(
            journal,
            config,
            counters,
            self,
            start_sync=start_journal_sync,
            journal_failed=journal_failed,
            wake_checkpointer=wake_checkpointer,
        )
        self._gathering: dict[Replica, None] = {}  # `_dispatch` handles these on the loop's next turn
        self._syncing = 0  # in-place syncs that segments wait for
        self._dispatch_scheduled = False

    # --- waiting for durability ------------------------------------------------------------------------------

    def enqueue(
        self, replica: Replica, decision: core.Append, call: AppendCall, index: int, new_bytes: Buffer | None
    ) -> None:
        """Settle a segment of a frame when its bytes are durable; `submit` must follow for the frame."""
        offset, end = decision.write_offset, decision.durable_to
        if new_bytes is None or not self.rounds.add_record(replica, decision, call, index, new_bytes):
            self.wait_durable(replica, end, call, index, offset, new_bytes)

    def submit(self, call: AppendCall) -> None:
        """Hand the journal records of a frame over together, once all of its segments are enqueued."""
        records, rounds = call.records, self.rounds
        if len(records) < self._config.journal_extents_min and not rounds.running:
            call.records = []  # it may be the only one on the node, for which `_dispatch` syncs the file in place
            for index, replica, entry in records:
                self.wait_durable(replica, entry.end, call, index, entry.offset, entry.payload[0])
            return
        rounds.calls[call] = None
        self._schedule_dispatch()

    def wait_durable(
        self, replica: Replica, end: int, call: AppendCall, index: int, offset: int = 0, piece: Buffer | None = None
    ) -> None:
        """Settle the call's segment when [0, end) is durable. `piece`: its new bytes from `offset` on."""
        queue = self._queue(replica)
        queue.add(end, call, index, offset, piece)
        if queue.pieces_bytes >= self._in_place_bytes_min:
            queue.drop_pieces()  # too many for the journal: they are synced in place, so the copies are not needed
        self.look_at(replica)

    def forget_call(self, call: AppendCall) -> None:
        """Keep the records of an abandoned call out of the journal, if they are in no round yet."""
        self.rounds.calls.pop(call, None)
        call.records = []

    def forget(self, replica: Replica, call: AppendCall) -> None:
        """Drop an abandoned call. Its bytes stay, and become durable together with later ones."""
        queue = replica.commit
        if queue is not None:
            queue.forget(call)
            self._drop_if_idle(replica, queue)

    def abandon(self, replica: Replica, error: NeveError) -> None:
        """Settle all waiting segments with this error: their bytes were cut or removed, or cannot become durable."""
        queue = replica.commit
        if queue is not None:
            queue.abandon(error)
            self._drop_if_idle(replica, queue)

    # --- after a sync ----------------------------------------------------------------------------------------

    def note_in_place(self, replica: Replica, end: int) -> None:
        """[0, end) of the file itself is on stable storage."""
        replica.in_place_end = max(replica.in_place_end, min(end, replica.state.length))
        replica.state.note_durable(end)
        self.journal.settle(replica, end)
        self._dirty.update(replica)
        self.settle(replica)

    def note_cut(self, replica: Replica, length: int) -> None:
        """A seal cut the file to `length`; apply that to the state."""
        replica.state.note_cut(length)
        replica.in_place_end = min(replica.in_place_end, length)
        self._dirty.update(replica)

    def settle(self, replica: Replica) -> None:
        """Settle the segments whose bytes are durable now, and decide again about the rest."""
        queue = replica.commit
        if queue is None:
            return
        queue.settle(replica.state.durable_end)
        if queue.waits:
            self.look_at(replica)
        else:
            self._drop_if_idle(replica, queue)

    # --- deciding --------------------------------------------------------------------------------------------

    def look_at(self, replica: Replica) -> None:
        """Decide, on the loop's next turn, how it becomes durable."""
        self._gathering[replica] = None
        self._schedule_dispatch()

    def _schedule_dispatch(self) -> None:
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Start the syncs for everything gathered during this turn of the loop."""
        self._dispatch_scheduled = False
        gathered, self._gathering = self._gathering, {}
        rounds = self.rounds
        several = (
            rounds.running
            or bool(rounds.calls)
            or len(gathered) + len(rounds.next) + self._syncing >= self._config.journal_extents_min
        )
        for replica in gathered:
            queue = replica.commit
            if queue is None or not queue.waits:
                continue
            if queue.journaling and not queue.pieces and queue.end_wanted <= replica.state.journaled_end:
                continue  # the running round settles all of them
            if several and rounds.may_take(replica, queue):
                rounds.next[replica] = None
            elif queue.syncing is None:
                queue.drop_pieces()
                read_only = replica.state.read_only
                if read_only is not None and not read_only.can_sync:  # it failed after they were appended
                    error = ReplicaReadOnly(extent_id=replica.extent_id, detail=read_only.value)
                    self.abandon(replica, error)
                else:
                    self._begin_sync(replica, queue, for_waiters=True)
        if rounds.calls or rounds.next:
            rounds.start()

    # --- in place --------------------------------------------------------------------------------------------

    async def sync_in_place(self, replica: Replica) -> bool:
        """fdatasync the file. If a sync runs already, wait for it, and sync again if bytes were added meanwhile.

        False: this sync or an earlier one failed; the replica's state says so.
        """
        wanted = replica.state.length
        while replica.in_place_end < wanted:
            if replica.gone or (replica.state.read_only is not None and not replica.state.read_only.can_sync):
                return False
            queue = self._queue(replica)
            synced_end = replica.in_place_end
            if queue.syncing is not None:
                await asyncio.shield(queue.syncing)
            else:
                await asyncio.shield(self._begin_sync(replica, queue, for_waiters=False))
            wanted = min(wanted, replica.state.length)
            if replica.deferred and replica.in_place_end == synced_end:
                return False  # the deferred bytes could not be written; the disk's state says why
        return True

    def _begin_sync(self, replica: Replica, queue: CommitQueue, *, for_waiters: bool) -> asyncio.Future[None]:
        """Start one fdatasync; the future is done at its end.

        The sync continues, and its outcome is noted, even if every caller gives up: the kernel reports a failed write
        once, and if that were lost, the next sync would falsely succeed (scenario T23).
        """
        assert queue.syncing is None, replica
        syncing = queue.syncing = asyncio.get_running_loop().create_future()
        self._syncing += for_waiters
        if replica.gone:  # deleted since the sync was requested: its file is closed, and no call waits
            self._syncing -= for_waiters
            self._end_sync(queue)
        else:
            self._counters.in_place_syncs += 1
            self._start_sync(replica, partial(self._on_synced, replica, queue, replica.state.length, for_waiters))
        return syncing

    def _on_synced(
        self, replica: Replica, queue: CommitQueue, end: int, for_waiters: bool, error: OSError | None
    ) -> None:
        """Note the outcome: an error becomes the replica's state and is reported to the waiting calls."""
        try:
            if error is None:
                self.note_in_place(replica, end)
            else:
                self.abandon(replica, self._sync_failed(replica, error))
        finally:
            self._syncing -= for_waiters
            self._end_sync(queue)
        self._look_again(replica, queue)

    @contextlib.asynccontextmanager
    async def alone(self, replica: Replica) -> AsyncIterator[None]:
        """Hold off other syncs of this file.

        If two ran at once, the kernel would report a failed write to only one, and the other's success would be
        believed (scenario T23).
        """
        while (queue := self._queue(replica)).syncing is not None:
            await asyncio.shield(queue.syncing)
        queue.syncing = asyncio.get_running_loop().create_future()
        try:
            yield
        except Exception:
            self._end_sync(queue)
            self._look_again(replica, queue)
            raise
        except BaseException:  # the process ends: nothing waits any more
            self._end_sync(queue)
            raise
        self._end_sync(queue)
        self._look_again(replica, queue)

    def _end_sync(self, queue: CommitQueue) -> None:
        syncing, queue.syncing = queue.syncing, None
        assert syncing is not None
        syncing.set_result(None)

    def _look_again(self, replica: Replica, queue: CommitQueue) -> None:
        """Handle the segments that were enqueued during a sync."""
        if queue.waits:
            self.look_at(replica)
        self._drop_if_idle(replica, queue)

    # --- queues ----------------------------------------------------------------------------------------------

    def _queue(self, replica: Replica) -> CommitQueue:
        if replica.commit is None:
            replica.commit = CommitQueue()
        return replica.commit

    def _drop_if_idle(self, replica: Replica, queue: CommitQueue) -> None:
        if queue.is_idle and replica.commit is queue:
            replica.commit = None
