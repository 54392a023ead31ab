"""A part of the metadata store, kept in step by a watch: what a process knows that does not decide, or not yet.

Invariants: the state is always that of one revision: a watch delivers whole transactions, in order, or says `Resync`,
            and then everything is made anew;
            nothing is answered before the first listing is complete;
            what it knows is news, and news may be late: whoever writes by it compares revisions in the transaction.
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
    """What is kept in step."""

    revision: int

    def load(self, kvs: Iterable[KeyValue], revision: int) -> None: ...
    def put_key(self, kv: KeyValue) -> None: ...
    def delete_key(self, key: bytes) -> None: ...


S = TypeVar("S", bound=Followed)


class Follower(Generic[S]):
    """`ranges` are listed, all at one revision; `watched` spans them. `on_change` runs after each revision."""

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
        self._waiting: dict[asyncio.Future[bool], Callable[[S], bool]] = {}  # done with whether their time was over
        self.state: S | None = None  # None until the first listing is complete

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="follower")

    async def stop(self) -> None:
        """Forget the state, too."""
        task, self._task = self._task, None
        self.state = None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._wake()

    def take(self) -> S | None:
        """Stop, and hand the state over: nothing is applied to it any more. It is of one whole revision."""
        state, task = self.state, self._task
        self.state = self._task = None
        if task is not None:
            task.cancel()  # it waits for the watch: between two revisions it never does
        self._wake()
        return state

    async def at(self, revision_min: int, *, deadline_s: float) -> S:
        """The state, once it is at least of this revision; `MetaUnavailable` if it is not in time."""
        what = f"revision {revision_min}"
        return await self.until(lambda state: state.revision >= revision_min, deadline_s=deadline_s, what=what)

    async def until(self, holds: Callable[[S], bool], *, deadline_s: float, what: str) -> S:
        """The state, once this holds; `MetaUnavailable` if it does not in time. `what` is for people."""
        loop = asyncio.get_running_loop()
        while self.state is None or not holds(self.state):
            waiter: asyncio.Future[bool] = loop.create_future()
            self._waiting[waiter] = holds
            timer = loop.call_at(deadline_s, _settle, waiter, True)  # asyncio.timeout wants a task: handlers have none
            try:
                late = await waiter
            finally:  # not by the next change alone: while a watch is down there is none, and callers ask on and on
                timer.cancel()
                self._waiting.pop(waiter, None)
            if late:
                known = self.state.revision if self.state is not None else 0
                raise MetaUnavailable(detail=f"this manager has heard of revision {known}, {what} is wanted")
            if self._task is None and self.state is None:
                raise MetaUnavailable(detail="this manager has stopped following: ask again")
        return self.state

    async def read(self, *, revision: int = 0) -> S:
        """Everything at one revision: the newest, read linearizably with the first page, or one that etcd still has."""
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
            except Exception:  # a record that cannot be: better no answers than wrong ones, and say so
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
                    self.state = None  # at once: closing the watch takes its time, and half a revision is no answer
                    raise
                self._publish(state)

    def _followed(self, state: S, item: WatchItem) -> S:
        """The state with one item more. If it raises, `state` is of no revision any more."""
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
        """Those whose time has come; all of them when there is no state to wait for."""
        state = self.state
        for waiter, holds in [*self._waiting.items()]:
            if state is None or holds(state):
                _settle(waiter, False)


def _settle(waiter: asyncio.Future[bool], late: bool) -> None:
    if not waiter.done():
        waiter.set_result(late)
