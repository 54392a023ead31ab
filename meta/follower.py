"""A copy of a part of the metadata store that a watch keeps up to date, for processes that do not decide, or not yet.

Invariants: the state is always that of one revision: a watch delivers whole transactions in order, or `Resync`, after
            which the state is rebuilt;
            the follower answers nothing before the first listing is complete;
            the state may be out of date: a write that is based on it compares revisions in its transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from neve.meta.store import EventKind, MetaStore, Resync, WatchItem
from neve.meta.txn import KeyRange, KeyValue
from neve.proto.errors import MetaUnavailable, NeveError

log = logging.getLogger(__name__)

PAUSE_S = 0.5
PAGE_KEYS = 5000


class Followed(Protocol):
    """A state that a `Follower` keeps up to date."""

    revision: int

    def load(self, kvs: Iterable[KeyValue], revision: int) -> None: ...
    def put_key(self, kv: KeyValue) -> None: ...
    def delete_key(self, key: bytes) -> None: ...


S = TypeVar("S", bound=Followed)


class Follower(Generic[S]):
    """Lists `ranges`, all at one revision, then watches `watched`, which spans them.

    `on_change` runs after each revision.
    """

    def __init__(
        self,
        store: MetaStore,
        make: Callable[[], S],
        *,
        ranges: Sequence[KeyRange],
        watched: KeyRange,
        on_change: Callable[[S], None] = lambda state: None,
    ) -> None:
        self._store = store
        self._make = make
        self._ranges = ranges
        self._watched = watched
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Future[bool], Callable[[S], bool]] = {}  # result: whether the time was over
        self.state: S | None = None  # None until the first listing is complete

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="follower")

    async def stop(self) -> None:
        """Stop following and drop the state."""
        task, self._task = self._task, None
        self.state = None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._wake()

    def take(self) -> S | None:
        """Stop following and return the state, which is that of one revision and no longer changes."""
        state, task = self.state, self._task
        self.state = self._task = None
        if task is not None:
            task.cancel()  # the task awaits only the watch, never in the middle of a revision
        self._wake()
        return state

    async def at(self, revision_min: int, *, deadline_s: float) -> S:
        """The state, once it has reached this revision. Raises `MetaUnavailable` at the deadline."""
        what = f"revision {revision_min}"
        return await self.until(lambda state: state.revision >= revision_min, deadline_s=deadline_s, what=what)

    async def until(self, holds: Callable[[S], bool], *, deadline_s: float, what: str) -> S:
        """The state, once `holds` is true. Raises `MetaUnavailable` at the deadline. `what` describes it for people."""
        loop = asyncio.get_running_loop()
        while self.state is None or not holds(self.state):
            waiter: asyncio.Future[bool] = loop.create_future()
            self._waiting[waiter] = holds
            timer = loop.call_at(deadline_s, _settle, waiter, True)  # not asyncio.timeout, which needs a task
            try:
                late = await waiter
            finally:  # `_wake` alone would not do: while a watch is down nothing changes, and waiters would pile up
                timer.cancel()
                self._waiting.pop(waiter, None)
            if late:
                known = self.state.revision if self.state is not None else 0
                raise MetaUnavailable(detail=f"this manager knows revision {known}, but {what} is wanted")
            if self._task is None and self.state is None:
                raise MetaUnavailable(detail="this manager has stopped following: ask again")
        return self.state

    async def read(self, *, revision: int = 0) -> S:
        """The state at one revision: the newest, read linearizably, or an older one that etcd still has."""
        state = self._make()
        for keys in self._ranges:
            async for page in self._store.range_pages(keys, page_keys=PAGE_KEYS, revision=revision):
                revision = page.revision
                state.load(page.kvs, revision)
        return state

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except NeveError as error:
                log.warning("follower_restarts error=%s", error)
            except Exception:  # an impossible record: no answers are better than wrong ones
                log.exception("follower_state_refused")
            self.state = None
            await asyncio.sleep(PAUSE_S)

    async def _follow(self) -> None:
        state = await self.read()
        log.info("follower_loaded revision=%d", state.revision)
        self._publish(state)
        async with self._store.watch(self._watched, start_revision=state.revision + 1) as watch:
            async for item in watch:
                try:
                    state = self._followed(state, item)
                except BaseException:
                    self.state = None  # before the slow closing of the watch, because half a revision is no answer
                    raise
                self._publish(state)

    def _followed(self, state: S, item: WatchItem) -> S:
        """The state after one more item. If it raises, `state` is no longer that of one revision."""
        if isinstance(item, Resync):
            state = self._make()
            state.load((kv for kv in item.kvs if self._is_listed(kv.key)), item.revision)
            log.warning("follower_resynced revision=%d", item.revision)
            return state
        for event in item.events:
            if event.kind is EventKind.PUT:
                state.put_key(event.kv)
            else:
                state.delete_key(event.kv.key)
        state.revision = item.revision
        return state

    def _is_listed(self, key: bytes) -> bool:
        return any(keys.contains(key) for keys in self._ranges)

    def _publish(self, state: S) -> None:
        self.state = state
        self._on_change(state)
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        """Wake the waiters whose condition holds, or all of them if there is no state any more."""
        state = self.state
        for waiter, holds in [*self._waiting.items()]:
            if state is None or holds(state):
                _settle(waiter, False)


def _settle(waiter: asyncio.Future[bool], late: bool) -> None:
    if not waiter.done():
        waiter.set_result(late)
