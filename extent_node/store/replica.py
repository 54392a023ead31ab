"""One replica: an extent's file, its state, and the blocking steps that the decisions of core/ require.

Invariants: bytes are written only at the file's end, and count only once all of them are written: the remains of a
            failed write are removed, or the replica accepts no more;
            the file ends at `state.length`, except for `deferred` bytes, which are in memory until they are written;
            they are written before anything syncs or scans the file, or writes behind them; readers get them from
            memory;
            an attribute is noted in `state` after its fsync, never before;
            after a failed fsync the file is not written and not synced again in this process (scenario T23);
            a change of the replica requires its `lock`; the store's loop is the only thread that touches `state`.
Not here:   the set of replicas (store/state.py), descriptors of sealed extents (open_files.py).
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from neve.extent_node.core import ReadOnly, ReplicaState
from neve.extent_node.disk import attributes, index
from neve.extent_node.disk import block_scan as scan
from neve.extent_node.disk.attributes import Doubt, Meta, Seal
from neve.extent_node.disk.disk import FULL, SHORT_OF_RESOURCES, Disk, DiskState
from neve.extent_node.disk.file_system import Buffer, FileSystem
from neve.extent_node.journal.commit_queue import CommitQueue
from neve.proto.errors import DiskFailed, DiskFull, NeveError, Overloaded, ReplicaDamaged

NO_FD = -1

# The deferred writes that an open replica keeps in memory. With 512 extents and appends of 1 KiB, one write per append
# takes 2 µs of the node's processor time, most of it for the inode; one write of sixteen appends takes the same.
DEFERRED_BYTES_MAX = 16 << 10


class SyncFailed(OSError):
    """An fsync or fdatasync failed: what the disk has of the file is unknown (scenario T23)."""


class NotWritten(OSError):
    """Deferred bytes could not be written before a sync, so the sync was not begun."""


class TurnLock:
    """A lock that is granted in the order of `enqueue` calls, which do not await."""

    __slots__ = ("_waiters", "held")

    def __init__(self) -> None:
        self.held = False  # read-only for others
        self._waiters: deque[asyncio.Future[None]] | None = None  # most replicas never have one

    @property
    def waiting(self) -> int:
        return len(self._waiters) if self._waiters else 0

    def enqueue(self) -> asyncio.Future[None]:
        """Join the queue. When the future is done the caller holds the lock, and must release it in any case."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.held:
            self.held = True
            future.set_result(None)
            return future
        if self._waiters is None:
            self._waiters = deque()
        self._waiters.append(future)
        return future

    def leave(self, place: asyncio.Future[None]) -> None:
        """Leave the queue, unless the turn has come. A task that awaits it is cancelled."""
        if self._waiters and place in self._waiters and place.cancel():
            self._waiters.remove(place)

    def release(self) -> None:
        assert self.held
        while self._waiters:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
                return
        self.held = False


