"""One replica, read by the scrub job: what is wrong with its file is seen, and nothing else is."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neve.extent_node.disk import attributes, index
from neve.extent_node.disk.attributes import SEAL, Attributes, Meta, Seal
from neve.extent_node.disk.block_scan import Scanner
from neve.extent_node.disk.disk import extent_path, index_path
from neve.extent_node.disk.file_system import FileSystem
from neve.pipeline.core.scrub import BAD, OK
from neve.pipeline.core.slices import ScanExtent
from neve.pipeline.scan import replica_check
from neve.pipeline.scan.local_files import LocalDisks
from neve.pipeline.scan.metadata_rows import file_rows
from neve.pipeline.scan.replica_check import ReplicaToCheck
from neve.proto import blocks, common_pb2
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import Overloaded, ProtocolViolation
from tests.sim.disks.disk import SimFileSystem

FOLDER = "/disk"
DISK = str(uuid.UUID(int=7))
EXTENT_ID, NODE_ID = 5, 3
META = Meta(EXTENT_ID, 1, 99, 1, 1000, 1 << 20, NODE_ID, DISK)
BYTES = b"".join(blocks.encode_blocks([b"first", b"second one", b"third"]).buffers)


class HereDisks(LocalDisks):
    """The replica's disk is on this machine."""

    def __init__(self, fs: FileSystem) -> None:
        super().__init__(("/disk",), "c", fs)

    def folder_of(self, disk_uuid: str) -> str | None:
        return FOLDER if disk_uuid == DISK else None


def seal_and_index() -> tuple[Seal, index.BlockIndex]:
    scanner = Scanner()
    scanner.feed(BYTES)
    scan = scanner.finish()
    seal = Seal(len(BYTES), 2, scan.digest)
    return seal, index.from_scan(EXTENT_ID, seal, scan)


def put(fs: FileSystem, path: str, value: bytes, values: dict[str, bytes] | None = None) -> None:
    fd = fs.open(path, create=True)
    fs.truncate(fd, 0)
    fs.pwrite(fd, [value], 0)
    for name, text in (values or {}).items():
        fs.set_xattr(fd, name, text)
    fs.close(fd)


def filled(fs: SimFileSystem) -> SimFileSystem:
    seal, right = seal_and_index()
    fs.make_dirs(extent_path(FOLDER, EXTENT_ID).rpartition("/")[0])
    put(fs, extent_path(FOLDER, EXTENT_ID), BYTES, attributes.encode_all(Attributes(META, seal=seal)))
    put(fs, index_path(FOLDER, EXTENT_ID), index.encode(right))
    return fs


def wanted() -> ReplicaToCheck:
    seal, _ = seal_and_index()
    replica = common_pb2.Replica(node_id=NODE_ID, disk_uuid=DISK, incarnation=99)
    info = sm.ExtentInfo(
        extent_id=EXTENT_ID,
        replicas=[sm.ExtentReplica(replica=replica, address="h:1", confirmed=True)],
        seal=common_pb2.Seal(length=seal.length, eversion=2, digest=seal.digest),
    )
    return ReplicaToCheck(9, ScanExtent(EXTENT_ID, 1, seal.length, True, info.SerializeToString()), NODE_ID, "r")


def looked_at(fs: SimFileSystem) -> tuple[str, str]:
    link: Any = None  # nobody else is asked
    row = replica_check.check(link, HereDisks(fs), wanted())
    return row["verdict"], row["problem"] or ""


def test_a_sound_replica_has_nothing_to_say() -> None:
    assert looked_at(filled(SimFileSystem())) == (OK, "")


def test_an_index_that_is_whole_and_of_other_blocks_is_told() -> None:
    fs = filled(SimFileSystem())
    _, right = seal_and_index()
    sizes = right.sizes[::-1].copy()  # as many blocks, as many bytes
    sizes[0], sizes[1] = sizes[1], sizes[0]
    offsets = (sizes.cumsum() - sizes).astype(np.uint64)
    put(fs, index_path(FOLDER, EXTENT_ID), index.encode(replace(right, sizes=sizes, offsets=offsets)))
    verdict, problem = looked_at(fs)
    assert (verdict, "index" in problem) == (OK, True)
    put(fs, index_path(FOLDER, EXTENT_ID), index.encode(replace(right, types=right.types[::-1] + 1)))
    verdict, problem = looked_at(fs)
    assert (verdict, "index" in problem) == (OK, True)


