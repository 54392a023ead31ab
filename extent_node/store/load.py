"""Reads disks on start: which replicas, tombstones and quarantined files there are, and what is to be doubted.

Invariants: a doubt is durable before the new boot id is stored, so that no start forgets one (rule 12);
            what a crash left half done, a delete or a cut, is finished here;
            of two replicas of one extent one is served and the other moved aside: left where it is, it would come to
            life when the first one goes;
            a tombstone counts for all disks of the node.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from neve.extent_node import core
from neve.extent_node.core import Tombstone
from neve.extent_node.disk.attributes import BadAttribute, Doubt
from neve.extent_node.disk.disk import FULL, SHORT_OF_RESOURCES, Disk
from neve.extent_node.journal.journal import Journal
from neve.extent_node.store.replica import Replica, SyncFailed, load_state
from neve.extent_node.store.state import StoreState

log = logging.getLogger(__name__)


@dataclass(slots=True)
class DiskScan:
    """What was found on a disk."""

    disk: Disk
    replicas: list[Replica] = field(default_factory=list)
    tombstones: dict[int, int] = field(default_factory=dict)  # extent id → eversion
    bad: list[tuple[int, str]] = field(default_factory=list)  # files that are no replica, and why
    quarantined: dict[int, None] = field(default_factory=dict)  # extent ids
    same_boot: bool = False  # the page cache was kept: the same boot and the same mounting
    clean: bool = False
    trusted: bool = True
    journal_uuid: str = ""  # the journal that its extents depend on


# --- one disk ------------------------------------------------------------------------------------------------


def load_disk(disk: Disk, journal: Journal, now_ms: int) -> DiskScan:
    """Read all replicas, finish what a crash left undone, make doubts and then the boot id durable; blocks."""
    boot = disk.last_boot()
    scan = DiskScan(
        disk,
        same_boot=disk.kept_page_cache(boot),
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
            _unless_full(disk, found.extent_id, functools.partial(_finish_delete, found, now_ms))
        else:
            scan.replicas.append(found)
    for extent_id, reason in scan.bad:
        log.error("replica_unreadable extent_id=%d disk=%s reason=%s", extent_id, disk.uuid, reason)
        _unless_full(disk, extent_id, functools.partial(disk.move_to_quarantine, extent_id, 0, now_ms))
    if not scan.clean:
        disk.remove_stray_indexes()
    scan.quarantined = dict.fromkeys([*disk.quarantined_ids(), *(extent_id for extent_id, _ in scan.bad)])
    journal_is_ours = scan.journal_uuid == journal.label.uuid
    all_stored = True
    for found in scan.replicas:
        all_stored &= _doubt_on_start(found, scan, journal_is_ours=journal_is_ours)
    if all_stored:
        journal.trust([disk.short_id])
    else:
        journal.distrust(disk.short_id)  # so that the next start doubts them again, whatever their files say
    if not journal_is_ours:
        log.error("journal_changed disk=%s from=%s to=%s", disk.uuid, scan.journal_uuid, journal.label.uuid)
        journal.mark_used()
        disk.name_journal(journal.label.uuid)
    disk.store_boot(clean=False)
    disk.extents = len(scan.replicas)
    return scan


def _unless_full(disk: Disk, extent_id: int, move: Callable[[], None]) -> None:
    """A disk without room for a name in another folder is used all the same: the file stays where it is, is no replica
    of this node by its tombstone or as one in quarantine, and the next start moves it."""
    try:
        move()
    except OSError as error:
        if error.errno not in FULL:
            raise
        log.error("replica_not_moved extent_id=%d disk=%s error=%s", extent_id, disk.uuid, error)
        disk.note_full(f"{type(error).__name__}: {error}")


def _newest_tombstones(disk: Disk) -> dict[int, int]:
    newest: dict[int, int] = {}
    for extent_id, eversion in disk.tombstones():
        newest[extent_id] = max(eversion, newest.get(extent_id, 0))
    return newest


def _finish_delete(found: Replica, now_ms: int) -> None:
    log.warning("delete_finished extent_id=%d disk=%s", found.extent_id, found.disk.uuid)
    found.disk.move_to_trash(found.extent_id, found.state.meta.incarnation, now_ms)


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


def _doubt_on_start(found: Replica, scan: DiskScan, *, journal_is_ours: bool) -> bool:
    """Set `doubtful` where rules 12 and 13 say so; whether that is durable: a disk may have no room even for that."""
    state = found.state
    if state.seal is not None:
        return True
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
        return True
    state.doubt = reason or was
    log.warning("replica_doubtful extent_id=%d disk=%s", found.extent_id, scan.disk.uuid)
    # Also one that can be read already: the start that set it may have died before its fsync.
    try:
        found.open()
        found.persist_doubt(state.doubt or Doubt.POWER_CUT)
    except SyncFailed:
        raise
    except OSError as error:
        if error.errno not in FULL:
            raise
        log.error("replica_doubt_not_stored extent_id=%d error=%s", found.extent_id, error)
        scan.disk.note_full(f"{type(error).__name__}: {error}")
        return False
    finally:
        found.close()  # whoever needs it opens it: there may be more of them than descriptors
    return True


# --- all disks -----------------------------------------------------------------------------------------------


def adopt(store: StoreState, scans: list[DiskScan]) -> None:
    """Take over what was found on all of them; blocks."""
    for scan in scans:
        for extent_id, eversion in scan.tombstones.items():
            known = store.tombstones.get(extent_id)
            if known is None or known.eversion < eversion:
                store.tombstones[extent_id] = Tombstone(extent_id, eversion)
        store.quarantined.update(scan.quarantined)
    for scan in scans:
        for found in scan.replicas:
            _adopt_replica(store, found)
    store.unsealed = sum(found.state.seal is None for found in store.replicas.values())


def _adopt_replica(store: StoreState, found: Replica) -> None:
    tombstone = store.tombstones.get(found.extent_id)
    if tombstone is not None and tombstone.eversion >= found.state.eversion_now:
        # Its order came while this disk was away, and the tombstone is on another one.
        _remove(found, lambda: _finish_delete(found, store.wall_clock_ms()))
        return
    twin = store.replicas.get(found.extent_id)
    if twin is None:
        store.replicas[found.extent_id] = found
        return
    better, other = (found, twin) if _rank(found) > _rank(twin) else (twin, found)
    store.replicas[found.extent_id] = better
    _move_aside(store, other, better)


def _rank(found: Replica) -> tuple[bool, bool, int, int]:
    state = found.state
    return state.seal is not None and state.damaged_at is None, state.seal is not None, state.eversion_now, state.length


def _move_aside(store: StoreState, other: Replica, better: Replica) -> None:
    """Two replicas of one extent on one node: a disk that was away is back, and a copy was made meanwhile. What the
    served one surely has, too, goes to the trash; anything else to the quarantine, for a person to look at."""
    state, seal = other.state, better.state.seal
    covered = seal is not None and state.length <= seal.length
    if seal is not None and state.seal is not None:
        covered = (state.seal.length, state.seal.digest) == (seal.length, seal.digest)
    folder = "trash" if covered else "quarantine"
    log.error(
        "replica_twice extent_id=%d served=%s aside=%s to=%s",
        other.extent_id,
        better.disk.uuid,
        other.disk.uuid,
        folder,
    )
    move = other.disk.move_to_trash if covered else other.disk.move_to_quarantine
    if not covered:
        store.quarantined[other.extent_id] = None
    _remove(other, lambda: move(other.extent_id, state.meta.incarnation, store.wall_clock_ms()))


def _remove(found: Replica, move: Callable[[], None]) -> None:
    """It is no replica of this node, whether its file can be moved now or by a later start. Short of descriptors, the
    start fails, and that is no fault of the disk."""
    try:
        move()
    except OSError as error:
        if error.errno in SHORT_OF_RESOURCES:
            raise
        log.error("replica_not_moved extent_id=%d disk=%s error=%s", found.extent_id, found.disk.uuid, error)
        reason = f"{type(error).__name__}: {error}"
        if error.errno in FULL:
            found.disk.note_full(reason)
        else:
            found.disk.note_failed(reason)
    found.gone = True
    found.disk.extents -= 1
    found.close()
