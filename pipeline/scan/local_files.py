"""Sealed extents on disks of this machine: read straight from the file, past the node that serves it.

Invariants: a file is used only if its disk's label names the disk that metadata lists, its attributes name the very
            replica and the very seal, and its size is the seal's; whatever does not fit is left to the node, which
            knows more;
            nothing is written, nothing is locked: a node may delete the file meanwhile, and what is mapped stays
            readable.
"""

from __future__ import annotations

import glob
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from neve.extent_node.disk import attributes, index
from neve.extent_node.disk.attributes import Attributes, BadAttribute, Seal
from neve.extent_node.disk.disk import DiskRefused, extent_path, index_path, read_disk_label
from neve.extent_node.disk.file_system import FileSystem, RealFileSystem
from neve.extent_node.disk.index import BlockIndex
from neve.proto import common_pb2
from neve.proto import stream_manager_pb2 as sm

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 30.0  # disks are mounted and formatted rarely


@dataclass(frozen=True, slots=True)
class LocalExtent:
    """A mapped sealed extent, and where its blocks are."""

    view: memoryview
    blocks: BlockIndex


class LocalDisks:
    """The disks of this machine, by uuid."""

    def __init__(self, patterns: Sequence[str], cluster: str, fs: FileSystem | None = None) -> None:
        self._patterns = tuple(patterns)
        self._cluster = cluster
        self._fs = fs or RealFileSystem()
        self._folders: dict[str, str] = {}
        self._looked_s = float("-inf")

    @property
    def fs(self) -> FileSystem:
        return self._fs

    def folder_of(self, disk_uuid: str) -> str | None:
        """The path of the disk, if this machine has it."""
        if not self._patterns:
            return None
        if disk_uuid not in self._folders and time.monotonic() - self._looked_s > LOOK_AGAIN_S:
            self._look()
        return self._folders.get(disk_uuid)

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        for pattern in self._patterns:
            for folder in sorted(glob.glob(pattern)):
                try:
                    label = read_disk_label(self._fs, folder)
                except (DiskRefused, OSError) as error:
                    log.info("folder_is_no_disk folder=%s error=%s", folder, error)
                    continue
                if label.cluster == self._cluster:
                    self._folders[label.uuid] = folder

    def open_sealed(self, info: sm.ExtentInfo, node_id: int = 0) -> LocalExtent | None:
        """The extent, by a replica on this machine (of that node, if one is named); None: ask the nodes."""
        for each in info.replicas:
            if each.confirmed and node_id in (0, each.replica.node_id):
                folder = self.folder_of(each.replica.disk_uuid)
                found = self._open(folder, info, each.replica) if folder is not None else None
                if found is not None:
                    return found
        return None

    def _open(self, folder: str, info: sm.ExtentInfo, replica: common_pb2.Replica) -> LocalExtent | None:
        fs = self._fs
        try:
            fd = fs.open(extent_path(folder, info.extent_id), writable=False)
        except OSError as error:
            log.info("local_extent_not_opened extent_id=%d error=%s", info.extent_id, error)
            return None
        try:
            here = read_attributes(fs, fd)
            seal = Seal(info.seal.length, info.seal.eversion, info.seal.digest) if info.seal.digest else None
            if seal is None or why_another(here, info, replica) or fs.fstat(fd).size_bytes != seal.length:
                return None
            blocks = index.load(fs, index_path(folder, info.extent_id), extent_id=info.extent_id, seal=seal)
            return LocalExtent(fs.map(fd, seal.length), blocks) if blocks is not None else None
        except (BadAttribute, OSError) as error:
            log.info("local_extent_not_read extent_id=%d error=%s", info.extent_id, error)
            return None
        finally:
            fs.close(fd)


def read_attributes(fs: FileSystem, fd: int) -> Attributes:
    """BadAttribute if they are not those of a replica."""
    values = {name: fs.get_xattr(fd, name) for name in fs.list_xattrs(fd) if name in attributes.ALL}
    return attributes.decode_all({name: value for name, value in values.items() if value is not None})


def why_another(here: Attributes, info: sm.ExtentInfo, replica: common_pb2.Replica) -> str:
    """In what a file's attributes differ from the replica and the seal that metadata lists; empty: in nothing."""
    meta = here.meta
    if meta.extent_id != info.extent_id:
        return f"it is a file of extent {meta.extent_id}"
    if (meta.node_id, meta.disk_uuid) != (replica.node_id, replica.disk_uuid):
        return f"it was made for node {meta.node_id}, disk {meta.disk_uuid}"
    if meta.incarnation != replica.incarnation:
        return f"it is of another making, {meta.incarnation:016x}"
    if here.seal is None:
        return "it is not sealed"
    if (here.seal.length, here.seal.digest) != (info.seal.length, info.seal.digest):
        return f"it is sealed at {here.seal.length} with digest {here.seal.digest.hex()}"
    return ""


_disks: dict[tuple[tuple[str, ...], str], LocalDisks] = {}
_disks_lock = threading.Lock()


def disks_for(patterns: Sequence[str], cluster: str) -> LocalDisks:
    """This process's knowledge of the machine's disks."""
    key = (tuple(patterns), cluster)
    with _disks_lock:
        return _disks.setdefault(key, LocalDisks(*key))
