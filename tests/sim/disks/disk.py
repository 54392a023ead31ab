"""A file system in memory that keeps what is synced apart from what is not, and fails where it is told to.

Three ends of a process:
    crash()      it was killed: the page cache stays, descriptors and locks are gone
    power_cut()  everything not synced is lost, or by chance kept, lost or torn, each change on its own; a new boot id
    remount()    as a power cut, of one folder that is a disk: the machine and its other folders go on

Faults: `stop_at` ends the process before, after or in the middle of a step; `fail` returns an errno; a failed fsync
behaves as Linux does (the pages are seen, count as clean, and by chance some of them are on the disk); short writes;
`flip`; `wipe`; a capacity for each folder that is a disk. If it is filled to the last block, whatever may need one of
its own fails while no byte is left: a new name in a folder, and an attribute with another value. A file system often
has room for these in blocks that are there, and need not.

Invariants: fdatasync makes data and size durable, fsync also attributes, fsync_dir names, nothing else does;
            one seed and the same calls give the same disk;
            without faults a program cannot tell it from the machine's file system (a test compares the two).
"""

from __future__ import annotations

import errno
import posixpath
import random
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from neve.extent_node.disk.file_system import Buffer, Stat, Usage
from tests.sim.disks import nodes
from tests.sim.disks.faults import Fault, Faults, Match, SimulatedCrash, When
from tests.sim.disks.nodes import File, Folder, Node, Resize, SetXattr, Write, clean, failure, files_of

CAPACITY_BYTES = 1 << 40

WRITES = frozenset({"open", "pwrite", "truncate", "preallocate", "set_xattr", "make_dirs", "rename"})  # may need space
SYNCS = frozenset({"fsync", "fdatasync", "fsync_dir"})


@dataclass(slots=True)
class _Open:
    file: File
    path: str
    writable: bool


