"""Start and stop of a store: the order of the steps, the journal's replay, and the marks of a clean end.

The steps of a start, each durable before the next (protocol rules 10 to 13):

    open disks and journal → read all replicas → make doubts durable → store the new boot id → replay the journal, sync
    → make doubts of the replay durable → begin a new chain in the journal → serve

Invariants: if a start dies at any point, the next one repeats it from the beginning, and forgets no doubt;
            one disk's trouble stays with that disk: the node starts with the others, and the journal keeps its records;
            a shortage of descriptors or memory is no disk's trouble: the start fails, and that changes nothing;
            "clean" is stored only after everything is synced and every open replica is known to end with a whole block.
"""

from __future__ import annotations

import logging
from collections.abc import Set

from neve.extent_node.disk.attributes import Doubt
from neve.extent_node.disk.disk import FULL, SHORT_OF_RESOURCES, Disk, DiskRefused, DiskState, short_id, short_name
from neve.extent_node.journal.folder import Kept
from neve.extent_node.journal.journal import Journal
from neve.extent_node.journal.replay import Chain, read_chain
from neve.extent_node.store.load import DiskScan, adopt, load_disk
from neve.extent_node.store.replay import Replay, replay
from neve.extent_node.store.replica import Replica
from neve.extent_node.store.state import StoreState
from neve.proto.errors import NeveError

log = logging.getLogger(__name__)


class NoUsableDisk(Exception):
    """None of the configured disks can be used; the message has a line for each."""


class ShortOfResources(Exception):
    """The process cannot open enough files, or has too little memory, to start."""


async def start(store: StoreState, *, give_up_disks: Set[int] = frozenset()) -> None:
    """Start the store. `give_up_disks`: short ids of disks that the operator gives up; their records are dropped."""
    opened: list[Disk] = []
    journal: Journal | None = None
    try:
        await store.run(_open_disks, store, opened)
        journal = await store.run(_open_journal, store)
        store.use_journal(journal)
        await _start(store, opened, give_up_disks)
    except Exception as error:
        # Release the locks: the same process may start another store.
        for replica in store.replicas.values():
            replica.close()
        for disk in opened:
            disk.close()
        if journal is not None:
            journal.close()
        if isinstance(error, OSError) and error.errno in SHORT_OF_RESOURCES:
            raise ShortOfResources(
                f"{error}: allow this process more open files (ulimit -n, or LimitNOFILE= of its unit) or memory"
            ) from error
        raise


async def _start(store: StoreState, opened: list[Disk], give_up_disks: Set[int]) -> None:
    config, journal = store.config, store.journal
    scans = []
    for disk in await store.run(_settle_distrust, store, opened, give_up_disks):
        scanned = await store.run(_load_or_refuse, store, disk)
        if scanned is not None:
            scans.append(scanned)
            store.disks[disk.uuid] = disk
    if not scans:
        raise NoUsableDisk("; ".join(f"{folder}: {reason}" for folder, reason in store.refused))
    await store.run(adopt, store, scans)
    chain = await store.run(read_chain, store.fs, config.journal_folder, journal.label, journal.uuid_bytes)
    usable = {
        scan.disk.short_id: scan.disk
        for scan in scans
        if scan.journal_uuid == journal.label.uuid and scan.disk.state is not DiskState.OFFLINE
    }
    # Disks that named another journal until now: this journal's records of them are outdated.
    foreign = {scan.disk.short_id for scan in scans if scan.journal_uuid != journal.label.uuid}
    result = await store.run(lambda: replay(chain, usable, store.replicas, given_up=give_up_disks | foreign))
    await store.run(_settle_replay, store, scans, result, chain)
    kept = _kept(chain, result)
    await store.run(
        lambda: journal.start(number_seen_max=chain.number_seen_max, kept=kept, bad_slots=chain.unreadable_slots)
    )
    log.info(
        "store_started node_id=%d disks=%d replicas=%d replayed_records=%d replayed_bytes=%d hole=%r kept=%d bad=%d",
        config.node_id,
        len(store.disks),
        len(store.replicas),
        result.records,
        result.bytes_written,
        chain.hole,
        len(kept),
        len(journal.label.bad_slots),
    )