class Replica:
    """State, file and queue of one replica. Small: a node has 100,000 of them, most of them idle."""

    __slots__ = (
        "__weakref__",
        "allocate_at",
        "allocated_bytes",
        "allocated_s",
        "allocation_bytes",
        "closing",
        "commit",
        "cuts",
        "deferred",
        "deferred_bytes",
        "disk",
        "fd",
        "followers",
        "gone",
        "in_place_end",
        "known_durable_end",
        "lock",
        "pins",
        "queued_end",
        "reserved_bytes",
        "state",
        "verified",
    )

    def __init__(self, disk: Disk, state: ReplicaState, *, verified: bool) -> None:
        self.disk = disk
        self.state = state
        self.fd = NO_FD  # opened for unsealed replicas, and kept while the process runs
        self.pins = 0  # threads that use the descriptor now
        self.closing = False
        self.lock = TurnLock()
        # False after an unclean stop: the file may not end with a whole block (protocol rule 13), and its attributes
        # may not be on stable storage, because a killed process may have set one without an fsync.
        self.verified = verified
        self.known_durable_end = 0  # proved by the journal, for that verification
        self.in_place_end = state.durable_end  # on stable storage in the file itself, without the journal
        # Blocks that are reserved ahead of appends: up to `allocated_bytes`, by a step of `allocation_bytes`, at
        # `allocated_s` in the loop's time. The next step is due when the length is beyond `allocate_at`.
        self.allocate_at = self.allocated_bytes = self.allocation_bytes = 0
        self.allocated_s = 0.0
        self.reserved_bytes = 0  # the part of those that the file system has confirmed
        self.cuts = 0  # how often the reservation was released
        # The newest bytes below `state.length`, which the file does not have yet: several appends are written at once.
        self.deferred: list[bytes] = []
        self.deferred_bytes = 0
        self.gone = False  # deleted or quarantined: calls that waited for the lock must check this
        self.commit: CommitQueue | None = None  # group_commit.py's, while appends wait for durability
        self.queued_end = 0  # the end of the bytes queued for the journal; `state` knows which of them it has
        self.followers: list[asyncio.Future[None]] | None = None

    def __repr__(self) -> str:
        return f"Replica({self.state.extent_id:016x}, {self.state.length} bytes, {self.disk!r})"

    @property
    def fs(self) -> FileSystem:
        return self.disk.fs

    @property
    def extent_id(self) -> int:
        return self.state.meta.extent_id

    @property
    def dirty_bytes(self) -> int:
        """Bytes that are not yet synced in the file itself."""
        return self.state.length - self.in_place_end

    def follow_disk(self) -> None:
        """Apply the disk's state to this replica."""
        disk = self.disk.state
        if disk is DiskState.WRITABLE:
            wanted = None
        else:
            wanted = ReadOnly.DISK_FULL if disk is DiskState.READ_ONLY else ReadOnly.DISK_FAILED
        if self.state.read_only is not wanted:
            self.state.note_read_only(wanted)

    def note_allocated(self, end: int, *, step_bytes: int) -> None:
        """Blocks up to `end` are reserved, or about to be. The next step is due when half of this one is used."""
        self.allocated_bytes, self.allocation_bytes = end, step_bytes
        self.allocate_at = end - step_bytes // 2

    def wake_followers(self) -> None:
        """Wake waiting readers: `committed` has advanced, or the replica has changed permanently."""
        followers, self.followers = self.followers, None
        for future in followers or ():
            if not future.done():
                future.set_result(None)

    # --- on the loop: page cache only ------------------------------------------------------------------------

    def open(self) -> None:
        if self.fd == NO_FD:
            self.fd = self.fs.open(self.disk.extent_path(self.extent_id))

    def close(self) -> None:
        """Close the file now, or after the last thread's use: the kernel may reuse the number at once."""
        self.closing = self.pins > 0
        if self.fd != NO_FD and not self.closing:
            fd, self.fd = self.fd, NO_FD
            self.fs.close(fd)

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1
        if self.closing and self.pins == 0:
            self.close()

    def may_defer(self, end: int) -> bool:
        """Whether bytes up to `end` may wait in memory: only if the disk has reserved room for them."""
        return end <= self.reserved_bytes and self.state.read_only is None and self.fd != NO_FD

    def defer(self, body: bytes) -> None:
        """Append `body`, which the journal gets now, and the file later: with more bytes, or when it is needed.

        Does not note the length.
        """
        self.deferred.append(body)
        self.deferred_bytes += len(body)

    def write_deferred(self) -> None:
        """Write the deferred bytes, before the file is synced or scanned.

        OSError leaves the replica unchanged, or read-only. If the file must not be written any more, they stay
        deferred: the journal has the acknowledged ones (scenario T23).
        """
        if not self.deferred:
            return
        read_only = self.state.read_only
        if read_only is None or read_only.can_sync:
            self._write_at(b"".join(self.deferred), self.file_end)
            self.drop_deferred()

    @property
    def file_end(self) -> int:
        return self.state.length - self.deferred_bytes

    def drop_deferred(self) -> None:
        self.deferred = []
        self.deferred_bytes = 0

    def write(self, body: Buffer) -> None:
        """Append `body` to the file; OSError leaves the replica unchanged, or read-only. Does not note the length."""
        if self.deferred:
            self.write_deferred()
        self._write_at(body, self.state.length)

    def _write_at(self, body: Buffer, file_end: int) -> None:
        offset, left = file_end, body
        try:
            while (written := self.disk.fs.pwrite_one(self.fd, left, offset)) < len(left):
                if written <= 0:
                    raise OSError(errno.EIO, "a write made no progress")
                offset += written
                left = memoryview(left)[written:]
        except OSError:
            self.cut_to(file_end)
            raise

    def cut_to(self, file_end: int) -> None:
        """Cut the file at its end: remove the remains of a failed write, and release reserved blocks."""
        self.cuts += 1
        self.reserved_bytes = 0  # a cut releases it
        self.note_allocated(file_end, step_bytes=0)
        try:
            self.fs.truncate(self.fd, file_end)
        except OSError:
            # The next append would begin in the middle of those remains.
            self.state.note_read_only(ReadOnly.DISK_FAILED)

    # --- in a thread: these block ----------------------------------------------------------------------------

    def sync_data(self) -> None:
        with _syncing():
            self.fs.fdatasync(self.fd)

    def sync_all(self) -> None:
        with _syncing():
            self.fs.fsync(self.fd)

    def read(self, offset: int, size_bytes: int) -> bytes:
        return read_exactly(self.fs, self.fd, offset, size_bytes)

    def persist(self, token: int | None, fence: bool) -> None:
        """Set the given attributes and fsync data and attributes."""
        if token is not None:
            self.fs.set_xattr(self.fd, attributes.TOKEN, attributes.encode_token(token))
        if fence:
            self.fs.set_xattr(self.fd, attributes.FENCED, attributes.encode_flag(attributes.FENCED))
        self.sync_all()

    def persist_unsynced(self) -> None:
        self.fs.set_xattr(self.fd, attributes.UNSYNCED, attributes.encode_flag(attributes.UNSYNCED))
        self.sync_all()

    def clear_unsynced(self) -> None:
        """Only after the data is on stable storage: see core.Persist."""
        self.fs.remove_xattr(self.fd, attributes.UNSYNCED)
        self.sync_all()

    def persist_doubt(self, doubt: Doubt) -> None:
        self.fs.set_xattr(self.fd, attributes.DOUBTFUL, attributes.encode_doubtful(doubt))
        self.sync_all()

    def persist_seal(self, seal: Seal) -> None:
        """Persist data first, then the seal, then the cut.

        Bytes above a seal are not the extent's. So the next start repairs a crash before the cut, and the journal's
        replay sees the seal and adds nothing (scenario T26).
        """
        self.sync_data()
        self.fs.set_xattr(self.fd, attributes.SEAL, attributes.encode_seal(seal))
        self.sync_all()
        self.cut(seal.length)

    def forget_doubt(self) -> None:
        """Remove `unsynced` and `doubtful`, which a seal voids: the removal may be lost."""
        self.fs.remove_xattr(self.fd, attributes.UNSYNCED)
        self.fs.remove_xattr(self.fd, attributes.DOUBTFUL)

    def cut(self, length: int) -> None:
        self.fs.truncate(self.fd, length)
        self.sync_all()

    def write_index(self, seal: Seal, result: scan.Scan) -> index.BlockIndex:
        made = index.from_scan(self.extent_id, seal, result)
        index.write(
            self.fs,
            made,
            path=self.disk.index_path(self.extent_id),
            temporary_path=self.disk.tmp_path(f"{self.extent_id:016x}-{self.state.meta.incarnation:016x}.idx"),
            folder=self.disk.extent_folder(self.extent_id),
        )
        return made


