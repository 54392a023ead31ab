"""A disk: a folder with a label, a lock and extents.

    disk.json        its identity: uuid, cluster, node, format, and the journal that its extents depend on
    boot.json        the boot and the mount of its last use, and whether that use ended cleanly
    lock             held by the process that uses the disk
    extents/ab/      <16 hex digits>.ext and .idx; ab are the last two digits of the id
    tmp/             files being made; emptied on start
    trash/           deleted replicas, until their delay is over: <id>-<incarnation>-<ms>.ext
    quarantine/      replicas that turned out wrong: <id>-<incarnation>-<ms>.ext; kept for a person, never removed by
                     the node. Its extent is reported as damaged meanwhile, and only a copy makes it again
    tombstones/      <id>.<eversion>.<ms>: empty files whose names hold everything, so that they cannot be torn

Invariants: a disk that is wiped, swapped, foreign, locked or of an unknown format is refused by name, never used
            (scenario T32);
            a tombstone is durable before its replica is gone;
            an error of one disk changes only that disk's state: WRITABLE → READ_ONLY ⇄ WRITABLE, any → OFFLINE;
            all calls block: the store runs them in threads.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from neve.extent_node.disk.file_system import FileSystem, Usage
from neve.extent_node.disk.labels import ASIDE_SUFFIX, LabelDamaged, make_folder, read_label, write_label

log = logging.getLogger(__name__)

FORMAT_VERSION = 1

LABEL = "disk.json"
BOOT = "boot.json"
LOCK = "lock"

EXTENTS, TMP, TRASH, QUARANTINE, TOMBSTONES = "extents", "tmp", "trash", "quarantine", "tombstones"
FOLDERS = (EXTENTS, TMP, TRASH, QUARANTINE, TOMBSTONES)

FULL = (errno.ENOSPC, errno.EDQUOT)  # no room: a state of a disk, not a fault
SHORT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the process's limits, not a disk's fault

_PROBE = "probe"  # a short-lived file in tmp/
_PROBE_ATTRIBUTE = "user.neve.probe"


class DiskRefused(Exception):
    """This folder cannot be used as the expected disk; the message says why and what to do."""


class DiskState(Enum):
    WRITABLE = "writable"
    READ_ONLY = "read-only"  # full, or past its mark: seals, attributes and copies still use the reserve
    OFFLINE = "offline"  # it failed; it is tried again only when the process restarts


@dataclass(frozen=True, slots=True)
class DiskLabel:
    """The content of `disk.json`."""

    uuid: str
    cluster: str
    node_id: int
    journal_uuid: str

    def fields(self) -> dict[str, Any]:
        return {
            "format": FORMAT_VERSION,
            "uuid": self.uuid,
            "cluster": self.cluster,
            "node_id": self.node_id,
            "journal_uuid": self.journal_uuid,
        }


@dataclass(frozen=True, slots=True)
class Boot:
    """The content of `boot.json`."""

    boot_id: str
    clean: bool  # everything was synced, and every open replica ended with a whole block
    mount_id: str = ""  # empty if an earlier build wrote the label: counts as another mount
    # Short ids of this node's disks that failed when the journal's label could not be written to record it.
    distrusted: tuple[int, ...] = ()

    def fields(self) -> dict[str, Any]:
        return {
            "boot_id": self.boot_id,
            "clean": self.clean,
            "mount_id": self.mount_id,
            "distrusted": [f"{disk:016x}" for disk in self.distrusted],
        }


@dataclass(frozen=True, slots=True)
class Marks:
    """Shares of the capacity in use. The room above `high` is the reserve for seals and copies (scenario T24)."""

    high: float = 0.92
    low: float = 0.90


def format_disk(
    fs: FileSystem, folder: str, *, cluster: str, node_id: int, disk_uuid: uuid.UUID, journal_uuid: str
) -> str:
    """Make an empty folder a disk of this node. An interrupted format may be repeated."""
    make_folder(fs, folder)
    allowed = {*FOLDERS, LOCK, BOOT, BOOT + ASIDE_SUFFIX, LABEL + ASIDE_SUFFIX, "lost+found"}
    strangers = sorted(set(fs.list_dir(folder)) - allowed)
    strangers += [name for name in FOLDERS if fs.stat(os.path.join(folder, name)) and _holds_files(fs, folder, name)]
    if strangers:
        raise DiskRefused(f"{folder} is not empty (it has {strangers[0]!r}): only an empty folder is made a disk")
    for name in FOLDERS:
        fs.make_dirs(os.path.join(folder, name))
    for number in range(256):
        fs.make_dirs(os.path.join(folder, EXTENTS, f"{number:02x}"))
    fs.fsync_dir(os.path.join(folder, EXTENTS))
    fs.fsync_dir(folder)
    _probe_attributes(fs, folder)
    label = DiskLabel(str(disk_uuid), cluster, node_id, journal_uuid)
    write_label(fs, folder, BOOT, Boot(fs.boot_id(), clean=True, mount_id=fs.mount_id(folder)).fields())
    write_label(fs, folder, LABEL, label.fields())  # last: without it there is no disk
    log.info("disk_formatted folder=%s disk=%s node_id=%d", folder, label.uuid, node_id)
    return label.uuid


def _holds_files(fs: FileSystem, folder: str, name: str) -> bool:
    inside = fs.list_dir(os.path.join(folder, name))
    if name == EXTENTS:
        return any(fs.list_dir(os.path.join(folder, name, sub)) for sub in inside)
    return bool(set(inside) - {_PROBE})


def _probe_attributes(fs: FileSystem, folder: str) -> None:
    """DiskRefused unless user extended attributes work here: they hold the state of replicas."""
    path = os.path.join(folder, TMP, _PROBE)
    if fs.stat(path) is not None:
        fs.unlink(path)
    fd = fs.open(path, create=True, exclusive=True)
    try:
        fs.set_xattr(fd, _PROBE_ATTRIBUTE, b"1")
        kept = fs.get_xattr(fd, _PROBE_ATTRIBUTE) == b"1"
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM):
            raise
        kept = False
    finally:
        fs.close(fd)
        fs.unlink(path)
    if not kept:
        raise DiskRefused(
            f"the file system of {folder} keeps no user extended attributes, which hold the state of replicas: use "
            "ext4 or XFS (ext3 and ext2: mount with user_xattr; tmpfs: Linux 6.6 or newer), then format the disk again"
        )


class Disk:
    """An opened and locked disk. `label`, `state` and `reason` are read-only for others; methods change them."""

    def __init__(self, fs: FileSystem, folder: str, label: DiskLabel, lock_fd: int, marks: Marks) -> None:
        self.fs = fs
        self.folder = folder
        self.label = label
        self.short_id = short_id(label.uuid)
        self.marks = marks
        self.state = DiskState.WRITABLE
        self.reason = ""
        self.usage = Usage(capacity_bytes=0, free_bytes=0)
        self.extents = 0  # set by the store
        self._lock_fd: int | None = lock_fd

    def __repr__(self) -> str:
        return f"Disk({self.uuid}, {self.state.value})"

    @property
    def uuid(self) -> str:
        return self.label.uuid

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        folder: str,
        *,
        cluster: str,
        node_id: int,
        expected_uuid: str = "",
        marks: Marks | None = None,
    ) -> Disk:
        """Lock the disk and check that it is the expected one."""
        label = read_disk_label(fs, folder, expected_uuid=expected_uuid)
        if expected_uuid and label.uuid != expected_uuid:
            raise DiskRefused(
                f"{folder} is disk {label.uuid}, but {expected_uuid} should be there: were disks swapped?"
            )
        if label.cluster != cluster:
            raise DiskRefused(f"{folder} is a disk of cluster {label.cluster!r}, not of {cluster!r}")
        if label.node_id != node_id:
            raise DiskRefused(
                f"{folder} is a disk of node {label.node_id}, not of node {node_id}: mount it there, or "
                "decommission it first"
            )
        try:
            lock_fd = fs.lock(os.path.join(folder, LOCK))
        except BlockingIOError:
            raise DiskRefused(f"{folder} is locked: another process uses this disk") from None
        try:
            disk = cls(fs, folder, label, lock_fd, marks or Marks())
            try:
                _probe_attributes(fs, folder)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                disk.note_full(f"{type(error).__name__}: {error}")  # attributes worked when there was room
            disk.refresh_usage()
        except BaseException:
            fs.close(lock_fd)
            raise
        return disk

    def close(self) -> None:
        """Release the lock. May be called more than once."""
        if self._lock_fd is not None:
            self.fs.close(self._lock_fd)
            self._lock_fd = None

    # --- boot ------------------------------------------------------------------------------------------------

    def last_boot(self) -> Boot | None:
        """The boot of the previous use; None if unknown, which counts as another boot and an unclean stop."""
        try:
            fields = read_label(self.fs, self.folder, BOOT)
        except LabelDamaged as error:
            log.error("boot_label_damaged disk=%s error=%s", self.uuid, error)
            return None
        if fields is None:
            return None
        distrusted = tuple(int(disk, 16) for disk in fields.get("distrusted", ()))
        return Boot(fields["boot_id"], fields["clean"], fields.get("mount_id", ""), distrusted)

    def kept_page_cache(self, last: Boot | None) -> bool:
        """Whether bytes that the previous use did not sync can still be read: the same boot and mount."""
        if last is None or last.boot_id != self.fs.boot_id():
            return False
        return last.mount_id == self.fs.mount_id(self.folder)

    def store_boot(self, *, clean: bool, distrusted: tuple[int, ...] = ()) -> None:
        boot = Boot(self.fs.boot_id(), clean, self.fs.mount_id(self.folder), distrusted)
        write_label(self.fs, self.folder, BOOT, boot.fields())

    def name_journal(self, journal_uuid: str) -> None:
        """Record that the extents here depend on this journal from now on."""
        self.label = replace(self.label, journal_uuid=journal_uuid)
        write_label(self.fs, self.folder, LABEL, self.label.fields())

    # --- state -----------------------------------------------------------------------------------------------

    def refresh_usage(self) -> None:
        self.note_usage(self.fs.usage(self.folder))

    def note_usage(self, usage: Usage) -> None:
        """Stop appends above the high mark; allow them again below the low mark."""
        self.usage = usage
        capacity = self.usage.capacity_bytes
        used = 1.0 - self.usage.free_bytes / capacity if capacity else 1.0
        if self.state is DiskState.WRITABLE and used >= self.marks.high:
            self.note_full(f"{used:.1%} in use, the high mark is {self.marks.high:.1%}")
        elif self.state is DiskState.READ_ONLY and used < self.marks.low:
            self.state, self.reason = DiskState.WRITABLE, ""
            log.info("disk_writable disk=%s used=%.3f", self.uuid, used)

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether the disk stays below its high mark with this many more bytes, by the last known usage."""
        usage = self.usage
        return usage.free_bytes - size_bytes > (1 - self.marks.high) * usage.capacity_bytes

    def note_full(self, reason: str) -> None:
        if self.state is DiskState.WRITABLE:
            self.state, self.reason = DiskState.READ_ONLY, reason
            log.warning("disk_read_only disk=%s reason=%s", self.uuid, reason)

    def note_failed(self, reason: str) -> None:
        if self.state is not DiskState.OFFLINE:
            self.state, self.reason = DiskState.OFFLINE, reason
            log.error("disk_offline disk=%s reason=%s", self.uuid, reason)

    # --- names -----------------------------------------------------------------------------------------------

    def extent_folder(self, extent_id: int) -> str:
        return f"{self.folder}/{EXTENTS}/{extent_id & 0xFF:02x}"

    def extent_path(self, extent_id: int) -> str:
        return extent_path(self.folder, extent_id)

    def index_path(self, extent_id: int) -> str:
        return index_path(self.folder, extent_id)

    def tmp_path(self, name: str) -> str:
        return os.path.join(self.folder, TMP, name)

    def extent_ids(self) -> Iterator[int]:
        """All extent files by name, folder by folder, without ever making a list of all of them."""
        root = os.path.join(self.folder, EXTENTS)
        for sub in sorted(self.fs.list_dir(root)):
            for name in sorted(self.fs.list_dir(os.path.join(root, sub))):
                extent_id = _parse_extent_name(name)
                if extent_id is not None and f"{extent_id & 0xFF:02x}" == sub:
                    yield extent_id

    def remove_stray_indexes(self) -> int:
        """Remove indexes without an extent; returns how many.

        An unclean stop leaves one if the extent was moved aside and its index was not yet removed.
        """
        removed = 0
        for sub in self.fs.list_dir(os.path.join(self.folder, EXTENTS)):
            folder = os.path.join(self.folder, EXTENTS, sub)
            names = set(self.fs.list_dir(folder))
            for name in sorted(names):
                stem, dot, suffix = name.rpartition(".")
                if dot and suffix == "idx" and f"{stem}.ext" not in names:
                    self.fs.unlink(os.path.join(folder, name))
                    removed += 1
        return removed

    def empty_tmp(self) -> int:
        """Remove the unfinished files of a process that died; returns how many."""
        folder = os.path.join(self.folder, TMP)
        names = self.fs.list_dir(folder)
        for name in names:
            self.fs.unlink(os.path.join(folder, name))
        return len(names)

    # --- deleting --------------------------------------------------------------------------------------------

    def tombstones(self) -> Iterator[tuple[int, int]]:
        """The (extent id, eversion) of each tombstone."""
        for name in self.fs.list_dir(os.path.join(self.folder, TOMBSTONES)):
            parsed = _parse_tombstone_name(name)
            if parsed is not None:
                yield parsed[0], parsed[1]
            else:
                log.warning("tombstone_ignored disk=%s name=%r", self.uuid, name)

    def bury(self, extent_id: int, eversion: int, now_ms: int) -> None:
        """Make a tombstone. It is durable when this returns."""
        folder = os.path.join(self.folder, TOMBSTONES)
        name = f"{extent_id:016x}.{eversion:016x}.{now_ms}"
        self.fs.close(self.fs.open(os.path.join(folder, name), create=True))
        self.fs.fsync_dir(folder)

    def sync_tombstones(self) -> None:
        """Make visible tombstones durable: after an unclean stop they may not be."""
        self.fs.fsync_dir(os.path.join(self.folder, TOMBSTONES))

    def purge_tombstones(self, before_ms: int) -> list[tuple[int, int]]:
        """Remove the tombstones made before then; returns their extent ids and eversions.

        No Create that old is on any network any more.
        """
        folder = os.path.join(self.folder, TOMBSTONES)
        purged = []
        for name in self.fs.list_dir(folder):
            parsed = _parse_tombstone_name(name)
            if parsed is not None and parsed[2] < before_ms:
                self.fs.unlink(os.path.join(folder, name))
                purged.append(parsed[:2])
        return purged

    def move_to_trash(self, extent_id: int, incarnation: int, now_ms: int) -> None:
        """Move a replica whose tombstone is durable. If a crash interrupts this, the next start finishes it."""
        self._move_aside(extent_id, TRASH, f"{extent_id:016x}-{incarnation:016x}-{now_ms}.ext")

    def move_to_quarantine(self, extent_id: int, incarnation: int, now_ms: int) -> None:
        self._move_aside(extent_id, QUARANTINE, f"{extent_id:016x}-{incarnation:016x}-{now_ms}.ext")

    def quarantined_ids(self) -> Iterator[int]:
        """Ids of extents with a replica in quarantine; an id may occur several times."""
        for name in self.fs.list_dir(os.path.join(self.folder, QUARANTINE)):
            stem = name.partition("-")[0]
            extent_id = _parse_extent_name(f"{stem}.ext")
            if extent_id is not None:
                yield extent_id

    def _move_aside(self, extent_id: int, folder_name: str, name: str) -> None:
        folder = os.path.join(self.folder, folder_name)
        self.fs.rename(self.extent_path(extent_id), os.path.join(folder, name))
        if self.fs.stat(self.index_path(extent_id)) is not None:
            self.fs.unlink(self.index_path(extent_id))
        # The new name is synced first: a power cut in between leaves two names, never none.
        self.fs.fsync_dir(folder)
        self.fs.fsync_dir(self.extent_folder(extent_id))

    def purge_trash(self, before_ms: int) -> int:
        """Remove files deleted before then; returns how many."""
        folder = os.path.join(self.folder, TRASH)
        purged = 0
        for name in self.fs.list_dir(folder):
            deleted_ms = name.rsplit("-", 1)[-1].removesuffix(".ext")
            if deleted_ms.isdigit() and int(deleted_ms) < before_ms:
                self.fs.unlink(os.path.join(folder, name))
                purged += 1
        return purged


