"""Open sealed extents: descriptor, mapping and index of each. The least recently used are closed first.

Touching a mapped page that is not in memory blocks the thread, and a bad sector under a mapping is a SIGBUS that ends
the process. So a range that the kernel does not have in memory is first read by `pread` in a thread, which loads its
pages or raises EIO. A range that was in memory once is then served from the mapping, without a thread, a copy or a
call. A transport may send large ranges from the file itself: a failed read there is an error of that call, never a
SIGBUS.

Invariants: at most `files_max` are open besides those in use; one in use is not closed;
            nothing is served from a mapping that was not seen in memory, or read by `pread`, since it was opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from neve.extent_node.disk import block_scan as scan
from neve.extent_node.disk import index
from neve.extent_node.disk.attributes import Seal
from neve.extent_node.disk.index import BlockIndex
from neve.extent_node.store.replica import Replica
from neve.proto.errors import ReplicaDamaged, ReplicaMissing

if TYPE_CHECKING:
    from neve.extent_node.store.state import StoreState

log = logging.getLogger(__name__)

# Read at once when a range is first touched: a sequential reader then waits only for every 64th 4 KiB block.
WARM_BYTES = 256 * 1024


class SealedFile:
    """One open sealed extent. `blocks` is its index; `kernel_fd` its descriptor for sendfile, None if it has none."""

    __slots__ = ("_warm", "blocks", "fd", "kernel_fd", "pins", "view")

    def __init__(self, fd: int, view: memoryview, blocks: BlockIndex, kernel_fd: int | None = None) -> None:
        self.fd = fd
        self.kernel_fd = kernel_fd
        self.view = view
        self.blocks = blocks
        self.pins = 0
        self._warm = bytearray(-(-len(view) // WARM_BYTES))  # one byte for each chunk: 8 KiB for 2 GiB

    def is_warm(self, start: int, end: int) -> bool:
        first, last = start // WARM_BYTES, -(-end // WARM_BYTES)
        return 0 not in self._warm[first:last]

    def note_warm(self, start: int, end: int) -> None:
        for chunk in range(start // WARM_BYTES, -(-end // WARM_BYTES)):
            self._warm[chunk] = 1

    def note_cold(self, start: int, end: int) -> None:
        """Forget that the range is in memory, because sending it failed: the next `pread` shows why."""
        first, last = start // WARM_BYTES, -(-end // WARM_BYTES)
        self._warm[first:last] = bytes(last - first)

    def cold_chunks(self, start: int, end: int) -> list[int]:
        """Offsets of the chunks that must be read first."""
        chunks = range(start // WARM_BYTES, -(-end // WARM_BYTES))
        return [chunk * WARM_BYTES for chunk in chunks if not self._warm[chunk]]


class SealedRange(NamedTuple):
    """A warm part of a sealed extent: bytes for a transport, which may send them from the file."""

    opened: SealedFile
    offset: int
    view: memoryview

    def descriptor(self) -> int | None:
        return self.opened.kernel_fd

    def unreadable(self, detail: str) -> None:
        log.warning("mapped_range_unreadable offset=%d bytes=%d reason=%s", self.offset, len(self.view), detail)
        self.opened.note_cold(self.offset, self.offset + len(self.view))


class SealedFiles:
    """The cache of open sealed extents."""

    def __init__(self, store: StoreState) -> None:
        self._store = store
        self._open: OrderedDict[Replica, SealedFile] = OrderedDict()
        self._opening: dict[Replica, asyncio.Task[SealedFile]] = {}

    def get(self, replica: Replica) -> SealedFile | None:
        opened = self._open.get(replica)
        if opened is not None:
            self._open.move_to_end(replica)
        return opened

    async def open(self, replica: Replica) -> SealedFile:
        """Open and map the extent; a missing or wrong index is rebuilt. ReplicaDamaged if its bytes are wrong."""
        task = self._opening.get(replica)
        if task is None:  # one at a time, shared by all callers, because rebuilding an index takes seconds
            task = self._opening[replica] = self._store.spawn(self._open_once(replica))
            task.add_done_callback(lambda _: self._opening.pop(replica, None))
        return await asyncio.shield(task)

    async def _open_once(self, replica: Replica) -> SealedFile:
        assert replica.state.seal is not None
        try:
            opened = await self._store.run(_open, replica, replica.state.seal)
        except OSError as error:
            raise self._store.disk_error(replica.disk, replica.extent_id, error) from error
        except ReplicaDamaged as error:
            replica.state.note_damaged(error.offset)
            log.error("replica_damaged extent_id=%d offset=%d", replica.extent_id, error.offset)
            raise
        if replica.gone:
            replica.fs.close(opened.fd)
            raise ReplicaMissing(extent_id=replica.extent_id, detail="it was deleted or quarantined just now")
        self._open[replica] = opened
        self._close_oldest()
        return opened

    def is_warm(self, replica: Replica, opened: SealedFile, start: int, end: int) -> bool:
        """Whether [start, end) can be served without waiting."""
        if opened.is_warm(start, end):
            return True
        first, last = start // WARM_BYTES * WARM_BYTES, -(-end // WARM_BYTES) * WARM_BYTES
        if not replica.fs.is_resident(opened.view, first, min(last, len(opened.view))):
            return False
        opened.note_warm(start, end)
        return True

    async def warm(self, replica: Replica, opened: SealedFile, start: int, end: int) -> None:
        """Bring the pages of [start, end) into memory."""
        opened.pins += 1
        try:
            await self._store.run(_read_chunks, replica, opened, opened.cold_chunks(start, end))
        except OSError as error:
            raise self._store.disk_error(replica.disk, replica.extent_id, error) from error
        finally:
            opened.pins -= 1
            self._close_oldest()
        opened.note_warm(start, end)

    def forget(self, replica: Replica) -> None:
        """Close the file when it is no longer in use. Replies under way keep the mapping until they are sent."""
        if replica in self._open:
            self._open.move_to_end(replica, last=False)
            self._close_oldest(keep=len(self._open) - 1)

    def close_all(self) -> None:
        self._close_oldest(keep=0)

    def _close_oldest(self, keep: int | None = None) -> None:
        keep = self._store.config.sealed_files_max if keep is None else keep
        for replica in list(self._open):
            if len(self._open) <= keep:
                return
            opened = self._open[replica]
            if opened.pins == 0:
                del self._open[replica]
                opened.kernel_fd = None  # the kernel may reuse the number for another file
                replica.fs.close(opened.fd)


def _open(replica: Replica, seal: Seal) -> SealedFile:
    """Open and map a sealed extent; blocks."""
    fs, disk, extent_id = replica.fs, replica.disk, replica.extent_id
    fd = fs.open(disk.extent_path(extent_id), writable=False)
    try:
        blocks = index.load(fs, disk.index_path(extent_id), extent_id=extent_id, seal=seal)
        if blocks is None:
            blocks = _rebuild_index(replica, fd, seal)
        if fs.fstat(fd).size_bytes < seal.length:
            raise ReplicaDamaged(extent_id=extent_id, offset=fs.fstat(fd).size_bytes, detail="bytes are missing")
        return SealedFile(fd, fs.map(fd, seal.length), blocks, fs.kernel_fd(fd))
    except BaseException:
        fs.close(fd)
        raise


def _rebuild_index(replica: Replica, fd: int, seal: Seal) -> BlockIndex:
    result = scan.scan_file(replica.fs, fd, end=seal.length)
    if result.problem is not None or result.valid_length != seal.length:
        offset = result.valid_length
        raise ReplicaDamaged(extent_id=replica.extent_id, offset=offset, detail=str(result.problem))
    if result.digest != seal.digest:
        raise ReplicaDamaged(extent_id=replica.extent_id, offset=0, detail="its digest is not the seal's")
    log.warning("index_rebuilt extent_id=%d blocks=%d", replica.extent_id, len(result.sizes))
    try:
        return replica.write_index(seal, result)
    except OSError as error:
        # Derived data: the disk may be full or read-only, and the read works without the file.
        log.warning("index_not_written extent_id=%d error=%s", replica.extent_id, error)
        return index.from_scan(replica.extent_id, seal, result)


def _read_chunks(replica: Replica, opened: SealedFile, chunks: list[int]) -> None:
    """Read the chunks into the page cache and drop the bytes; blocks."""
    for offset in chunks:
        wanted = min(WARM_BYTES, len(opened.view) - offset)
        if len(replica.fs.pread(opened.fd, wanted, offset)) < wanted:
            raise ReplicaDamaged(extent_id=replica.extent_id, offset=offset, detail="bytes are missing")