# --- opening -------------------------------------------------------------------------------------------------


def _open_disks(store: StoreState, opened: list[Disk]) -> None:
    config = store.config
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
            _raise_if_short(error)
            log.error("disk_refused folder=%s reason=%s", wanted.folder, error)
            store.refused.append((wanted.folder, str(error)))
    if not opened:
        raise NoUsableDisk("; ".join(f"{folder}: {reason}" for folder, reason in store.refused))


def _raise_if_short(error: Exception) -> None:
    if isinstance(error, OSError) and error.errno in SHORT_OF_RESOURCES:
        raise error


def _open_journal(store: StoreState) -> Journal:
    config = store.config
    return Journal.open(
        store.fs,
        config.journal_folder,
        cluster=config.cluster,
        node_id=config.node_id,
        segments_max=config.journal_segments_max,
    )


def _settle_distrust(store: StoreState, opened: list[Disk], give_up_disks: Set[int]) -> list[Disk]:
    """Record in the journal's label which disks failed or were given up; returns the readable disks. Blocks.

    Disks' boot labels may name other disks that failed. Loading a disk replaces its boot label, so this comes first.
    """
    distrusted, readable = set(give_up_disks), []
    for disk in opened:
        try:
            boot = disk.last_boot()
        except OSError as error:
            _refuse(store, disk, error)
            continue
        readable.append(disk)
        distrusted.update(boot.distrusted if boot is not None else ())
    for disk_id in sorted(distrusted):
        store.journal.distrust(disk_id)
    return readable


def _load_or_refuse(store: StoreState, disk: Disk) -> DiskScan | None:
    """Load a disk; None, and the disk is left out, if it fails."""
    try:
        return load_disk(disk, store.journal, store.wall_clock_ms())
    except OSError as error:
        _refuse(store, disk, error)
        return None


def _refuse(store: StoreState, disk: Disk, error: OSError) -> None:
    _raise_if_short(error)
    log.error("disk_refused folder=%s reason=%s", disk.folder, error)
    store.refused.append((disk.folder, str(error)))
    store.refused_disks.append(disk.short_id)
    disk.close()


# --- the journal ---------------------------------------------------------------------------------------------


def _settle_replay(store: StoreState, scans: list[DiskScan], result: Replay, chain: Chain) -> None:
    """Make durable what the replay could not restore; blocks. Afterwards the journal may begin a new chain."""
    counters = store.counters
    counters.replayed_records += result.records
    counters.replayed_bytes += result.bytes_written
    counters.skipped_records += result.skipped
    for disk, reason in result.failed.items():
        disk.note_failed(reason)
    for disk in store.disks.values():
        if disk.state is DiskState.OFFLINE:
            store.journal.distrust(disk.short_id)
    for replica, reason in result.stalled.items():
        log.error("replay_stalled extent_id=%d reason=%s", replica.extent_id, reason)
        replica.verified = False
        replica.disk.note_full(reason)
        store.stalled[replica] = reason
    doubted = dict.fromkeys(replica for replica, target in result.targets.items() if target.problem)
    doubted.update(dict.fromkeys(_damaged(store, scans, chain)))
    for replica in doubted:
        if replica.disk.state is not DiskState.OFFLINE:
            _doubt_or_distrust(store, replica)
    _distrust_absent(store, scans, chain, result)


def _damaged(store: StoreState, scans: list[DiskScan], chain: Chain) -> list[Replica]:
    """The replicas with lost records. If the extents are unknown, every open replica that may depend on the journal."""
    lost: list[Replica] = []
    if chain.hole:
        log.error("journal_hole %s: open replicas become doubtful", chain.hole)
    for scan in scans:
        if scan.clean or scan.journal_uuid != store.journal.label.uuid:
            continue
        broken = chain.broken_disks.get(scan.disk.short_id)
        if broken:
            log.error("journal_hole disk=%s %s has lost records: open replicas become doubtful", scan.disk.uuid, broken)
        if chain.hole or broken:
            lost += [replica for replica in scan.replicas if replica.state.seal is None and not replica.gone]
    for record in chain.damaged:
        replica = store.replicas.get(record.extent_id)
        log.error("journal_record_damaged extent_id=%d lsn=%d", record.extent_id, record.lsn)
        if replica is not None and replica.state.seal is None and replica.state.meta.incarnation == record.incarnation:
            lost.append(replica)
    return lost


