"""Looks at one replica as it is on the disk: attributes, every block, the digest, the index. For scrubber and copier.

Sealed replicas are read whole. Of open ones the part that was synced in place is read: those bytes never change, a seal
may only cut them off.

Invariants: a finding was seen twice, and then, in the replica's turn, the replica was still there and what it had been:
            a race with delete, seal or copy is no finding;
            an error of the disk is no finding: it is tried again, and then it is the disk's matter (`DiskFailed`);
            bytes are read through a descriptor of its own, in slices, at the caller's pace, and never in the turn;
            what is found to be damaged is answered as damaged from that moment on.
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

SLICE_BYTES = 1 << 20  # one thread's turn: about a millisecond of checksums and digest
READ_ATTEMPTS = 3
READ_AGAIN_S = 1.0


class Finding(NamedTuple):
    """What is wrong. Bytes below `offset` are whole blocks; with a wrong digest or attribute it is 0."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What a look at a replica came to."""

    replica: common_pb2.Replica
    sealed: bool = False
    bytes_read: int = 0
    finding: Finding | None = None
    index_rebuilt: bool = False
    blocks: int = 0  # found whole
    skipped: str = ""  # why it says nothing of the replica: it changed, or was not in a state to be looked at


@dataclass(slots=True)
class _Look:
    finding: Finding | None = None
    by_name: bool = False  # the finding is about name or attributes: they are looked at once more in the turn
    bytes_read: int = 0
    result: scan.Scan | None = None
    index_right: bool = True


async def audit(store: StoreState, extent_id: int, *, pacer: Pacer) -> Audit:
    """Read an extent's replica as it is on the disk and say what is wrong with it.

    Raises DiskFailed and the like if its disk cannot be read.
    """
    store.check_running()
    found = store.replicas.get(extent_id)
    if found is None:
        return Audit(common_pb2.Replica(), skipped="there is none")
    store.check_disk(found)
    if found.state.seal is not None and not found.verified:
        try:
            await store.finish(_verify(store, found))
        except ReplicaMissing:
            return Audit(found.state.ref(), skipped="it went meanwhile")
    seal = found.state.seal
    state = found.state
    about = Audit(state.ref(), sealed=seal is not None)
    if not found.verified or state.doubt is not None or state.damaged_at is not None:
        return replace(about, skipped="what it is worth is known or being found out")
    end = seal.length if seal is not None else found.in_place_end
    look = await _look(store, found, seal, end, pacer)
    read = look.bytes_read
    if look.finding is not None and not found.gone:
        look = await _look(store, found, seal, end, pacer)
        read += look.bytes_read
        if look.finding is None:
            log.warning("audit_not_repeatable extent_id=%d disk=%s", extent_id, found.disk.uuid)
    about = replace(about, bytes_read=read, blocks=len(look.result.sizes) if look.result is not None else 0)
    if look.finding is not None:
        if not await store.finish(_confirm(store, found, seal, end, look)):
            return replace(about, skipped="it changed meanwhile")
        return replace(about, finding=look.finding)
    if not look.index_right:
        return replace(about, index_rebuilt=await store.finish(_rebuild_index(store, found, look)))
    return about


