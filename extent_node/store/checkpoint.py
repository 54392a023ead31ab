"""Background work of a store: syncs extents in place, frees and makes journal segments, checks disks, empties trash.

Invariants: a segment is freed when every extent with records in it is synced in place, on every disk (scenario
            T25). One with records of a failed disk is set aside instead, so that the ring continues without it;
            at most `checkpoint_syncs_max` extents are synced at a time, and a failing disk stops only its own;
            every loop continues after an error, which is logged and counted.
"""

from __future__ import annotations

import asyncio
import logging

from neve.extent_node.disk.disk import Disk, DiskState, short_name
from neve.extent_node.journal.journal import Segment
from neve.extent_node.store.replica import Replica
from neve.extent_node.store.state import StoreState

log = logging.getLogger(__name__)


async def run_checkpointer(store: StoreState) -> None:
    """Checkpoint in a loop: when woken, and at the latest after the interval."""
    while True:
        overdue = not await _wait(store.checkpoint_wanted, store.config.checkpoint_interval_s)
        store.checkpoint_wanted.clear()
        try:
            # Not cancelled half-way when the store stops: the outcome of a sync or a new segment must not get lost.
            await store.finish(checkpoint(store, everything=overdue or store.checkpoint_all))
        except Exception:  # top of a daemon's loop
            store.counters.background_failures += 1
            log.exception("checkpoint_failed")


async def checkpoint(store: StoreState, *, everything: bool) -> None:
    """Sync the extents that keep segments from being freed, or all in the journal; then free segments."""
    store.checkpoint_all = False
    holders = store.journal.holders(filled_only=not everything)
    chosen = dict.fromkeys(replica for replica in holders if isinstance(replica, Replica))
    chosen.update(dict.fromkeys(store.dirty.oldest()))
    limit = asyncio.Semaphore(store.config.checkpoint_syncs_max)

    async def sync(replica: Replica) -> None:
        async with limit:
            store.counters.checkpoint_syncs += 1
            await store.committer.sync_in_place(replica)

    await asyncio.gather(*(sync(replica) for replica in chosen))
    await free_segments(store)


async def free_segments(store: StoreState) -> None:
    """Prepare freed segments for reuse; add one, if the ring may grow and none is ready."""
    journal = store.journal
    async with store.label_lock:
        try:
            while (segment := journal.take_free()) is not None:
                if segment.stranded:
                    if not await _keep(store, segment):
                        return
                    continue
                await store.run(journal.prepare, segment, journal.needed_from)
                journal.add_ready(segment)
                store.counters.segments_recycled += 1
        except OSError as error:
            journal.fail(f"preparing a segment: {error}")
            store.journal_failed()
            return
        if journal.ready_count == 0 and journal.may_grow:
            try:
                journal.add_ready(await store.run(journal.grow, journal.needed_from))
            except OSError as error:
                # No room for more journal: appends are synced in place meanwhile (scenario T24).
                log.warning("journal_not_grown slots=%d error=%s", journal.label.slots, error)
                if journal.failed:
                    store.journal_failed()


async def _keep(store: StoreState, segment: Segment) -> bool:
    """Set aside a segment that a failed disk needs; False if that cannot be recorded now."""
    try:
        await store.run(store.journal.keep, segment)
    except OSError as error:
        log.warning("segment_not_kept number=%d error=%s", segment.number, error)
        store.journal.put_back(segment)
        return False
    log.warning("segment_kept number=%d disks=%s", segment.number, [short_name(disk) for disk in segment.stranded])
    return True


async def run_housekeeping(store: StoreState) -> None:
    """Check the disks' usage and empty their trash, in a loop."""
    loop = asyncio.get_running_loop()
    purge_at_s = loop.time()
    while True:
        for disk in list(store.distrust_pending)[:1]:
            await store.finish(store.distrust(disk))  # records all of them
        for disk in list(store.disks.values()):
            await _check_disk(store, disk, purge=loop.time() >= purge_at_s)
        if loop.time() >= purge_at_s:
            purge_at_s = loop.time() + store.config.purge_interval_s
        await asyncio.sleep(store.config.usage_interval_s)


async def _check_disk(store: StoreState, disk: Disk, *, purge: bool) -> None:
    if disk.state is DiskState.OFFLINE:
        return
    try:
        # Read in a thread, noted here: it must not overwrite a failure noted meanwhile.
        disk.note_usage(await store.run(disk.fs.usage, disk.folder))
        if purge:
            await purge_trash(store, disk)
    except OSError as error:
        store.disk_error(disk, 0, error)
    except Exception:  # top of a daemon's loop
        store.counters.background_failures += 1
        log.exception("housekeeping_failed disk=%s", disk.uuid)


async def purge_trash(store: StoreState, disk: Disk) -> None:
    """Delete trash and tombstones whose delay is over."""
    now_ms = store.wall_clock_ms()
    trash_before_ms = now_ms - int(store.config.trash_delay_s * 1000)
    store.counters.trash_purged += await store.run(disk.purge_trash, trash_before_ms)
    tombstones_before_ms = now_ms - int(store.config.tombstone_delay_s * 1000)
    for extent_id, eversion in await store.run(disk.purge_tombstones, tombstones_before_ms):
        known = store.tombstones.get(extent_id)
        if known is not None and known.eversion == eversion:  # a later order may have left a newer one, which stays
            del store.tombstones[extent_id]


async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
