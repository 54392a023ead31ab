"""Audits one replica on the disk: attributes, every block, the digest, the index. For scrubber and copier.

Sealed replicas are read whole. Of open ones the part that was synced in place is read: those bytes never change, though
a seal may cut them off.

Invariants: a finding was seen twice, and then confirmed in the replica's turn: the replica still existed, unchanged.
            A race with delete, seal or copy is no finding;
            an error of the disk is no finding: the read is repeated, and then the disk has failed (`DiskFailed`);
            bytes are read through a separate descriptor, in slices, at the caller's pace, and never in the turn;
            once damage is found, every later reply reports the replica as damaged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from neve.extent_node.disk import attributes, index
from neve.extent_node.disk import block_scan as scan
from neve.extent_node.disk.attributes import BadAttribute, Doubt, Seal
from neve.extent_node.store.bandwidth import Pacer
from neve.extent_node.store.replica import Replica, read_exactly
from neve.extent_node.store.state import StoreState
from neve.extent_node.store.verify import doubt, ensure_verified
from neve.proto import common_pb2
from neve.proto.errors import ReplicaMissing

log = logging.getLogger(__name__)

T = TypeVar("T")

SLICE_BYTES = 1 << 20  # for one call of a thread: about a millisecond of checksums and digest
READ_ATTEMPTS = 3
READ_AGAIN_S = 1.0


class Finding(NamedTuple):
    """A fault of a replica. Bytes below `offset` are whole blocks; for a wrong digest or attribute it is 0."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The outcome of an audit."""

    replica: common_pb2.Replica
    sealed: bool = False
    bytes_read: int = 0
    finding: Finding | None = None
    index_rebuilt: bool = False
    blocks: int = 0  # valid whole blocks
    skipped: str = ""  # why there is no verdict: the replica changed, or its state did not allow an audit


@dataclass(slots=True)
class _Reading:
    """The outcome of one pass over a replica."""

    finding: Finding | None = None
    by_name: bool = False  # the finding is about name or attributes, which are checked once more in the turn
    bytes_read: int = 0
    result: scan.Scan | None = None
    index_right: bool = True


async def audit(store: StoreState, extent_id: int, *, pacer: Pacer) -> Audit:
    """Read an extent's replica from the disk and report what is wrong with it.

    Raises DiskFailed and the like if the disk cannot be read.
    """
    store.check_running()
    replica = store.replicas.get(extent_id)
    if replica is None:
        return Audit(common_pb2.Replica(), skipped="there is none")
    store.check_disk(replica)
    if replica.state.seal is not None and not replica.verified:
        try:
            await store.finish(_verify(store, replica))
        except ReplicaMissing:
            return Audit(replica.state.ref(), skipped="it went meanwhile")
    seal = replica.state.seal
    state = replica.state
    about = Audit(state.ref(), sealed=seal is not None)
    if not replica.verified or state.doubt is not None or state.damaged_at is not None:
        return replace(about, skipped="its damage or doubt is known already, or it is not verified yet")
    end = seal.length if seal is not None else replica.in_place_end
    reading = await _read_replica(store, replica, seal, end, pacer)
    read = reading.bytes_read
    if reading.finding is not None and not replica.gone:
        reading = await _read_replica(store, replica, seal, end, pacer)
        read += reading.bytes_read
        if reading.finding is None:
            log.warning("audit_not_repeatable extent_id=%d disk=%s", extent_id, replica.disk.uuid)
    about = replace(about, bytes_read=read, blocks=len(reading.result.sizes) if reading.result is not None else 0)
    if reading.finding is not None:
        if not await store.finish(_confirm(store, replica, seal, end, reading)):
            return replace(about, skipped="it changed meanwhile")
        return replace(about, finding=reading.finding)
    if not reading.index_right:
        return replace(about, index_rebuilt=await store.finish(_rebuild_index(store, replica, reading)))
    return about


