"""Sealed extents that are open: descriptor, mapping and index, the least recently used closed first.

Mapped pages that are not in memory stop whoever touches them, and a bad sector under a mapping is a SIGBUS that ends
the process. So a range that the kernel does not have in memory is first read by `pread` in a thread, which brings its
pages in or says EIO; what was in memory once is then served from the mapping without a thread, a copy or a call. Large
ranges a transport may send from the file itself: what cannot be read there after all is an error of that call, and
never a SIGBUS.

Invariants: at most `files_max` are open beside those in use; one in use is not closed;
            nothing is served from a mapping that was not seen in memory, or read by `pread`, in this opening.
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

# Read at once when a range is touched for the first time: a sequential reader then waits for every 64th 4 KiB block.
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
        """What was brought in cannot be read any more: `pread` shall see why."""
        first, last = start // WARM_BYTES, -(-end // WARM_BYTES)
        self._warm[first:last] = bytes(last - first)

    def cold_chunks(self, start: int, end: int) -> list[int]:
        """Offsets of the chunks that have to be read first."""
        chunks = range(start // WARM_BYTES, -(-end // WARM_BYTES))
        return [chunk * WARM_BYTES for chunk in chunks if not self._warm[chunk]]


class SealedRange(NamedTuple):
    """A part of a sealed extent that was brought in: bytes for a transport, which may take them from the file."""

    opened: SealedFile
    offset: int
    view: memoryview

    def descriptor(self) -> int | None:
        return self.opened.kernel_fd

    def unreadable(self, detail: str) -> None:
        log.warning("mapped_range_unreadable offset=%d bytes=%d reason=%s", self.offset, len(self.view), detail)
        self.opened.note_cold(self.offset, self.offset + len(self.view))


class SealedFiles:
    def __init__(self, store: StoreState) -> None:
        self._store = store
        self._open: OrderedDict[Replica, SealedFile] = OrderedDict()
        self._opening: dict[Replica, asyncio.Task[SealedFile]] = {}

    def get(self, found: Replica) -> SealedFile | None:
        opened = self._open.get(found)
        if opened is not None:
            self._open.move_to_end(found)
        return opened

    async def open(self, found: Replica) -> SealedFile:
        """Open and map it; a missing or wrong index is rebuilt. ReplicaDamaged if the bytes are not the seal's."""
        task = self._opening.get(found)
        if task is None:  # one at a time: whoever comes meanwhile shares it, as rebuilding an index takes seconds
            task = self._opening[found] = self._store.spawn(self._open_once(found))
            task.add_done_callback(lambda _: self._opening.pop(found, None))
        return await asyncio.shield(task)

    async def _open_once(self, found: Replica) -> SealedFile:
        assert found.state.seal is not None
        try:
            opened = await self._store.run(_open, found, found.state.seal)
        except OSError as error:
            raise self._store.disk_error(found.disk, found.extent_id, error) from error
        except ReplicaDamaged as error:
            found.state.note_damaged(error.offset)
            log.error("replica_damaged extent_id=%d offset=%d", found.extent_id, error.offset)
            raise
        if found.gone:
            found.fs.close(opened.fd)
            raise ReplicaMissing(extent_id=found.extent_id, detail="it was deleted or quarantined just now")
        self._open[found] = opened
        self._close_oldest()
        return opened

    def is_warm(self, found: Replica, opened: SealedFile, start: int, end: int) -> bool:
        """Whether [start, end) may be served without waiting."""
        if opened.is_warm(start, end):
            return True
        first, last = start // WARM_BYTES * WARM_BYTES, -(-end // WARM_BYTES) * WARM_BYTES
        if not found.fs.is_resident(opened.view, first, min(last, len(opened.view))):
            return False
        opened.note_warm(start, end)
        return True

    async def warm(self, found: Replica, opened: SealedFile, start: int, end: int) -> None:
        """Bring the pages of [start, end) into memory."""
        opened.pins += 1
        try:
            await self._store.run(_read_chunks, found, opened, opened.cold_chunks(start, end))
        except OSError as error:
            raise self._store.disk_error(found.disk, found.extent_id, error) from error
        finally:
            opened.pins -= 1
            self._close_oldest()
        opened.note_warm(start, end)

    def forget(self, found: Replica) -> None:
        """Close it as soon as nobody uses it. Answers under way keep the mapping until they are sent."""
        if found in self._open:
            self._open.move_to_end(found, last=False)
            self._close_oldest(keep=len(self._open) - 1)

    def close_all(self) -> None:
        self._close_oldest(keep=0)

    def _close_oldest(self, keep: int | None = None) -> None:
        keep = self._store.config.sealed_files_max if keep is None else keep
        for found in list(self._open):
            if len(self._open) <= keep:
                return
            opened = self._open[found]
            if opened.pins == 0:
                del self._open[found]
                opened.kernel_fd = None  # from now on the number may be another file's
                found.fs.close(opened.fd)


def _open(found: Replica, seal: Seal) -> SealedFile:
    """Blocks."""
    fs, disk, extent_id = found.fs, found.disk, found.extent_id
    fd = fs.open(disk.extent_path(extent_id), writable=False)
    try:
        blocks = index.load(fs, disk.index_path(extent_id), extent_id=extent_id, seal=seal)
        if blocks is None:
            blocks = _rebuild_index(found, fd, seal)
        if fs.fstat(fd).size_bytes < seal.length:
            raise ReplicaDamaged(extent_id=extent_id, offset=fs.fstat(fd).size_bytes, detail="bytes are missing")
        return SealedFile(fd, fs.map(fd, seal.length), blocks, fs.kernel_fd(fd))
    except BaseException:
        fs.close(fd)
        raise


def _rebuild_index(found: Replica, fd: int, seal: Seal) -> BlockIndex:
    result = scan.scan_file(found.fs, fd, end=seal.length)
    if result.problem is not None or result.valid_length != seal.length:
        offset = result.valid_length
        raise ReplicaDamaged(extent_id=found.extent_id, offset=offset, detail=str(result.problem))
    if result.digest != seal.digest:
        raise ReplicaDamaged(extent_id=found.extent_id, offset=0, detail="its digest is not the seal's")
    log.warning("index_rebuilt extent_id=%d blocks=%d", found.extent_id, len(result.sizes))
    try:
        return found.write_index(seal, result)
    except OSError as error:
        # Derived data: the disk may be full or read-only, and the read goes on without the file.
        log.warning("index_not_written extent_id=%d error=%s", found.extent_id, error)
        return index.from_scan(found.extent_id, seal, result)


def _read_chunks(found: Replica, opened: SealedFile, chunks: list[int]) -> None:
    """Blocks. The bytes are dropped: that the kernel has them now is all that matters."""
    for offset in chunks:
        wanted = min(WARM_BYTES, len(opened.view) - offset)
        if len(found.fs.pread(opened.fd, wanted, offset)) < wanted:
            raise ReplicaDamaged(extent_id=found.extent_id, offset=offset, detail="bytes are missing")
