"""The shared state of a store: its replicas, disks and journal, threads and tasks, and the handling of disk errors.

Invariants: only the loop's thread touches this state; threads get a replica or the journal for one call;
            changes of a replica run in the store's own tasks: a caller that gives up does not stop one half-way;
            a disk's failure is recorded durably: in the journal's label, or in labels of disks; failed attempts are
            repeated;
            the journal's records of a failed disk stay: only the operator gives them up.
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
from neve.extent_node.store.config import Counters, StoreConfig
from neve.extent_node.store.dirty_bytes import DirtyBytes
from neve.extent_node.store.open_files import SealedFiles
from neve.extent_node.store.replica import NotWritten, Replica, SyncFailed, disk_error
from neve.proto import common_pb2
from neve.proto.errors import DiskFailed, NeveError, Overloaded, ReplicaReadOnly, ShuttingDown

log = logging.getLogger(__name__)

T = TypeVar("T")


class StoreState:
    """The shared state of a store."""

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
        self.refused_disks: list[int] = []  # short ids of those whose label could be read
        self.replicas: dict[int, Replica] = {}  # by extent id
        self.tombstones: dict[int, Tombstone] = {}
        self.quarantined: dict[int, None] = {}  # extents with a replica in quarantine
        self.stalled: dict[Replica, str] = {}  # acknowledged bytes wait in the journal for room on the disk; why
        self.distrust_pending: dict[Disk, None] = {}  # failed disks that the journal's label does not name yet
        self.names_changed = True  # since the extent ids were last sorted
        self.unsealed = 0  # replicas that are not sealed: each may keep a descriptor
        self.sealed_files = SealedFiles(self)
        self.journal: Journal
        self.committer: Committer
        self.checkpoint_wanted = asyncio.Event()
        self.checkpoint_all = False  # the journal has failed: sync everything that only it holds in place
        self.dirty = DirtyBytes(config, wake_checkpointer=self.checkpoint_wanted.set)
        self.stopping = False
        self.creating: dict[int, asyncio.Future[Any]] = {}  # extents whose file is being made or removed
        # Held while writing the journal's label, which is one file.
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
        """Run a blocking call in a thread."""
        if isinstance(self._pool, Threads):
            return self._pool.run(function, *args)
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def run_on(self, replica: Replica, function: Callable[..., T], *args: Any) -> T:
        """Run a blocking call on the replica's open file, after writing deferred bytes. The descriptor stays open."""
        replica.write_deferred()
        return await self.run_beside(replica, function, *args)

    async def run_beside(self, replica: Replica, function: Callable[..., T], *args: Any) -> T:
        """As `run_on`, for calls that do not need the newest bytes."""
        replica.pin()
        try:
            return await self.run(function, *args)
        finally:
            replica.unpin()

    def start_sync(self, replica: Replica, on_done: Callable[[OSError | None], None]) -> None:
        """fdatasync the replica's file, by the kernel's workers or in a thread; `on_done` gets the outcome."""
        try:
            replica.write_deferred()
            if replica.deferred:
                raise OSError(errno.EROFS, "its file accepts no more writes")
        except OSError as error:
            asyncio.get_running_loop().call_soon(on_done, NotWritten(error.errno, str(error)))
            return
        if self._kernel_sync is None or not self._kernel_sync.begin(replica.fd, on_done):
            replica.pin()  # at once, so that the descriptor stays open even if the replica is deleted meanwhile
            self.spawn(self._sync_in_thread(self.run(replica.sync_data), on_done, replica))

    def start_journal_sync(self, ticket: SyncTicket, on_done: Callable[[OSError | None], None]) -> None:
        """As `start_sync`, for the journal. Several of its files are synced in order, which takes a thread."""
        fds = ticket.fds
        if self._kernel_sync is None or len(fds) != 1 or not self._kernel_sync.begin(fds[0], on_done):
            self.spawn(self._sync_in_thread(self.run(self.journal.sync, ticket), on_done))

    async def _sync_in_thread(
        self, syncing: asyncio.Future[None], on_done: Callable[[OSError | None], None], replica: Replica | None = None
    ) -> None:
        """Report the outcome of a sync in a thread. `replica` was pinned for it."""
        try:
            try:
                await syncing
            finally:
                if replica is not None:
                    replica.unpin()
        except OSError as error:
            on_done(error)
        except Exception as error:  # a bug: it must not count as success
            on_done(OSError(errno.EIO, f"{type(error).__name__}: {error}"))
            raise
        else:
            on_done(None)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run the coroutine in a task of the store's own. Errors are logged and counted unless they are a NeveError."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that must not stop half-way when the caller is cancelled."""
        return await asyncio.shield(self.spawn(work))

    async def order(self, work: Coroutine[Any, Any, T]) -> T:
        """As `finish`, bounded: callers may give up and repeat a request while a disk hangs, and the work remains."""
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
        """Refuse a read that may need a thread if too many calls wait: each waits to its end, cancelled or not."""
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
        """Wait for all tasks and syncs, except the given tasks."""
        while True:
            if pending := self._tasks - tasks_left:
                await asyncio.wait(pending)
            elif self._kernel_sync is not None and self._kernel_sync.under_way:
                await self._kernel_sync.drained()
            else:
                return

    # --- replicas --------------------------------------------------------------------------------------------

    def existing(self, extent_id: int) -> core.Existing:
        replica = self.replicas.get(extent_id)
        if replica is not None:
            return replica.state
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
        """Forget a replica that the node no longer has. Calls that wait for its durability get the error."""
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
    async def turn(self, replica: Replica, place: asyncio.Future[None] | None = None) -> AsyncIterator[None]:
        """Hold the replica exclusively. Only in a task of the store's own: see `finish`."""
        if place is None:
            if replica.lock.waiting >= self.config.append_waiters_max:
                raise Overloaded(what="requests that wait for one replica")
            place = replica.lock.enqueue()
        await place
        try:
            self.check_disk(replica)
            replica.follow_disk()
            yield
        finally:
            replica.lock.release()

    async def sync_attributes(self, replica: Replica, persist: Callable[..., None], *args: Any) -> None:
        """Run a call that ends with an fsync of the file. It also makes the data below the present length durable."""
        async with self.committer.alone(replica):
            read_only = replica.state.read_only
            if read_only is not None and not read_only.can_sync:  # changed since the decision: nothing becomes durable
                raise ReplicaReadOnly(extent_id=replica.extent_id, detail=read_only.value)
            end = replica.state.length
            try:
                await self.run_on(replica, persist, *args)
            except SyncFailed as error:
                answer = self.sync_failed(replica, error)
                self.committer.abandon(replica, answer)
                raise answer from error
            except OSError as error:
                raise self.disk_error(replica.disk, replica.extent_id, error) from error
            self.committer.note_in_place(replica, end)

    def check_running(self) -> None:
        if self.stopping:
            raise ShuttingDown()

    def check_disk(self, replica: Replica) -> None:
        """Raise if the replica's disk has failed: it is neither read nor written."""
        if replica.disk.state is DiskState.OFFLINE:
            raise DiskFailed(extent_id=replica.extent_id, disk=replica.disk.uuid, detail=replica.disk.reason)

    def open(self, replica: Replica) -> None:
        """Open the replica's descriptor; an error of proto.errors if that fails."""
        try:
            replica.open()
        except OSError as error:
            raise self.disk_error(replica.disk, replica.extent_id, error) from error

    # --- errors of the file system ---------------------------------------------------------------------------

    def disk_error(self, disk: Disk, extent_id: int, error: OSError) -> NeveError:
        """The error for the caller; the disk's state changes accordingly."""
        was = disk.state
        answer = disk_error(disk, extent_id, error)
        if disk.state is DiskState.OFFLINE and was is not DiskState.OFFLINE:
            self.spawn(self._give_up_disk(disk))
        return answer

    def sync_failed(self, replica: Replica, error: OSError) -> NeveError:
        """Handle a failed sync: in this process the file is never written or synced again (scenario T23)."""
        if isinstance(error, NotWritten):  # no sync ran and nothing is lost: it may be tried again
            self.counters.write_failures += 1
            return self.disk_error(replica.disk, replica.extent_id, error)
        self.counters.sync_failures += 1
        replica.state.note_read_only(ReadOnly.SYNC_FAILED)
        log.error("replica_sync_failed extent_id=%d disk=%s error=%s", replica.extent_id, replica.disk.uuid, error)
        answer = self.disk_error(replica.disk, replica.extent_id, error)
        self.dirty.forget(replica)
        self.spawn(self._doubt_after_failed_sync(replica))
        if isinstance(answer, DiskFailed):
            return answer
        return ReplicaReadOnly(extent_id=replica.extent_id, detail=f"{ReadOnly.SYNC_FAILED.value}: {error}")

    async def _doubt_after_failed_sync(self, replica: Replica) -> None:
        """Make the doubt durable: the kernel marks those pages as clean, so later processes of this boot need it."""
        doubt = core.doubt_after_failed_sync(replica.state)
        if doubt is not None and not replica.gone:
            try:
                await self.run_beside(replica, replica.persist_doubt, doubt)
            except OSError as error:
                log.error("replica_doubt_not_stored extent_id=%d error=%s", replica.extent_id, error)
                await self.distrust(replica.disk)
            else:
                replica.state.note_doubt(doubt)
                self.counters.replicas_doubted += 1
        # Its file cannot be written in this process: the journal keeps its records for the next start.
        self.journal.strand(replica, replica.disk.short_id)
        self.checkpoint_wanted.set()

    async def _give_up_disk(self, disk: Disk) -> None:
        """Handle a failed disk: fail the calls that wait for it, and let the journal's ring continue without it."""
        for replica in [replica for replica in self.replicas.values() if replica.disk is disk]:
            replica.follow_disk()
            error = DiskFailed(extent_id=replica.extent_id, disk=disk.uuid, detail=disk.reason)
            self.committer.abandon(replica, error)
            self.dirty.forget(replica)
            replica.drop_deferred()
            replica.wake_followers()
            self.journal.strand(replica, disk.short_id)
        self.checkpoint_wanted.set()
        await self.distrust(disk)

    async def distrust(self, disk: Disk) -> None:
        """Record that the disk failed: when it is used again its open replicas will be doubtful (protocol rule 12)."""
        self.distrust_pending[disk] = None
        async with self.label_lock:
            pending = tuple(self.distrust_pending)
            try:
                for failed in pending:
                    await self.run(self.journal.distrust, failed.short_id)
                    del self.distrust_pending[failed]
            except OSError as error:
                # Housekeeping tries again. Meanwhile any label that can be written will do, also that of the failed
                # disk. If none can, the device is gone and only returns by a new mount, which the start notices.
                log.error("journal_label_not_written disk=%s error=%s", disk.uuid, error)
                for other in list(self.disks.values()):
                    await self._record_in_boot_label(other, tuple(failed.short_id for failed in pending))

    async def _record_in_boot_label(self, disk: Disk, distrusted: tuple[int, ...]) -> None:
        try:
            await self.run(lambda: disk.store_boot(clean=False, distrusted=distrusted))
        except OSError as error:
            log.error("boot_label_not_written disk=%s error=%s", disk.uuid, error)

    def journal_failed(self) -> None:
        """Have everything that only the journal holds synced in place while the page cache has it."""
        self.checkpoint_all = True
        self.checkpoint_wanted.set()
