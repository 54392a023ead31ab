"""What all parts of a store share: its replicas, disks and journal, threads and tasks, and what an error means.

Invariants: everything here is touched by the loop's thread only; threads get a replica or the journal for one call;
            a change of a replica runs in a task of the store's own: a caller that gives up does not stop it half-way;
            a disk's failure is remembered: in the journal's label, or in the labels of disks, or tried again;
            what the journal has of a disk that failed stays there: only the operator gives it up.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from neve.extent_node import core
from neve.extent_node.core import Quarantined, ReadOnly, Tombstone
from neve.extent_node.disk.disk import Disk, DiskState
from neve.extent_node.disk.file_system import FileSystem
from neve.extent_node.disk.kernel_sync import KernelSync
from neve.extent_node.disk.threads import Threads
from neve.extent_node.journal.group_commit import Committer
from neve.extent_node.journal.journal import Journal, SyncTicket
from neve.extent_node.store import replica
from neve.extent_node.store.config import Counters, StoreConfig
from neve.extent_node.store.dirty_bytes import DirtyBytes
from neve.extent_node.store.open_files import SealedFiles
from neve.extent_node.store.replica import NotWritten, Replica, SyncFailed
from neve.proto import common_pb2
from neve.proto.errors import DiskFailed, NeveError, Overloaded, ReplicaReadOnly, ShuttingDown

log = logging.getLogger(__name__)

T = TypeVar("T")


class StoreState:
    def __init__(
        self,
        config: StoreConfig,
        fs: FileSystem,
        *,
        pool: Executor | Threads | None,
        kernel_sync: KernelSync | None,
        rng: random.Random,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self.config = config
        self.fs = fs
        self.rng = rng
        self.wall_clock_ms = wall_clock_ms
        self.counters = Counters()
        self.disks: dict[str, Disk] = {}  # by uuid
        self.refused: list[tuple[str, str]] = []  # folders that are not used, and why
        self.refused_disks: list[int] = []  # short ids of those that said which disk they are
        self.replicas: dict[int, Replica] = {}  # by extent id
        self.tombstones: dict[int, Tombstone] = {}
        self.quarantined: dict[int, None] = {}  # extents of which something is in quarantine
        self.stalled: dict[Replica, str] = {}  # acknowledged bytes wait in the journal for room on the disk; why
        self.distrust_pending: dict[Disk, None] = {}  # failed, and the journal's label could not be written to say so
        self.names_changed = True  # since somebody sorted the extent ids
        self.unsealed = 0  # replicas that are not sealed: each may keep a descriptor
        self.sealed_files = SealedFiles(self)
        self.journal: Journal
        self.committer: Committer
        self.checkpoint_wanted = asyncio.Event()
        self.checkpoint_all = False  # the journal has failed: whatever only it holds goes in place at once
        self.dirty = DirtyBytes(config, wake_checkpointer=self.checkpoint_wanted.set)
        self.stopping = False
        self.creating: dict[int, asyncio.Future[Any]] = {}  # extents whose file is being made or unmade
        # The journal's label is one file: who writes it waits here.
        self.label_lock = asyncio.Lock()
        self._pool = pool
        self._kernel_sync = kernel_sync
        self._tasks: set[asyncio.Task[Any]] = set()
        self._orders = 0

    def use_journal(self, journal: Journal) -> None:
        self.journal = journal
        self.committer = Committer(
            journal,
            self.config,
            self.counters,
            self.dirty,
            start_sync=self.start_sync,
            start_journal_sync=self.start_journal_sync,
            sync_failed=self.sync_failed,
            journal_failed=self.journal_failed,
            wake_checkpointer=self.checkpoint_wanted.set,
        )

    # --- threads and tasks -----------------------------------------------------------------------------------

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """A blocking call, in a thread."""
        if isinstance(self._pool, Threads):
            return self._pool.run(function, *args)
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def run_on(self, found: Replica, function: Callable[..., T], *args: Any) -> T:
        """A blocking call that uses the replica's descriptor, which stays open for it. It finds the file up to date."""
        found.write_deferred()
        return await self.run_beside(found, function, *args)

    async def run_beside(self, found: Replica, function: Callable[..., T], *args: Any) -> T:
        """The same for what has nothing to do with the newest bytes."""
        found.pin()
        try:
            return await self.run(function, *args)
        finally:
            found.unpin()

    def start_sync(self, found: Replica, on_done: Callable[[OSError | None], None]) -> None:
        """fdatasync of the replica's file, by the kernel's workers or in a thread; `on_done` is told how it ended."""
        try:
            found.write_deferred()
            if found.deferred:
                raise OSError(errno.EROFS, "its file takes no more writes")
        except OSError as error:
            asyncio.get_running_loop().call_soon(on_done, NotWritten(error.errno, str(error)))
            return
        if self._kernel_sync is None or not self._kernel_sync.begin(found.fd, on_done):
            found.pin()  # before anything else happens: a replica that is deleted meanwhile keeps its descriptor for it
            self.spawn(self._sync_in_thread(self.run(found.sync_data), on_done, found))

    def start_journal_sync(self, ticket: SyncTicket, on_done: Callable[[OSError | None], None]) -> None:
        """The same for the journal. Several of its files are synced one after the other, which is a thread's work."""
        fds = ticket.fds
        if self._kernel_sync is None or len(fds) != 1 or not self._kernel_sync.begin(fds[0], on_done):
            self.spawn(self._sync_in_thread(self.run(self.journal.sync, ticket), on_done))

    async def _sync_in_thread(
        self, syncing: asyncio.Future[None], on_done: Callable[[OSError | None], None], found: Replica | None = None
    ) -> None:
        """Tells how it ended. `found` was pinned for it."""
        try:
            try:
                await syncing
            finally:
                if found is not None:
                    found.unpin()
        except OSError as error:
            on_done(error)
        except Exception as error:  # a bug: nobody may take it for a success
            on_done(OSError(errno.EIO, f"{type(error).__name__}: {error}"))
            raise
        else:
            on_done(None)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it in a task of the store's own. Its errors are logged and counted if nobody else sees them."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that must not stop half-way when the caller is cancelled."""
        return await asyncio.shield(self.spawn(work))

    async def order(self, work: Coroutine[Any, Any, T]) -> T:
        """As `finish`, for what others ask: they may give up and ask again while a disk hangs, and it is still here."""
        if self._orders >= self.config.orders_max:
            work.close()
            raise Overloaded(what="orders under way")
        self._orders += 1
        task = self.spawn(work)
        task.add_done_callback(self._order_done)
        return await asyncio.shield(task)

    def _order_done(self, task: asyncio.Task[Any]) -> None:
        self._orders -= 1

    def check_backlog(self) -> None:
        """Before a read that may need a thread: what waits for one stays, cancelled or not, until a thread comes."""
        if isinstance(self._pool, Threads) and self._pool.unfinished >= self.config.backlog_max:
            raise Overloaded(what="reads that wait for a thread")

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, NeveError):
            self.counters.background_failures += 1
            log.error("store_task_failed task=%s", task.get_coro(), exc_info=error)

    async def join(self, tasks_left: set[asyncio.Task[Any]]) -> None:
        """Wait for everything that was begun, except those."""
        while True:
            if pending := self._tasks - tasks_left:
                await asyncio.wait(pending)
            elif self._kernel_sync is not None and self._kernel_sync.under_way:
                await self._kernel_sync.drained()
            else:
                return

    # --- replicas --------------------------------------------------------------------------------------------

    def existing(self, extent_id: int) -> core.Existing:
        found = self.replicas.get(extent_id)
        if found is not None:
            return found.state
        if extent_id in self.quarantined and extent_id not in self.tombstones:
            return Quarantined(extent_id)
        return self.tombstones.get(extent_id)

    def absence(self, extent_id: int) -> NeveError:
        """Why this node has no replica of the extent."""
        assert extent_id not in self.replicas, extent_id
        error = core.present(self.existing(extent_id), wanted=common_pb2.Replica(), extent_id=extent_id)
        assert isinstance(error, NeveError), error
        return error

    def remove(self, replica: Replica, error: NeveError) -> None:
        """The node does not have this replica any more. Whoever waits for its durability gets the error."""
        replica.gone = True
        del self.replicas[replica.extent_id]
        self.names_changed = True
        replica.disk.extents -= 1
        self.unsealed -= replica.state.seal is None
        self.committer.abandon(replica, error)
        self.dirty.forget(replica)
        self.journal.drop(replica)
        self.stalled.pop(replica, None)
        replica.drop_deferred()
        try:
            replica.close()
            self.sealed_files.forget(replica)
        except OSError as failure:
            log.warning("replica_not_closed extent_id=%d error=%s", replica.extent_id, failure)  # its disk has failed
        replica.wake_followers()

    @asynccontextmanager
    async def turn(self, found: Replica, place: asyncio.Future[None] | None = None) -> AsyncIterator[None]:
        """The replica is the caller's alone. Only in a task of the store's own: see `finish`."""
        if place is None:
            if found.lock.waiting >= self.config.append_waiters_max:
                raise Overloaded(what="requests that wait for one replica")
            place = found.lock.enqueue()
        await place
        try:
            self.check_disk(found)
            found.follow_disk()
            yield
        finally:
            found.lock.release()

    async def sync_attributes(self, found: Replica, persist: Callable[..., None], *args: Any) -> None:
        """A call that ends with an fsync of the file. Data below the present length is durable after it, too."""
        async with self.committer.alone(found):
            read_only = found.state.read_only
            if read_only is not None and not read_only.can_sync:  # since it was decided: nothing becomes durable here
                raise ReplicaReadOnly(extent_id=found.extent_id, detail=read_only.value)
            end = found.state.length
            try:
                await self.run_on(found, persist, *args)
            except SyncFailed as error:
                answer = self.sync_failed(found, error)
                self.committer.abandon(found, answer)
                raise answer from error
            except OSError as error:
                raise self.disk_error(found.disk, found.extent_id, error) from error
            self.committer.note_in_place(found, end)

    def check_running(self) -> None:
        if self.stopping:
            raise ShuttingDown()

    def check_disk(self, found: Replica) -> None:
        """What is on a failed disk is neither read nor written."""
        if found.disk.state is DiskState.OFFLINE:
            raise DiskFailed(extent_id=found.extent_id, disk=found.disk.uuid, detail=found.disk.reason)

    def open(self, found: Replica) -> None:
        """Its descriptor is there; an error of proto.errors if it cannot be had."""
        try:
            found.open()
        except OSError as error:
            raise self.disk_error(found.disk, found.extent_id, error) from error

    # --- errors of the file system ---------------------------------------------------------------------------

    def disk_error(self, disk: Disk, extent_id: int, error: OSError) -> NeveError:
        """The error to answer; the disk's state follows from it."""
        was = disk.state
        answer = replica.disk_error(disk, extent_id, error)
        if disk.state is DiskState.OFFLINE and was is not DiskState.OFFLINE:
            self.spawn(self._give_up_disk(disk))
        return answer

    def sync_failed(self, found: Replica, error: OSError) -> NeveError:
        """An fsync or fdatasync of its file failed: in this process the file is never written or synced again (T23)."""
        if isinstance(error, NotWritten):  # nothing was synced, and nothing is lost: it is tried again
            self.counters.write_failures += 1
            return self.disk_error(found.disk, found.extent_id, error)
        self.counters.sync_failures += 1
        found.state.note_read_only(ReadOnly.SYNC_FAILED)
        log.error("replica_sync_failed extent_id=%d disk=%s error=%s", found.extent_id, found.disk.uuid, error)
        answer = self.disk_error(found.disk, found.extent_id, error)
        self.dirty.forget(found)
        self.spawn(self._doubt_after_failed_sync(found))
        if isinstance(answer, DiskFailed):
            return answer
        return ReplicaReadOnly(extent_id=found.extent_id, detail=f"{ReadOnly.SYNC_FAILED.value}: {error}")

    async def _doubt_after_failed_sync(self, found: Replica) -> None:
        """The kernel calls those pages clean: not even a later process may believe what it reads in this boot."""
        doubt = core.doubt_after_failed_sync(found.state)
        if doubt is not None and not found.gone:
            try:
                await self.run_beside(found, found.persist_doubt, doubt)
            except OSError as error:
                log.error("replica_doubt_not_stored extent_id=%d error=%s", found.extent_id, error)
                await self.distrust(found.disk)
            else:
                found.state.note_doubt(doubt)
                self.counters.replicas_doubted += 1
        # Its own file takes nothing more in this process: what only the journal has stays there for the next start.
        self.journal.strand(found, found.disk.short_id)
        self.checkpoint_wanted.set()

    async def _give_up_disk(self, disk: Disk) -> None:
        """It failed: fail whoever waits for it, and let the journal go on without it."""
        for found in [found for found in self.replicas.values() if found.disk is disk]:
            found.follow_disk()
            error = DiskFailed(extent_id=found.extent_id, disk=disk.uuid, detail=disk.reason)
            self.committer.abandon(found, error)
            self.dirty.forget(found)
            found.drop_deferred()
            found.wake_followers()
            self.journal.strand(found, disk.short_id)
        self.checkpoint_wanted.set()
        await self.distrust(disk)

    async def distrust(self, disk: Disk) -> None:
        """When this disk is used again its open replicas will be doubtful (rule 12)."""
        self.distrust_pending[disk] = None
        async with self.label_lock:
            pending = tuple(self.distrust_pending)
            try:
                for failed in pending:
                    await self.run(self.journal.distrust, failed.short_id)
                    del self.distrust_pending[failed]
            except OSError as error:
                # The housekeeper tries again. Meanwhile any label that can be written will do, that of the failed disk,
                # too; if none can, its device is gone, and comes back by being mounted anew, which the start sees.
                log.error("journal_label_not_written disk=%s error=%s", disk.uuid, error)
                for other in list(self.disks.values()):
                    await self._tell_by_boot_label(other, tuple(failed.short_id for failed in pending))

    async def _tell_by_boot_label(self, disk: Disk, distrusted: tuple[int, ...]) -> None:
        try:
            await self.run(lambda: disk.store_boot(clean=False, distrusted=distrusted))
        except OSError as error:
            log.error("boot_label_not_written disk=%s error=%s", disk.uuid, error)

    def journal_failed(self) -> None:
        """Whatever only the journal holds must go in place while the page cache has it."""
        self.checkpoint_all = True
        self.checkpoint_wanted.set()
