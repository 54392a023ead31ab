"""The region map in the metadata store: read from a follower, changed by compare-and-swap.

Invariants: every change is one transaction that compares the leader's key, the map's record and each region that it
            changes: a deposed manager changes nothing (guarantee G7), and no decision is based on an old map. The
            stream manager writes a split or a merge (reshape.py), comparing its own leader's key and this map's record:
            one that was under way when this manager was deposed is applied only if the map has not changed since;
            an unknown outcome is settled by sending the identical transaction again until the map's record says whether
            it was applied: the record contains the call that caused it;
            a call is answered only after this manager's own follower has what it committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from neve.meta import keys
from neve.meta.election import Leadership
from neve.meta.follower import Follower
from neve.meta.regions import RegionsState
from neve.meta.store import MetaStore
from neve.meta.txn import Compare, Delete, Get, Operation, Put, key_absent, mod_revision_is
from neve.meta.waiting import LeaseBackoff
from neve.partition_manager.core_regions import Cause, Change, RegionMap
from neve.proto import partition_manager_pb2 as pm
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, MaybeApplied, MetaUnavailable, NotFound, NotLeader, VersionConflict

log = logging.getLogger(__name__)

CONFLICTS_MAX = 20
FOLLOWER_TIMEOUT_S = 10.0  # for this manager's own follower to receive what it committed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The map at one revision, and what a transaction that replaces a part of it compares."""

    revision: int
    map: RegionMap | None  # None: the cluster is not bootstrapped
    map_revision: int
    region_revisions: Mapping[int, int] = field(repr=False)
    servers: Mapping[int, pm.PartitionServerEntry] = field(repr=False)

    @property
    def made(self) -> RegionMap:
        if self.map is None:
            raise NotFound(kind="region map", name="", detail="bootstrap the cluster first: neve bootstrap")
        return self.map


