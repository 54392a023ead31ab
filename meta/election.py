"""Elections: of all candidates under a prefix, the one whose key was created first leads.

Invariants: leading means owning the election key by create revision (protocol rule 25): every write of a leader
            compares it in the same transaction, so that a deposed leader changes nothing (G7);
            candidates queue by create revision and each watches only its predecessor, so they do not all wake at once;
            every term has a create revision of its own, even on the same lease, so no write of an earlier term passes;
            a campaign that fails or is cancelled withdraws, so that no candidate waits for one that has left.
Not here:   the work of a leader. A leader that cannot load its state resigns (candidate.py).
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

# A campaign that ends waits so long for its withdrawal: enough for a store that answers. The withdrawal then continues
# in the background.
WITHDRAWAL_WAIT_S = 1.0


def _withdrawal_guard(bid: Bid, mine: KeyValue | None) -> tuple[Compare, ...]:
    """Compare the key's known create revision. In doubt compare nothing, as no other campaign uses this key."""
    if mine is None or bid.doubtful:
        return ()
    return (create_revision_is(mine.key, mine.create_revision),)


class Leadership(OwnedKey):
    """The winner's hold on the election key. As a context manager it resigns at the end."""

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
        self._void_prefix = prefix.rstrip(b"/") + b"-void/"  # outside of the candidates' keys: see key_claim.py

    async def campaign(self, value: bytes, lease: Lease) -> Leadership:
        """Wait until this candidate leads. Observers see `value`. A lease allows one campaign at a time.

        Raises `LeaseLost` if the lease is lost before that, and `NotLeader` if the candidate's key is deleted.
        """
        # Every campaign has a key of its own, even on the same lease. So no term has the create revision of an earlier
        # term, whose delayed writes would pass its guard. And a delayed put or withdrawal of an earlier campaign cannot
        # touch this campaign's key.
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
        """Delete the key of an earlier campaign on this lease. Otherwise this campaign would wait for it."""
        own = KeyRange.prefix(self._prefix + f"{lease.lease_id:x}.".encode())
        listing = await until_settled(lease, lambda: self._store.range_all(own))
        for kv in listing.kvs:
            log.warning("election_leftover_ended key=%r create_revision=%d", kv.key, kv.create_revision)
            await until_settled(lease, functools.partial(self._delete, kv))

    async def _delete(self, kv: KeyValue) -> None:
        await self._store.txn((create_revision_is(kv.key, kv.create_revision),), (Delete(kv.key),))

    async def _enter(self, bid: Bid) -> KeyValue:
        """Put the key unless an earlier attempt has put it."""
        found, _ = await bid.send(key_absent(bid.put.key))
        if found is None or (found.value, found.lease_id) != (bid.put.value, bid.put.lease_id):
            raise NotLeader(detail="another process put or deleted the candidate's key during the put")
        return found

    async def _await_turn(self, mine: KeyValue, lease: Lease) -> None:
        while True:
            listing = await until_settled(lease, lambda: self._store.range_all(self._candidates))
            ahead = self._candidate_ahead(mine, listing)
            if ahead is None:
                return
            await until_changed(self._store, ahead, seen_revision=listing.revision)

    def _candidate_ahead(self, mine: KeyValue, listing: Listing) -> KeyValue | None:
        """The candidate to wait for, which is the last one created before this one; None if this one leads."""
        if not any(kv.key == mine.key and kv.create_revision == mine.create_revision for kv in listing.kvs):
            raise NotLeader(detail="the candidate's key was deleted")
        earlier = [kv for kv in listing.kvs if kv.create_revision < mine.create_revision]
        return max(earlier, key=lambda kv: kv.create_revision, default=None)

    async def observe(self) -> AsyncGenerator[KeyValue | None, None]:
        """The leader's key now, and again whenever the leader or its value changes; None while there is no leader.

        It holds a watch: a caller that stops iterating must close it (`contextlib.aclosing`).
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