@contextmanager
def _syncing() -> Iterator[None]:
    """Raise SyncFailed for errors of a sync: errors of other calls leave the file unchanged."""
    try:
        yield
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror or str(error)) from error


def make_replica(disk: Disk, meta: Meta, *, preallocate_bytes: int) -> Replica:
    """A new, empty replica, durable with its name; blocks.

    Always a new inode, made in tmp/ and renamed (protocol rule 11).
    """
    fs = disk.fs
    aside = disk.tmp_path(f"{meta.extent_id:016x}-{meta.incarnation:016x}.ext")
    path = disk.extent_path(meta.extent_id)
    reserved_bytes = 0
    if fs.stat(path) is not None:
        raise FileExistsError(errno.EEXIST, "an extent file that the store does not know", path)
    fd = fs.open(aside, create=True, exclusive=True)
    try:
        fs.set_xattr(fd, attributes.META, attributes.encode_meta(meta))
        if preallocate_bytes and fs.preallocate(fd, preallocate_bytes):
            reserved_bytes = preallocate_bytes
        fs.fsync(fd)
        fs.rename(aside, path)
        fs.fsync_dir(disk.extent_folder(meta.extent_id))
    except BaseException:
        fs.close(fd)
        for name in (aside, path):  # the store does not know the file, and it would block a repeated Create
            with suppress(OSError):
                fs.unlink(name)
        raise
    replica = Replica(disk, ReplicaState(meta), verified=True)
    replica.fd = fd
    replica.note_allocated(preallocate_bytes, step_bytes=preallocate_bytes)
    replica.reserved_bytes = reserved_bytes
    return replica


