"""One replica: an extent's file, what is known of it, and the blocking steps that core's decisions ask for.

Invariants: bytes are written only at the file's end, and count only once all of them are written: what a failed write
            left behind is removed, or the replica takes no more;
            the file ends at `state.length`, except for `deferred` bytes, which are in memory until they are written;
            nothing syncs or scans the file, or writes behind them, before they are in it; readers get them from memory;
            an attribute is noted in `state` after its fsync, never before;
            after a failed fsync the file is not written and not synced again in this process (T23);
            whoever changes the replica holds `lock`; the store's loop is the only thread that touches `state`.
Not here:   which replicas there are (store/state.py), descriptors of sealed extents (open_files.py).
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

# Bytes of deferred writes that an open replica keeps in memory. With 512 extents and appends of 1 KiB, a write of each
# append takes 2 µs of the node's processor time, most of it for the inode; one write of sixteen appends takes as much.
DEFERRED_BYTES_MAX = 16 << 10


class SyncFailed(OSError):
    """An fsync or fdatasync failed: what the file holds on the disk is not known any more (T23)."""


class NotWritten(OSError):
    """Deferred bytes could not be written before a sync, which therefore was not begun."""


class TurnLock:
    """A lock that is given in the order of asking. `enqueue` does not await, so that order is the caller's."""

    __slots__ = ("_waiters", "held")

    def __init__(self) -> None:
        self.held = False  # for others to see, not to set
        self._waiters: deque[asyncio.Future[None]] | None = None  # most replicas never have one

    @property
    def waiting(self) -> int:
        return len(self._waiters) if self._waiters else 0

    def enqueue(self) -> asyncio.Future[None]:
        """A place in the line; the lock is the caller's when it is done. It must then be released, come what may."""
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
        """Give up a place in the line, unless its turn has come. Whoever awaits it is cancelled."""
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
    """State, file and line of waiting of one replica. Small: a node has 100,000 of them, most of them idle."""

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
        self.fd = NO_FD  # of a replica that is not sealed; it keeps it while the process runs
        self.pins = 0  # threads that use the descriptor now
        self.closing = False
        self.lock = TurnLock()
        # False after an unclean stop: whether the file ends with a whole block is not known yet (rule 13), nor whether
        # the attributes that can be read are on stable storage: a killed process may have set one and not fsynced it.
        self.verified = verified
        self.known_durable_end = 0  # what the journal proves, for that verification
        self.in_place_end = state.durable_end  # on stable storage in the file itself, without the journal
        # Blocks that are reserved ahead of appends: up to `allocated_bytes`, by a step of `allocation_bytes`, at
        # `allocated_s` in the loop's time. The next step is due when the length is beyond `allocate_at`.
        self.allocate_at = self.allocated_bytes = self.allocation_bytes = 0
        self.allocated_s = 0.0
        self.reserved_bytes = 0  # of those, what the file system has agreed to
        self.cuts = 0  # how often it was given back
        # The newest bytes below `state.length`, which the file does not have yet: several appends are written at once.
        self.deferred: list[bytes] = []
        self.deferred_bytes = 0
        self.gone = False  # deleted or quarantined: whoever waited for the lock finds nothing
        self.commit: CommitQueue | None = None  # group_commit.py's, while appends wait for durability
        self.queued_end = 0  # of what calls have had queued for the journal; whether it came there, the state says
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
        """In the page cache only, as far as the file is concerned."""
        return self.state.length - self.in_place_end

    def follow_disk(self) -> None:
        """Take over what the disk's state means for this replica."""
        disk = self.disk.state
        if disk is DiskState.WRITABLE:
            wanted = None
        else:
            wanted = ReadOnly.DISK_FULL if disk is DiskState.READ_ONLY else ReadOnly.DISK_FAILED
        if self.state.read_only is not wanted:
            self.state.note_read_only(wanted)

    def note_allocated(self, end: int, *, step_bytes: int) -> None:
        """Blocks up to `end` are reserved, or about to be. The next ones when half of this step is used."""
        self.allocated_bytes, self.allocation_bytes = end, step_bytes
        self.allocate_at = end - step_bytes // 2

    def wake_followers(self) -> None:
        """Readers that wait for more: `committed` has moved, or the replica has changed for good."""
        followers, self.followers = self.followers, None
        for future in followers or ():
            if not future.done():
                future.set_result(None)

    # --- on the loop: page cache only ------------------------------------------------------------------------

    def open(self) -> None:
        if self.fd == NO_FD:
            self.fd = self.fs.open(self.disk.extent_path(self.extent_id))

    def close(self) -> None:
        """Now, or when the last thread has done with it: the kernel may give the number to another file at once."""
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
        """Append `body`, which goes to the journal, and to the file when there is more, or when the file is needed.

        Does not note the length.
        """
        self.deferred.append(body)
        self.deferred_bytes += len(body)

    def write_deferred(self) -> None:
        """Bring the file up to date, before it is synced or scanned.

        OSError leaves the replica as it was, or read-only. In a file that must not be written any more they stay
        deferred: the journal has those that were acknowledged (scenario T23).
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
        """Append `body` to the file; OSError leaves the replica as it was, or read-only. Does not note the length."""
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
        """Nothing is to be above the file's end: what a failed write left there was never part of it, and blocks that
        were reserved are given back."""
        self.cuts += 1
        self.reserved_bytes = 0  # a cut gives it back
        self.note_allocated(file_end, step_bytes=0)
        try:
            self.fs.truncate(self.fd, file_end)
        except OSError:
            # The next append would begin in the middle of those bytes.
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
        """Set what is asked and fsync data and attributes."""
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
        """Data first, then the seal, then the cut: bytes above the seal are none of the extent's from the seal on, so a
        crash before the cut is repaired on start, and the journal's replay sees the seal and adds nothing (T26)."""
        self.sync_data()
        self.fs.set_xattr(self.fd, attributes.SEAL, attributes.encode_seal(seal))
        self.sync_all()
        self.cut(seal.length)

    def forget_doubt(self) -> None:
        """After a seal, which voids both: their removal may be lost."""
        self.fs.remove_xattr(self.fd, attributes.UNSYNCED)
        self.fs.remove_xattr(self.fd, attributes.DOUBTFUL)

    def cut(self, length: int) -> None:
        self.fs.truncate(self.fd, length)
        self.sync_all()

    def write_index(self, seal: Seal, found: scan.Scan) -> index.BlockIndex:
        made = index.from_scan(self.extent_id, seal, found)
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
    """Tells errors of a sync from errors of other calls, which leave the file as it was."""
    try:
        yield
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror or str(error)) from error