def _distrust_absent(store: StoreState, scans: list[DiskScan], chain: Chain, result: Replay) -> None:
    """Distrust absent disks with lost records: their replicas become doubtful when the disks return."""
    here = {scan.disk.short_id for scan in scans}
    lost = {record.disk for record in chain.damaged} | set(chain.broken_disks)
    if chain.hole:
        lost |= {short_id(wanted.expected_uuid) for wanted in store.config.disks if wanted.expected_uuid}
        lost |= {disk for kept in store.journal.label.kept for disk in kept.disks}
        lost |= {disk for disks in result.kept.values() for disk in disks}  # which of their records is unknown
        lost |= set(store.refused_disks)
    for disk in sorted(lost - here):
        store.journal.distrust(disk)


def _kept(chain: Chain, result: Replay) -> list[Kept]:
    kept = [chain.keep(number, tuple(disks)) for number, disks in sorted(result.kept.items())]
    for disk in sorted({disk for entry in kept for disk in entry.disks}):
        log.error(
            "journal_records_kept disk=%s: mount that disk and restart; or, if it is lost, start once with "
            "--give-up-disk %s",
            short_name(disk),
            short_name(disk),
        )
    return kept


def _doubt_or_distrust(store: StoreState, replica: Replica) -> None:
    reason = replica.state.doubt or Doubt.DAMAGE
    try:
        replica.open()
        replica.persist_doubt(reason)
    except OSError as error:
        _raise_if_short(error)
        if error.errno not in FULL:
            replica.disk.note_failed(f"{type(error).__name__}: {error}")
        store.journal.distrust(replica.disk.short_id)
    finally:
        replica.close()
    replica.state.note_doubt(reason)
    store.counters.replicas_doubted += 1


# --- stop ----------------------------------------------------------------------------------------------------


async def stop_cleanly(store: StoreState) -> None:
    """Sync everything, then record it: remove `unsynced`, retire the journal, mark boot.json as clean."""
    clean: dict[Disk, bool] = {disk: disk.state is not DiskState.OFFLINE for disk in store.disks.values()}
    for replica in list(store.replicas.values()):
        if not clean[replica.disk]:
            continue
        if replica.state.seal is None:
            clean[replica.disk] = await _stop_replica(store, replica)
        elif not replica.verified:  # a killed process may have set its seal without syncing it
            clean[replica.disk] = False
    for disk in list(store.distrust_pending)[:1]:
        await store.distrust(disk)
    if not all(clean.values()):
        log.warning("stop_not_clean disks=%s", [disk.uuid for disk, is_clean in clean.items() if not is_clean])
    else:
        try:
            await store.run(store.journal.retire)
        except OSError as error:  # the next start reads the journal again, and verifies all replicas
            log.error("journal_not_retired error=%s", error)
            return
    distrusted = tuple(disk.short_id for disk in store.distrust_pending)
    for disk, is_clean in clean.items():
        if is_clean:
            try:
                await store.run(lambda disk=disk: disk.store_boot(clean=True, distrusted=distrusted))
            except OSError as error:  # affects this disk alone
                log.error("stop_not_clean disk=%s error=%s", disk.uuid, error)


async def _stop_replica(store: StoreState, replica: Replica) -> bool:
    """Whether the replica is synced, whole, and no longer marked `unsynced`."""
    read_only = replica.state.read_only
    if not replica.verified or (read_only is not None and not read_only.can_sync):
        return False
    try:
        if replica.in_place_end < replica.state.length or replica.state.unsynced:
            replica.open()
            await store.sync_attributes(replica, replica.sync_all)
        if replica.state.unsynced and replica.state.doubt is None:
            await store.sync_attributes(replica, replica.clear_unsynced)
    except (OSError, NeveError) as error:
        log.error("replica_not_synced extent_id=%d error=%s", replica.extent_id, error)
        return False
    read_only = replica.state.read_only  # again: a sync under way may have failed
    return read_only is None or read_only.can_sync
