"""A manager that does not lead: keeps the state in step by a watch, and answers reads from it.

Invariants: the state is always that of one revision: a watch delivers whole transactions, in order, or says `Resync`,
            and then everything is read anew;
            it answers nothing before the first listing is complete, and nothing that is older than `revision_min`.
Neighbours: leader.py stops it while this manager leads (two states would take twice the memory) and starts it after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from neve.meta.store import EventKind, MetaStore, Resync
from neve.meta.txn import KeyRange, KeyValue
from neve.proto.errors import MetaUnavailable, NeveError
from neve.stream_manager import records as r
from neve.stream_manager.state import State

log = logging.getLogger(__name__)

PAUSE_S = 0.5
PAGE_KEYS = 5000

# What a state is made of. Locks, replay records and the rest of the root are others' business.
KINDS = (r.EXTENTS, r.NAMES, r.NODES, r.QUOTAS, r.TASKS, r.SETTINGS, r.STREAMS)


def kind_ranges(root: bytes) -> list[KeyRange]:
    return [KeyRange.prefix(root + kind) for kind in KINDS]


async def load_state(store: MetaStore, root: bytes) -> State:
    """Everything at one revision, read linearizably with the first page."""
    state = State(root)
    revision = 0
    for keys in kind_ranges(root):
        async for page in store.range_pages(keys, page_keys=PAGE_KEYS, revision=revision):
            revision = page.revision
            state.load(page.kvs, revision)
    return state


class Follower:
    def __init__(self, store: MetaStore, root: bytes) -> None:
        self._store = store
        self._root = root
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.state: State | None = None  # None until the first listing is complete

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

    async def at(self, revision_min: int, *, deadline_s: float) -> State:
        """The state, once it is at least of this revision; `MetaUnavailable` if it is not in time."""
        while self.state is None or self.state.revision < revision_min:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((revision_min, waiter))
            try:
                async with asyncio.timeout_at(deadline_s):
                    await waiter
            except TimeoutError:
                known = self.state.revision if self.state is not None else 0
                detail = f"this manager has heard of revision {known}, {revision_min} is wanted"
                raise MetaUnavailable(detail=detail) from None
            if self._task is None and self.state is None:
                raise MetaUnavailable(detail="this manager has stopped following: ask again")
        return self.state

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
        state = await load_state(self._store, self._root)
        log.info("follower_loaded revision=%d streams=%d", state.revision, len(state.streams))
        self._publish(state)
        keys = KeyRange.prefix(self._root)
        async with self._store.watch(keys, start_revision=state.revision + 1) as watch:
            async for item in watch:
                if isinstance(item, Resync):
                    state = State(self._root)
                    state.load(self._own(item.kvs), item.revision)
                    log.warning("follower_resynced revision=%d", item.revision)
                else:
                    for event in item.events:
                        if event.kind is EventKind.PUT:
                            state.put_key(event.kv)
                        else:
                            state.delete_key(event.kv.key)
                    state.revision = item.revision
                self._publish(state)

    def _own(self, kvs: Iterable[KeyValue]) -> Iterable[KeyValue]:
        return (kv for kv in kvs if kv.key.startswith(self._root))

    def _publish(self, state: State) -> None:
        self.state = state
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        """Those whose revision has come; all of them when there is no state to wait for."""
        state, waiting = self.state, self._waiting
        self._waiting = []
        for revision, waiter in waiting:
            if waiter.done():
                continue
            if state is None or state.revision >= revision:
                waiter.set_result(None)
            else:
                self._waiting.append((revision, waiter))