def extent_path(folder: str, extent_id: int) -> str:
    """The path of an extent on the disk in `folder`."""
    return f"{folder}/{EXTENTS}/{extent_id & 0xFF:02x}/{extent_id:016x}.ext"


def index_path(folder: str, extent_id: int) -> str:
    return f"{folder}/{EXTENTS}/{extent_id & 0xFF:02x}/{extent_id:016x}.idx"


def short_id(disk_uuid: str) -> int:
    """A disk's id in the journal: the first half of its uuid. Accepts that half alone, too."""
    digits = disk_uuid.replace("-", "").strip()
    if len(digits) not in (16, 32):
        raise ValueError(f"{disk_uuid!r} is neither a disk's uuid nor the first half of one")
    return int.from_bytes(bytes.fromhex(digits)[:8], "little")


def short_name(disk: int) -> str:
    """A short id as the first half of the uuid, for people."""
    digits = disk.to_bytes(8, "little").hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:]}"


def read_disk_label(fs: FileSystem, folder: str, *, expected_uuid: str = "") -> DiskLabel:
    """The folder's label; DiskRefused if it is not a disk of this format."""
    try:
        fields = read_label(fs, folder, LABEL)
    except LabelDamaged as error:
        raise DiskRefused(f"{error}: restore it by hand, or wipe the disk and let its replicas be recovered") from error
    if fields is None and expected_uuid:
        raise DiskRefused(
            f"{folder} has no {LABEL}, but disk {expected_uuid} should be there: it is not mounted, or it was wiped. "
            "If it is lost, remove it from the configuration; its replicas are recovered elsewhere"
        )
    if fields is None:
        raise DiskRefused(f"{folder} has no {LABEL}: format it first")
    if fields.get("format") != FORMAT_VERSION:
        raise DiskRefused(f"{folder} has disk format {fields.get('format')}, this build knows {FORMAT_VERSION} only")
    return DiskLabel(fields["uuid"], fields["cluster"], fields["node_id"], fields["journal_uuid"])


def _parse_extent_name(name: str) -> int | None:
    stem, dot, suffix = name.partition(".")
    if not dot or suffix != "ext" or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def _parse_tombstone_name(name: str) -> tuple[int, int, int] | None:
    parts = name.split(".")
    try:
        return int(parts[0], 16), int(parts[1], 16), int(parts[2])
    except (ValueError, IndexError):
        return None
