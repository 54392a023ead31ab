"""Reads as much of a segment file as is readable: a bad sector must not hide the rest of it, nor stop the node.

Invariants: nothing here writes; unreadable pages are zeros, and are reported;
            only errors of the medium make a page unreadable: missing permissions or descriptors raise;
            after some unreadable pages the rest is given up: each may take the device seconds.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_left
from dataclasses import dataclass

from neve.extent_node.disk.file_system import FileSystem

log = logging.getLogger(__name__)

PAGE_BYTES = 4096
_CHUNK_BYTES = 1 << 20
_BAD_PAGES_MAX = 64

# EIO, and what file systems and drivers report for a sector that fails its checksum.
MEDIUM_ERRORS = (errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EREMOTEIO, errno.EILSEQ)


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    content: bytes
    unreadable: list[int]  # positions of pages, in order

    def has_unreadable(self, start: int, end: int) -> bool:
        """Whether an unreadable page overlaps [start, end)."""
        at = bisect_left(self.unreadable, start - PAGE_BYTES + 1)
        return at < len(self.unreadable) and self.unreadable[at] < end


def read_segment(fs: FileSystem, path: str, segment_bytes: int) -> SegmentBytes | None:
    """The file's content; None if there is no such file. Blocks."""
    if fs.stat(path) is None:
        return None
    try:
        fd = fs.open(path, writable=False)
    except OSError as error:
        _raise_unless_of_medium(error)
        log.error("journal_unreadable path=%s error=%s", path, error)
        return SegmentBytes(bytes(segment_bytes), list(range(0, segment_bytes, PAGE_BYTES)))
    try:
        return _read(fs, fd, path, segment_bytes)
    finally:
        fs.close(fd)


def _read(fs: FileSystem, fd: int, path: str, segment_bytes: int) -> SegmentBytes:
    pieces: list[bytes] = []
    unreadable: list[int] = []
    position, step = 0, _CHUNK_BYTES
    while position < segment_bytes:
        size_bytes = min(step, segment_bytes - position)
        try:
            piece = fs.pread(fd, size_bytes, position)
        except OSError as error:
            _raise_unless_of_medium(error)
            if size_bytes > PAGE_BYTES:
                step = PAGE_BYTES - position % PAGE_BYTES  # page by page, to find the unreadable one
                continue
            log.error("journal_unreadable path=%s position=%d error=%s", path, position, error)
            page = position - position % PAGE_BYTES
            lost_to = min(page + PAGE_BYTES, segment_bytes)
            if len(unreadable) + 1 >= _BAD_PAGES_MAX:
                lost_to = segment_bytes
            unreadable += range(page, lost_to, PAGE_BYTES)
            piece = bytes(lost_to - position)
        if not piece:
            break  # the file is too short: scanning it finds the missing part
        pieces.append(piece)
        position += len(piece)
        step = PAGE_BYTES if step < _CHUNK_BYTES and position % _CHUNK_BYTES else _CHUNK_BYTES
    return SegmentBytes(b"".join(pieces), unreadable)


def _raise_unless_of_medium(error: OSError) -> None:
    if error.errno not in MEDIUM_ERRORS:
        raise error
