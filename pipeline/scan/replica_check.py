"""The check of one replica for a scrub: it reads every byte, the attributes, the blocks' CRCs and the digest.

    sealed, its disk is here     the file itself: attributes, size, blocks, digest
    sealed, elsewhere            its node, which reads it in the same way: what it has open already proves nothing
    open                         its node, up to an end that was fixed when the scan was planned

Invariants: a finding was seen twice; that a node or a disk cannot be reached is `unread`, not a finding;
            the check changes and reports nothing; the job does that, after reading the metadata again.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from neve.extent_node.disk import index
from neve.extent_node.disk.attributes import BadAttribute
from neve.extent_node.disk.block_scan import SCAN_CHUNK_BYTES, Scan, Scanner
from neve.extent_node.disk.disk import extent_path, index_path
from neve.extent_node.store.replica import read_exactly
from neve.pipeline.core.scrub import BAD, OK, UNREAD
from neve.pipeline.core.slices import ScanExtent
from neve.pipeline.scan.connections import RANGE_BYTES, Link
from neve.pipeline.scan.local_files import LocalDisks, read_attributes, why_another
from neve.pipeline.scan.metadata_rows import replica_row
from neve.proto import extent_node_pb2 as en
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import (
    DiskFailed,
    NeveError,
    OutOfRange,
    Overloaded,
    ReplicaDamaged,
    ReplicaDeleted,
    ReplicaDoubtful,
    ReplicaMissing,
    WrongReplica,
)

FILE, NODE = "file", "node"
BUSY_TRIES = 60
BUSY_PAUSE_S = 1.0
AUDIT_TIMEOUT_S = 600.0  # 2 GiB take a few seconds; a busy disk takes longer

# A node's answers about a replica that differs from the metadata. Any other error is a failure, not a finding.
_WRONG = (ReplicaMissing, ReplicaDeleted, ReplicaDamaged, ReplicaDoubtful, WrongReplica)


@dataclass(frozen=True, slots=True)
class ReplicaToCheck:
    revision: int
    extent: ScanExtent
    node_id: int
    rack: str


class Look(NamedTuple):
    verdict: str
    offset: int = 0
    problem: str = ""
    digest: bytes | None = None
    blocks: int = 0
    bytes_read: int = 0
    read_from: str = FILE


def check(link: Link, disks: LocalDisks, wanted: ReplicaToCheck) -> dict[str, Any]:
    """The replica's row, with its verdict."""
    info = wanted.extent.message()
    each = next(each for each in info.replicas if each.replica.node_id == wanted.node_id)
    look = _look(link, disks, wanted.extent, info, each)
    if look.verdict != OK:
        look = _look(link, disks, wanted.extent, info, each)  # a finding counts when it is seen again
    row = replica_row(wanted.revision, wanted.extent, info, each, wanted.rack)
    row.update(
        verdict=look.verdict,
        problem_offset=look.offset if look.problem else None,
        problem=look.problem or None,
        digest=look.digest,
        blocks=look.blocks,
        bytes_read=look.bytes_read,
        read_from=look.read_from,
    )
    return row


def unread(why: str) -> dict[str, Any]:
    """The result for a replica that cannot be read."""
    return {"verdict": UNREAD, "problem_offset": 0, "problem": why, "blocks": 0, "bytes_read": 0}


def _look(link: Link, disks: LocalDisks, extent: ScanExtent, info: sm.ExtentInfo, each: sm.ExtentReplica) -> Look:
    folder = disks.folder_of(each.replica.disk_uuid) if extent.sealed else None
    if folder is not None:
        return _look_at_file(disks, folder, info, each)
    try:
        if extent.sealed:
            return _ask_for_audit(link, info, each)
        return _judge(_scan(_open_pieces(link, info, each, extent.end)), extent, info, NODE)
    except _WRONG as error:
        return Look(BAD, getattr(error, "offset", 0), f"its node says: {error}", read_from=NODE)
    except NeveError as error:
        return Look(UNREAD, 0, str(error), read_from=NODE)


