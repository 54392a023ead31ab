"""Elections: of all candidates under a prefix, the one whose key was created first leads.

Invariants: leading means owning the election key by create revision (protocol.md, rule 25): whoever writes as the
            leader compares it in the same transaction, so that a deposed leader changes nothing (G7);
            candidates queue by create revision, and each watches only its predecessor: no stampede;
            every term has a create revision of its own, also on one lease: no write of an earlier term passes;
            a campaign that fails or is cancelled withdraws: nobody waits for a candidate that went away.
Not here:   what a leader does. If it cannot load its state it resigns: better no leader than one that serves nothing.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, Iterable

from neve.meta.key_claim import Bid
from neve.meta.lease import Lease
from neve.meta.owned_key import OwnedKey
from neve.meta.store import EventKind, Listing, MetaStore, Resync, WatchItem
from neve.meta.txn import (
    Compare,
    Delete,
    KeyRange,
    KeyValue,
    Put,
    create_revision_is,
    key_absent,
)
from neve.meta.waiting import until_changed, until_settled, while_alive
from neve.proto.errors import NotLeader

log = logging.getLogger(__name__)

WITHDRAWAL_WAIT_S = 1.0  # of a campaign that ends: enough for a store that answers, and it goes on behind the caller


def _withdrawal_guard(bid: Bid, mine: KeyValue | None) -> tuple[Compare, ...]:
    """The key as we know it. In doubt whatever stands there: no other campaign has a key of this name."""
    if mine is None or bid.doubtful:
        return ()
    return (create_revision_is(mine.key, mine.create_revision),)


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

    def _withdrawal_guard(self) -> tuple[Compare, ...]:
        return _withdrawal_guard(self._bid, self._kv)

    def _not_ours(self) -> NotLeader:
        return NotLeader(detail=self.lost.reason)


class Election:
    """The election under `prefix`, in which any number of processes may campaign."""

    def __init__(self, store: MetaStore, prefix: bytes) -> None:
        self._store = store
        self._prefix = prefix.rstrip(b"/") + b"/"
        self._candidates = KeyRange.prefix(self._prefix)
        self._void_prefix = prefix.rstrip(b"/") + b"-void/"  # beside the candidates, not among them: see `bid`

    async def campaign(self, value: bytes, lease: Lease) -> Leadership:
        """Wait until we lead; `value` is what observers see. One campaign at a time on a lease.

        Raises `LeaseLost` when the lease is lost before that, `NotLeader` when somebody deleted our key.
        """
        # A key of its own for every campaign, also on the same lease: a term never has the create revision of an
        # earlier one, whose delayed writes would pass its guard, and what was delayed of an earlier campaign, its
        # entering or its withdrawal, cannot touch this one.
        nonce = lease.next_nonce().encode()
        key = self._prefix + nonce
        bid = Bid(self._store, lease, Put(key, value, lease.lease_id), void_key=self._void_prefix + nonce)
        mine: KeyValue | None = None
        try:
            await while_alive(lease, self._end_earlier(lease))
            mine = await while_alive(lease, until_settled(lease, lambda: self._enter(bid)))
            log.info("election_entered key=%r create_revision=%d", key, mine.create_revision)
            await while_alive(lease, self._await_turn(mine, lease))
            lease.ensure_alive()
        except BaseException:
            await bid.withdraw(_withdrawal_guard(bid, mine), wait_s=WITHDRAWAL_WAIT_S)
            raise
        log.info("election_won key=%r create_revision=%d", key, mine.create_revision)
        return Leadership(self._store, lease, mine, bid)

    async def _end_earlier(self, lease: Lease) -> None:
        """Delete what an earlier campaign on this lease has left: we would wait for it, that is, for ourselves."""
        own = KeyRange.prefix(self._prefix + f"{lease.lease_id:x}.".encode())
        listing = await until_settled(lease, lambda: self._store.range_all(own))
        for kv in listing.kvs:
            log.warning("election_leftover_ended key=%r create_revision=%d", kv.key, kv.create_revision)
            await until_settled(lease, functools.partial(self._delete, kv))

    async def _delete(self, kv: KeyValue) -> None:
        await self._store.txn((create_revision_is(kv.key, kv.create_revision),), (Delete(kv.key),))

    async def _enter(self, bid: Bid) -> KeyValue:
        """Put the key unless an earlier attempt has."""
        found, _ = await bid.send(key_absent(bid.put.key))
        if found is None or (found.value, found.lease_id) != (bid.put.value, bid.put.lease_id):
            raise NotLeader(detail="somebody else put or deleted the candidate's key while it was put")
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
