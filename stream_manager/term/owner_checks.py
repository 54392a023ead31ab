"""Owner checks: whether an owner holds its lock, and this manager leads, by a linearizable read of etcd.

A reply that relies on the owner waits for this check (protocol rule 3).

Invariants: a check is only answered by a read that was sent after the check began;
            the read compares the leader's key in the same transaction: a deposed manager confirms nothing;
            checks that begin while a read is in flight share the next read: thousands per second cost a few reads.

The newest token of a lock that was once found valid is remembered until the term ends. It shows that such a holding
existed, so that a forged token never reaches a replica. It does not show that the lock is still held; that is read
every time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from neve.meta.election import Leadership
from neve.meta.lock import lock_key
from neve.meta.store import MetaStore
from neve.meta.txn import TXN_OPS_MAX
from neve.meta.waiting import LeaseBackoff
from neve.proto.errors import MaybeApplied, MetaUnavailable, NeveError, NotLeader, NotOwner

log = logging.getLogger(__name__)

SEEN_MAX = 100_000


class OwnerChecks:
    def __init__(
        self, store: MetaStore, leadership: Leadership, *, root: bytes, on_deposed: Callable[[str], None]
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._root = root
        self._on_deposed = on_deposed
        self._waiting: list[tuple[str, int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[str, int] = {}  # the newest token that was found valid, by lock
        self._ended = False
        self.reads = 0

    async def verify(self, lock: str, token: int) -> None:
        """Check that the lock is held with this token now: `NotOwner` if not, `NotLeader` if the term is over."""
        if self._ended:
            raise NotLeader(detail="the term is over")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((lock, token, done))
        if self._task is None:
            self._task = loop.create_task(self._run(), name="owner-checks")
        await done
        self._leadership.ensure()

    def seen(self, lock: str, token: int) -> bool:
        """Whether this very token was found valid before in this term."""
        return self._seen.get(lock) == token

    async def unheld(self, locks: Iterable[str]) -> frozenset[str]:
        """The given locks that are free now."""
        names = list(dict.fromkeys(locks))
        free: list[str] = []
        for begin in range(0, len(names), TXN_OPS_MAX):
            if self._ended:
                raise NotLeader(detail="the term is over")
            tokens = await self._read(names[begin : begin + TXN_OPS_MAX])
            free += [lock for lock, token in tokens.items() if not token]
        self._leadership.ensure()
        return frozenset(free)

    def note_held(self, lock: str, token: int) -> None:
        """Remember a token that a transaction or a read has found valid."""
        if len(self._seen) >= SEEN_MAX:
            self._seen.clear()
        self._seen[lock] = token

    def end(self) -> None:
        self._ended = True
        if self._task is not None:
            self._task.cancel()
        waiting, self._waiting = self._waiting, []
        self._settle(waiting, NotLeader(detail="the term is over"))

    async def stopped(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._waiting and not self._ended:
                batch, self._waiting = self._waiting[:TXN_OPS_MAX], self._waiting[TXN_OPS_MAX:]
                try:
                    await self._ask(batch)
                except NeveError as error:
                    self._settle(batch, error)
                except asyncio.CancelledError:
                    self._settle(batch, NotLeader(detail="the term is over"))
                    raise
        finally:
            self._task = None

    async def _ask(self, batch: list[tuple[str, int, asyncio.Future[None]]]) -> None:
        tokens = await self._read(list(dict.fromkeys(lock for lock, _, _ in batch)))
        for lock, token, done in batch:
            if tokens[lock] == token and token:
                self.note_held(lock, token)
                if not done.done():
                    done.set_result(None)
            else:
                self._settle([(lock, token, done)], NotOwner(lock=lock, token=token, detail="not held with this token"))

    async def _read(self, locks: list[str]) -> dict[str, int]:
        """The tokens with which these locks are held; 0 for free ones."""
        keys = [lock_key(self._root, lock) for lock in locks]
        backoff = LeaseBackoff(self._leadership.lease)
        while True:
            self._leadership.ensure()
            self.reads += 1
            try:
                revisions = await self._store.mod_revisions(self._leadership.guard(), keys)
                break
            except (MetaUnavailable, MaybeApplied) as error:  # a read is safe to repeat
                log.info("owner_check_unanswered error=%s", error)
                await backoff.pause()
        if revisions is None:
            self._on_deposed("the election key is no longer this manager's")
            raise NotLeader(detail="the election key is no longer this manager's")
        return dict(zip(locks, revisions, strict=True))

    def _settle(self, batch: list[tuple[str, int, asyncio.Future[None]]], error: NeveError) -> None:
        for _, _, done in batch:
            if not done.done():
                done.set_exception(error)
