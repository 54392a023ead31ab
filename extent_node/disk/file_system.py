"""The extent node's interface to file systems. All access to disks goes through a `FileSystem`.

`RealFileSystem` is the machine's. The simulator's twin (tests/sim/disks/disk.py) keeps synced and unsynced bytes apart.
It can stop the process at any call, lose unsynced bytes, tear writes, return EIO or ENOSPC and flip bits, so that
every crash point of the node can be tested.

Invariants: calls block; a caller that must not block runs them in a thread;
            errors are OSError with its errno, never swallowed and never retried here;
            a file descriptor is an `int` that only the calls of this file system understand.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from neve.extent_node.disk import mounts

Buffer = bytes | bytearray | memoryview

_FALLOC_FL_KEEP_SIZE = 0x01
_AT_FDCWD = -100
_RENAME_EXCHANGE = 0x02


@dataclass(frozen=True, slots=True)
class Stat:
    size_bytes: int
    inode: int
    is_dir: bool


@dataclass(frozen=True, slots=True)
class Usage:
    capacity_bytes: int
    free_bytes: int  # for this process, reserved blocks excluded


class FileSystem(Protocol):
    # Files
    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> int: ...
    def close(self, fd: int) -> None: ...
    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes: ...
    def pwrite(self, fd: int, buffers: list[Buffer], offset: int) -> int:
        """Write the buffers; returns the bytes written, which may be fewer than given, as with pwritev."""
        ...

    def pwrite_one(self, fd: int, buffer: Buffer, offset: int) -> int:
        """`pwrite` of one buffer, which is what every append needs."""
        ...

    def truncate(self, fd: int, size_bytes: int) -> None: ...
    def preallocate(self, fd: int, size_bytes: int) -> bool:
        """Reserve blocks beyond the end without changing the size. False where that is not supported."""
        ...

    def fdatasync(self, fd: int) -> None:
        """Data and size are on stable storage; attributes may not be."""
        ...

    def fsync(self, fd: int) -> None:
        """Data, size and attributes are on stable storage."""
        ...

    def map(self, fd: int, size_bytes: int) -> memoryview:
        """A read-only view of the first bytes of a file that no longer changes."""
        ...

    def is_resident(self, mapped: memoryview, start: int, end: int) -> bool:
        """Whether these bytes of a mapping are in memory, so that touching them does not wait for a disk.

        False where that cannot be known.
        """
        ...

    def kernel_fd(self, fd: int) -> int | None:
        """The kernel's own descriptor of the file, for sendfile; None where there is none."""
        ...

    def fstat(self, fd: int) -> Stat: ...

    # Extended attributes, by descriptor. A missing one is None.
    def get_xattr(self, fd: int, name: str) -> bytes | None: ...
    def set_xattr(self, fd: int, name: str, value: bytes) -> None: ...
    def remove_xattr(self, fd: int, name: str) -> None: ...
    def list_xattrs(self, fd: int) -> list[str]: ...

    # Names. A change in a folder is on stable storage after `fsync_dir`.
    def stat(self, path: str) -> Stat | None: ...
    def list_dir(self, path: str) -> list[str]: ...
    def make_dirs(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def exchange(self, one: str, other: str) -> None:
        """Two files swap their names atomically; EINVAL or ENOSYS where that is unsupported."""
        ...

    def unlink(self, path: str) -> None: ...
    def fsync_dir(self, path: str) -> None: ...

    # The whole file system
    def lock(self, path: str) -> int:
        """Take an exclusive lock that ends with the process; BlockingIOError if another process holds it."""
        ...

    def usage(self, path: str) -> Usage: ...
    def boot_id(self) -> str:
        """An id that changes whenever the machine may have lost its page cache."""
        ...

    def mount_id(self, path: str) -> str:
        """An id that changes, within a boot, whenever the file system of `path` may have lost its page cache."""
        ...


class RealFileSystem:
    """The machine's own file system."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> int:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | (os.O_EXCL if exclusive else 0)
        return os.open(path, flags, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        return os.pread(fd, size_bytes, offset)

    def pwrite(self, fd: int, buffers: list[Buffer], offset: int) -> int:
        if len(buffers) == 1:
            return os.pwrite(fd, buffers[0], offset)
        return os.pwritev(fd, buffers[:IOV_MAX], offset)

    pwrite_one = staticmethod(os.pwrite)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def preallocate(self, fd: int, size_bytes: int) -> bool:
        if _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size_bytes)) != 0:
            code = ctypes.get_errno()
            if code not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(code, os.strerror(code))
            return False
        return True

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def map(self, fd: int, size_bytes: int) -> memoryview:
        if size_bytes == 0:
            return memoryview(b"")  # an empty mapping is an error to the kernel
        return memoryview(mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ))

    def is_resident(self, mapped: memoryview, start: int, end: int) -> bool:
        start -= start % mmap.PAGESIZE
        pages = bytearray(-(-(end - start) // mmap.PAGESIZE))
        address = np.frombuffer(mapped, dtype=np.uint8).ctypes.data + start
        residency = (ctypes.c_ubyte * len(pages)).from_buffer(pages)
        if _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(end - start), residency) != 0:
            return False
        return bool((np.frombuffer(pages, dtype=np.uint8) & 1).all())  # the other bits mean nothing

    def kernel_fd(self, fd: int) -> int | None:
        return fd

    def fstat(self, fd: int) -> Stat:
        return _stat(os.fstat(fd))

    def get_xattr(self, fd: int, name: str) -> bytes | None:
        try:
            return os.getxattr(fd, name)
        except OSError as error:
            if error.errno == errno.ENODATA:
                return None
            raise

    def set_xattr(self, fd: int, name: str, value: bytes) -> None:
        os.setxattr(fd, name, value)

    def remove_xattr(self, fd: int, name: str) -> None:
        try:
            os.removexattr(fd, name)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise

    def list_xattrs(self, fd: int) -> list[str]:
        return os.listxattr(fd)

    def stat(self, path: str) -> Stat | None:
        try:
            return _stat(os.stat(path))
        except FileNotFoundError:
            return None

    def list_dir(self, path: str) -> list[str]:
        return os.listdir(path)

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def exchange(self, one: str, other: str) -> None:
        result = _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
        if result != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), one, None, other)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def usage(self, path: str) -> Usage:
        stat = os.statvfs(path)
        return Usage(capacity_bytes=stat.f_blocks * stat.f_frsize, free_bytes=stat.f_bavail * stat.f_frsize)

    def boot_id(self) -> str:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()

    def mount_id(self, path: str) -> str:
        return mounts.mount_id(path)


IOV_MAX = 1024
_libc = ctypes.CDLL(None, use_errno=True)


def _stat(stat: os.stat_result) -> Stat:
    return Stat(
        size_bytes=stat.st_size,
        inode=stat.st_ino,
        is_dir=(stat.st_mode & 0o170000) == 0o040000,
    )
