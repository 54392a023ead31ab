"""What the node's benchmark does to files by itself: many extents to start with, and reads and syncs without a node.

Extents are made as a node makes them, attribute by attribute, but without a single sync: 100,000 of them take seconds
instead of minutes.
"""

from __future__ import annotations

import mmap
import os
import random
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import google_crc32c
import numpy as np

from neve.extent_node.disk import attributes
from neve.extent_node.disk.attributes import Meta, Seal
from neve.extent_node.disk.disk import Disk, format_disk
from neve.extent_node.disk.file_system import RealFileSystem
from neve.extent_node.journal.folder import format_journal
from neve.extent_node.store.replica import make_replica
from neve.proto.blocks import extent_digest
from tests.bench import limits
from tests.bench.node_rows.process import CLUSTER, NODE_ID, disk_folder, journal_folder
from tests.bench.report import Quantity

KIB, MIB = 1 << 10, 1 << 20

OPEN_EVERY = 50  # one extent in so many is not sealed, as on a node that is in use
SEGMENT_BYTES = 1 * MIB  # of a journal that little or nothing is written to: a default one is 128 MiB to make

SEQUENTIAL_BYTES = 1 * MIB
RANDOM_BYTES = 4 * KIB

RESERVED_BYTES = 1 * MIB


class _Unsynced(RealFileSystem):
    def fsync(self, fd: int) -> None: ...

    def fsync_dir(self, path: str) -> None: ...


def format_node(folder: Path) -> None:
    """A disk and a small journal, not synced."""
    fs = _Unsynced()
    journal_uuid = format_journal(
        fs,
        str(journal_folder(folder)),
        cluster=CLUSTER,
        node_id=NODE_ID,
        journal_uuid=uuid.uuid4(),
        segment_bytes=SEGMENT_BYTES,
    )
    disk = str(disk_folder(folder))
    format_disk(fs, disk, cluster=CLUSTER, node_id=NODE_ID, disk_uuid=uuid.uuid4(), journal_uuid=journal_uuid)


def make_extents(folder: Path, count: int) -> None:
    """Format a node's folder and put so many empty extents on its disk."""
    format_node(folder)
    fs = _Unsynced()
    disk = Disk.open(fs, str(disk_folder(folder)), cluster=CLUSTER, node_id=NODE_ID)
    seal = attributes.encode_seal(Seal(length=0, eversion=2, digest=extent_digest([])))
    for extent_id in range(1, count + 1):
        made = make_replica(disk, _meta(extent_id, disk.uuid), preallocate_bytes=0)
        if extent_id % OPEN_EVERY:
            fs.set_xattr(made.fd, attributes.SEAL, seal)
        made.close()
    disk.close()
    os.sync()  # or it would be written back beside what is measured next


def remove_extents(folder: Path) -> None:
    """Of a node that does not run."""
    for path in (disk_folder(folder) / "extents").glob("*/*"):
        path.unlink()


def _meta(extent_id: int, disk_uuid: str) -> Meta:
    return Meta(
        extent_id=extent_id,
        eversion=1,
        incarnation=extent_id,
        stream_id=1,
        created_ms=0,
        extent_bytes_max=1 << 30,
        node_id=NODE_ID,
        disk_uuid=disk_uuid,
    )


# --- reads without a node ------------------------------------------------------------------------------------
#
# What is read is checksummed, as a reader does with every block: a mapping that nobody touches costs nothing.


def read_sequentially(path: Path, *, mapped: bool, touched: bool = True) -> Quantity:
    """A whole file in pieces of 1 MiB. `touched`: it was read before, so that the mapping lacks no page."""
    with ExitStack() as stack:
        size_bytes, read = _reader(path, stack, mapped=mapped)
        if touched:
            _read_all(read, size_bytes)
        begun_s = time.perf_counter()
        _read_all(read, size_bytes)
        return limits.megabytes_per_second(size_bytes, time.perf_counter() - begun_s)


def read_at_random(path: Path, *, mapped: bool, count: int) -> Quantity:
    """4 KiB at a time from anywhere."""
    with ExitStack() as stack:
        size_bytes, read = _reader(path, stack, mapped=mapped)
        _read_all(read, size_bytes)
        draw = random.Random(count).randrange
        offsets = [draw(size_bytes - RANDOM_BYTES) for _ in range(count)]
        checksum = google_crc32c.value
        begun_s = time.perf_counter()
        for offset in offsets:
            checksum(read(offset, RANDOM_BYTES))
        return Quantity(count / (time.perf_counter() - begun_s), "reads/s")


def _read_all(read: Callable[[int, int], object], size_bytes: int) -> None:
    checksum = google_crc32c.value
    for offset in range(0, size_bytes, SEQUENTIAL_BYTES):
        checksum(read(offset, min(SEQUENTIAL_BYTES, size_bytes - offset)))


def _reader(path: Path, stack: ExitStack, *, mapped: bool) -> tuple[int, Callable[[int, int], object]]:
    """The file's size, and what returns a range of it in the form that google-crc32c takes without a copy."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    size_bytes = os.fstat(fd).st_size
    if not mapped:
        return size_bytes, lambda offset, wanted: os.pread(fd, wanted, offset)
    array = np.frombuffer(memoryview(mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ)), dtype=np.uint8)
    return size_bytes, lambda offset, wanted: array[offset : offset + wanted]


# --- syncs without a node ------------------------------------------------------------------------------------


def fdatasync_each(directory: Path, *, files: int, block_bytes: int, duration_s: float) -> Quantity:
    """Appends of one block to each of so many fallocated files in turn, each followed by its fdatasync."""
    block = os.urandom(block_bytes)
    with ExitStack() as stack:
        fds = [stack.enter_context(tempfile.TemporaryFile(dir=directory)).fileno() for _ in range(files)]
        for fd in fds:
            limits.fallocate_keep_size(fd, RESERVED_BYTES)
        appends = 0

        def append() -> None:
            nonlocal appends
            fd, at = fds[appends % files], appends // files * block_bytes
            os.pwrite(fd, block, at)
            os.fdatasync(fd)
            appends += 1

        for _ in fds:  # the first one of each file also makes its inode durable
            append()
        begun_s = now_s = time.perf_counter()
        while now_s - begun_s < duration_s:
            append()
            now_s = time.perf_counter()
        return Quantity((appends - files) / (now_s - begun_s), "appends/s")
