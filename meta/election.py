"""Elections: of all candidates under a prefix, the one whose key was created first leads.

Invariants: leading means owning the election key by create revision (protocol.md, rule 25): whoever writes as the
            leader compares it in the same transaction, so that a deposed leader changes nothing (G7);
            candidates queue by create revision, and each watches only its predecessor: no stampede;
            a campaign that fails or is cancelled withdraws: nobody waits for a candidate that went away.
Neighbours: `owned_key.OwnedKey` notices the loss; stream_manager and partition_manager campaign.
Not here:   what a leader does. If it cannot load its state it resigns: better no leader than one that serves nothing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable

from neve.meta.lease import Lease
from neve.meta.owned_key import OwnedKey
from neve.meta.store import EventKind, Listing, MetaStore, Resync, WatchItem
from neve.meta.txn import (
    Compare,
    Delete,
    Get,
    KeyRange,
    KeyValue,
    Put,
    create_revision_is,
    key_absent,
    mod_revision_is,
)
from neve.meta.waiting import until_changed, until_settled, while_alive
from neve.proto.errors import MetaError, MetaUnavailable, NotLeader

log = logging.getLogger(__name__)


class Leadership(OwnedKey):
    """Held by the winner of a campaign. As a context it resigns at the end, however that comes."""

    @property
    def create_revision(self) -> int:
        return self._kv.create_revision

    @property
    def value(self) -> bytes:
        return self._kv.value

    def guard(self) -> tuple[Compare, ...]:
        return (create_revision_is(self.key, self.create_revision),)

    def _is_ours(self, kv: KeyValue) -> bool:
        return kv.create_revision == self.create_revision

    def _not_ours(self) -> NotLeader:
        return NotLeader(detail=self.lost.reason)

    async def proclaim(self, value: bytes) -> None:
        """Change what observers see, for example the leader's address, without a new election."""
        self.ensure()
        self._kv = await until_settled(self.lease, lambda: self._replace(value), timeout_s=self.lease.ttl_s)

    async def _replace(self, value: bytes) -> KeyValue:
        # The mod revision, not just the guard: an earlier proclamation that was delayed on its way must not
        # overwrite a later one.
        compare = mod_revision_is(self.key, self._kv.mod_revision)
        put = Put(self.key, value, self.lease.lease_id)
        result = await self._store.txn((compare,), (put, Get(self.key)), (Get(self.key),))
        kv = result.get_at(1 if result.succeeded else 0).first
        if kv is None or not self._is_ours(kv) or kv.value != value:
            self._lose("the key was replaced or deleted")
            raise self._not_ours()
        return kv  # also if an attempt with an unknown outcome had put it already

    async def resign(self) -> None:
        await self.give_up("resigned")


class Election:
    """The election under `prefix`, in which any number of processes may campaign."""

    def __init__(self, store: MetaStore, prefix: bytes) -> None:
        self._store = store
        self._prefix = prefix.rstrip(b"/") + b"/"
        self._candidates = KeyRange.prefix(self._prefix)

    async def campaign(self, value: bytes, lease: Lease) -> Leadership:
        """Wait until we lead; `value` is what observers see. One campaign at a time on a lease.

        Raises `LeaseLost` when the lease is lost before that, `NotLeader` when somebody deleted our key.
        """
        key = self._prefix + f"{lease.lease_id:016x}".encode()
        try:
            mine = await while_alive(lease, until_settled(lease, lambda: self._enter(key, value, lease)))
            log.info("election_entered key=%r create_revision=%d", key, mine.create_revision)
            await while_alive(lease, self._await_turn(mine, lease))
            lease.ensure_alive()
        except BaseException:
            await self._withdraw(key, lease)
            raise
        log.info("election_won key=%r create_revision=%d", key, mine.create_revision)
        return Leadership(self._store, lease, mine)

    async def _enter(self, key: bytes, value: bytes, lease: Lease) -> KeyValue:
        """Put the key unless it is there. The key names the lease, so whatever is there is ours."""
        put = Put(key, value, lease.lease_id)
        result = await self._store.txn((key_absent(key),), (put, Get(key)), (Get(key),))
        found = result.get_at(1 if result.succeeded else 0).first
        if found is not None and found.value != value:  # left by an earlier campaign on this lease
            compare = mod_revision_is(key, found.mod_revision)
            result = await self._store.txn((compare,), (put, Get(key)))
            found = result.get_at(1).first if result.succeeded else None
        if found is None:
            raise MetaUnavailable(detail="the candidate's key changed while it was put")
        return found

    async def _await_turn(self, mine: KeyValue, lease: Lease) -> None:
        while True:
            listing = await until_settled(lease, lambda: self._store.range_all(self._candidates))
            ahead = self._candidate_ahead(mine, listing)
            if ahead is None:
                return
            await until_changed(self._store, ahead, seen_revision=listing.revision)

    def _candidate_ahead(self, mine: KeyValue, listing: Listing) -> KeyValue | None:
        """The one to wait for: the last that was created before us. None: it is our turn."""
        if not any(kv.key == mine.key and kv.create_revision == mine.create_revision for kv in listing.kvs):
            raise NotLeader(detail="the candidate's key was deleted")
        earlier = [kv for kv in listing.kvs if kv.create_revision < mine.create_revision]
        return max(earlier, key=lambda kv: kv.create_revision, default=None)

    async def _withdraw(self, key: bytes, lease: Lease) -> None:
        if not lease.alive():
            return  # the store deletes the key with the lease
        try:
            await self._store.txn((), (Delete(key),))
        except MetaError as error:  # one attempt, since we may be stopping; the lease's end does it too
            log.warning("election_not_withdrawn key=%r error=%s", key, error)

    async def leader(self) -> KeyValue | None:
        """Who leads now, read linearizably."""
        return _first_created((await self._store.range_all(self._candidates)).kvs)

    async def observe(self) -> AsyncGenerator[KeyValue | None, None]:
        """The leader's key now, and again whenever leader or value changes; None while there is none.

        Whoever stops before its end closes it (`contextlib.aclosing`): it holds a watch.
        """
        listing = await self._store.range_all(self._candidates)
        candidates = {kv.key: kv for kv in listing.kvs}
        seen = _first_created(listing.kvs)
        yield seen
        async with self._store.watch(self._candidates, start_revision=listing.revision + 1) as watch:
            async for item in watch:
                _follow(candidates, item)
                leader = _first_created(candidates.values())
                if leader != seen:
                    seen = leader
                    yield leader


def _first_created(candidates: Iterable[KeyValue]) -> KeyValue | None:
    return min(candidates, key=lambda kv: kv.create_revision, default=None)


def _follow(candidates: dict[bytes, KeyValue], item: WatchItem) -> None:
    if isinstance(item, Resync):
        candidates.clear()
        candidates.update((kv.key, kv) for kv in item.kvs)
        return
    for event in item.events:
        if event.kind is EventKind.PUT:
            candidates[event.kv.key] = event.kv
        else:
            candidates.pop(event.kv.key, None)