def make_replica(disk: Disk, meta: Meta, *, preallocate_bytes: int) -> Replica:
    """A new, empty replica, durable with its name; blocks. Always a new inode: made aside, then renamed (rule 11)."""
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
        for name in (aside, path):  # the store does not know it: it would be in the way of a repeated Create
            with suppress(OSError):
                fs.unlink(name)
        raise
    replica = Replica(disk, ReplicaState(meta), verified=True)
    replica.fd = fd
    replica.note_allocated(preallocate_bytes, step_bytes=preallocate_bytes)
    replica.reserved_bytes = reserved_bytes
    return replica


def load_state(disk: Disk, extent_id: int) -> tuple[ReplicaState, int]:
    """What the file's attributes and size say, and that size; blocks. BadAttribute: there is no such replica."""
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
    """As many bytes as asked for, fewer only at the end of the file."""
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
    """What an error of the file system means: for the disk, whose state changes, and for the caller."""
    reason = f"{type(error).__name__}: {error}"
    if error.errno in FULL:
        disk.note_full(reason)
        return DiskFull(extent_id=extent_id, disk=disk.uuid, detail=reason)
    if (
        error.errno == errno.ENOENT
    ):  # somebody removed the file: the other replicas of this disk are not the worse for it
        return ReplicaDamaged(extent_id=extent_id, detail=f"its file is gone: {reason}")
    if error.errno in SHORT_OF_RESOURCES:
        return Overloaded(what="file descriptors or memory", detail=reason)
    # Whatever else a file system says (EIO, EROFS, ENODEV, …), this disk cannot be relied on.
    disk.note_failed(reason)
    return DiskFailed(extent_id=extent_id, disk=disk.uuid, detail=reason)


_OURS = frozenset(attributes.ALL)
