"""What a follower shows: a state of one whole revision, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from neve.meta.follower import Follower
from neve.meta.memory.client import MemoryStore
from neve.meta.store import Watch, WatchItem
from neve.meta.txn import KeyRange, KeyValue, Put
from neve.proto.coroutine_driver import CoroutineDriver
from neve.proto.errors import MetaUnavailable

KEYS = KeyRange.prefix(b"/a/")


class Numbers:
    """Keys whose values are numbers."""

    def __init__(self) -> None:
        self.revision = 0
        self.known: dict[bytes, int] = {}

    def load(self, kvs: Iterable[KeyValue], revision: int) -> None:
        for kv in kvs:
            self.put_key(kv)
        self.revision = revision

    def put_key(self, kv: KeyValue) -> None:
        self.known[kv.key] = int(kv.value)

    def delete_key(self, key: bytes) -> None:
        self.known.pop(key, None)


class SlowToClose(Watch):
    """A watch that takes its time to close, as one over a network does."""

    def __init__(self, watch: Watch, seen: list[Any], follower: Follower[Numbers]) -> None:
        self._watch, self._seen, self._follower = watch, seen, follower

    async def __anext__(self) -> WatchItem:
        return await self._watch.__anext__()

    async def close(self) -> None:
        self._seen.append(self._follower.state)
        await asyncio.sleep(0.01)
        self._seen.append(self._follower.state)
        await self._watch.close()


async def test_a_revision_that_cannot_be_read_is_not_shown_by_half() -> None:
    store = MemoryStore().client()
    await store.put(b"/a/1", b"1")
    follower: Follower[Numbers] = Follower(store, Numbers, ranges=[KEYS], watched=KEYS)
    while_closing: list[Any] = []
    watch = store.watch
    store.watch = lambda *args, **named: SlowToClose(  # type: ignore[method-assign, assignment]
        watch(*args, **named), while_closing, follower
    )
    follower.start()
    try:
        state = await follower.at(1, deadline_s=asyncio.get_running_loop().time() + 10)
        assert state.known == {b"/a/1": 1}
        await store.txn((), (Put(b"/a/1", b"2"), Put(b"/a/2", b"no number")))
        while len(while_closing) < 2:
            await asyncio.sleep(0.001)
        assert while_closing == [None, None]
        assert follower.state is None
        mended = await store.put(b"/a/2", b"3")
        state = await follower.at(mended, deadline_s=asyncio.get_running_loop().time() + 10)
        assert state.known == {b"/a/1": 2, b"/a/2": 3}
    finally:
        await follower.stop()


async def test_who_has_waited_in_vain_leaves_nothing_behind() -> None:
    """While a watch is down nothing changes, and whoever asks for what is newer asks again and again."""
    store = MemoryStore().client()
    await store.put(b"/a/1", b"1")
    follower: Follower[Numbers] = Follower(store, Numbers, ranges=[KEYS], watched=KEYS)
    follower.start()
    loop = asyncio.get_running_loop()
    try:
        await follower.at(1, deadline_s=loop.time() + 10)
        with pytest.raises(MetaUnavailable):
            await follower.at(1000, deadline_s=loop.time() + 0.001)
        given_up = asyncio.ensure_future(follower.at(1000, deadline_s=loop.time() + 10))
        await asyncio.sleep(0.001)
        assert len(follower._waiting) == 1
        given_up.cancel()
        await asyncio.wait([given_up])
        assert not follower._waiting
    finally:
        await follower.stop()


@pytest.mark.parametrize("comes", [True, False])
async def test_who_waits_without_a_task_is_told_as_well(comes: bool) -> None:
    """A handler's first step has none: a call with a newer map than its server's waits from there."""
    store = MemoryStore().client()
    first = await store.put(b"/a/1", b"1")
    follower: Follower[Numbers] = Follower(store, Numbers, ranges=[KEYS], watched=KEYS)
    follower.start()
    loop = asyncio.get_running_loop()
    told: asyncio.Future[tuple[Numbers | None, BaseException | None]] = loop.create_future()

    def ask() -> None:
        assert asyncio.current_task() is None
        waiting = follower.at(first + 1, deadline_s=loop.time() + (10 if comes else 0.01))
        CoroutineDriver(waiting).then(lambda state, error: told.set_result((state, error)))

    try:
        await follower.at(first, deadline_s=loop.time() + 10)
        loop.call_soon(ask)
        await asyncio.sleep(0)
        if comes:
            await store.put(b"/a/2", b"2")
        state, error = await told
        if comes:
            assert (state is not None and state.revision, error) == (first + 1, None)
        else:
            assert isinstance(error, MetaUnavailable)
        assert not follower._waiting
    finally:
        await follower.stop()
