"""Group commit: makes appends durable, many by one fdatasync.

    one extent alone, or a large batch      fdatasync of the extent's file, in place
    several extents                         their bytes as records of the journal, one fdatasync for all

Appends that come while a sync runs gather for the next one. Whichever way, an append is answered when its replica's
`durable_end` has reached its end; who waits is settled then, and only then.

Invariants: bytes go to the journal only if everything below them is durable or in it (rule 10); a replica whose page
            cache holds other bytes below is synced in place;
            an error of a sync goes to everyone whom that sync was for; nobody is acknowledged by trying again (T23);
            at most one sync runs for each file, and one for the journal; what waits is bounded by the calls that wait.
Neighbours: `store_append` writes and waits, `store_checkpoint` syncs behind the journal, `journal` has the segments.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol

from neve.extent_node import core
from neve.extent_node.fs import Buffer
from neve.extent_node.journal import Entry, Journal, JournalFailed
from neve.extent_node.replica import Replica
from neve.extent_node.store_config import Counters, StoreConfig
from neve.extent_node.store_dirty import DirtyBytes
from neve.proto.errors import DiskFailed, NeveError


class Run(Protocol):
    """Runs a blocking call in a thread."""

    def __call__(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]: ...


class RunOn(Protocol):
    """The same, for a call that uses a replica's descriptor."""

    def __call__(self, found: Replica, function: Callable[..., Any], *args: Any) -> Awaitable[Any]: ...


class AppendCall:
    """The segments of one AppendBlock call that are not answered yet, and one future for all of them."""

    __slots__ = ("_future", "_pending", "ends", "errors")

    def __init__(self, count: int) -> None:
        self.ends = [0] * count
        self.errors: list[NeveError | None] = [None] * count
        self._pending = 0
        self._future: asyncio.Future[None] | None = None

    def expect(self) -> None:
        """One more segment will be settled later."""
        self._pending += 1

    def settle(self, number: int, error: NeveError | None) -> None:
        self.errors[number] = error
        self._pending -= 1
        if self._pending == 0 and self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Cancelling this leaves the appends to themselves: they are finished all the same."""
        if self._pending:
            self._future = asyncio.get_running_loop().create_future()
            await self._future


class _Queue:
    """What waits for one replica's durability. Made for the first append that waits, dropped after the last."""

    __slots__ = ("journaling", "pieces", "pieces_bytes", "pieces_offset", "syncing", "waits")

    def __init__(self) -> None:
        self.waits: list[tuple[int, AppendCall, int]] = []  # end, call, number of the segment
        # Bytes for the journal, one behind the other from `pieces_offset` on.
        self.pieces: list[Buffer] = []
        self.pieces_offset = 0
        self.pieces_bytes = 0
        self.syncing: asyncio.Future[None] | None = None  # the in-place sync that runs
        self.journaling = False  # records of it are in the round that runs

    @property
    def pieces_end(self) -> int:
        return self.pieces_offset + self.pieces_bytes

    def add_piece(self, offset: int, piece: Buffer) -> None:
        if not self.pieces:
            self.pieces_offset = offset
        elif offset != self.pieces_end:  # bytes in between were not for sync: only a sync in place can cover them
            self.drop_pieces()
            return
        self.pieces.append(piece)
        self.pieces_bytes += len(piece)

    def drop_pieces(self) -> None:
        self.pieces = []
        self.pieces_bytes = 0


