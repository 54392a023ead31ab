"""Reads disks on start: replicas, tombstones and quarantined files, and decides which replicas are doubtful.

Invariants: a doubt is durable before the new boot id is stored, so that no start forgets one (protocol rule 12);
            a delete or a cut that a crash left half done is finished here;
            of two replicas of one extent one is served and the other moved aside: in its place it would be served again
            when the first one goes;
            a tombstone applies to all disks of the node.
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
    """What a start found on a disk."""

    disk: Disk
    replicas: list[Replica] = field(default_factory=list)
    tombstones: dict[int, int] = field(default_factory=dict)  # extent id → eversion
    bad: list[tuple[int, str]] = field(default_factory=list)  # files that are not replicas, and why
    quarantined: dict[int, None] = field(default_factory=dict)  # extent ids
    same_boot: bool = False  # the page cache was kept: the same boot and the same mount
    clean: bool = False
    trusted: bool = True
    journal_uuid: str = ""  # the journal that its extents depend on


# --- one disk ------------------------------------------------------------------------------------------------


def load_disk(disk: Disk, journal: Journal, now_ms: int) -> DiskScan:
    """Read all replicas, finish what a crash interrupted, make doubts and then the boot id durable; blocks."""
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
    for replica in scan_disk(disk, scan):
        tombstone = scan.tombstones.get(replica.extent_id)
        if tombstone is not None and tombstone >= replica.state.eversion_now:
            _unless_full(disk, replica.extent_id, functools.partial(_finish_delete, replica, now_ms))
        else:
            scan.replicas.append(replica)
    for extent_id, reason in scan.bad:
        log.error("replica_unreadable extent_id=%d disk=%s reason=%s", extent_id, disk.uuid, reason)
        _unless_full(disk, extent_id, functools.partial(disk.move_to_quarantine, extent_id, 0, now_ms))
    if not scan.clean:
        disk.remove_stray_indexes()
    scan.quarantined = dict.fromkeys([*disk.quarantined_ids(), *(extent_id for extent_id, _ in scan.bad)])
    journal_is_ours = scan.journal_uuid == journal.label.uuid
    all_stored = True
    for replica in scan.replicas:
        all_stored &= _doubt_on_start(replica, scan, journal_is_ours=journal_is_ours)
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
    """Move a file, unless the disk has no room for its new name: the disk is used all the same.

    Then the file stays in place until the next start. A tombstone, or the entry in quarantine, keeps it from being a
    replica of this node.
    """
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


def _finish_delete(replica: Replica, now_ms: int) -> None:
    log.warning("delete_finished extent_id=%d disk=%s", replica.extent_id, replica.disk.uuid)
    replica.disk.move_to_trash(replica.extent_id, replica.state.meta.incarnation, now_ms)


def scan_disk(disk: Disk, scan: DiskScan) -> Iterator[Replica]:
    """Every replica, from attributes and size; other files go to `scan.bad`. Reads no data; blocks."""
    for extent_id in disk.extent_ids():
        try:
            state, size_bytes = load_state(disk, extent_id)
        except BadAttribute as error:
            scan.bad.append((extent_id, str(error)))
            continue
        # After a power cut, a readable seal is durable; after a kill it may not be.
        verified = scan.clean or (state.seal is not None and not scan.same_boot)
        replica = Replica(disk, state, verified=verified)
        if scan.clean and state.seal is None:
            state.note_durable(state.length)
            replica.in_place_end = state.length
        if state.seal is not None and size_bytes > state.seal.length:
            # A crash between the seal and the cut: those bytes are not the extent's.
            replica.open()
            replica.cut(state.seal.length)
            replica.close()
        yield replica


def _doubt_on_start(replica: Replica, scan: DiskScan, *, journal_is_ours: bool) -> bool:
    """Set `doubtful` where protocol rules 12 and 13 require it; returns whether that is durable.

    A full disk may have no room even for that.
    """
    state = replica.state
    if state.seal is not None:
        return True
    was = state.doubt
    reason = core.doubt_on_start(state, page_cache_kept=scan.same_boot and scan.trusted, stopped_cleanly=scan.clean)
    if not scan.trusted:
        # The disk failed earlier. In the same boot the page cache may show bytes that are not on the disk; in a later
        # one, records of the journal may have been given up. In both cases lengths of open replicas prove nothing.
        reason = Doubt.SYNC_FAILED if scan.same_boot else Doubt.POWER_CUT
    elif not journal_is_ours and not scan.clean:
        reason = reason or was or Doubt.DAMAGE
    lost_power = not scan.same_boot and not scan.clean
    if reason is None and not (was is not None and lost_power):
        return True
    state.doubt = reason or was
    log.warning("replica_doubtful extent_id=%d disk=%s", replica.extent_id, scan.disk.uuid)
    # Even if the attribute is readable already: the start that set it may have died before its fsync.
    try:
        replica.open()
        replica.persist_doubt(state.doubt or Doubt.POWER_CUT)
    except SyncFailed:
        raise
    except OSError as error:
        if error.errno not in FULL:
            raise
        log.error("replica_doubt_not_stored extent_id=%d error=%s", replica.extent_id, error)
        scan.disk.note_full(f"{type(error).__name__}: {error}")
        return False
    finally:
        replica.close()  # opened again when needed: there may be more replicas than descriptors
    return True


# --- all disks -----------------------------------------------------------------------------------------------


def adopt(store: StoreState, scans: list[DiskScan]) -> None:
    """Take over the contents of all disks; blocks."""
    for scan in scans:
        for extent_id, eversion in scan.tombstones.items():
            known = store.tombstones.get(extent_id)
            if known is None or known.eversion < eversion:
                store.tombstones[extent_id] = Tombstone(extent_id, eversion)
        store.quarantined.update(scan.quarantined)
    for scan in scans:
        for replica in scan.replicas:
            _adopt_replica(store, replica)
    store.unsealed = sum(replica.state.seal is None for replica in store.replicas.values())


def _adopt_replica(store: StoreState, replica: Replica) -> None:
    tombstone = store.tombstones.get(replica.extent_id)
    if tombstone is not None and tombstone.eversion >= replica.state.eversion_now:
        # Its delete order was executed while this disk was away, and the tombstone is on another disk.
        _remove(replica, lambda: _finish_delete(replica, store.wall_clock_ms()))
        return
    twin = store.replicas.get(replica.extent_id)
    if twin is None:
        store.replicas[replica.extent_id] = replica
        return
    better, other = (replica, twin) if _rank(replica) > _rank(twin) else (twin, replica)
    store.replicas[replica.extent_id] = better
    _move_aside(store, other, better)


def _rank(replica: Replica) -> tuple[bool, bool, int, int]:
    state = replica.state
    return state.seal is not None and state.damaged_at is None, state.seal is not None, state.eversion_now, state.length


def _move_aside(store: StoreState, other: Replica, better: Replica) -> None:
    """Move the other replica of an extent aside: a disk was away and is back, and a copy was made meanwhile.

    If the served one surely has all its bytes, it goes to the trash; otherwise to the quarantine, for a person.
    """
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


def _remove(replica: Replica, move: Callable[[], None]) -> None:
    """Move a file that is not a replica of this node; a later start moves it if this one cannot.

    A shortage of descriptors fails the start, and is not the disk's fault.
    """
    try:
        move()
    except OSError as error:
        if error.errno in SHORT_OF_RESOURCES:
            raise
        log.error("replica_not_moved extent_id=%d disk=%s error=%s", replica.extent_id, replica.disk.uuid, error)
        reason = f"{type(error).__name__}: {error}"
        if error.errno in FULL:
            replica.disk.note_full(reason)
        else:
            replica.disk.note_failed(reason)
    replica.gone = True
    replica.disk.extents -= 1
    replica.close()
