"""The reader of etcd's database file, on files made here page by page.

tests/cluster/test_etcd_folders.py reads real ones.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from neve.tools.etcd.database import BRANCH, LEAF, MAGIC, DatabaseDamaged, _fnv1a, cluster_version

PAGE = 4096


def meta(number: int, *, root: int, transaction: int, page_size: int = PAGE) -> bytes:
    body = struct.pack("<IIIIQQQQQ", MAGIC, 2, page_size, 0, root, 0, 2, 9, transaction)
    return page(number, 4, 0, body + struct.pack("<Q", _fnv1a(body)), page_size)


def page(number: int, flags: int, count: int, body: bytes, size: int = PAGE) -> bytes:
    return (struct.pack("<QHHI", number, flags, count, 0) + body).ljust(size, b"\0")


def leaf(*entries: tuple[bytes, bytes], flags: int = 0) -> bytes:
    """The elements and what they point to."""
    heads, contents = b"", b""
    for index, (key, value) in enumerate(entries):
        position = 16 * (len(entries) - index) + len(contents)
        heads += struct.pack("<IIII", flags, position, len(key), len(value))
        contents += key + value
    return heads + contents


def branch(*children: tuple[bytes, int]) -> bytes:
    heads, contents = b"", b""
    for index, (key, number) in enumerate(children):
        heads += struct.pack("<IIQ", 16 * (len(children) - index) + len(contents), len(key), number)
        contents += key
    return heads + contents


def inline(*entries: tuple[bytes, bytes]) -> bytes:
    """The value of a bucket that is small enough to be in its leaf."""
    return struct.pack("<QQ", 0, 0) + struct.pack("<QHHI", 0, LEAF, len(entries), 0) + leaf(*entries)


def stored(path: Path, *pages: bytes) -> Path:
    path.write_bytes(b"".join(pages))
    return path


VERSION = (b"clusterVersion", b"3.5.0")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    buckets = leaf((b"alarm", inline()), (b"cluster", inline((b"a", b"x"), VERSION)), flags=1)
    metas = (meta(0, root=3, transaction=6), meta(1, root=2, transaction=5))
    return stored(tmp_path / "db", *metas, page(2, LEAF, 0, b""), page(3, LEAF, 2, buckets))


def test_the_version_of_the_last_transaction_is_found(small: Path) -> None:
    assert cluster_version(small) == "3.5.0"


def test_a_damaged_meta_page_is_passed_over_for_the_other(small: Path) -> None:
    data = bytearray(small.read_bytes())
    data[60] ^= 1  # the newer one's transaction number
    small.write_bytes(data)
    assert cluster_version(small) is None, "the older transaction had no version yet"
    data[PAGE + 60] ^= 1
    small.write_bytes(data)
    with pytest.raises(DatabaseDamaged, match="no valid meta page"):
        cluster_version(small)


@pytest.mark.parametrize("page_size", [4096, 16384])
def test_a_bucket_with_pages_of_its_own_and_branches_is_searched(tmp_path: Path, page_size: int) -> None:
    bucket = struct.pack("<QQ", 4, 0)
    database = stored(
        tmp_path / "db",
        meta(0, root=2, transaction=1, page_size=page_size),
        meta(1, root=3, transaction=2, page_size=page_size),
        page(2, LEAF, 0, b"", page_size),
        page(3, LEAF, 1, leaf((b"cluster", bucket), flags=1), page_size),
        page(4, BRANCH, 3, branch((b"a", 5), (b"clusterV", 6), (b"d", 5)), page_size),
        page(5, LEAF, 1, leaf((b"clusterVersion", b"9.9.9")), page_size),
        page(6, LEAF, 2, leaf(VERSION, (b"cm", b"x")), page_size),
    )
    assert cluster_version(database) == "3.5.0"


def test_a_database_without_a_version_has_none(tmp_path: Path) -> None:
    for buckets in (leaf(), leaf((b"cluster", inline((b"a", b"b"))), flags=1), leaf((b"cluster", b"3.5.0"))):
        count = 1 if buckets else 0
        database = stored(tmp_path / "db", meta(0, root=2, transaction=1), meta(1, root=2, transaction=0))
        with database.open("ab") as stream:
            stream.write(page(2, LEAF, count, buckets))
        assert cluster_version(database) is None


def test_what_is_no_database_or_ends_early_is_damaged(small: Path) -> None:
    whole = small.read_bytes()
    for damaged in (b"", b"hello", bytes(2 * PAGE), whole[: 2 * PAGE], whole[: 3 * PAGE + 8]):
        small.write_bytes(damaged)
        with pytest.raises(DatabaseDamaged):
            cluster_version(small)


def test_pages_that_lead_in_a_circle_are_damaged(tmp_path: Path) -> None:
    circle = page(2, BRANCH, 1, branch((b"a", 2)))
    database = stored(tmp_path / "db", meta(0, root=2, transaction=1), meta(1, root=2, transaction=0), circle)
    with pytest.raises(DatabaseDamaged, match="nested too deep"):
        cluster_version(database)
