"""Labels: the small JSON files that say what a folder is (`disk.json`, `boot.json`, `journal.json`).

Invariants: a label is replaced whole: written aside, fsynced, renamed, and the folder fsynced, so that a crash leaves
            the old one or the new one;
            it carries a CRC32C of its other fields: a label with a flipped bit is refused, never half believed.
Neighbours: `disk` and `journal` keep theirs here.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any

from neve.extent_node.fs import FileSystem
from neve.proto.crc import crc32c

LABEL_BYTES_MAX = 1 << 20  # a label names things; what is larger is not one

ASIDE_SUFFIX = ".new"  # a label being written; a left-over is replaced by the next writing


class LabelDamaged(Exception):
    """A label exists and cannot be believed."""


def write_label(fs: FileSystem, folder: str, name: str, fields: dict[str, Any]) -> None:
    """Make `fields` the label's content, on stable storage when this returns."""
    content = _encode(fields)
    aside = os.path.join(folder, name + ASIDE_SUFFIX)
    if fs.stat(aside) is not None:
        fs.unlink(aside)  # of a process that died while writing; never trusted
    fd = fs.open(aside, create=True, exclusive=True)
    try:
        write_all(fs, fd, content, 0)
        fs.fsync(fd)
    finally:
        fs.close(fd)
    fs.rename(aside, os.path.join(folder, name))
    fs.fsync_dir(folder)


def read_label(fs: FileSystem, folder: str, name: str) -> dict[str, Any] | None:
    """The label's fields, None if there is no such file; `LabelDamaged` if it cannot be believed."""
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
    # Compared byte by byte, not value by value: a flipped bit in white space or in a key's name is a flipped bit.
    if type(crc) is not int or content != _encode(fields):
        raise LabelDamaged(f"{path} does not match its checksum: the file is damaged or was edited")
    return fields


def make_folder(fs: FileSystem, folder: str) -> None:
    """The folder exists, and so it does after a power cut."""
    if fs.stat(folder) is None:
        fs.make_dirs(folder)
        fs.fsync_dir(os.path.dirname(os.path.abspath(folder)))


def write_all(fs: FileSystem, fd: int, content: bytes, offset: int) -> None:
    """All of `content`: a short write goes on where it stopped."""
    view = memoryview(content)
    while view:
        written = fs.pwrite(fd, [view], offset)
        if written <= 0:
            raise OSError(errno.EIO, "a write made no progress")
        view = view[written:]
        offset += written


def _encode(fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    whole = {**fields, "crc32c": crc32c(body)}
    return json.dumps(whole, sort_keys=True, indent=1).encode() + b"\n"
