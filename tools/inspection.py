"""The inspection of an extent file or a disk: its contents and defects. It only reads, and trusts only what it checked.

Invariants: no call here changes anything: no lock is taken, no file is opened for writing;
            one damaged extent is a finding, not the end: the others are looked at all the same;
            a finding is bad when bytes, attributes or identity are wrong; what a node heals by itself when it starts
            (a torn last block, bytes beyond a seal, a missing index) is a warning.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from neve.extent_node.disk import attributes, index
from neve.extent_node.disk.attributes import Attributes, BadAttribute, Seal
from neve.extent_node.disk.block_scan import Scan, scan_file
from neve.extent_node.disk.disk import EXTENTS, FOLDERS, LABEL, LOCK, TMP
from neve.extent_node.disk.file_system import FileSystem
from neve.extent_node.disk.labels import LabelDamaged, read_label
from neve.proto.blocks import HEADER_BYTES, BlockType, ProblemKind

Progress = Callable[[int], None]  # called with bytes looked at

_EXTENT_NAME = re.compile(r"([0-9a-f]{16})\.ext")
_INDEX_NAME = re.compile(r"([0-9a-f]{16})\.idx")


class CannotInspect(Exception):
    """The path cannot be inspected. The message is one sentence for a person."""


@dataclass(slots=True)
class ExtentFindings:
    path: str
    file_bytes: int = 0
    attributes: Attributes | None = None  # None: unreadable, and a node treats the replica as absent
    valid_length: int = 0
    blocks: int = 0
    digest: bytes = b""  # the computed digest of a sealed extent
    index_state: str = "-"  # good, missing, wrong; - where there should be none
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    scan: Scan | None = None

    @property
    def is_good(self) -> bool:
        return not self.problems

    @property
    def state(self) -> str:
        found = self.attributes
        if found is None:
            return "absent"
        if found.seal is not None:
            return "sealed"
        words = ["fenced" if found.fenced else "open"]
        words += ["doubtful"] if found.doubt is not None else []
        words += ["unsynced"] if found.unsynced else []
        return "+".join(words)


@dataclass(slots=True)
class DiskFindings:
    path: str
    label: dict[str, object] | None = None
    is_locked: bool = False
    counts: dict[str, int] = field(default_factory=dict)  # of files in trash, quarantine and so on
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)  # paths that this user may not read

    @property
    def is_good(self) -> bool:
        return not self.problems and not self.unreadable


# --- a disk ------------------------------------------------------------------------------------------------------


def inspect_disk(fs: FileSystem, path: str) -> DiskFindings:
    """Inspect the disk itself. `extent_paths` lists the extent files to inspect next."""
    found = DiskFindings(path)
    if fs.stat(os.path.join(path, LABEL)) is None and fs.stat(os.path.join(path, EXTENTS)) is None:
        raise CannotInspect(f"{path} is neither an extent file nor a disk: it has no {LABEL} and no folder {EXTENTS}")
    try:
        found.label = read_label(fs, path, LABEL)
        if found.label is None:
            found.problems.append(f"{LABEL} is missing: a node refuses this disk")
    except LabelDamaged as error:
        found.problems.append(str(error))
    for name in FOLDERS:
        folder = os.path.join(path, name)
        if fs.stat(folder) is None:
            found.problems.append(f"the folder {name} is missing")
        elif name != EXTENTS:
            found.counts[name] = len(fs.list_dir(folder))
    found.is_locked = is_locked(os.path.join(path, LOCK))
    if found.is_locked:
        found.warnings.append("a node uses this disk now: what changes meanwhile may look wrong")
    if found.counts.get("quarantine"):
        found.warnings.append("the folder quarantine is not empty: replicas in it turned out wrong")
    if found.counts.get(TMP) and not found.is_locked:
        found.warnings.append("the folder tmp is not empty: a node empties it when it starts")
    return found


def extent_paths(fs: FileSystem, disk: DiskFindings) -> Iterator[str]:
    """Every extent file of a disk. Other files become warnings of the disk."""
    root = os.path.join(disk.path, EXTENTS)
    if fs.stat(root) is None:
        return
    for sub in sorted(fs.list_dir(root)):
        folder = os.path.join(root, sub)
        stat = fs.stat(folder)
        if stat is None or not stat.is_dir:
            disk.warnings.append(f"{folder} does not belong there")
            continue
        try:
            names = set(fs.list_dir(folder))
        except OSError as error:
            disk.unreadable.append(f"{folder} cannot be read: {error.strerror}")
            continue
        for name in sorted(names):
            if _EXTENT_NAME.fullmatch(name):
                yield os.path.join(folder, name)
            elif (match := _INDEX_NAME.fullmatch(name)) is None:
                disk.warnings.append(f"{os.path.join(folder, name)} does not belong there")
            elif f"{match[1]}.ext" not in names:
                disk.warnings.append(f"{os.path.join(folder, name)} is the index of an extent that is not here")


def disk_label_of(fs: FileSystem, extent_path: str) -> dict[str, object] | None:
    """The label of the disk of an extent file; None if the file is on no disk or the label is unreadable."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(extent_path))))
    try:
        return read_label(fs, folder, LABEL)
    except (LabelDamaged, OSError):
        return None


def is_locked(path: str) -> bool:
    """Whether a process holds the lock file, by the kernel's list. Taking it could keep a node from starting."""
    try:
        inode = os.stat(path).st_ino
        with open("/proc/locks") as lines:
            return any(f":{inode} " in line for line in lines)
    except OSError:
        return False


# --- an extent -----------------------------------------------------------------------------------------------------