class Committer:
    def __init__(
        self,
        journal: Journal,
        config: StoreConfig,
        counters: Counters,
        dirty: DirtyBytes,
        *,
        run: Run,
        run_on: RunOn,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        sync_failed: Callable[[Replica, OSError], NeveError],
        journal_failed: Callable[[], None],
        wake_checkpointer: Callable[[], None],
    ) -> None:
        self.journal = journal
        self._config = config
        self._counters = counters
        self._dirty = dirty
        self._run = run
        self._run_on = run_on
        self._spawn = spawn
        self._sync_failed = sync_failed
        self._journal_failed = journal_failed
        self._wake_checkpointer = wake_checkpointer
        self._gathering: dict[Replica, None] = {}  # to be looked at on the loop's next turn
        self._for_journal: dict[Replica, None] = {}  # in the next round of the journal
        self._round_runs = False
        self._syncing = 0  # in-place syncs that somebody waits for
        self._kick_scheduled = False

    # --- waiting for durability ------------------------------------------------------------------------------

    def wait_durable(
        self, replica: Replica, end: int, call: AppendCall, number: int, *, offset: int, piece: Buffer | None
    ) -> None:
        """Settle the call's segment when [0, end) is durable. `piece` are the new bytes, from `offset` on."""
        queue = self._queue(replica)
        queue.waits.append((end, call, number))
        if piece is not None:
            queue.add_piece(offset, piece)
        self._look_at(replica)

    def abandon(self, replica: Replica, error: NeveError) -> None:
        """Whoever still waits gets this error: the bytes were cut or are gone, or cannot become durable."""
        queue = replica.commit
        if isinstance(queue, _Queue):
            waits, queue.waits = queue.waits, []
            queue.drop_pieces()
            for _, call, number in waits:
                call.settle(number, error)
            self._drop_if_idle(replica, queue)

    # --- what is synced --------------------------------------------------------------------------------------

    def note_in_place(self, replica: Replica, end: int) -> None:
        """The file itself has [0, end) on stable storage."""
        replica.in_place_end = max(replica.in_place_end, min(end, replica.state.length))
        replica.state.note_durable(end)
        self.journal.settle(replica, end)
        self._dirty.update(replica)
        self._settle(replica)

    def note_cut(self, replica: Replica, length: int) -> None:
        """A seal cut the replica to `length`: on the disk, and now in what is known."""
        replica.state.note_cut(length)
        replica.in_place_end = min(replica.in_place_end, length)
        self._dirty.update(replica)

    # --- deciding --------------------------------------------------------------------------------------------

    def _look_at(self, replica: Replica) -> None:
        self._gathering[replica] = None
        if not self._kick_scheduled:
            self._kick_scheduled = True
            asyncio.get_running_loop().call_soon(self._kick)

    def _kick(self) -> None:
        """Send everything that gathered during this turn of the loop on its way."""
        self._kick_scheduled = False
        gathered, self._gathering = self._gathering, {}
        several = (
            len(gathered) + len(self._for_journal) + self._syncing >= self._config.journal_extents_min
            or self._round_runs
        )
        for replica in gathered:
            queue = replica.commit
            if not isinstance(queue, _Queue) or not queue.waits:
                continue
            if queue.journaling and not queue.pieces and self._end_wanted(queue) <= replica.state.journaled_end:
                continue  # the round that runs settles all of them
            if several and self._may_journal(replica, queue):
                self._for_journal[replica] = None
            elif queue.syncing is None:
                queue.drop_pieces()
                self._spawn(self._sync_for_waiters(replica))
        if self._for_journal and not self._round_runs:
            self._round_runs = True
            self._spawn(self._journal_rounds())

    def _may_journal(self, replica: Replica, queue: _Queue) -> bool:
        return (
            bool(queue.pieces)
            and not self.journal.failed
            and queue.pieces_bytes < self._config.in_place_bytes_min
            and queue.pieces_bytes <= self.journal.payload_bytes_max
            and queue.pieces_end >= self._end_wanted(queue)
            and core.may_journal(replica.state, queue.pieces_offset)
        )

    def _end_wanted(self, queue: _Queue) -> int:
        return max(end for end, _, _ in queue.waits)

    # --- in place --------------------------------------------------------------------------------------------

    async def sync_in_place(self, replica: Replica) -> bool:
        """fdatasync the file, or join the sync that runs and then do it once more if bytes came meanwhile.

        False: it failed, now or before; the replica says so.
        """
        wanted = replica.state.length
        while replica.in_place_end < wanted:
            if replica.gone or (replica.state.read_only is not None and not replica.state.read_only.can_sync):
                return False
            queue = self._queue(replica)
            if queue.syncing is not None:
                await asyncio.shield(queue.syncing)
            else:
                await self._sync_once(replica, queue)
            wanted = min(wanted, replica.state.length)
        return True

    async def _sync_once(self, replica: Replica, queue: _Queue) -> None:
        """One fdatasync. In a task of its own: it goes on, and its outcome is noted, whoever gives up waiting for it.
        The kernel tells of a failed write once; an outcome that nobody hears would make the next sync a lie (T23)."""
        assert queue.syncing is None, replica
        queue.syncing = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._spawn(self._sync_and_note(replica, queue)))

    async def _sync_and_note(self, replica: Replica, queue: _Queue) -> None:
        """Errors become the replica's state and its waiters' answers."""
        end = replica.state.length
        try:
            self._counters.in_place_syncs += 1
            await self._run_on(replica, replica.sync_data)
        except OSError as error:
            self.abandon(replica, self._sync_failed(replica, error))
        else:
            self.note_in_place(replica, end)
        finally:
            self._end_sync(queue)
        self._look_again(replica, queue)

    @contextlib.asynccontextmanager
    async def alone(self, replica: Replica) -> AsyncIterator[None]:
        """While no other sync of this file runs. Of two at once the kernel tells a failed write to one only, and the
        other one's success would be believed (T23)."""
        while (queue := self._queue(replica)).syncing is not None:
            await asyncio.shield(queue.syncing)
        queue.syncing = asyncio.get_running_loop().create_future()
        try:
            yield
        except Exception:
            self._end_sync(queue)
            self._look_again(replica, queue)
            raise
        except BaseException:  # the process ends: nobody is waited for
            self._end_sync(queue)
            raise
        self._end_sync(queue)
        self._look_again(replica, queue)

    def _end_sync(self, queue: _Queue) -> None:
        syncing, queue.syncing = queue.syncing, None
        assert syncing is not None
        syncing.set_result(None)

    def _look_again(self, replica: Replica, queue: _Queue) -> None:
        """At what came while a sync ran."""
        if queue.waits:
            self._look_at(replica)
        self._drop_if_idle(replica, queue)

    async def _sync_for_waiters(self, replica: Replica) -> None:
        queue = self._queue(replica)
        if queue.syncing is not None:
            return  # begun since; when it ends, whoever still waits is looked at again
        self._syncing += 1
        try:
            await self._sync_once(replica, queue)
        finally:
            self._syncing -= 1

    # --- by the journal --------------------------------------------------------------------------------------

    async def _journal_rounds(self) -> None:
        """One round after the other while there is something to write."""
        try:
            while self._for_journal:
                await self._journal_round(self._take_round())
        finally:
            self._round_runs = False

    def _take_round(self) -> list[tuple[Replica, Entry]]:
        """The entries of the next round. What is appended from now on is for the one after it."""
        batch: list[tuple[Replica, Entry]] = []
        size_bytes = 0
        while self._for_journal and size_bytes < self._config.journal_round_bytes_max:
            replica = next(iter(self._for_journal))
            del self._for_journal[replica]
            queue = replica.commit
            if not isinstance(queue, _Queue) or not queue.waits:
                continue  # settled by another sync meanwhile
            if not self._may_journal(replica, queue):
                self._look_at(replica)
                continue
            meta = replica.state.meta
            entry = Entry(
                holder=replica,
                disk=replica.disk.short_id,
                extent_id=meta.extent_id,
                incarnation=meta.incarnation,
                offset=queue.pieces_offset,
                payload=queue.pieces,
                payload_bytes=queue.pieces_bytes,
            )
            batch.append((replica, entry))
            size_bytes += entry.payload_bytes
        return batch

    async def _journal_round(self, batch: list[tuple[Replica, Entry]]) -> None:
        if not batch:
            return
        try:
            taken = self.journal.append([entry for _, entry in batch])
        except (OSError, JournalFailed):
            # Nothing was promised of these records. The extents' own files are as good as before: sync them.
            self._journal_failed()
            taken = 0
        for replica, _ in batch[taken:]:
            self._counters.journal_full += 1
            self._drop_pieces(replica)
            self._look_at(replica)
        if taken < len(batch):
            self._wake_checkpointer()
        if taken:
            await self._sync_round(batch[:taken])

    async def _sync_round(self, batch: list[tuple[Replica, Entry]]) -> None:
        self._counters.journal_rounds += 1
        for replica, entry in batch:
            self._counters.journal_entries += 1
            self._counters.journal_bytes += entry.payload_bytes
            replica.state.note_journaled(entry.end)
            queue = self._queue(replica)
            queue.drop_pieces()
            queue.journaling = True
        ticket = self.journal.begin_sync()
        try:
            await self._run(self.journal.sync, ticket)
            self.journal.finish_sync(ticket)
        except (OSError, JournalFailed) as error:
            self.journal.fail(f"sync: {error}")
            for replica, _ in batch:
                self._end_journaling(replica)
                replica.state.note_journal_lost()
                detail = f"the sync of the journal failed: {error}"
                self.abandon(replica, DiskFailed(extent_id=replica.extent_id, disk="journal", detail=detail))
            self._counters.sync_failures += 1
            self._journal_failed()
        else:
            for replica, entry in batch:
                self._end_journaling(replica)
                replica.state.note_durable(entry.end)
                self._settle(replica)
        if self.journal.ready_count == 0:
            self._wake_checkpointer()

    def _end_journaling(self, replica: Replica) -> None:
        if isinstance(replica.commit, _Queue):
            replica.commit.journaling = False

    def _drop_pieces(self, replica: Replica) -> None:
        if isinstance(replica.commit, _Queue):
            replica.commit.drop_pieces()

    # --- settling --------------------------------------------------------------------------------------------

    def _settle(self, replica: Replica) -> None:
        """Answer everyone whose bytes are durable now; the rest is looked at again."""
        queue = replica.commit
        if not isinstance(queue, _Queue):
            return
        durable_end = replica.state.durable_end
        left = []
        for wait in queue.waits:
            end, call, number = wait
            if end <= durable_end:
                call.settle(number, None)
            else:
                left.append(wait)
        queue.waits = left
        if left:
            self._look_at(replica)
        else:
            queue.drop_pieces()
        self._drop_if_idle(replica, queue)

    def _queue(self, replica: Replica) -> _Queue:
        if not isinstance(replica.commit, _Queue):
            replica.commit = _Queue()
        assert isinstance(replica.commit, _Queue)
        return replica.commit

    def _drop_if_idle(self, replica: Replica, queue: _Queue) -> None:
        if not queue.waits and queue.syncing is None and not queue.journaling and replica.commit is queue:
            replica.commit = None
