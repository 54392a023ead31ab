"""Files, folders and names of the simulated disk: what a program sees, and what a power cut would leave of it.

Invariants: what is durable changes by a sync or a power cut only;
            changes that are not durable are kept one by one, in order, so that a power cut can keep, lose or tear each;
            a rename is one change: after a power cut a file is never gone from both names.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

# "attributes": what a file system may do that writes its own journal before the data of files: all changes of
# attributes are kept, and no byte.
PowerCutMode = Literal["lose_all", "random", "attributes"]

PAGE_BYTES = 4096  # what a read that fails takes with it
SECTOR_BYTES = 512  # what a disk writes whole or not at all


@dataclass(frozen=True, slots=True)
class Write:
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SetXattr:
    name: str
    value: bytes | None  # None: removed


class File:
    """One inode: its bytes and attributes, as seen and as durable."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.content = bytearray()
        self.xattrs: dict[str, bytes] = {}
        self.preallocated_bytes = 0
        self.locked_by: int | None = None  # a descriptor
        self.bad_pages: set[int] = set()  # numbers of pages that cannot be read
        self.durable_content = bytearray()
        self.durable_xattrs: dict[str, bytes] = {}
        self._dirty: list[Write | Resize] = []
        self._dirty_xattrs: list[SetXattr] = []

    @property
    def allocated_bytes(self) -> int:
        return max(len(self.content), self.preallocated_bytes)

    def change(self, change: Write | Resize) -> None:
        self.content = _applied(self.content, change)
        self._dirty.append(change)
        if isinstance(change, Resize):
            self.preallocated_bytes = 0  # a cut gives back what was reserved beyond it

    def change_xattr(self, change: SetXattr) -> None:
        _apply_xattr(self.xattrs, change)
        self._dirty_xattrs.append(change)

    def sync_data(self) -> None:
        for change in self._dirty:
            self.durable_content = _applied(self.durable_content, change)
        self._dirty.clear()

    def sync_xattrs(self) -> None:
        for change in self._dirty_xattrs:
            _apply_xattr(self.durable_xattrs, change)
        self._dirty_xattrs.clear()

    def fail_sync(self, rng: random.Random) -> None:
        """As Linux does: the pages count as clean. Seen until the power goes, and no later sync writes them. Those that
        were written before the one that failed, or beside it, are on the disk."""
        if rng.random() < 0.5:
            self._write_some(rng)
        self._dirty.clear()

    def readable_bytes(self, start: int, end: int) -> int:
        """How many bytes of [start, end) can be read up to the first bad page."""
        for page in range(start // PAGE_BYTES, -(-end // PAGE_BYTES)):
            if page in self.bad_pages:
                return max(0, page * PAGE_BYTES - start)
        return end - start

    def flip(self, offset: int, bit: int) -> None:
        """Damage on the medium: seen at once, and durable where the byte is."""
        self.content[offset] ^= 1 << bit
        if offset < len(self.durable_content):
            self.durable_content[offset] ^= 1 << bit

    def flip_xattr(self, name: str, rng: random.Random) -> str:
        """The same, of an attribute: this one, or another if there is none by that name."""
        name = name if name in self.xattrs else rng.choice(sorted(self.xattrs))
        value = bytearray(self.xattrs[name])
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        if self.durable_xattrs.get(name) == self.xattrs[name]:
            self.durable_xattrs[name] = bytes(value)
        self.xattrs[name] = bytes(value)
        return name

    def cut_power(self, rng: random.Random, mode: PowerCutMode) -> None:
        if mode == "random":
            self._write_some(rng)
        for xattr in self._dirty_xattrs:
            if mode == "attributes" or (mode == "random" and rng.random() < 0.5):
                _apply_xattr(self.durable_xattrs, xattr)
        self._dirty.clear()
        self._dirty_xattrs.clear()
        self.content = bytearray(self.durable_content)
        self.xattrs = dict(self.durable_xattrs)
        self.preallocated_bytes = 0
        self.locked_by = None

    def _write_some(self, rng: random.Random) -> None:
        """Each change that is not durable becomes so, or not, or a part of it."""
        seen = bytearray(self.durable_content)
        for change in self._dirty:
            seen = _applied(seen, change)
            self._survive(change, seen, rng)

    def _survive(self, change: Write | Resize, seen: bytearray, rng: random.Random) -> None:
        """Kept, lost, torn, sector by sector in any order, or, of a write beyond the end, only its size: bytes that are
        missing then read as zeros. A sector is written with all that was `seen` in it, what came before included."""
        fate = rng.choice(("kept", "lost", "torn", "sectors", "size"))
        if fate == "lost":
            return
        if isinstance(change, Resize):
            self.durable_content = _applied(self.durable_content, change)
        elif fate == "size":
            end = change.offset + len(change.data)
            if end > len(self.durable_content):
                self.durable_content = _applied(self.durable_content, Resize(end))
        elif fate == "torn":
            end = change.offset + rng.randrange(len(change.data) + 1)
            start = change.offset - change.offset % SECTOR_BYTES
            if end > change.offset:
                self.durable_content = _applied(self.durable_content, Write(start, bytes(seen[start:end])))
        else:
            for start, end in _sectors(change):
                if fate == "kept" or rng.random() < 0.5:
                    self.durable_content = _applied(self.durable_content, Write(start, bytes(seen[start:end])))


class Folder:
    """One folder: names as seen and as durable."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[str, Node] = {}
        self.durable_entries: dict[str, Node] = {}


Node = File | Folder


class Tree:
    """Finds nodes by path, as a program sees them. All paths are absolute, whether they begin with / or not."""

    def __init__(self) -> None:
        self.root = Folder(1)

    def node(self, path: str) -> Node:
        node: Node = self.root
        for name in split(path):
            if not isinstance(node, Folder):
                raise failure(errno.ENOTDIR, path)
            if name not in node.entries:
                raise failure(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def folder(self, path: str) -> Folder:
        node = self.node(path)
        if not isinstance(node, Folder):
            raise failure(errno.ENOTDIR, path)
        return node

    def file(self, path: str) -> File:
        node = self.node(path)
        if not isinstance(node, File):
            raise failure(errno.EISDIR, path)
        return node

    def parent(self, path: str) -> tuple[Folder, str]:
        """The folder of a path, and the name in it."""
        head, name = posixpath.split(clean(path))
        return self.folder(head), name


@dataclass(slots=True)
class NamePart:
    folder: Folder
    name: str
    node: Node | None  # None: the name goes
    open: bool = True  # neither durable nor overtaken by a later change of the same name


@dataclass(slots=True)
class NameChange:
    parts: list[NamePart]


@dataclass(slots=True)
class Names:
    """Changes of names that are not durable, in order, over all folders."""

    _pending: list[NameChange] = field(default_factory=list)

    def change(self, *parts: tuple[Folder, str, Node | None]) -> None:
        """One atomic change; the first part of a rename is the new name, the second the old one."""
        for folder, name, node in parts:
            if node is None:
                folder.entries.pop(name, None)
            else:
                folder.entries[name] = node
        self._pending.append(NameChange([NamePart(*part) for part in parts]))

    def sync(self, folder: Folder) -> None:
        """The folder's names are durable.

        Of a rename between folders, a sync of the old one makes both parts durable, or the file could be lost; a sync
        of the new one makes only the new name durable, so that a power cut may show both. File systems with a journal
        do better; nothing may rest on that.
        """
        for change in self._pending:
            if any(part.folder is folder and part.node is None for part in change.parts):
                for part in change.parts:
                    self._settle(part)
            for part in change.parts:
                if part.folder is folder:
                    self._settle(part)
        self._forget_settled()

    def cut_power(self, rng: random.Random, mode: PowerCutMode, folders: list[Folder] | None = None) -> None:
        """In all folders, or in those."""
        cut = [
            change
            for change in self._pending
            if folders is None or any(part.folder is folder for part in change.parts for folder in folders)
        ]
        if mode == "random":
            for change in cut:
                if rng.random() < 0.5:
                    for part in change.parts:
                        self._settle(part)
        self._pending = [change for change in self._pending if not any(change is other for other in cut)]

    def forget(self, folder: Folder) -> None:
        """Whatever was to change in this folder is void."""
        for change in self._pending:
            for part in change.parts:
                if part.folder is folder:
                    part.open = False
        self._forget_settled()

    def _settle(self, part: NamePart) -> None:
        if not part.open:
            return
        for change in self._pending:  # what came before for the same name is overtaken
            for earlier in change.parts:
                if earlier.folder is part.folder and earlier.name == part.name:
                    earlier.open = False
                if earlier is part:
                    _set_entry(part)
                    return

    def _forget_settled(self) -> None:
        self._pending = [change for change in self._pending if any(part.open for part in change.parts)]


def reachable(node: Node, *, durable: bool = True) -> Iterator[Node]:
    """`node` and all below it, in the order of names: chance is drawn in that order."""
    yield node
    if isinstance(node, Folder):
        entries = node.durable_entries if durable else node.entries
        for name in sorted(entries):
            yield from reachable(entries[name], durable=durable)


def files_of(folder: Folder, path: str) -> list[str]:
    """Paths of all files in it and below, which is at `path`, in the order of names."""
    found: list[str] = []
    for name, node in sorted(folder.entries.items()):
        found += [f"{path}/{name}"] if isinstance(node, File) else files_of(node, f"{path}/{name}")
    return found


def clean(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def split(path: str) -> list[str]:
    return [part for part in clean(path).split("/") if part]


def failure(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _sectors(write: Write) -> Iterator[tuple[int, int]]:
    """Each sector that the write touches, from its beginning to its end or the write's."""
    end = write.offset + len(write.data)
    start = write.offset - write.offset % SECTOR_BYTES
    while start < end:
        yield start, min(start + SECTOR_BYTES, end)
        start += SECTOR_BYTES


def _set_entry(part: NamePart) -> None:
    if part.node is None:
        part.folder.durable_entries.pop(part.name, None)
    else:
        part.folder.durable_entries[part.name] = part.node


def _applied(content: bytearray, change: Write | Resize) -> bytearray:
    """`content` with the change; another object where a mapping holds the old one, which then goes stale."""
    if isinstance(change, Resize):
        size_bytes = change.size_bytes
    elif change.data:
        size_bytes = max(len(content), change.offset + len(change.data))
    else:
        return content
    try:
        if size_bytes < len(content):
            del content[size_bytes:]
        elif size_bytes > len(content):
            content += bytes(size_bytes - len(content))
    except BufferError:
        content = bytearray(content[:size_bytes]).ljust(size_bytes, b"\0")
    if isinstance(change, Write):
        content[change.offset : change.offset + len(change.data)] = change.data
    return content


def _apply_xattr(xattrs: dict[str, bytes], change: SetXattr) -> None:
    if change.value is None:
        xattrs.pop(change.name, None)
    else:
        xattrs[change.name] = change.value
