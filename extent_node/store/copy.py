"""The store's part of a copy: a draft file that becomes a sealed replica when it is whole (protocol rule 22).

    draft = await store.copies.begin(request)
    await draft.take(buffer)              any number of times: valid whole blocks are written, the rest is not
    await draft.finish(seal)
    replica = await store.copies.install(draft, request)

Invariants: a draft is in `tmp/` until all of its bytes, attributes and index are on stable storage. A start empties
            `tmp/`, so a crash at any point leaves no replica or a whole one (scenarios T34 and T35);
            it is a new inode with a new incarnation: no journal record and no late request matches it (protocol
            rule 11);
            a node has one live replica of an extent, over all its disks: the old one is moved aside first;
            the draft holds only verified blocks, in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from neve.extent_node.core import ReplicaState
from neve.extent_node.core import copy as core_copy
from neve.extent_node.core.copy import Aside
from neve.extent_node.core.state import Refuse
from neve.extent_node.disk import attributes, index
from neve.extent_node.disk import block_scan as scan
from neve.extent_node.disk.attributes import Attributes, Meta, Seal
from neve.extent_node.disk.disk import FULL, TMP, Disk, DiskState
from neve.extent_node.disk.labels import write_all
from neve.extent_node.store.audit import run_to_end
from neve.extent_node.store.replica import Replica
from neve.extent_node.store.state import StoreState
from neve.proto import blocks
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import DiskFailed, ExtentSealed, Internal, WrongReplica

log = logging.getLogger(__name__)

T = TypeVar("T")

# A file system that writes data before the names and attributes that need it (ext4) would otherwise make every fsync of
# an append wait for everything that a copy has written so far.
SYNC_BYTES = 16 << 20


class Taken(NamedTuple):
    """The outcome of taking a buffer: this many bytes of it are valid whole blocks, and are written."""

    valid_bytes: int
    problem: blocks.Problem | None  # of the next block, if all of it is in the buffer


class Draft:
    """An unfinished copy. One task uses it, and must `discard` it in the end, installed or not."""

    def __init__(self, store: StoreState, disk: Disk, meta: Meta, task_id: int, length: int) -> None:
        self.disk = disk
        self.meta = meta
        self.length_wanted = length
        self.path = disk.tmp_path(f"{meta.extent_id:016x}.{task_id:016x}.copy")
        self.index_path = self.path + ".idx"
        self.finished: Attributes | None = None
        self._store = store
        self._fd: int | None = None
        self._scanner = scan.Scanner()
        self._synced = 0

    @property
    def length(self) -> int:
        return self._scanner.length

    async def open(self) -> None:
        await self._run(self._open)

    async def take(self, buffer: bytes) -> Taken:
        """Check and write the whole blocks at the start of `buffer`, which begins where the last valid bytes ended."""
        return await self._run(self._take, buffer)

    async def digest(self) -> bytes:
        return (await self._run(self._scanner.finish)).digest

    async def restart(self) -> None:
        """Drop all bytes and begin again."""
        await self._run(self._restart)

    async def finish(self, seal: Seal) -> None:
        """Make the bytes, attributes and index durable. All bytes are there and match the seal."""
        await self._run(self._finish, seal)

    async def discard(self) -> None:
        """Close the draft, and remove it unless it was installed. What cannot be removed goes at the next start."""
        try:
            await run_to_end(self._store, self._discard)
        except OSError as error:
            log.warning("copy_not_removed path=%s error=%s", self.path, error)

    # --- in a thread -----------------------------------------------------------------------------------------

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        if self.disk.state is DiskState.OFFLINE:
            raise DiskFailed(extent_id=self.meta.extent_id, disk=self.disk.uuid, detail=self.disk.reason)
        try:
            return await run_to_end(self._store, function, *args)
        except OSError as error:
            raise self._store.disk_error(self.disk, self.meta.extent_id, error) from error

    def _open(self) -> None:
        fs = self.disk.fs
        self._remove()  # left by an earlier attempt of this task, if it could not be removed then
        self._fd = fs.open(self.path, create=True, exclusive=True)
        fs.set_xattr(self._fd, attributes.META, attributes.encode_meta(self.meta))
        if self.length_wanted:
            fs.preallocate(self._fd, self.length_wanted)  # fails now if the disk has no room for all of it

    def _take(self, buffer: bytes) -> Taken:
        assert self._fd is not None
        whole_end = _whole_end(buffer)
        problem = blocks.verify(buffer, end=whole_end)
        valid = memoryview(buffer)[: whole_end if problem is None else problem.offset]
        if valid:
            write_all(self.disk.fs, self._fd, buffer if len(valid) == len(buffer) else bytes(valid), self.length)
            self._scanner.feed(valid)
        if self.length - self._synced >= SYNC_BYTES:
            self._synced = self.length
            self.disk.fs.fdatasync(self._fd)
        return Taken(len(valid), None if problem is None else problem._replace(offset=self.length))

    def _restart(self) -> None:
        assert self._fd is not None
        self.disk.fs.truncate(self._fd, 0)
        self._scanner = scan.Scanner()
        self._synced = 0

    def _finish(self, seal: Seal) -> None:
        assert self._fd is not None
        fs, result = self.disk.fs, self._scanner.finish()
        if result.problem is not None or result.valid_length != seal.length or result.digest != seal.digest:
            raise Internal(detail=f"a copy of {self.meta} does not match its seal, {seal}")
        made = Attributes(meta=self.meta, fenced=True, seal=seal)
        for name, value in attributes.encode_all(made).items():
            fs.set_xattr(self._fd, name, value)
        fs.fsync(self._fd)
        try:
            made_index = index.from_scan(self.meta.extent_id, seal, result)
            folder = os.path.join(self.disk.folder, TMP)
            index.write(fs, made_index, path=self.index_path, temporary_path=self.index_path + ".new", folder=folder)
        except OSError as error:
            if error.errno not in FULL:
                raise
            # Derived data: the first read makes it again.
            log.warning("index_not_written extent_id=%d error=%s", self.meta.extent_id, error)
            if fs.stat(self.index_path + ".new") is not None:
                fs.unlink(self.index_path + ".new")
        self.finished = made

    def install(self) -> None:
        """Give the file its name, durably. No other file has that name."""
        fs, extent_id = self.disk.fs, self.meta.extent_id
        fs.rename(self.path, self.disk.extent_path(extent_id))
        if fs.stat(self.index_path) is not None:
            fs.rename(self.index_path, self.disk.index_path(extent_id))
        fs.fsync_dir(self.disk.extent_folder(extent_id))

    def _discard(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self.disk.fs.close(fd)
        if self.disk.state is not DiskState.OFFLINE:
            self._remove()

    def _remove(self) -> None:
        for path in (self.path, self.index_path, self.index_path + ".new"):
            if self.disk.fs.stat(path) is not None:
                self.disk.fs.unlink(path)


def _whole_end(buffer: bytes) -> int:
    """The end of the blocks that are whole by their headers; the end of the buffer if one of them is no valid header.

    A block that continues beyond the buffer is not checked: `blocks.verify` would search for flipped bits in its size,
    and finds one by chance in about one of 10^8 correct blocks. A copy with such a block would never succeed.
    """
    at, end = 0, len(buffer)
    types = {kind.value for kind in blocks.BlockType}
    while end - at >= blocks.HEADER_BYTES:
        _, size_bytes, block_type = blocks.parse_header(buffer, at)
        if block_type not in types:
            return end
        if blocks.HEADER_BYTES + size_bytes > end - at:
            return at
        at += blocks.HEADER_BYTES + size_bytes
    return at


class Copies:
    """The store's interface for the copier."""

    def __init__(self, store: StoreState) -> None:
        self._store = store

    def decide(self, request: pb.StartCopyRequest) -> core_copy.CopyDecision:
        """What the order requires now."""
        return self._decide(self._store.replicas.get(request.extent_id), request)

    def choose_disk(self, request: pb.StartCopyRequest) -> Disk:
        """The disk that the order names, or else one with room. Copies may use a full one's reserve (scenario T24)."""
        store, wanted, extent_id = self._store, request.replica, request.extent_id
        if wanted.node_id and wanted.node_id != store.config.node_id:
            detail = f"node {wanted.node_id} is wanted, this is node {store.config.node_id}"
            raise WrongReplica(extent_id=extent_id, detail=detail)
        candidates = list(store.disks.values())
        if wanted.disk_uuid:
            candidates = [disk for disk in candidates if disk.uuid == wanted.disk_uuid]
            if not candidates:
                raise WrongReplica(extent_id=extent_id, detail=f"disk {wanted.disk_uuid} is not here")
        usable = [disk for disk in candidates if disk.state is not DiskState.OFFLINE]
        if not usable:
            raise DiskFailed(extent_id=extent_id, disk=candidates[0].uuid, detail=candidates[0].reason)
        old = store.replicas.get(extent_id)
        if old is not None and old.disk in usable:
            return old.disk
        return max(usable, key=lambda disk: (disk.state is DiskState.WRITABLE, disk.usage.free_bytes))

    async def begin(self, request: pb.StartCopyRequest) -> Draft:
        """A new, empty draft on a disk with room for all of it."""
        store = self._store
        store.check_running()
        disk = self.choose_disk(request)
        meta = Meta(
            extent_id=request.extent_id,
            eversion=core_copy.order_eversion(request),
            incarnation=store.rng.getrandbits(63) + 1,
            stream_id=request.stream_id,
            created_ms=store.wall_clock_ms(),
            extent_bytes_max=max(request.seal.length, 1),  # it accepts no append, so its size never changes
            node_id=store.config.node_id,
            disk_uuid=disk.uuid,
        )
        draft = Draft(store, disk, meta, request.task_id, request.seal.length)
        try:
            await draft.open()
        except BaseException:
            await draft.discard()
            raise
        return draft

    async def install(self, draft: Draft, request: pb.StartCopyRequest) -> Replica | None:
        """Make a finished draft this node's replica. None: the existing replica has changed, so decide again."""
        assert draft.finished is not None, draft
        self._store.check_running()
        work = self._store.spawn(self._install(draft, request))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])  # it uses the draft, which the caller discards next
            raise

    async def sync_name(self, replica: Replica) -> None:
        """Make the file's name durable: the process that gave it may have died before that."""
        try:
            await self._store.run(replica.fs.fsync_dir, replica.disk.extent_folder(replica.extent_id))
        except OSError as error:
            raise self._store.disk_error(replica.disk, replica.extent_id, error) from error

    # --- inside ----------------------------------------------------------------------------------------------

    def _decide(self, old: Replica | None, request: pb.StartCopyRequest) -> core_copy.CopyDecision:
        if old is not None and old.disk.state is DiskState.OFFLINE:
            return core_copy.MakeCopy()  # the old one is out of reach; if its disk returns, the sealed one is served
        return core_copy.decide_copy(self._store.existing(request.extent_id), request)

    async def _install(self, draft: Draft, request: pb.StartCopyRequest) -> Replica | None:
        store, extent_id = self._store, request.extent_id
        while (busy := store.creating.get(extent_id)) is not None:
            await asyncio.shield(busy)
        name_taken = store.creating[extent_id] = asyncio.get_running_loop().create_future()
        try:
            old = store.replicas.get(extent_id)
            if old is None:
                return await self._replace(None, draft, request)
            # Not `store.turn`, which refuses a replica on a failed disk: exactly such a replica may be replaced.
            await old.lock.enqueue()
            try:
                return await self._replace(None if old.gone else old, draft, request)
            finally:
                old.lock.release()
        finally:
            del store.creating[extent_id]
            name_taken.set_result(None)

    async def _replace(self, old: Replica | None, draft: Draft, request: pb.StartCopyRequest) -> Replica | None:
        """Install the draft. The caller holds the extent's name and the old replica's turn."""
        decision = self._decide(old, request)
        if isinstance(decision, Refuse):
            raise decision.error
        if not isinstance(decision, core_copy.MakeCopy | core_copy.ReplaceBy):
            return None
        store, disk = self._store, draft.disk
        if disk.state is DiskState.OFFLINE:
            raise DiskFailed(extent_id=request.extent_id, disk=disk.uuid, detail=disk.reason)
        if old is not None:
            if isinstance(decision, core_copy.ReplaceBy):
                await self._move_aside(old, decision)
            store.remove(old, ExtentSealed(extent_id=old.extent_id, length=request.seal.length))
        try:
            await store.run(draft.install)
        except OSError as error:
            raise store.disk_error(disk, request.extent_id, error) from error
        assert draft.finished is not None
        state = ReplicaState.restore(draft.finished, file_bytes=draft.length)
        made = Replica(disk, state, verified=True)
        store.replicas[request.extent_id] = made
        store.names_changed = True
        disk.extents += 1
        log.info("replica_copied extent_id=%d disk=%s length=%d", request.extent_id, disk.uuid, draft.length)
        return made

    async def _move_aside(self, old: Replica, decision: core_copy.ReplaceBy) -> None:
        store, disk, extent_id = self._store, old.disk, old.extent_id
        log.warning(
            "replica_replaced extent_id=%d disk=%s to=%s reason=%s",
            extent_id,
            disk.uuid,
            decision.aside.value,
            decision.reason,
        )
        move = disk.move_to_trash if decision.aside is Aside.TRASH else disk.move_to_quarantine
        with contextlib.suppress(OSError):  # it is moved even without its deferred bytes
            old.write_deferred()
        try:
            await store.run(move, extent_id, old.state.meta.incarnation, store.wall_clock_ms())
        except FileNotFoundError:
            log.error("replica_file_gone extent_id=%d disk=%s", extent_id, disk.uuid)  # nothing is in the way
        except OSError as error:
            raise store.disk_error(disk, extent_id, error) from error
        if decision.aside is Aside.QUARANTINE:
            store.counters.quarantines += 1
            store.quarantined[extent_id] = None