async def run_to_end(
    store: StoreState, function: Callable[..., T], *args: Any, undo: Callable[[T], None] | None = None
) -> T:
    """A blocking call in a thread. Cancelled, it first waits for the thread, which uses what the caller then closes.

    `undo` takes back what the call made, if nobody is left to get it.
    """
    work = asyncio.ensure_future(store.run(function, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        if undo is not None and work.exception() is None:
            undo(work.result())
        raise


# --- looking -------------------------------------------------------------------------------------------------


async def _look(store: StoreState, found: Replica, seal: Seal | None, end: int, pacer: Pacer) -> _Look:
    """Once over all of it. Says nothing of races: see `_confirm`."""
    look = _Look()
    try:
        fd = await _try_again(store, found, _open, found, undo=found.fs.close)
    except FileNotFoundError:
        return _Look(Finding(0, "its file is gone"), by_name=True)
    try:
        finding = await _try_again(store, found, _check_name, found, fd, seal)
        if finding is not None:
            return _Look(finding, by_name=True)
        scanner = scan.Scanner()
        while scanner.length < end:
            size_bytes = min(SLICE_BYTES, end - scanner.length)
            await pacer.take(size_bytes)
            if not await _try_again(store, found, _read_slice, found, fd, scanner, size_bytes):
                break
        look.bytes_read = scanner.length
        look.result = await run_to_end(store, scanner.finish)
        look.finding = _judge(look.result, seal, end)
        if seal is not None and look.finding is None:
            look.index_right = await run_to_end(store, _index_is_right, found, seal, look.result)
    finally:
        found.fs.close(fd)
    return look


def _open(found: Replica) -> int:
    return found.fs.open(found.disk.extent_path(found.extent_id), writable=False)


def _check_name(found: Replica, fd: int, seal: Seal | None) -> Finding | None:
    """Whether the file says that it is what it is known to be; blocks."""
    fs, meta = found.fs, found.state.meta
    names = [name for name in fs.list_xattrs(fd) if name in attributes.ALL]
    values = {name: fs.get_xattr(fd, name) for name in names}
    try:
        here = attributes.decode_all({name: value for name, value in values.items() if value is not None})
    except BadAttribute as error:
        return Finding(0, f"attribute {error}")
    if here.meta != meta:
        return Finding(0, f"attribute {attributes.META}: it is of another making, {here.meta.incarnation:016x}")
    if seal is not None and here.seal != seal:
        return Finding(0, f"attribute {attributes.SEAL}: it is not the seal that was confirmed")
    return None


def _read_slice(found: Replica, fd: int, scanner: scan.Scanner, size_bytes: int) -> bool:
    """Whether there was anything; blocks."""
    chunk = found.fs.pread(fd, size_bytes, scanner.length)
    scanner.feed(chunk)
    return bool(chunk)


def _judge(result: scan.Scan, seal: Seal | None, end: int) -> Finding | None:
    if result.length < end:
        return Finding(result.valid_length, f"{result.length} of {end} bytes are there")
    if result.problem is not None:
        return Finding(result.problem.offset, str(result.problem))
    if seal is not None and result.digest != seal.digest:
        return Finding(0, "its digest is not the seal's")
    return None


def _index_is_right(found: Replica, seal: Seal, result: scan.Scan) -> bool:
    """By `pread`, not from a mapping: a bad sector must not end the process; blocks."""
    fs = found.fs
    try:
        fd = fs.open(found.disk.index_path(found.extent_id), writable=False)
    except FileNotFoundError:
        return False
    try:
        value = read_exactly(fs, fd, 0, fs.fstat(fd).size_bytes)
    except OSError as error:
        log.warning("index_unreadable extent_id=%d error=%s", found.extent_id, error)
        return False
    finally:
        fs.close(fd)
    return value == index.encode(index.from_scan(found.extent_id, seal, result))


async def _try_again(
    store: StoreState,
    found: Replica,
    function: Callable[..., T],
    *args: Any,
    undo: Callable[[T], None] | None = None,
) -> T:
    """A read that may fail once by chance. One that goes on failing is the disk's matter."""
    for _ in range(READ_ATTEMPTS - 1):
        try:
            return await run_to_end(store, function, *args, undo=undo)
        except FileNotFoundError:
            raise
        except OSError as error:
            log.warning("audit_read_failed extent_id=%d disk=%s error=%s", found.extent_id, found.disk.uuid, error)
            await asyncio.sleep(READ_AGAIN_S)
            store.check_disk(found)
    try:
        return await run_to_end(store, function, *args, undo=undo)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise store.disk_error(found.disk, found.extent_id, error) from error


# --- in the replica's turn -----------------------------------------------------------------------------------


async def _verify(store: StoreState, found: Replica) -> None:
    async with store.turn(found):
        await ensure_verified(store, found)


async def _confirm(store: StoreState, found: Replica, seal: Seal | None, end: int, look: _Look) -> bool:
    """Whether the finding is about the replica as it is now. Then nothing more of it is answered as good."""
    assert look.finding is not None
    async with store.turn(found):
        state = found.state
        if found.gone or state.seal != seal or state.length < end or state.damaged_at is not None:
            return False
        if look.by_name and not await _is_still_wrong(store, found, seal):
            return False
        log.error("replica_damaged extent_id=%d reason=%s", found.extent_id, look.finding.reason)
        state.note_damaged(min(look.finding.offset, state.length))
        if seal is None and state.doubt is None:
            # An open one stays: it takes no more appends, so that its writer has it sealed, and a copy replaces it. The
            # doubt is durable, since a clean stop would let the next process believe its length (rule 13).
            store.open(found)
            await doubt(store, found, Doubt.DAMAGE)
        found.wake_followers()
        return True


async def _is_still_wrong(store: StoreState, found: Replica, seal: Seal | None) -> bool:
    try:
        fd = await store.run(_open, found)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise store.disk_error(found.disk, found.extent_id, error) from error
    try:
        return await store.run(_check_name, found, fd, seal) is not None
    except OSError as error:
        raise store.disk_error(found.disk, found.extent_id, error) from error
    finally:
        found.fs.close(fd)


async def _rebuild_index(store: StoreState, found: Replica, look: _Look) -> bool:
    async with store.turn(found):
        seal = found.state.seal
        if found.gone or seal is None:
            return False
        assert look.result is not None
        try:
            await store.run(found.write_index, seal, look.result)
        except OSError as error:
            # Derived data: a disk that is too full for it still serves the extent.
            log.warning("index_not_written extent_id=%d error=%s", found.extent_id, error)
            return False
        log.warning("index_rebuilt extent_id=%d blocks=%d", found.extent_id, len(look.result.sizes))
        return True