def inspect_extent(
    fs: FileSystem, path: str, *, disk_label: dict[str, object] | None = None, on_progress: Progress | None = None
) -> ExtentFindings:
    """Run all checks on one extent file. Raises CannotInspect if this user may not read it."""
    found = ExtentFindings(path)
    try:
        fd = fs.open(path, writable=False)
        try:
            _inspect_opened(fs, fd, found, disk_label, on_progress)
        finally:
            fs.close(fd)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.EISDIR, errno.EOPNOTSUPP):
            raise CannotInspect(f"{path} cannot be read: {os.strerror(error.errno)}") from None
        found.problems.append(f"it cannot be read: {error.strerror}")
    return found


def _inspect_opened(
    fs: FileSystem,
    fd: int,
    found: ExtentFindings,
    disk_label: dict[str, object] | None,
    on_progress: Progress | None,
) -> None:
    found.file_bytes = fs.fstat(fd).size_bytes
    found.attributes = _read_attributes(fs, fd, found)
    seal = None if found.attributes is None else found.attributes.seal
    if found.attributes is not None:
        _check_identity(found, found.attributes, disk_label)
    end = found.file_bytes if seal is None else min(found.file_bytes, seal.length)
    scan = scan_file(fs, fd, end=end, on_progress=on_progress)
    found.scan, found.valid_length, found.blocks = scan, scan.valid_length, len(scan.sizes)
    if seal is None:
        _check_open(found, scan)
    else:
        _check_sealed(found, scan, seal)
    _check_index(fs, found, scan, seal)


def _read_attributes(fs: FileSystem, fd: int, found: ExtentFindings) -> Attributes | None:
    values = {name: fs.get_xattr(fd, name) for name in attributes.ALL}
    try:
        return attributes.decode_all({name: value for name, value in values.items() if value is not None})
    except BadAttribute as error:
        found.problems.append(f"attribute {error}: a node treats this replica as absent")
        return None


def _check_identity(found: ExtentFindings, here: Attributes, disk_label: dict[str, object] | None) -> None:
    """Detect a file that came from another disk or node (scenario T32)."""
    name = os.path.basename(found.path)
    folder = os.path.basename(os.path.dirname(found.path))
    extent_id = here.meta.extent_id
    if _EXTENT_NAME.fullmatch(name):
        if name != f"{extent_id:016x}.ext":
            found.problems.append(f"it is extent {extent_id:016x} by its attributes, not by its name")
        elif re.fullmatch(r"[0-9a-f]{2}", folder) and folder != f"{extent_id & 0xFF:02x}":
            found.problems.append(f"it belongs in the folder {extent_id & 0xFF:02x}: a node does not see it here")
    if disk_label is not None:
        for what, value, expected in (
            ("disk", here.meta.disk_uuid, disk_label.get("uuid")),
            ("node", here.meta.node_id, disk_label.get("node_id")),
        ):
            if expected is not None and value != expected:
                found.problems.append(f"it was made for {what} {value}, and lies on {what} {expected}")
    if here.doubt is not None and here.seal is None:
        reason = here.doubt.name.lower().replace("_", " ")
        found.warnings.append(f"it is doubtful ({reason}): its length proves nothing until it is sealed")


def _check_open(found: ExtentFindings, scan: Scan) -> None:
    problem = scan.problem
    if problem is None:
        return
    if problem.kind is ProblemKind.CUT_SHORT and found.attributes is not None:
        found.warnings.append(f"{problem}: a torn write, cut when the node starts unless it was known to be durable")
    else:
        found.problems.append(str(problem))


def _check_sealed(found: ExtentFindings, scan: Scan, seal: Seal) -> None:
    found.digest = scan.digest
    if scan.problem is not None:
        found.problems.append(str(scan.problem))
    if found.file_bytes < seal.length:
        found.problems.append(f"{found.file_bytes} of {seal.length} sealed bytes are here")
    elif found.file_bytes > seal.length:
        surplus_bytes = found.file_bytes - seal.length
        found.warnings.append(f"{surplus_bytes} bytes lie beyond the seal at {seal.length}: cut when the node starts")
    if scan.length == seal.length and scan.digest != seal.digest:
        found.problems.append(f"the digest is {scan.digest.hex()[:16]}…, the seal says {seal.digest.hex()[:16]}…")


def _check_index(fs: FileSystem, found: ExtentFindings, scan: Scan, seal: Seal | None) -> None:
    path = found.path.removesuffix(".ext") + ".idx"
    exists = path != found.path and fs.stat(path) is not None
    if seal is None or found.attributes is None:
        if exists:
            found.warnings.append("an index lies beside it, though it is not sealed")
        return
    if not exists:
        found.index_state = "missing"
        found.warnings.append("the index is missing: a node builds it again")
        return
    loaded = index.load(fs, path, extent_id=found.attributes.meta.extent_id, seal=seal)
    if loaded is None:
        found.index_state = "wrong"
        found.warnings.append("the index is damaged or of another seal: a node builds it again")
    elif scan.problem is None and not (
        np.array_equal(loaded.sizes, scan.sizes) and np.array_equal(loaded.types, scan.types)
    ):
        found.index_state = "wrong"
        found.problems.append("the index has right checksums and names other blocks than there are")
    else:
        found.index_state = "good"


def blocks_of(scan: Scan) -> Iterator[tuple[int, int, str]]:
    """(offset, payload size, type) of each valid block."""
    offset = 0
    for size_total, block_type in zip(scan.sizes.tolist(), scan.types.tolist(), strict=True):
        yield offset, size_total - HEADER_BYTES, BlockType(block_type).name
        offset += size_total
