"""Locks with fencing tokens: `locks/<name>` on the owner's lease; the key's mod revision is the token.

Invariants: every acquisition takes a new, higher token, even in the process that holds the lock (protocol rule 1),
            because with an equal token, delayed requests of the earlier holding would still pass;
            the key of another live owner is never adopted: the claimant waits for its end, or replaces that revision
            in an explicit takeover;
            a nonce in the value identifies the put, so a read settles an unknown outcome;
            a put with an unknown outcome cannot bring the key back after its release: see key_claim.py.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from neve.meta.key_claim import Bid
from neve.meta.lease import Lease
from neve.meta.owned_key import OwnedKey
from neve.meta.store import MetaStore
from neve.meta.txn import Compare, KeyValue, Put, key_absent, mod_revision_is, value_is
from neve.meta.waiting import LeaseBackoff, until_changed, until_settled, while_alive
from neve.proto.errors import LockHeld, MaybeApplied, MetaUnavailable, NotOwner

log = logging.getLogger(__name__)

WITHDRAWAL_WAIT_S = 1.0  # the wait for the withdrawal of a failed acquisition, which continues in the background


def lock_key(root: bytes, name: str) -> bytes:
    """The key of a lock in the cluster whose keys begin with `root`."""
    return root + b"locks/" + name.encode()


def void_key(root: bytes, nonce: str) -> bytes:
    """The void key of a bid for a lock, outside of the locks' keys: see key_claim.py."""
    return root + b"locks-void/" + nonce.encode()


def encode_value(*, nonce: str, owner: str) -> bytes:
    return f"{nonce}\n{owner}".encode()


def owner_of(value: bytes) -> str:
    """The owner's name for people; the whole value if another program wrote it."""
    text = value.decode(errors="replace")
    return text.partition("\n")[2] or text


class Lock(OwnedKey):
    """A lock that this process holds or held. As a context manager it is released at the end."""

    def __init__(self, store: MetaStore, lease: Lease, kv: KeyValue, bid: Bid, *, name: str) -> None:
        self.name = name
        super().__init__(store, lease, kv, bid)

    @property
    def token(self) -> int:
        return self._kv.mod_revision

    def guard(self) -> tuple[Compare, ...]:
        return (mod_revision_is(self.key, self.token),)

    def _is_ours(self, kv: KeyValue) -> bool:
        return kv.mod_revision == self.token

    def _withdrawal_guard(self) -> tuple[Compare, ...]:
        return (value_is(self.key, self._kv.value),)  # with this acquisition's nonce

    def _not_ours(self) -> NotOwner:
        return NotOwner(lock=self.name, token=self.token, detail=self.lost.reason)

    async def verify(self) -> None:
        """Check with a linearizable read that we hold the lock now; raise `NotOwner` if not."""
        self.ensure()
        kv = await self._store.get(self.key)
        if kv is None or not self._is_ours(kv):
            self._lose("the key was deleted" if kv is None else "the key was replaced")
        self.ensure()  # again, because the answer may have taken longer than the lease

    async def release(self) -> None:
        await self.give_up("released")


@dataclass(frozen=True, slots=True)
class Held:
    """The key has the value that we put."""

    kv: KeyValue


@dataclass(frozen=True, slots=True)
class Claim:
    """We may put the key if `compare` still holds."""

    compare: Compare


@dataclass(frozen=True, slots=True)
class Wait:
    """The store has a live key of another owner."""

    kv: KeyValue


def next_step(
    key: bytes, kv: KeyValue | None, *, value: bytes, lease_id: int, takeover_token: int | None
) -> Held | Claim | Wait:
    """The next step for a lock whose key was last seen as `kv`. `takeover_token`: the holding to replace, if any."""
    if kv is None:
        return Claim(key_absent(key))
    if kv.value == value:  # an attempt whose outcome was unknown
        return Held(kv)
    if kv.lease_id == lease_id or kv.mod_revision == takeover_token:  # our own earlier holding gets a new token
        return Claim(mod_revision_is(key, kv.mod_revision))
    return Wait(kv)


