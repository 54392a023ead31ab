"""Verifies the bytes of a replica, after an unclean stop and at a seal.

After an unclean stop every replica is unverified: its file may end with a torn block, and visible attributes may not
be durable. An operation that needs a replica verifies it first, in its turn; a background task verifies the others. So
large open extents do not delay a start, and no reply relies on an unverified replica.

Invariants: only a block cut short by the end of the file, above the known durable end, is cut; other damage makes the
            replica doubtful, and the bytes stay (protocol rule 13);
            a verified replica's data and attributes are on stable storage;
            bytes are read in slices, so that the loop and other replicas are not held up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from neve.extent_node import core
from neve.extent_node.disk import block_scan as scan
from neve.extent_node.disk.attributes import Doubt
from neve.extent_node.disk.block_scan import SCAN_CHUNK_BYTES, Scan
from neve.extent_node.store.replica import Replica
from neve.extent_node.store.state import StoreState
from neve.proto.blocks import Problem, ProblemKind
from neve.proto.errors import DiskFull, ReplicaMissing

log = logging.getLogger(__name__)


async def ensure_verified(store: StoreState, replica: Replica) -> None:
    """Verify the replica in its turn, if necessary. ReplicaMissing if it was removed while the caller waited."""
    if replica.gone:
        raise ReplicaMissing(extent_id=replica.extent_id, detail="it was deleted or quarantined just now")
    if replica.verified:
        return
    if replica in store.stalled:
        # Report neither a length nor a doubt: the bytes are in the journal, and the next start restores them.
        detail = f"acknowledged bytes wait in the journal; make room and restart the node: {store.stalled[replica]}"
        raise DiskFull(extent_id=replica.extent_id, disk=replica.disk.uuid, detail=detail)
    store.open(replica)
    try:
        if replica.state.seal is not None:
            await _verify_sealed(store, replica)
        else:
            await _verify_open(store, replica)
    except OSError as error:
        raise store.disk_error(replica.disk, replica.extent_id, error) from error
    replica.verified = True
    store.counters.replicas_verified += 1


async def _verify_sealed(store: StoreState, replica: Replica) -> None:
    """Make the seal durable: a killed process may not have fsynced it. The start has cut bytes beyond it."""
    if replica.state.damaged_at is None:
        await store.sync_attributes(replica, replica.sync_all)
    replica.close()


async def _verify_open(store: StoreState, replica: Replica) -> None:
    result = await scan_replica(store, replica, end=replica.state.length)
    problem = result.problem
    if problem is None and result.valid_length < replica.known_durable_end:
        detail = f"the journal proves {replica.known_durable_end} bytes"
        problem = Problem(result.valid_length, ProblemKind.WRONG_HEADER, detail)
    tail = core.decide_tail(problem=problem, known_durable_end=replica.known_durable_end)
    if isinstance(tail, core.CutTail):
        log.warning("torn_tail_cut extent_id=%d from=%d to=%d", replica.extent_id, replica.state.length, tail.length)
        store.counters.tails_cut += 1
        await store.sync_attributes(replica, replica.cut, tail.length)
        store.committer.note_cut(replica, tail.length)
    elif isinstance(tail, core.DoubtTail):
        log.error("replica_damaged extent_id=%d problem=%s", replica.extent_id, problem)
        replica.state.note_damaged(min(tail.damaged_at, replica.state.length))
        await doubt(store, replica, replica.state.doubt or Doubt.DAMAGE)
    else:
        await store.sync_attributes(replica, replica.sync_all)


async def doubt(store: StoreState, replica: Replica, reason: Doubt) -> None:
    """Make the doubt durable, then note it."""
    await store.sync_attributes(replica, replica.persist_doubt, reason)
    replica.state.note_doubt(reason)
    store.counters.replicas_doubted += 1


async def scan_replica(store: StoreState, replica: Replica, *, end: int) -> Scan:
    """Check every block of [0, end), in threads, slice by slice."""
    scanner = scan.Scanner()

    def feed_slice() -> bool:
        chunk = replica.fs.pread(replica.fd, min(SCAN_CHUNK_BYTES, end - scanner.length), scanner.length)
        scanner.feed(chunk)
        return bool(chunk)

    while scanner.length < end and await store.run_on(replica, feed_slice):
        pass
    return scanner.finish()


async def verify_all(store: StoreState) -> None:
    """Verify all replicas in the background after an unclean stop, open ones first.

    No byte of a sealed replica is read; its seal is made durable. Until then a list may show a seal that a power cut
    would take back. A request for the seal itself is answered only after that fsync.
    """
    waiting = iter(sorted(store.replicas.values(), key=lambda replica: replica.state.seal is not None))
    await asyncio.gather(*(_verify_some(store, waiting) for _ in range(store.config.verify_tasks)))


async def _verify_some(store: StoreState, waiting: Iterator[Replica]) -> None:
    """Verify replicas from the shared iterator, one after the other."""
    for replica in waiting:
        if replica.verified or replica.gone:
            continue
        try:
            async with store.turn(replica):
                await ensure_verified(store, replica)
        except Exception as error:  # noqa: BLE001 - one replica's trouble must not stop the others; its state has it
            log.warning("replica_not_verified extent_id=%d error=%s", replica.extent_id, error)
