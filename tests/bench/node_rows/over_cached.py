"""A node whose appends go over pages that are in the page cache already; for comparison only, it stores nothing.

    python -m tests.bench.node_rows.over_cached SCRATCH_FILE SCRATCH_BYTES [the node's own arguments]

An append-only store never writes a page twice, so what fresh pages cost cannot be seen from its own files. Here every
write to an extent's file goes to the same offset, modulo its size, of one scratch file that was written before;
all else is the node as it is.
"""

from __future__ import annotations

import os
import sys
from typing import ClassVar

from neve.extent_node import server
from neve.extent_node.disk.file_system import Buffer, RealFileSystem

EXTENT_SUFFIX = ".ext"
FILL_BYTES = 1 << 20


class OverCachedPages(RealFileSystem):
    scratch_fd: ClassVar[int] = -1
    scratch_bytes: ClassVar[int] = 0

    def __init__(self) -> None:
        self._extents: set[int] = set()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> int:
        fd = super().open(path, create=create, exclusive=exclusive, writable=writable)
        if path.endswith(EXTENT_SUFFIX):
            self._extents.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._extents.discard(fd)
        super().close(fd)

    def pwrite_one(self, fd: int, buffer: Buffer, offset: int) -> int:  # type: ignore[override]  # static there
        return self.pwrite(fd, [buffer], offset)

    def pwrite(self, fd: int, buffers: list[Buffer], offset: int) -> int:
        if fd not in self._extents:
            return super().pwrite(fd, buffers, offset)
        size_bytes = sum(map(len, buffers))
        at = offset % self.scratch_bytes
        return super().pwrite(self.scratch_fd, buffers, at if at + size_bytes <= self.scratch_bytes else 0)

    def preallocate(self, fd: int, size_bytes: int) -> bool:
        """Nothing will be written there."""
        return True


def make_scratch(path: str, size_bytes: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    for offset in range(0, size_bytes, FILL_BYTES):
        os.pwrite(fd, bytes(FILL_BYTES), offset)
    return fd


def main(argv: list[str]) -> int:
    path, size_bytes, *arguments = argv
    OverCachedPages.scratch_bytes = int(size_bytes)
    OverCachedPages.scratch_fd = make_scratch(path, OverCachedPages.scratch_bytes)
    server.RealFileSystem = OverCachedPages  # type: ignore[attr-defined]
    return server.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
