"""Looking at a replica's bytes: after an unclean stop, and at a seal.

After an unclean stop every replica is unverified: its file may end with a torn block, and attributes that can be read
may not be durable. Whoever needs a replica verifies it first, in its turn; a background task does the rest. So a start
takes no longer for open extents being large, and nothing is answered from one that was not looked at.

Invariants: only a block cut short by the end of the file, above what is known to be durable, is cut; other damage makes
            the replica doubtful, and the bytes stay (rule 13);
            a verified replica's data and attributes are on stable storage;
            bytes are read in slices, so that the loop and other replicas go on.
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


async def ensure_verified(store: StoreState, found: Replica) -> None:
    """In the replica's turn. ReplicaMissing if it went while the caller waited for that."""
    if found.gone:
        raise ReplicaMissing(extent_id=found.extent_id, detail="it was deleted or quarantined just now")
    if found.verified:
        return
    if found in store.stalled:
        # Neither its length nor a doubt is answered: the bytes are in the journal, and the next start brings them back.
        detail = f"acknowledged bytes wait in the journal; make room and restart the node: {store.stalled[found]}"
        raise DiskFull(extent_id=found.extent_id, disk=found.disk.uuid, detail=detail)
    store.open(found)
    try:
        if found.state.seal is not None:
            await _verify_sealed(store, found)
        else:
            await _verify_open(store, found)
    except OSError as error:
        raise store.disk_error(found.disk, found.extent_id, error) from error
    found.verified = True
    store.counters.replicas_verified += 1


async def _verify_sealed(store: StoreState, found: Replica) -> None:
    """A process that was killed may have set the seal and not fsynced it. Bytes beyond it were cut by the start."""
    if found.state.damaged_at is None:
        await store.sync_attributes(found, found.sync_all)
    found.close()


async def _verify_open(store: StoreState, found: Replica) -> None:
    result = await scan_replica(store, found, end=found.state.length)
    problem = result.problem
    if problem is None and result.valid_length < found.known_durable_end:
        detail = f"the journal proves {found.known_durable_end} bytes"
        problem = Problem(result.valid_length, ProblemKind.WRONG_HEADER, detail)
    tail = core.decide_tail(problem=problem, known_durable_end=found.known_durable_end)
    if isinstance(tail, core.CutTail):
        log.warning("torn_tail_cut extent_id=%d from=%d to=%d", found.extent_id, found.state.length, tail.length)
        store.counters.tails_cut += 1
        await store.sync_attributes(found, found.cut, tail.length)
        store.committer.note_cut(found, tail.length)
    elif isinstance(tail, core.DoubtTail):
        log.error("replica_damaged extent_id=%d problem=%s", found.extent_id, problem)
        found.state.note_damaged(min(tail.damaged_at, found.state.length))
        await doubt(store, found, found.state.doubt or Doubt.DAMAGE)
    else:
        await store.sync_attributes(found, found.sync_all)


async def doubt(store: StoreState, found: Replica, reason: Doubt) -> None:
    """Make the doubt durable, then known."""
    await store.sync_attributes(found, found.persist_doubt, reason)
    found.state.note_doubt(reason)
    store.counters.replicas_doubted += 1


async def scan_replica(store: StoreState, found: Replica, *, end: int) -> Scan:
    """Check every block of [0, end); in threads, slice by slice."""
    scanner = scan.Scanner()

    def feed_slice() -> bool:
        chunk = found.fs.pread(found.fd, min(SCAN_CHUNK_BYTES, end - scanner.length), scanner.length)
        scanner.feed(chunk)
        return bool(chunk)

    while scanner.length < end and await store.run_on(found, feed_slice):
        pass
    return scanner.finish()


async def verify_all(store: StoreState) -> None:
    """In the background after an unclean stop: what nobody asks for is looked at too, open replicas first.

    Of a sealed one no byte is read, only its seal made durable: until then a list may show a seal that a power cut
    would take back. Whoever asks for the seal itself gets the answer after that fsync.
    """
    waiting = iter(sorted(store.replicas.values(), key=lambda found: found.state.seal is not None))
    await asyncio.gather(*(_verify_some(store, waiting) for _ in range(store.config.verify_tasks)))


async def _verify_some(store: StoreState, waiting: Iterator[Replica]) -> None:
    """One after the other, of those that the others have left."""
    for found in waiting:
        if found.verified or found.gone:
            continue
        try:
            async with store.turn(found):
                await ensure_verified(store, found)
        except Exception as error:  # noqa: BLE001 - one replica's trouble is its own; its state says what it is
            log.warning("replica_not_verified extent_id=%d error=%s", found.extent_id, error)