async def acquire_lock(
    store: MetaStore,
    name: str,
    owner: str,
    lease: Lease,
    *,
    root: bytes = b"",
    takeover: bool = False,
    timeout_s: float,
) -> Lock:
    """Acquire the lock with a new token.

    While another live owner has the lock, wait for up to `timeout_s`, then raise `LockHeld`. With `takeover`, replace
    the holding that is found first, and only that one: wait for any later holding as usual. Raises `LeaseLost` if our
    own lease ends first, and the store's error if the store does not answer for `timeout_s`. A call to the store that
    has begun by then is awaited. After any error or cancellation, a put that may have been applied is withdrawn, in the
    background if necessary.
    """
    key = lock_key(root, name)
    nonce = lease.next_nonce()
    put = Put(key, encode_value(nonce=nonce, owner=owner), lease.lease_id)
    bid = Bid(store, lease, put, void_key=void_key(root, nonce))
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    try:
        kv = await _win(store, bid, lease, name=name, takeover=takeover, deadline_s=deadline_s)
        lease.ensure_alive()  # the lease may have ended while the answer was on its way (scenario T18)
    except BaseException:
        await bid.withdraw((value_is(key, put.value),), wait_s=WITHDRAWAL_WAIT_S)
        raise
    log.info("lock_acquired lock=%s token=%d owner=%s", name, kv.mod_revision, owner)
    return Lock(store, lease, kv, bid, name=name)


async def _win(store: MetaStore, bid: Bid, lease: Lease, *, name: str, takeover: bool, deadline_s: float) -> KeyValue:
    """Put and wait until the key has our value."""
    loop = asyncio.get_running_loop()
    backoff = LeaseBackoff(lease)
    key, value = bid.put.key, bid.put.value
    kv: KeyValue | None = None  # a guess, which the first transaction corrects
    seen_revision = 0
    takeover_token: int | None = None
    while True:
        if takeover and takeover_token is None and kv is not None and kv.lease_id != lease.lease_id:
            takeover_token = kv.mod_revision
        step = next_step(key, kv, value=value, lease_id=lease.lease_id, takeover_token=takeover_token)
        if isinstance(step, Held):
            return step.kv
        if isinstance(step, Wait):
            await _await_change(store, step.kv, lease, name=name, deadline_s=deadline_s, seen=seen_revision)
            kv, seen_revision = await _look(store, key, lease, deadline_s=deadline_s)
            continue
        lease.ensure_alive()
        try:
            kv, seen_revision = await bid.send(step.compare)
        except (MaybeApplied, MetaUnavailable) as error:
            log.info("lock_claim_unanswered lock=%s error=%s", name, error)
            kv, seen_revision = await _look(store, key, lease, deadline_s=deadline_s)
            if (kv is None or kv.value != value) and loop.time() >= deadline_s:
                raise
            await backoff.pause()


async def _look(store: MetaStore, key: bytes, lease: Lease, *, deadline_s: float) -> tuple[KeyValue | None, int]:
    """The present state of the key. After the deadline there is only one attempt, whose error is raised."""
    left_s = deadline_s - asyncio.get_running_loop().time()
    page = await while_alive(lease, until_settled(lease, lambda: store.range(key), timeout_s=left_s))
    return (page.kvs[0] if page.kvs else None), page.revision


async def _await_change(
    store: MetaStore, kv: KeyValue, lease: Lease, *, name: str, deadline_s: float, seen: int
) -> None:
    """Wait until the holding `kv` ends; raise `LockHeld` at the deadline."""
    left_s = deadline_s - asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(max(0.0, left_s)):
            await while_alive(lease, until_changed(store, kv, seen_revision=seen))
    except TimeoutError:
        raise LockHeld(lock=name, owner=owner_of(kv.value)) from None