def load_state(disk: Disk, extent_id: int) -> tuple[ReplicaState, int]:
    """The state from a file's attributes and size, and that size; blocks. BadAttribute: there is no such replica."""
    fs = disk.fs
    fd = fs.open(disk.extent_path(extent_id), writable=False)
    try:
        names = [name for name in fs.list_xattrs(fd) if name in _OURS]
        values = {name: fs.get_xattr(fd, name) for name in names}
        size_bytes = fs.fstat(fd).size_bytes
    finally:
        fs.close(fd)
    decoded = attributes.decode_all({name: value for name, value in values.items() if value is not None})
    meta = decoded.meta
    if meta.extent_id != extent_id:
        raise attributes.BadAttribute(attributes.META, f"it is of extent {meta.extent_id}")
    if meta.disk_uuid != disk.uuid or meta.node_id != disk.label.node_id:
        raise attributes.BadAttribute(attributes.META, f"it was made on disk {meta.disk_uuid} of node {meta.node_id}")
    return ReplicaState.restore(decoded, file_bytes=size_bytes), size_bytes


def read_exactly(fs: FileSystem, fd: int, offset: int, size_bytes: int) -> bytes:
    """Read exactly this many bytes, or fewer at the end of the file."""
    data = fs.pread(fd, size_bytes, offset)
    if len(data) == size_bytes or not data:
        return data
    pieces = [data]
    read = len(data)
    while read < size_bytes and (data := fs.pread(fd, size_bytes - read, offset + read)):
        pieces.append(data)
        read += len(data)
    return b"".join(pieces)


def disk_error(disk: Disk, extent_id: int, error: OSError) -> NeveError:
    """The error for the caller; changes the disk's state according to the file system's error."""
    reason = f"{type(error).__name__}: {error}"
    if error.errno in FULL:
        disk.note_full(reason)
        return DiskFull(extent_id=extent_id, disk=disk.uuid, detail=reason)
    if error.errno == errno.ENOENT:  # the file was removed, which says nothing about the disk's other replicas
        return ReplicaDamaged(extent_id=extent_id, detail=f"its file is gone: {reason}")
    if error.errno in SHORT_OF_RESOURCES:
        return Overloaded(what="file descriptors or memory", detail=reason)
    # After any other error (EIO, EROFS, ENODEV, …) the disk cannot be relied on.
    disk.note_failed(reason)
    return DiskFailed(extent_id=extent_id, disk=disk.uuid, detail=reason)


_OURS = frozenset(attributes.ALL)