class SimFileSystem:
    """Use one for each machine. All chance comes from `rng`."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng or random.Random(0)
        self.short_write_chance = 0.0  # of a pwrite that writes only a part and says so
        self._tree = nodes.Tree()
        self._names = nodes.Names()
        self._inode_last = 1
        self._fd_last = 1000  # descriptors are never used again, so that one of an earlier life is seen to be dead
        self._open: dict[int, _Open] = {}
        self._faults = Faults()
        self._capacities: dict[str, int] = {}
        self._no_block_left: dict[str, None] = {}  # of those, where names and attributes find no room, either
        self.on_full: Callable[[str], None] | None = None  # told of each call that fails for want of room, by its path
        self._boot_id = self._draw_boot_id()
        self._mounts: dict[str, int] = {}  # folders that were mounted anew, and how often

    # --- what tests do to it ---------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Calls so far that change something: where `stop_at` can stop."""
        return self._faults.steps

    @property
    def log(self) -> deque[str]:
        """All calls, the last ones at least, with the numbers of steps: for traces."""
        return self._faults.log

    def stop_at(self, step: int, when: When = "before") -> None:
        """End the process at that step. "torn" writes a part of a pwrite first, and is "before" for other calls."""
        self._faults.stop_at(step, when)

    def fail(
        self,
        code: int,
        *,
        match: Match = lambda operation, path: True,
        step: int | None = None,
        times: int | None = 1,
    ) -> Fault:
        """Let calls fail with this errno: the one at `step`, or the next `times` that match (operation, path)."""
        return self._faults.fail(code, match=match, step=step, times=times)

    def crash(self) -> None:
        """The process is gone, the machine runs on. Also what ends the state that `SimulatedCrash` left."""
        for opened in self._open.values():
            opened.file.locked_by = None
        self._open.clear()
        self._faults.begin_process()
        self.log.append("-- crash")

    def power_cut(self, mode: nodes.PowerCutMode = "lose_all") -> None:
        """The machine is gone and comes back with what was on stable storage, and in "random" mode some of the rest."""
        self.crash()
        self._names.cut_power(self.rng, mode)
        for node in nodes.reachable(self._tree.root):
            if isinstance(node, File):
                node.cut_power(self.rng, mode)
            else:
                node.entries = dict(node.durable_entries)
        self._boot_id = self._draw_boot_id()
        self.log.append(f"-- power cut, {mode}")

    def remount(self, path: str, mode: nodes.PowerCutMode = "lose_all") -> None:
        """The folder's device went and came back, in the same boot; what was not synced on it went with it."""
        self.crash()
        disk = self._tree.folder(path)
        inside = [node for node in nodes.reachable(disk, durable=False) if isinstance(node, Folder)]
        self._names.cut_power(self.rng, mode, inside)
        for node in nodes.reachable(disk):
            if isinstance(node, File):
                node.cut_power(self.rng, mode)
            else:
                node.entries = dict(node.durable_entries)
        self._mounts[clean(path)] = self._mounts.get(clean(path), 0) + 1
        self.log.append(f"-- remount {path}, {mode}")

    def flip(self, path: str, byte: int, bit: int) -> None:
        """Damage one bit of a file, on the medium and in the cache."""
        self._tree.file(path).flip(byte, bit)

    def flip_xattr(self, path: str, name: str, rng: random.Random) -> str:
        """The same, of a value of one of its attributes: this one, or any if it has none by that name. Which."""
        return self._tree.file(path).flip_xattr(name, rng)

    def spoil(self, path: str, byte: int) -> None:
        """The page with this byte cannot be read any more: EIO, and short reads before it."""
        self._tree.file(path).bad_pages.add(byte // nodes.PAGE_BYTES)

    def wipe(self, path: str) -> None:
        """The folder is empty, as after a new disk was mounted there."""
        folder = self._tree.folder(path)
        folder.entries.clear()
        folder.durable_entries.clear()
        self._names.forget(folder)
        self._mounts[clean(path)] = self._mounts.get(clean(path), 0) + 1

    def set_capacity(self, path: str, capacity_bytes: int) -> None:
        """The folder is a disk of this size."""
        self._capacities[clean(path)] = capacity_bytes

    def fill(self, path: str, *, leave_bytes: int = 0, to_the_last_block: bool = False) -> None:
        """The folder is a disk on which so many bytes are free."""
        disk = clean(path)
        if to_the_last_block:
            self._no_block_left[disk] = None
        self._capacities[disk] = CAPACITY_BYTES
        used_bytes = CAPACITY_BYTES - self._free_bytes(path)
        self._capacities[disk] = used_bytes + leave_bytes

    def unfill(self, path: str) -> None:
        self._capacities.pop(clean(path), None)
        self._no_block_left.pop(clean(path), None)

    def unfill_all(self) -> None:
        self._capacities.clear()
        self._no_block_left.clear()

    def swap_disk(self, other: SimFileSystem, path: str) -> None:
        """Somebody has put each machine's disk into the other one, after both were unmounted as they should be."""
        mine, theirs = self._tree.folder(path), other._tree.folder(path)
        for fs, folder in ((self, mine), (other, theirs)):
            for node in [*nodes.reachable(folder, durable=False)]:
                if isinstance(node, File):
                    node.sync_data()
                    node.sync_xattrs()
                else:
                    fs._names.sync(node)
        for fs, folder in ((self, theirs), (other, mine)):
            parent, name = fs._tree.parent(path)
            parent.entries[name] = parent.durable_entries[name] = folder
            fs._mounts[clean(path)] = fs._mounts.get(clean(path), 0) + 1
            fs.log.append(f"-- another disk at {path}")

    def opened(self) -> dict[int, str]:
        """Descriptors that are open, and what they were opened as."""
        return {fd: opened.path for fd, opened in self._open.items()}

    def content(self, path: str) -> bytes:
        """What a reader sees; no call, no step."""
        return bytes(self._tree.file(path).content)

    def files_below(self, path: str) -> list[str]:
        """Paths of all files in a folder and those in it, in order; no call, no step. Nothing if it is not there."""
        try:
            return files_of(self._tree.folder(path), path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def peek(self, path: str, offset: int, size_bytes: int) -> bytes | None:
        """A part of it; None if there is no such file."""
        try:
            return bytes(self._tree.file(path).content[offset : offset + size_bytes])
        except FileNotFoundError:
            return None

    def durable_content(self, path: str) -> bytes:
        """What a power cut now would leave of the file, if its name is durable."""
        return bytes(self._tree.file(path).durable_content)

    # --- files -----------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> int:
        with self._faults.call("open", path, changes=create):
            folder, name = self._tree.parent(path)
            node = folder.entries.get(name) if name else folder
            if node is None:
                if not create:
                    raise failure(errno.ENOENT, path)
                self._need_block(path)
                node = self._new_file()
                self._names.change((folder, name, node))
            elif create and exclusive:
                raise failure(errno.EEXIST, path)
            if not isinstance(node, File):  # a real one opens folders for reading; nobody needs that
                raise failure(errno.EISDIR, path)
            return self._new_fd(node, path, writable=writable)

    def close(self, fd: int) -> None:
        with self._faults.call("close", self._path(fd), changes=False):
            file = self._opened(fd).file
            if file.locked_by == fd:
                file.locked_by = None
            del self._open[fd]

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        with self._faults.call("pread", self._path(fd), changes=False):
            file = self._opened_file(fd)
            end = min(offset + size_bytes, len(file.content))
            if file.bad_pages and end > offset:
                end = offset + file.readable_bytes(offset, end)
                if end == offset:
                    raise failure(errno.EIO, self._path(fd))
            return bytes(file.content[offset:end])

    def pwrite_one(self, fd: int, buffer: Buffer, offset: int) -> int:
        return self.pwrite(fd, [buffer], offset)

    def pwrite(self, fd: int, buffers: list[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        path = self._path(fd)
        with self._faults.call("pwrite", path, changes=True, detail=f"{offset}+{len(data)}") as torn:
            file = self._opened_file(fd, writable=True)
            size_bytes = len(data)
            if torn or (size_bytes > 1 and self.rng.random() < self.short_write_chance):
                size_bytes = self.rng.randrange(1, size_bytes) if size_bytes > 1 else 0
            grows_bytes = offset + size_bytes - file.allocated_bytes
            if size_bytes and grows_bytes > 0 and self._capacities:
                size_bytes -= max(0, grows_bytes - self._free_bytes(path))
                if size_bytes <= 0:
                    raise self._full(path)
            if size_bytes:
                file.change(Write(offset, data[:size_bytes]))
            return size_bytes

    def truncate(self, fd: int, size_bytes: int) -> None:
        with self._faults.call("truncate", self._path(fd), changes=True, detail=str(size_bytes)):
            opened = self._opened(fd)
            if not opened.writable or size_bytes < 0:
                raise failure(errno.EINVAL, opened.path)
            file = self._opened_file(fd)
            file.change(Resize(size_bytes))

    def preallocate(self, fd: int, size_bytes: int) -> bool:
        path = self._path(fd)
        with self._faults.call("preallocate", path, changes=True, detail=str(size_bytes)):
            if size_bytes <= 0:
                raise failure(errno.EINVAL, path)
            file = self._opened_file(fd, writable=True)
            grows_bytes = size_bytes - file.allocated_bytes
            if grows_bytes > CAPACITY_BYTES or (self._capacities and grows_bytes > self._free_bytes(path)):
                file.preallocated_bytes = file.allocated_bytes + self._free_bytes(path)  # as ext4 does
                raise self._full(path)
            file.preallocated_bytes = max(file.preallocated_bytes, size_bytes)
            return True

    def fdatasync(self, fd: int) -> None:
        file = self._opened_file(fd)
        with self._faults.call("fdatasync", self._path(fd), changes=True, on_fault=lambda: file.fail_sync(self.rng)):
            file.sync_data()

    def fsync(self, fd: int) -> None:
        file = self._opened_file(fd)
        with self._faults.call("fsync", self._path(fd), changes=True, on_fault=lambda: file.fail_sync(self.rng)):
            file.sync_data()
            file.sync_xattrs()

    def map(self, fd: int, size_bytes: int) -> memoryview:
        with self._faults.call("map", self._path(fd), changes=False):
            file = self._opened_file(fd)
            if size_bytes == 0:
                return memoryview(b"")
            if size_bytes > len(file.content):
                raise ValueError("mmap length is greater than file size")
            return memoryview(file.content)[:size_bytes].toreadonly()

    def is_resident(self, mapped: memoryview, start: int, end: int) -> bool:
        return False

    def kernel_fd(self, fd: int) -> int | None:
        return None

    def fstat(self, fd: int) -> Stat:
        with self._faults.call("fstat", self._path(fd), changes=False):
            return _stat(self._opened_file(fd))

    # --- attributes ------------------------------------------------------------------------------------------

    def get_xattr(self, fd: int, name: str) -> bytes | None:
        with self._faults.call("get_xattr", self._path(fd), changes=False):
            return self._opened_file(fd).xattrs.get(name)

    def set_xattr(self, fd: int, name: str, value: bytes) -> None:
        path = self._path(fd)
        with self._faults.call("set_xattr", path, changes=True, detail=name):
            if not name.startswith("user."):
                raise failure(errno.EOPNOTSUPP, path)
            file = self._opened_file(fd)
            if file.xattrs.get(name) != value:
                self._need_block(path)
            file.change_xattr(SetXattr(name, value))

    def remove_xattr(self, fd: int, name: str) -> None:
        with self._faults.call("remove_xattr", self._path(fd), changes=True, detail=name):
            file = self._opened_file(fd)
            if name in file.xattrs:
                file.change_xattr(SetXattr(name, None))

    def list_xattrs(self, fd: int) -> list[str]:
        with self._faults.call("list_xattrs", self._path(fd), changes=False):
            return list(self._opened_file(fd).xattrs)

    # --- names -----------------------------------------------------------------------------------------------

    def stat(self, path: str) -> Stat | None:
        with self._faults.call("stat", path, changes=False):
            try:
                return _stat(self._tree.node(path))
            except FileNotFoundError:
                return None

    def list_dir(self, path: str) -> list[str]:
        with self._faults.call("list_dir", path, changes=False):
            return list(self._tree.folder(path).entries)

    def make_dirs(self, path: str) -> None:
        with self._faults.call("make_dirs", path, changes=True):
            folder = self._tree.root
            parts = nodes.split(path)
            for depth, name in enumerate(parts, start=1):
                node = folder.entries.get(name)
                if node is None:
                    self._need_block("/" + "/".join(parts[:depth]))
                    node = Folder(self._new_inode())
                    self._names.change((folder, name, node))
                if not isinstance(node, Folder):
                    raise failure(errno.EEXIST if depth == len(parts) else errno.ENOTDIR, path)
                folder = node

    def rename(self, source: str, target: str) -> None:
        with self._faults.call("rename", source, changes=True, detail=target):
            source_folder, source_name = self._tree.parent(source)
            target_folder, target_name = self._tree.parent(target)
            node = source_folder.entries.get(source_name)
            if node is None:
                raise failure(errno.ENOENT, source)
            old = target_folder.entries.get(target_name)
            if old is node:
                return
            if isinstance(node, Folder) and clean(target).startswith(clean(source) + "/"):
                raise failure(errno.EINVAL, target)
            if isinstance(old, Folder) and clean(source).startswith(clean(target) + "/"):
                raise failure(errno.ENOTEMPTY, target)
            if old is not None and isinstance(old, Folder) != isinstance(node, Folder):
                raise failure(errno.EISDIR if isinstance(old, Folder) else errno.ENOTDIR, target)
            if isinstance(old, Folder) and old.entries:
                raise failure(errno.ENOTEMPTY, target)
            if old is None and target_folder is not source_folder:  # in its own folder it takes its own place
                self._need_block(target)
            self._names.change((target_folder, target_name, node), (source_folder, source_name, None))

    def exchange(self, one: str, other: str) -> None:
        with self._faults.call("exchange", one, changes=True, detail=other):
            one_folder, one_name = self._tree.parent(one)
            other_folder, other_name = self._tree.parent(other)
            one_node, other_node = self._tree.file(one), self._tree.file(other)
            self._names.change((one_folder, one_name, other_node), (other_folder, other_name, one_node))

    def unlink(self, path: str) -> None:
        with self._faults.call("unlink", path, changes=True):
            folder, name = self._tree.parent(path)
            if isinstance(self._tree.node(path), Folder):
                raise failure(errno.EISDIR, path)
            self._names.change((folder, name, None))

    def remove_dir(self, path: str) -> None:
        with self._faults.call("remove_dir", path, changes=True):
            folder, name = self._tree.parent(path)
            if self._tree.folder(path).entries:
                raise failure(errno.ENOTEMPTY, path)
            self._names.change((folder, name, None))

    def fsync_dir(self, path: str) -> None:
        with self._faults.call("fsync_dir", path, changes=True):
            self._names.sync(self._tree.folder(path))

    # --- the whole -------------------------------------------------------------------------------------------

    def lock(self, path: str) -> int:
        with self._faults.call("lock", path, changes=True):
            folder, name = self._tree.parent(path)
            node = folder.entries.get(name)
            if node is None:
                self._need_block(path)
                node = self._new_file()
                self._names.change((folder, name, node))
            if not isinstance(node, File):
                raise failure(errno.EISDIR, path)
            if node.locked_by is not None:
                raise failure(errno.EWOULDBLOCK, path)
            fd = self._new_fd(node, path, writable=True)
            node.locked_by = fd
            return fd

    def usage(self, path: str) -> Usage:
        with self._faults.call("usage", path, changes=False):
            self._tree.node(path)
            return Usage(capacity_bytes=self._disk(path)[1], free_bytes=self._free_bytes(path))

    def boot_id(self) -> str:
        with self._faults.call("boot_id", "", changes=False):
            return self._boot_id

    def mount_id(self, path: str) -> str:
        with self._faults.call("mount_id", path, changes=False):
            self._tree.node(path)
            at = clean(path)
            while at not in self._mounts and at != "/":
                at = posixpath.dirname(at)
            return f"{at}:{self._mounts.get(at, 0)}"

    # --- inside ----------------------------------------------------------------------------------------------

    def _draw_boot_id(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128)))

    def _new_inode(self) -> int:
        self._inode_last += 1
        return self._inode_last

    def _new_file(self) -> File:
        return File(self._new_inode())

    def _new_fd(self, file: File, path: str, *, writable: bool) -> int:
        self._fd_last += 1
        self._open[self._fd_last] = _Open(file, clean(path), writable)
        return self._fd_last

    def _path(self, fd: int) -> str:
        opened = self._open.get(fd)
        return f"fd {fd}" if opened is None else opened.path

    def _opened(self, fd: int) -> _Open:
        self._faults.check_alive()
        if fd not in self._open:
            raise failure(errno.EBADF, f"fd {fd}")
        return self._open[fd]

    def _opened_file(self, fd: int, *, writable: bool = False) -> File:
        opened = self._opened(fd)
        if writable and not opened.writable:
            raise failure(errno.EBADF, opened.path)
        return opened.file

    def _need_block(self, path: str) -> None:
        """For a name or an attribute."""
        if self._no_block_left and self._disk(path)[0] in self._no_block_left and self._free_bytes(path) == 0:
            raise self._full(path)

    def _full(self, path: str) -> OSError:
        if self.on_full is not None:
            self.on_full(clean(path))
        return failure(errno.ENOSPC, path)

    def _disk(self, path: str) -> tuple[str, int]:
        """The innermost folder with a capacity that holds `path`, and that capacity."""
        at = clean(path)
        while at not in self._capacities:
            if at == "/":
                return "/", CAPACITY_BYTES
            at = posixpath.dirname(at)
        return at, self._capacities[at]

    def _free_bytes(self, path: str) -> int:
        disk, capacity_bytes = self._disk(path)
        files: dict[int, Node] = {}
        folders = [self._tree.node(disk)]
        while folders:  # not `reachable`: the order does not matter here, and heartbeats ask often
            folder = folders.pop()
            for node in folder.entries.values() if isinstance(folder, Folder) else (folder,):
                if isinstance(node, Folder):
                    folders.append(node)
                else:
                    files[id(node)] = node
        for opened in self._open.values():  # a file without a name lives on while it is open
            if (opened.path + "/").startswith(disk.rstrip("/") + "/"):
                files[id(opened.file)] = opened.file
        used_bytes = sum(node.allocated_bytes for node in files.values() if isinstance(node, File))
        return max(0, capacity_bytes - used_bytes)


def _stat(node: Node) -> Stat:
    size_bytes = len(node.content) if isinstance(node, File) else 0
    return Stat(size_bytes=size_bytes, inode=node.number, is_dir=isinstance(node, Folder))


__all__ = ["SYNCS", "WRITES", "Fault", "SimFileSystem", "SimulatedCrash"]
