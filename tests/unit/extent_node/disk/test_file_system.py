"""The machine's own file system, where it does more than pass a call on."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from neve.extent_node.disk.file_system import RealFileSystem

PAGES = 64


def test_what_is_in_memory_is_told_page_by_page(tmp_path: Path) -> None:
    """The kernel is told to forget some pages of a file that is on the disk."""
    fs = RealFileSystem()
    fd = fs.open(str(tmp_path / "file"), create=True)
    try:
        size_bytes = PAGES * mmap.PAGESIZE - 100
        fs.pwrite(fd, [bytes(size_bytes)], 0)
        fs.fsync(fd)
        assert fs.is_resident(fs.map(fd, size_bytes), 0, size_bytes)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        view = fs.map(fd, size_bytes)
        if fs.is_resident(view, 0, size_bytes):
            pytest.skip("this file system is in memory, or does not forget")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
        fs.pread(fd, 2 * mmap.PAGESIZE, 8 * mmap.PAGESIZE)
        start, end = 8 * mmap.PAGESIZE, 10 * mmap.PAGESIZE
        assert fs.is_resident(view, start + 5, end - 5)
        assert fs.is_resident(view, start, end)
        assert not fs.is_resident(view, start - 1, end)
        assert not fs.is_resident(view, start, end + 1)
        assert not fs.is_resident(view, size_bytes - 1, size_bytes)
    finally:
        fs.close(fd)
