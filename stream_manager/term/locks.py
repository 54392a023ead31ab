"""Locks within one manager. A mutation locks what it decides on, from before it reads it until etcd has replied.

Invariants: a key has one holder at a time; waiting flows get it first come, first served;
            keys are taken in the order of `LockKind`, then by id. A flow that takes more keys later only takes keys
            that come after its own (first the stream, then its extents), so no two flows wait for each other;
            a flow that is cancelled while it waits releases the keys that it has.

    async with ctx.locks.hold(streams=[id]):
        ...
        async with ctx.locks.hold(extents=[tail_id]):
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Awaitable, Collection, Generator
from types import TracebackType


class LockKind(enum.IntEnum):
    """The kinds of keys, in the order in which they are taken."""

    NAME = 0
    STREAM = 1
    EXTENT = 2
    NODE = 3
    SETTING = 4  # quotas by prefix, the cluster's settings


# Plain numbers, because looking up a member of an enum takes longer than taking a lock.
_NAME, STREAM_LOCK, EXTENT_LOCK, _NODE, _SETTING = map(int, LockKind)

Key = tuple[int, int | str]


class LockTable:
    def __init__(self) -> None:
        # A key has an entry while it is held. Usually no flow waits for it; then there is no queue.
        self.waiters: dict[Key, deque[asyncio.Future[None]] | None] = {}

    def hold(
        self,
        *,
        names: Collection[str] = (),
        streams: Collection[int] = (),
        extents: Collection[int] = (),
        nodes: Collection[int] = (),
        settings: Collection[str] = (),
    ) -> Holding:
        keys: list[Key] = []
        if names:
            _add(keys, _NAME, names)
        if streams:
            _add(keys, STREAM_LOCK, streams)
        if extents:
            _add(keys, EXTENT_LOCK, extents)
        if nodes:
            _add(keys, _NODE, nodes)
        if settings:
            _add(keys, _SETTING, settings)
        return Holding(self, keys)

    def held(self, kind: LockKind, ident: int | str) -> bool:
        return (kind, ident) in self.waiters

    def try_take(self, key: Key) -> bool:
        if key in self.waiters:
            return False
        self.waiters[key] = None
        return True

    async def take(self, key: Key) -> None:
        """Take one key, for a hot flow. The caller must always `release` it."""
        if self.try_take(key):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self.waiters[key]
        if waiting is None:
            waiting = self.waiters[key] = deque()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was handed over at the same moment
                self.release(key)
            turn.cancel()  # a waiting flow without a task is closed, which does not cancel the future
            raise

    def release(self, key: Key) -> None:
        waiting = self.waiters[key]
        if waiting is None:
            del self.waiters[key]
            return
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # the next flow holds it now, so the entry stays
                return
        del self.waiters[key]


def _add(keys: list[Key], kind: int, idents: Collection[int] | Collection[str]) -> None:
    """Add keys in order. Most calls pass one id, which needs no sorting."""
    if len(idents) == 1:
        keys += [(kind, ident) for ident in idents]
    elif idents:
        keys += sorted({(kind, ident) for ident in idents})


class _Ready:
    """An awaitable that is done."""

    def __await__(self) -> Generator[None, None, None]:
        return iter(())  # type: ignore[return-value]


_READY = _Ready()


class Holding:
    """A set of keys to hold, as an async context manager that is used once."""

    __slots__ = ("_held", "_keys", "_table")

    def __init__(self, table: LockTable, keys: list[Key]) -> None:
        self._table = table
        self._keys = keys
        self._held = 0

    def __aenter__(self) -> Awaitable[None]:
        """Take the keys. If all are free, as usual, there is nothing to await and no coroutine is made."""
        assert not self._held, "a holding is used once"
        waiters = self._table.waiters
        for key in self._keys:
            if key in waiters:
                return self._take_rest()
            waiters[key] = None
            self._held += 1
        return _READY

    async def _take_rest(self) -> None:
        try:
            for key in self._keys[self._held :]:
                await self._table.take(key)
                self._held += 1
        except BaseException:
            self._let_go()
            raise

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]:
        self._let_go()
        return _READY

    def _let_go(self) -> None:
        held, self._held = self._held, 0
        while held:
            held -= 1
            self._table.release(self._keys[held])