def _ask_for_audit(link: Link, info: sm.ExtentInfo, each: sm.ExtentReplica) -> Look:
    request = en.AuditReplicaRequest(extent_id=info.extent_id, replica=each.replica)
    method = methods.EXTENT_NODE_AUDIT_REPLICA
    for turn in range(BUSY_TRIES):
        try:
            reply, _ = link.run(link.ask_node(each.address, method, request, timeout_s=AUDIT_TIMEOUT_S))
            break
        except Overloaded:  # more tasks than the node runs audits at a time, which says nothing about the replica
            if turn + 1 == BUSY_TRIES:
                raise
            time.sleep(BUSY_PAUSE_S)
    found = reply.info
    look = Look(OK, 0, "", found.seal.digest, reply.blocks, reply.bytes_read, NODE)
    if reply.bad:
        return look._replace(verdict=BAD, offset=reply.offset, problem=reply.reason)
    if found.kind != en.LengthAnswer.LENGTH:
        kind = en.LengthAnswer.Kind.Name(found.kind).lower()
        return look._replace(verdict=BAD, offset=found.length, problem=f"its node says it is {kind}")
    if (found.seal.length, found.seal.digest) != (info.seal.length, info.seal.digest):
        return look._replace(verdict=BAD, problem=f"it is sealed at {found.seal.length}, with another digest")
    if reply.skipped:
        return look._replace(verdict=UNREAD, problem=f"its node did not read it: {reply.skipped}")
    if reply.index_rebuilt:
        return look._replace(problem="its index was missing or wrong; its node has built it again")
    return look


def _scan(pieces: Iterator[memoryview]) -> Scan:
    scanner = Scanner()
    for piece in pieces:
        scanner.feed(piece)
    return scanner.finish()


def _open_pieces(link: Link, info: sm.ExtentInfo, each: sm.ExtentReplica, end: int) -> Iterator[memoryview]:
    at = 0
    while at < end:
        request = en.ReadBlockRequest(
            extent_id=info.extent_id, replica=each.replica, offset=at, max_bytes=min(RANGE_BYTES, end - at)
        )
        reply, data = link.run(link.ask_node(each.address, methods.EXTENT_NODE_READ_BLOCK, request))
        if not data:  # it has not received `committed` yet, so nothing is known against it
            raise OutOfRange(extent_id=info.extent_id, offset=end, readable=at)
        yield data
        at = reply.end


def _look_at_file(disks: LocalDisks, folder: str, info: sm.ExtentInfo, each: sm.ExtentReplica) -> Look:
    fs, path = disks.fs, extent_path(folder, info.extent_id)
    try:
        fd = fs.open(path, writable=False)
    except FileNotFoundError:
        return Look(BAD, 0, "its file is gone")
    except OSError as error:
        return Look(UNREAD, 0, f"{path}: {error.strerror}")
    try:
        here = read_attributes(fs, fd)
        if another := why_another(here, info, each.replica):
            return Look(BAD, 0, another)
        size_bytes = fs.fstat(fd).size_bytes
        if size_bytes != info.seal.length:
            return Look(
                BAD, min(size_bytes, info.seal.length), f"its file has {size_bytes} of {info.seal.length} bytes"
            )
        scanner = Scanner()
        while scanner.length < size_bytes and (chunk := fs.pread(fd, SCAN_CHUNK_BYTES, scanner.length)):
            scanner.feed(chunk)
        found = scanner.finish()
        look = _judge(found, ScanExtent(info.extent_id, 0, info.seal.length, True, b""), info, FILE)
        assert here.seal is not None
        if look.verdict == OK and not _index_is_right(disks, folder, index.from_scan(info.extent_id, here.seal, found)):
            return look._replace(problem="its index is missing or wrong; its node builds it again")
        return look
    except BadAttribute as error:
        return Look(BAD, 0, f"attribute {error}")
    except OSError as error:
        if error.errno == errno.EIO:
            return Look(BAD, 0, f"its disk cannot read it: {DiskFailed(detail=str(error))}")
        return Look(UNREAD, 0, str(error))
    finally:
        fs.close(fd)


def _index_is_right(disks: LocalDisks, folder: str, right: index.BlockIndex) -> bool:
    """By `pread`, not from a mapping: a bad sector must not end the worker."""
    fs, expected = disks.fs, index.encode(right)
    try:
        fd = fs.open(index_path(folder, right.extent_id), writable=False)
        try:
            return fs.fstat(fd).size_bytes == len(expected) and read_exactly(fs, fd, 0, len(expected)) == expected
        finally:
            fs.close(fd)
    except OSError:
        return False  # it can be derived from the extent, which is sound


def _judge(found: Scan, extent: ScanExtent, info: sm.ExtentInfo, read_from: str) -> Look:
    about = Look(OK, 0, "", found.digest, len(found.sizes), found.length, read_from)
    if found.problem is not None:
        return about._replace(verdict=BAD, offset=found.problem.offset, problem=str(found.problem))
    if found.length != extent.end:
        problem = f"{found.length} of {extent.end} bytes are there"
        return about._replace(verdict=BAD, offset=min(found.length, extent.end), problem=problem)
    if extent.sealed and info.seal.digest and found.digest != info.seal.digest:
        return about._replace(verdict=BAD, problem="its digest is not the seal's")
    return about
