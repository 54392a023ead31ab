"""Labels: small JSON files that identify a folder (`disk.json`, `boot.json`, `journal.json`).

Invariants: a label is replaced as a whole: written to a second file, fsynced, exchanged with the old one, and the
            folder fsynced, so that a crash leaves the old label or the new one;
            the second file keeps its blocks: a start on a full disk can still write its labels (scenario T24). It is
            written only when it is certainly not the label on the disk;
            a label carries a CRC32C of its other fields: one with a flipped bit is refused, never partly used.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any

from neve.extent_node.disk.file_system import FileSystem
from neve.proto.crc import crc32c

LABEL_BYTES_MAX = 1 << 20  # a larger file is not a label

ASIDE_SUFFIX = ".new"  # where the next label is written; the file's content never counts
PADDED_BYTES = 1024  # labels are padded to a multiple of this, so that one that grows a little needs no more room


class LabelDamaged(Exception):
    """A label exists but cannot be trusted."""


def write_label(fs: FileSystem, folder: str, name: str, fields: dict[str, Any]) -> None:
    """Replace the label's content with `fields`, which are on stable storage when this returns."""
    content = _encode(fields)
    path = os.path.join(folder, name)
    aside = path + ASIDE_SUFFIX
    if fs.stat(aside) is not None:
        # The last exchange may not have reached the disk. Then this file is the label there: do not write to it yet.
        fs.fsync_dir(folder)
    _write_file(fs, aside, content)
    if fs.stat(path) is None:
        fs.rename(aside, path)
        fs.fsync_dir(folder)
        _write_file(fs, aside, bytes(len(content)))
    else:
        _exchange(fs, aside, path)
        fs.fsync_dir(folder)


def _write_file(fs: FileSystem, path: str, content: bytes) -> None:
    """Overwrite the file in place: one that is long enough needs no further block."""
    fd = fs.open(path, create=True)
    try:
        write_all(fs, fd, content, 0)
        if fs.fstat(fd).size_bytes > len(content):
            fs.truncate(fd, len(content))
        fs.fsync(fd)
    finally:
        fs.close(fd)


def _exchange(fs: FileSystem, aside: str, path: str) -> None:
    """Swap the names of the two files atomically.

    A file system that cannot do that loses the second file, and the next label needs a free block.
    """
    try:
        fs.exchange(aside, path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        fs.rename(aside, path)


def read_label(fs: FileSystem, folder: str, name: str) -> dict[str, Any] | None:
    """The label's fields, None if there is no such file; `LabelDamaged` if it cannot be trusted."""
    path = os.path.join(folder, name)
    if fs.stat(path) is None:
        return None
    fd = fs.open(path, writable=False)
    try:
        content = fs.pread(fd, LABEL_BYTES_MAX, 0)
    finally:
        fs.close(fd)
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise LabelDamaged(f"{path} is not JSON ({error}): the file is damaged or was edited") from None
    if not isinstance(fields, dict):
        raise LabelDamaged(f"{path} is not a JSON object: the file is damaged or was edited")
    crc = fields.pop("crc32c", None)
    # Compared byte by byte, not value by value: a flipped bit in white space or in a key's name counts, too.
    if type(crc) is not int or content not in (_encode(fields), _encode_unpadded(fields)):
        raise LabelDamaged(f"{path} does not match its checksum: the file is damaged or was edited")
    return fields


def make_folder(fs: FileSystem, folder: str) -> None:
    """Make sure that the folder exists and survives a power cut."""
    if fs.stat(folder) is None:
        fs.make_dirs(folder)
        fs.fsync_dir(os.path.dirname(os.path.abspath(folder)))


def write_all(fs: FileSystem, fd: int, content: bytes, offset: int) -> None:
    """Write all of `content`, continuing after short writes."""
    view = memoryview(content)
    while view:
        written = fs.pwrite(fd, [view], offset)
        if written <= 0:
            raise OSError(errno.EIO, "a write made no progress")
        view = view[written:]
        offset += written


def _encode(fields: dict[str, Any]) -> bytes:
    content = _encode_unpadded(fields)
    return content[:-1] + b" " * (-len(content) % PADDED_BYTES) + b"\n"


def _encode_unpadded(fields: dict[str, Any]) -> bytes:
    """The label without padding, as earlier builds wrote it."""
    body = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    whole = {**fields, "crc32c": crc32c(body)}
    return json.dumps(whole, sort_keys=True, indent=1).encode() + b"\n"
