"""The list of the managers and their leader: the candidates of an election, from a watch.

Invariants: the list may be out of date. It says where to send a call and decides nothing (protocol rule 25).
"""

from __future__ import annotations

import asyncio
import logging

from neve.meta.store import EventKind, MetaStore, Resync
from neve.meta.txn import KeyRange, KeyValue
from neve.proto import common_pb2
from neve.proto.errors import NeveError, NotLeader

log = logging.getLogger(__name__)

PAUSE_S = 0.5


class Roster:
    def __init__(self, store: MetaStore, prefix: bytes) -> None:
        self._store = store
        self._keys = KeyRange.prefix(prefix + b"/")
        self._candidates: dict[bytes, KeyValue] = {}

    @property
    def leader(self) -> common_pb2.Leader | None:
        first = min(self._candidates.values(), key=lambda kv: kv.create_revision, default=None)
        if first is None:
            return None
        return common_pb2.Leader(create_revision=first.create_revision, address=first.value.decode(errors="replace"))

    def managers(self) -> list[str]:
        """Wire addresses, the leader's first."""
        ordered = sorted(self._candidates.values(), key=lambda kv: kv.create_revision)
        return list(dict.fromkeys(kv.value.decode(errors="replace") for kv in ordered))

    def not_leader(self, *, own_address: str, detail: str = "") -> NotLeader:
        """The error with the leader's address. Never our own address: the watch may not have reported our end yet."""
        leader = self.leader
        elsewhere = leader.address if leader is not None and leader.address != own_address else ""
        return NotLeader(leader=elsewhere, detail=detail)

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except NeveError as error:
                log.warning("roster_watch_failed error=%s", error)
            await asyncio.sleep(PAUSE_S)

    async def _follow(self) -> None:
        listing = await self._store.range_all(self._keys)
        self._candidates = {kv.key: kv for kv in listing.kvs}
        async with self._store.watch(self._keys, start_revision=listing.revision + 1) as watch:
            async for item in watch:
                if isinstance(item, Resync):
                    self._candidates = {kv.key: kv for kv in item.kvs}
                    continue
                for event in item.events:
                    if event.kind is EventKind.PUT:
                        self._candidates[event.kv.key] = event.kv
                    else:
                        self._candidates.pop(event.kv.key, None)