class BadSectorUnderIndex(SimFileSystem):
    """Reading it fails, and touching a mapping of it would end the process."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[int] = set()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> int:
        fd = super().open(path, create=create, exclusive=exclusive, writable=writable)
        if path.endswith(".idx") and not create:
            self.bad.add(fd)
        return fd

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        if fd in self.bad:
            raise OSError(errno.EIO, "a bad sector")
        return super().pread(fd, size_bytes, offset)

    def map(self, fd: int, size_bytes: int) -> memoryview:
        assert fd not in self.bad, "SIGBUS"
        return super().map(fd, size_bytes)

    def close(self, fd: int) -> None:
        self.bad.discard(fd)
        super().close(fd)


def test_a_bad_sector_under_an_index_is_told_and_ends_no_worker() -> None:
    verdict, problem = looked_at(filled(BadSectorUnderIndex()))
    assert (verdict, "index" in problem) == (OK, True)


def _other_node(fs: SimFileSystem, fd: int) -> None:
    fs.set_xattr(fd, attributes.META, attributes.encode_meta(replace(META, node_id=4)))


def _other_seal(fs: SimFileSystem, fd: int) -> None:
    fs.set_xattr(fd, SEAL, attributes.encode_seal(Seal(len(BYTES), 2, bytes(len(seal_and_index()[0].digest)))))


def _no_seal(fs: SimFileSystem, fd: int) -> None:
    fs.remove_xattr(fd, SEAL)


def _torn_attribute(fs: SimFileSystem, fd: int) -> None:
    fs.set_xattr(fd, attributes.META, attributes.encode_meta(META)[:-1])


def _longer(fs: SimFileSystem, fd: int) -> None:
    fs.pwrite(fd, [b"more"], len(BYTES))


def _flipped(fs: SimFileSystem, fd: int) -> None:
    fs.pwrite(fd, [bytes([BYTES[10] ^ 1])], 10)


@pytest.mark.parametrize("spoil", [_other_node, _other_seal, _no_seal, _torn_attribute, _longer, _flipped])
def test_what_is_wrong_with_a_file_is_bad(spoil: Callable[[SimFileSystem, int], None]) -> None:
    fs = filled(SimFileSystem())
    fd = fs.open(extent_path(FOLDER, EXTENT_ID))
    spoil(fs, fd)
    fs.close(fd)
    verdict, problem = looked_at(fs)
    assert verdict == BAD
    assert problem


class BusyLink:
    """To a node that has too many audits under way, some times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def run(self, answer: Any) -> Any:
        return answer

    def ask_node(self, address: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        if self.left:
            self.left -= 1
            raise Overloaded(what="audits under way")
        seal, _ = seal_and_index()
        told = common_pb2.Seal(length=seal.length, eversion=2, digest=seal.digest)
        return en.AuditReplicaReply(info=en.ReplicaInfo(kind=en.LengthAnswer.LENGTH, seal=told), blocks=3), b""


def test_a_busy_node_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_check, "BUSY_PAUSE_S", 0.0)
    link: Any = BusyLink(replica_check.BUSY_TRIES - 1)
    row = replica_check.check(link, LocalDisks((), "c"), wanted())
    assert (row["verdict"], row["problem"], row["blocks"]) == (OK, None, 3)


def test_t36_a_list_of_another_node_is_not_taken_for_this_ones() -> None:
    class Link:
        def run(self, work: Any) -> en.ListReplicasReply:
            work.close()
            mine = en.ReplicaInfo(extent_id=1, replica=common_pb2.Replica(node_id=3))
            return en.ListReplicasReply(replicas=[mine])

    link: Any = Link()
    assert [row["node_id"] for row in file_rows(link, 9, 3, "h:1")] == [3]
    with pytest.raises(ProtocolViolation, match="node 3 answers"):
        list(file_rows(link, 9, 4, "h:1"))
