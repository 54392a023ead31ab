"""The cluster version of an etcd that is not running, read from its database file. Read-only.

etcd keeps its state in a bbolt file, DATA/member/snap/db, and in it the cluster version: bucket `cluster`, key
`clusterVersion`, for example b"3.5.0". A cluster version is the oldest minor release among the members, so with one
member it is the release that last served.

    page    = id u64, flags u16, count u16, overflow u32, then elements; numbers are little-endian
    meta    = magic u32, version u32, page size u32, flags u32, root page u64, sequence u64, freelist u64,
              pages u64, transaction u64, FNV-1a of all that u64; pages 0 and 1, of which the later valid one counts
    branch  = (key position u32, key size u32, page u64) …, positions count from their element
    leaf    = (flags u32, position u32, key size u32, value size u32) …; the value follows the key
    bucket  = a leaf's value with flag 1: root page u64, sequence u64; with root page 0 its page follows in the value
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

MAGIC, VERSION = 0xED0CDAED, 2
BRANCH, LEAF = 1, 2
BUCKET_FLAG = 1
DEPTH_MAX = 32
PAGE_SIZES = (4096, 8192, 16384, 65536)  # where the second meta page may be, when the first is damaged

_PAGE = struct.Struct("<QHHI")
_META = struct.Struct("<IIIIQQQQQQ")
_BRANCH = struct.Struct("<IIQ")
_LEAF = struct.Struct("<IIII")
_BUCKET = struct.Struct("<QQ")
_CHECKED_BYTES = _META.size - 8


class DatabaseDamaged(Exception):
    """The file is no bbolt database, or is damaged. The message names the defect."""


def cluster_version(database: Path) -> str | None:
    """The cluster version, for example "3.5.0"; None if etcd has not stored one yet."""
    with database.open("rb") as stream:
        try:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise DatabaseDamaged("it is empty") from error
        with data:
            try:
                return _cluster_version(data)
            except (struct.error, UnicodeDecodeError) as error:
                raise DatabaseDamaged(f"it ends too early, or is something else ({error})") from error


def _cluster_version(data: mmap.mmap) -> str | None:
    root, page_size = _root(data)
    bucket = _find(data, root * page_size, b"cluster", page_size)
    if bucket is None or not bucket[0] & BUCKET_FLAG:
        return None
    _, start, _ = bucket
    page, _ = _BUCKET.unpack_from(data, start)
    found = _find(data, page * page_size if page else start + _BUCKET.size, b"clusterVersion", page_size)
    if found is None:
        return None
    _, start, size = found
    return data[start : start + size].decode("ascii")


def _root(data: mmap.mmap) -> tuple[int, int]:
    """The root page of the last transaction, and the size of a page."""
    best: tuple[int, int, int] | None = None
    for start in (0, *PAGE_SIZES):
        at = start + _PAGE.size
        if at + _META.size > len(data):
            continue
        magic, version, page_size, _, root, _, _, _, transaction, checksum = _META.unpack_from(data, at)
        if (magic, version) != (MAGIC, VERSION) or checksum != _fnv1a(data[at : at + _CHECKED_BYTES]):
            continue
        if start in (0, page_size) and (best is None or transaction > best[0]):
            best = (transaction, root, page_size)
    if best is None:
        raise DatabaseDamaged("it has no valid meta page")
    return best[1], best[2]


def _find(data: mmap.mmap, start: int, key: bytes, page_size: int) -> tuple[int, int, int] | None:
    """The flags of the leaf element with that key, and the position of its value: (flags, start, size)."""
    for _ in range(DEPTH_MAX):
        _, flags, count, _ = _PAGE.unpack_from(data, start)
        first = start + _PAGE.size
        if flags & LEAF:
            for at in range(first, first + count * _LEAF.size, _LEAF.size):
                leaf_flags, position, key_size, value_size = _LEAF.unpack_from(data, at)
                value = at + position + key_size
                if data[at + position : value] == key:
                    return leaf_flags, value, value_size
            return None
        if not flags & BRANCH:
            raise DatabaseDamaged(f"the page at {start} is neither branch nor leaf")
        child: int | None = None
        for at in range(first, first + count * _BRANCH.size, _BRANCH.size):
            position, key_size, page = _BRANCH.unpack_from(data, at)
            if child is None or data[at + position : at + position + key_size] <= key:
                child = page
        if child is None:
            return None
        start = child * page_size
    raise DatabaseDamaged("its pages are nested too deep")


def _fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value