class RegionStore:
    """The region map of one manager. It can only be changed between `lead` and `retire`."""

    def __init__(self, store: MetaStore, root: bytes, follower: Follower[RegionsState]) -> None:
        self._store = store
        self._root = root
        self._follower = follower
        self._cached: RegionMap | None = None
        self._cached_revision = 0
        self._committing = asyncio.Lock()
        self._leadership: Leadership | None = None
        self._on_deposed: Callable[[str], None] = lambda reason: None

    def lead(self, leadership: Leadership, *, on_deposed: Callable[[str], None]) -> None:
        """Begin a term. `on_deposed` is called when the store shows that it is over."""
        self._leadership, self._on_deposed = leadership, on_deposed

    def retire(self, leadership: Leadership) -> None:
        if self._leadership is leadership:
            self._leadership = None

    def snapshot(self) -> Snapshot:
        """The map as it is known now; `MetaUnavailable` before the first listing."""
        state = self._follower.state
        if state is None:
            raise MetaUnavailable(detail="this manager has not read the region map yet")
        return self.snapshot_of(state)

    def snapshot_of(self, state: RegionsState) -> Snapshot:
        stored = state.map
        if stored is not None and (self._cached is None or self._cached_revision != stored.mod_revision):
            self._cached = RegionMap.of(stored.record, [each.record for each in state.regions.values()])
            self._cached_revision = stored.mod_revision
        return Snapshot(
            revision=state.revision,
            map=self._cached if stored is not None else None,
            map_revision=stored.mod_revision if stored is not None else 0,
            region_revisions={number: each.mod_revision for number, each in state.regions.items()},
            servers={number: each.record for number, each in state.servers.items()},
        )

    async def fresh(self) -> Snapshot:
        """The map, at least as new as the moment of the call."""
        kv = await self._store.get(keys.region_map_key(self._root))
        wanted = kv.mod_revision if kv is not None else 0
        deadline_s = asyncio.get_running_loop().time() + FOLLOWER_TIMEOUT_S

        def holds(state: RegionsState) -> bool:
            return wanted == 0 or (state.map is not None and state.map.mod_revision >= wanted)

        return self.snapshot_of(await self._follower.until(holds, deadline_s=deadline_s, what=f"the map of {wanted}"))

    async def known(self, version: int) -> Snapshot:
        """The map, once this manager has received that version."""
        deadline_s = asyncio.get_running_loop().time() + FOLLOWER_TIMEOUT_S
        state = await self._follower.until(
            lambda state: state.version >= version, deadline_s=deadline_s, what=f"version {version} of the map"
        )
        return self.snapshot_of(state)

    # --- changing --------------------------------------------------------------------------------------------

    async def commit(self, decide: Callable[[Snapshot], Change | None]) -> Snapshot:
        """Decide on the newest map and write the change; decide again if the map was not the newest.

        Returns a snapshot that contains the change, also if there was nothing to change.
        """
        async with self._committing:
            snapshot = self.snapshot()
            for _ in range(CONFLICTS_MAX):
                change = decide(snapshot)
                if change is None:
                    return snapshot
                if await self._write(snapshot, change):
                    return await self.known(change.version)
                snapshot = await self.fresh()
            raise VersionConflict(what="region map", version=snapshot.revision, detail="it changes too fast")

    async def _write(self, snapshot: Snapshot, change: Change) -> bool:
        """Write a change. Returns whether it was applied; raises `NotLeader` when the term is over."""
        leadership = self._leading()
        compares, operations = self._transaction(snapshot, change)
        compares += leadership.guard()
        map_key = keys.region_map_key(self._root)
        cause = change.after.replayed[-1].call
        backoff = LeaseBackoff(leadership.lease)
        doubtful = False
        while True:
            leadership.ensure()
            try:
                result = await self._store.txn(compares, operations, [Get(map_key)])
            except (MaybeApplied, MetaUnavailable) as error:
                doubtful = doubtful or isinstance(error, MaybeApplied)
                if not doubtful:
                    raise
                log.info("region_change_unanswered version=%d error=%s", change.version, error)
                await backoff.pause()
                continue
            if result.succeeded:
                _log_change(change)
                return True
            # It was not applied, or it was by an earlier try whose reply was lost: then the map records its cause.
            kv = result.get_at(0).first
            if kv is not None:
                found = pm.RegionMapRecord.FromString(kv.value)
                if any(made.call == cause and made.version == change.version for made in found.replayed):
                    _log_change(change)
                    return True
            await self.check_leading()
            return False

    async def check_leading(self) -> None:
        """Check leadership after a transaction failed.

        If the store has another leader, nothing of this term can be written any more.
        """
        result = await self._store.txn(self._leading().guard(), [])
        if not result.succeeded:
            reason = "the election key is no longer this manager's"
            self._on_deposed(reason)
            raise NotLeader(detail=reason)

    def _leading(self) -> Leadership:
        if self._leadership is None:
            raise NotLeader(detail="this manager does not lead")
        self._leadership.ensure()
        return self._leadership

    def _transaction(self, snapshot: Snapshot, change: Change) -> tuple[list[Compare], list[Operation]]:
        compares: list[Compare] = []
        operations: list[Operation] = []
        for write in self.writes(snapshot, change):
            absent = not write.mod_revision
            compares.append(key_absent(write.key) if absent else mod_revision_is(write.key, write.mod_revision))
            operations.append(Delete(write.key) if write.delete else Put(write.key, write.value))
        return compares, operations

    def writes(self, snapshot: Snapshot, change: Change) -> list[sm.MetaWrite]:
        """The change as keys, each with the mod revision that it must have."""
        if change.version != (snapshot.map.version if snapshot.map is not None else 0) + 1:
            raise InvalidArgument(what="change", detail="it was decided for another version of the map")
        revisions = snapshot.region_revisions
        found = [
            sm.MetaWrite(
                key=keys.region_key(self._root, region.partition_id),
                value=region.SerializeToString(deterministic=True),
                mod_revision=revisions.get(region.partition_id, 0),
            )
            for region in change.put
        ]
        found += [
            sm.MetaWrite(
                key=keys.region_key(self._root, partition_id), mod_revision=revisions[partition_id], delete=True
            )
            for partition_id in change.deleted
        ]
        found.append(
            sm.MetaWrite(
                key=keys.region_map_key(self._root),
                value=change.after.record().SerializeToString(deterministic=True),
                mod_revision=snapshot.map_revision,
            )
        )
        return found

    async def was_made(self, cause: Cause) -> bool:
        """Whether the map records this call, by a linearizable read."""
        kv = await self._store.get(keys.region_map_key(self._root))
        record = pm.RegionMapRecord.FromString(kv.value) if kv is not None else pm.RegionMapRecord()
        return any(made.call == cause.call for made in record.replayed)


def _log_change(change: Change) -> None:
    for region in change.put[:20]:
        log.info(
            "region_changed version=%d partition_id=%d server_id=%d epoch=%d start=%r end=%r",
            *(change.version, region.partition_id, region.server_id, region.epoch, region.start, region.end),
        )
    if len(change.put) > 20:
        log.info("regions_changed version=%d count=%d", change.version, len(change.put))
