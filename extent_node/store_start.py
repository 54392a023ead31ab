"""Start and stop: which disks, replicas and doubts there are, the journal's replay, and the marks of a clean end.

The order of a start, each step durable before the next one (rules 10-13):

    open disks and journal → read all replicas → make doubts durable → store the new boot id → replay the journal, sync
    → doubts that the journal leaves → begin the journal afresh → serve

Invariants: a start that dies at any point is repeated from the beginning by the next one, and forgets no doubt;
            one disk's trouble is that disk's: the node starts with the others;
            "clean" is stored only after everything is synced and every open replica is known to end with a whole block.
Neighbours: `disk`, `journal`, `store_replay`; core decides on doubt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from neve.extent_node import core
from neve.extent_node.attributes import BadAttribute, Doubt
from neve.extent_node.core import Tombstone
from neve.extent_node.disk import Disk, DiskRefused, DiskState
from neve.extent_node.journal import Journal
from neve.extent_node.journal_replay import read_chain
from neve.extent_node.replica import Replica, load_state
from neve.extent_node.store_replay import Replay, replay
from neve.extent_node.store_state import StoreState
from neve.proto.errors import NeveError

log = logging.getLogger(__name__)


class NoUsableDisk(Exception):
    """None of the configured disks can be used; the message has a line for each."""


@dataclass(slots=True)
class DiskScan:
    """What was found on a disk."""

    disk: Disk
    replicas: list[Replica] = field(default_factory=list)
    tombstones: dict[int, int] = field(default_factory=dict)  # extent id → eversion
    bad: list[tuple[int, str]] = field(default_factory=list)  # files that are no replica, and why
    same_boot: bool = False
    clean: bool = False
    trusted: bool = True
    journal_uuid: str = ""  # the journal that its extents depend on


async def start(store: StoreState) -> None:
    config = store.config
    opened = await store.run(_open_disks, store)
    try:
        journal = await store.run(_open_journal, store)
    except BaseException:
        for disk in opened:
            disk.close()
        raise
    store.use_journal(journal)
    scans = []
    for disk in opened:
        scanned = await store.run(_load_or_refuse, store, disk)
        if scanned is not None:
            scans.append(scanned)
            store.disks[disk.uuid] = disk
    if not scans:
        journal.close()
        raise NoUsableDisk("; ".join(f"{folder}: {reason}" for folder, reason in store.refused))
    _adopt(store, scans)
    chain = await store.run(read_chain, store.fs, config.journal_folder, journal.label, journal.uuid_bytes)
    usable = {scan.disk.short_id: scan.disk for scan in scans if scan.journal_uuid == journal.label.uuid}
    result = await store.run(replay, chain, usable, store.replicas)
    await store.run(_settle_replay, store, scans, result, chain.hole)
    await store.run(lambda: journal.start(number_seen_max=chain.number_seen_max))
    log.info(
        "store_started node_id=%d disks=%d replicas=%d replayed_records=%d replayed_bytes=%d hole=%r",
        config.node_id,
        len(store.disks),
        len(store.replicas),
        result.records,
        result.bytes_written,
        chain.hole,
    )


# --- opening -------------------------------------------------------------------------------------------------


def _open_disks(store: StoreState) -> list[Disk]:
    config = store.config
    opened: list[Disk] = []
    for wanted in config.disks:
        try:
            disk = Disk.open(
                store.fs,
                wanted.folder,
                cluster=config.cluster,
                node_id=config.node_id,
                expected_uuid=wanted.expected_uuid,
                marks=config.marks,
            )
            twin = next((other for other in opened if other.short_id == disk.short_id), None)
            if twin is not None:
                disk.close()
                raise DiskRefused(f"{wanted.folder} has the uuid of {twin.folder}: one is a copy of the other")
            opened.append(disk)
        except (DiskRefused, OSError) as error:
            log.error("disk_refused folder=%s reason=%s", wanted.folder, error)
            store.refused.append((wanted.folder, str(error)))
    if not opened:
        raise NoUsableDisk("; ".join(f"{folder}: {reason}" for folder, reason in store.refused))
    return opened


def _open_journal(store: StoreState) -> Journal:
    config = store.config
    return Journal.open(
        store.fs,
        config.journal_folder,
        cluster=config.cluster,
        node_id=config.node_id,
        segments_max=config.journal_segments_max,
    )


def _load_or_refuse(store: StoreState, disk: Disk) -> DiskScan | None:
    """A disk that fails while it is read is left out."""
    try:
        return load_disk(disk, store.journal, store.wall_clock_ms())
    except OSError as error:
        log.error("disk_refused folder=%s reason=%s", disk.folder, error)
        store.refused.append((disk.folder, str(error)))
        disk.close()
        return None


# --- one disk ------------------------------------------------------------------------------------------------


def load_disk(disk: Disk, journal: Journal, now_ms: int) -> DiskScan:
    """Read all replicas, finish what a crash left undone, make doubts and then the boot id durable; blocks."""
    boot = disk.last_boot()
    scan = DiskScan(
        disk,
        same_boot=boot is not None and boot.boot_id == disk.fs.boot_id(),
        clean=boot is not None and boot.clean,
        trusted=disk.short_id not in journal.label.distrusted_disks,
        journal_uuid=disk.label.journal_uuid,
    )
    scan.clean = scan.clean and scan.trusted
    disk.empty_tmp()
    if not scan.clean:
        disk.sync_tombstones()
    scan.tombstones = _newest_tombstones(disk)
    for found in scan_disk(disk, scan):
        tombstone = scan.tombstones.get(found.extent_id)
        if tombstone is not None and tombstone >= found.state.eversion_now:
            log.warning("delete_finished extent_id=%016x disk=%s", found.extent_id, disk.uuid)
            disk.move_to_trash(found.extent_id, found.state.meta.incarnation, now_ms)
        else:
            scan.replicas.append(found)
    for extent_id, reason in scan.bad:
        log.error("replica_unreadable extent_id=%016x disk=%s reason=%s", extent_id, disk.uuid, reason)
        disk.move_to_quarantine(extent_id, 0, now_ms)
    journal_is_ours = scan.journal_uuid == journal.label.uuid
    for found in scan.replicas:
        _doubt_on_start(found, scan, journal_is_ours=journal_is_ours)
    journal.trust([disk.short_id])
    if not journal_is_ours:
        log.error("journal_changed disk=%s from=%s to=%s", disk.uuid, scan.journal_uuid, journal.label.uuid)
        disk.name_journal(journal.label.uuid)
    disk.store_boot(clean=False)
    disk.extents = len(scan.replicas)
    return scan


def _newest_tombstones(disk: Disk) -> dict[int, int]:
    newest: dict[int, int] = {}
    for extent_id, eversion in disk.tombstones():
        newest[extent_id] = max(eversion, newest.get(extent_id, 0))
    return newest


def scan_disk(disk: Disk, scan: DiskScan) -> Iterator[Replica]:
    """Every replica by its attributes and size; files that are none go to `scan.bad`. Bytes are not read; blocks."""
    for extent_id in disk.extent_ids():
        try:
            state, size_bytes = load_state(disk, extent_id)
        except BadAttribute as error:
            scan.bad.append((extent_id, str(error)))
            continue
        # After a power cut, what can be read of a seal is durable; after a kill it may not be.
        verified = scan.clean or (state.seal is not None and not scan.same_boot)
        found = Replica(disk, state, verified=verified)
        if scan.clean and state.seal is None:
            state.note_durable(state.length)
            found.in_place_end = state.length
        if state.seal is not None and size_bytes > state.seal.length:
            # A crash came between the seal and the cut: those bytes are none of the extent's.
            found.open()
            found.cut(state.seal.length)
            found.close()
        yield found


def _doubt_on_start(found: Replica, scan: DiskScan, *, journal_is_ours: bool) -> None:
    """Set `doubtful` where rules 12 and 13 say so, durable when this returns."""
    state = found.state
    if state.seal is not None:
        return
    was = state.doubt
    reason = core.doubt_on_start(state, page_cache_kept=scan.same_boot and scan.trusted, stopped_cleanly=scan.clean)
    if not scan.trusted:
        # It failed under us: in the same boot the page cache may show what is not on the disk; later, records of the
        # journal may have been given up. Either way no length of an open replica proves anything.
        reason = Doubt.SYNC_FAILED if scan.same_boot else Doubt.POWER_CUT
    elif not journal_is_ours and not scan.clean:
        reason = reason or was or Doubt.DAMAGE
    lost_power = not scan.same_boot and not scan.clean
    if reason is None and not (was is not None and lost_power):
        return
    # Also one that can be read already: the start that set it may have died before its fsync.
    found.open()
    found.persist_doubt(reason or was or Doubt.POWER_CUT)
    state.doubt = reason or was
    log.warning("replica_doubtful extent_id=%016x disk=%s", found.extent_id, scan.disk.uuid)


# --- all disks -----------------------------------------------------------------------------------------------


def _adopt(store: StoreState, scans: list[DiskScan]) -> None:
    for scan in scans:
        for extent_id, eversion in scan.tombstones.items():
            known = store.tombstones.get(extent_id)
            if known is None or known.eversion < eversion:
                store.tombstones[extent_id] = Tombstone(extent_id, eversion)
        for found in scan.replicas:
            twin = store.replicas.get(found.extent_id)
            if twin is not None and _rank(twin) >= _rank(found):
                _set_aside(store, found)
                continue
            if twin is not None:
                _set_aside(store, twin)
            store.replicas[found.extent_id] = found
    store.unsealed = sum(found.state.seal is None for found in store.replicas.values())


def _rank(found: Replica) -> tuple[bool, int, int]:
    return found.state.seal is not None, found.state.eversion_now, found.state.length


def _set_aside(store: StoreState, found: Replica) -> None:
    """Two replicas of one extent on one node, by an operator who moved files: the lesser one is not served."""
    log.error("replica_twice extent_id=%016x disk=%s is ignored", found.extent_id, found.disk.uuid)
    found.disk.extents -= 1
    found.close()


def _settle_replay(store: StoreState, scans: list[DiskScan], result: Replay, hole: str) -> None:
    """Make durable what the replay could not bring back; blocks. After this the journal may begin afresh."""
    counters = store.counters
    counters.replayed_records += result.records
    counters.replayed_bytes += result.bytes_written
    counters.skipped_records += result.skipped
    doubted = {found for found, target in result.targets.items() if target.problem}
    if hole:
        log.error("journal_hole %s: open replicas become doubtful", hole)
        uuid = store.journal.label.uuid
        for scan in scans:
            if not scan.clean and scan.journal_uuid == uuid:
                doubted.update(found for found in scan.replicas if found.state.seal is None)
    for found in doubted:
        _doubt_or_distrust(store, found)
    for disk in result.missing_disks:
        log.error("journal_records_given_up disk=%016x: it is not here", disk)
        store.journal.distrust(disk)


def _doubt_or_distrust(store: StoreState, found: Replica) -> None:
    reason = found.state.doubt or Doubt.DAMAGE
    try:
        found.open()
        found.persist_doubt(reason)
    except OSError as error:
        found.disk.note_failed(f"{type(error).__name__}: {error}")
        store.journal.distrust(found.disk.short_id)
    found.state.note_doubt(reason)
    store.counters.replicas_doubted += 1


# --- stop ----------------------------------------------------------------------------------------------------


async def stop_cleanly(store: StoreState) -> None:
    """Sync everything, then say so: `unsynced` goes, the journal is retired, boot.json says clean."""
    clean: dict[Disk, bool] = {disk: disk.state is not DiskState.OFFLINE for disk in store.disks.values()}
    for found in list(store.replicas.values()):
        if found.state.seal is None and clean[found.disk]:
            clean[found.disk] = await _stop_replica(store, found)
    if not all(clean.values()) or store.refused:
        log.warning("stop_not_clean disks=%s", [disk.uuid for disk, is_clean in clean.items() if not is_clean])
    else:
        await store.run(store.journal.retire)
    for disk, is_clean in clean.items():
        if is_clean:
            await store.run(lambda disk=disk: disk.store_boot(clean=True))


async def _stop_replica(store: StoreState, found: Replica) -> bool:
    """Whether it is synced, whole, and not marked `unsynced` any more."""
    read_only = found.state.read_only
    if not found.verified or (read_only is not None and not read_only.can_sync):
        return False
    try:
        if found.in_place_end < found.state.length or found.state.unsynced:
            found.open()
            await store.sync_attributes(found, found.sync_all)
        if found.state.unsynced and found.state.doubt is None:
            await store.sync_attributes(found, found.clear_unsynced)
    except (OSError, NeveError) as error:
        log.error("replica_not_synced extent_id=%016x error=%s", found.extent_id, error)
        return False
    read_only = found.state.read_only  # again: a sync that was under way may have failed
    return read_only is None or read_only.can_sync