async def run_to_end(
    store: StoreState, function: Callable[..., T], *args: Any, undo: Callable[[T], None] | None = None
) -> T:
    """Run a blocking call in a thread. If cancelled, first wait for the thread, which uses what the caller then closes.

    `undo` reverts what the call made, if no caller is left to get it.
    """
    work = asyncio.ensure_future(store.run(function, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        if undo is not None and work.exception() is None:
            undo(work.result())
        raise


# --- reading -------------------------------------------------------------------------------------------------


async def _read_replica(store: StoreState, replica: Replica, seal: Seal | None, end: int, pacer: Pacer) -> _Reading:
    """Read all of it once. `_confirm` excludes races afterwards."""
    reading = _Reading()
    try:
        fd = await _with_retries(store, replica, _open, replica, undo=replica.fs.close)
    except FileNotFoundError:
        return _Reading(Finding(0, "its file is gone"), by_name=True)
    try:
        finding = await _with_retries(store, replica, _check_name, replica, fd, seal)
        if finding is not None:
            return _Reading(finding, by_name=True)
        scanner = scan.Scanner()
        while scanner.length < end:
            size_bytes = min(SLICE_BYTES, end - scanner.length)
            await pacer.take(size_bytes)
            if not await _with_retries(store, replica, _read_slice, replica, fd, scanner, size_bytes):
                break
        reading.bytes_read = scanner.length
        reading.result = await run_to_end(store, scanner.finish)
        reading.finding = _find_fault(reading.result, seal, end)
        if seal is not None and reading.finding is None:
            reading.index_right = await run_to_end(store, _index_is_right, replica, seal, reading.result)
    finally:
        replica.fs.close(fd)
    return reading


def _open(replica: Replica) -> int:
    return replica.fs.open(replica.disk.extent_path(replica.extent_id), writable=False)


def _check_name(replica: Replica, fd: int, seal: Seal | None) -> Finding | None:
    """Compare the file's attributes with the replica's known state; blocks."""
    fs, meta = replica.fs, replica.state.meta
    names = [name for name in fs.list_xattrs(fd) if name in attributes.ALL]
    values = {name: fs.get_xattr(fd, name) for name in names}
    try:
        here = attributes.decode_all({name: value for name, value in values.items() if value is not None})
    except BadAttribute as error:
        return Finding(0, f"attribute {error}")
    if here.meta != meta:
        return Finding(0, f"attribute {attributes.META}: it has another incarnation, {here.meta.incarnation:016x}")
    if seal is not None and here.seal != seal:
        return Finding(0, f"attribute {attributes.SEAL}: it is not the seal that was confirmed")
    return None


def _read_slice(replica: Replica, fd: int, scanner: scan.Scanner, size_bytes: int) -> bool:
    """Scan the next slice; returns whether there was one. Blocks."""
    chunk = replica.fs.pread(fd, size_bytes, scanner.length)
    scanner.feed(chunk)
    return bool(chunk)


def _find_fault(result: scan.Scan, seal: Seal | None, end: int) -> Finding | None:
    if result.length < end:
        return Finding(result.valid_length, f"{result.length} of {end} bytes are there")
    if result.problem is not None:
        return Finding(result.problem.offset, str(result.problem))
    if seal is not None and result.digest != seal.digest:
        return Finding(0, "its digest is not the seal's")
    return None


def _index_is_right(replica: Replica, seal: Seal, result: scan.Scan) -> bool:
    """Whether the stored index is right. Read by `pread`: a bad sector under a mapping ends the process. Blocks."""
    fs = replica.fs
    try:
        fd = fs.open(replica.disk.index_path(replica.extent_id), writable=False)
    except FileNotFoundError:
        return False
    try:
        value = read_exactly(fs, fd, 0, fs.fstat(fd).size_bytes)
    except OSError as error:
        log.warning("index_unreadable extent_id=%d error=%s", replica.extent_id, error)
        return False
    finally:
        fs.close(fd)
    return value == index.encode(index.from_scan(replica.extent_id, seal, result))


async def _with_retries(
    store: StoreState,
    replica: Replica,
    function: Callable[..., T],
    *args: Any,
    undo: Callable[[T], None] | None = None,
) -> T:
    """Repeat a read that may fail once by chance. A read that keeps failing is the disk's failure."""
    for _ in range(READ_ATTEMPTS - 1):
        try:
            return await run_to_end(store, function, *args, undo=undo)
        except FileNotFoundError:
            raise
        except OSError as error:
            log.warning("audit_read_failed extent_id=%d disk=%s error=%s", replica.extent_id, replica.disk.uuid, error)
            await asyncio.sleep(READ_AGAIN_S)
            store.check_disk(replica)
    try:
        return await run_to_end(store, function, *args, undo=undo)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise store.disk_error(replica.disk, replica.extent_id, error) from error


# --- in the replica's turn -----------------------------------------------------------------------------------


async def _verify(store: StoreState, replica: Replica) -> None:
    async with store.turn(replica):
        await ensure_verified(store, replica)


async def _confirm(store: StoreState, replica: Replica, seal: Seal | None, end: int, reading: _Reading) -> bool:
    """Whether the finding applies to the present replica. If so, mark it as damaged from there on."""
    assert reading.finding is not None
    async with store.turn(replica):
        state = replica.state
        if replica.gone or state.seal != seal or state.length < end or state.damaged_at is not None:
            return False
        if reading.by_name and not await _is_still_wrong(store, replica, seal):
            return False
        log.error("replica_damaged extent_id=%d reason=%s", replica.extent_id, reading.finding.reason)
        state.note_damaged(min(reading.finding.offset, state.length))
        if seal is None and state.doubt is None:
            # An open replica stays, but accepts no more appends: its writer has it sealed, and a copy replaces it. The
            # doubt is durable because, after a clean stop, the next process would trust its length (protocol rule 13).
            store.open(replica)
            await doubt(store, replica, Doubt.DAMAGE)
        replica.wake_followers()
        return True


async def _is_still_wrong(store: StoreState, replica: Replica, seal: Seal | None) -> bool:
    try:
        fd = await store.run(_open, replica)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise store.disk_error(replica.disk, replica.extent_id, error) from error
    try:
        return await store.run(_check_name, replica, fd, seal) is not None
    except OSError as error:
        raise store.disk_error(replica.disk, replica.extent_id, error) from error
    finally:
        replica.fs.close(fd)


async def _rebuild_index(store: StoreState, replica: Replica, reading: _Reading) -> bool:
    async with store.turn(replica):
        seal = replica.state.seal
        if replica.gone or seal is None:
            return False
        assert reading.result is not None
        try:
            await store.run(replica.write_index, seal, reading.result)
        except OSError as error:
            # Derived data: a disk that is too full for it still serves the extent.
            log.warning("index_not_written extent_id=%d error=%s", replica.extent_id, error)
            return False
        log.warning("index_rebuilt extent_id=%d blocks=%d", replica.extent_id, len(reading.result.sizes))
        return True
