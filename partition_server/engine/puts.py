"""Groups of puts without conditions: the steps of writes.py, each taken once for the whole group.

Invariants: as in writes.py: one put is one log record, seqs are in log order, each call is executed once;
            a group is appended as a whole or not at all, and answered when all of it is acknowledged;
            while merges are behind, groups are admitted at the pace of merges (merge_pace.py);
            a group with anything special (a repeated call, no room, a large value) is executed as single puts.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from neve.client.streams.types import Position
from neve.partition_server.engine.config import KEY_BYTES_MAX, TTL_MS_MAX
from neve.partition_server.engine.entry import Info, new_info
from neve.partition_server.engine.operations import ANYTHING
from neve.partition_server.engine.shared import Store
from neve.partition_server.engine.write import PutGroup
from neve.partition_server.engine.writes import Writes
from neve.partition_server.log import log_format
from neve.partition_server.log.log_format import Caller
from neve.proto.crc import Buffer
from neve.proto.errors import AppendOutcomeUnknown, NeveError, Overloaded

Results = Sequence[Info | NeveError]  # one for each put


@dataclass(frozen=True, slots=True)
class Puts:
    """A group of puts, by columns. `ttls_ms` is empty if no put expires; results of call 0 are not remembered."""

    keys: Sequence[bytes]
    values: Sequence[Buffer]
    ttls_ms: Sequence[int]
    client_id: int
    completed_below: int
    call_ids: Sequence[int]


class GroupedPuts:
    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes
        self._loop = store.loop

    def start(self, puts: Puts) -> asyncio.Future[Results]:
        """Submit the puts in order and return. The future gets their results, or the error that ended them all."""
        store = self._store
        store.check_writable()
        if store.is_behind() or store.pace:
            return self._loop.create_task(self._start_later(puts))
        return self._start(puts)

    async def _start_later(self, puts: Puts) -> Results:
        """Submit the puts when merges allow it. By then the partition may be frozen, and the caller must retry."""
        await self._store.pace.wait(len(puts.keys))
        self._store.check_writable()
        return await self._start(puts)

    def _start(self, puts: Puts) -> asyncio.Future[Results]:
        plain = not self._store.must_wait() and all(puts.call_ids) and self._fit(puts)
        if plain and (future := self._submit(puts)) is not None:
            return future
        return self._loop.create_task(self._one_by_one(puts))

    def _fit(self, puts: Puts) -> bool:
        """Whether every key is in range, every value fits one record and every time to live is valid.

        Otherwise each put is executed on its own and gets its own error.
        """
        start, end = self._store.start, self._store.end
        keys = puts.keys
        lowest, highest = min(keys), max(keys)
        return (
            bool(lowest)
            and start <= lowest
            and (not end or highest < end)
            and max(map(len, keys)) <= KEY_BYTES_MAX
            and max(map(len, puts.values)) <= self._store.part_bytes
            and max(puts.ttls_ms, default=0) <= TTL_MS_MAX
        )

    def _submit(self, puts: Puts) -> asyncio.Future[Results] | None:
        """Submit the group. None without any effect, if the writer is full or not all calls are new."""
        store = self._store
        now_ms = store.wall_ms()
        client_id, call_ids = puts.client_id, puts.call_ids
        group = PutGroup(Caller(client_id, 0, puts.completed_below), call_ids if client_id else ())
        if client_id and not store.sessions.enter_group(group, now_ms):
            return None
        try:
            records, entries = log_format.encode_puts(
                puts.keys,
                puts.values,
                seq=store.seq + 1,
                client_id=client_id,
                call_ids=call_ids,
                completed_below=puts.completed_below,
                modified_ms=now_ms,
                ttls_ms=puts.ttls_ms,
            )
            logged = store.streams.log.submit_many(records)
        except Exception as error:  # a bug must not leave calls pending for ever either
            store.sessions.leave_group(group)
            if isinstance(error, Overloaded):
                return None
            if isinstance(error, NeveError):
                raise store.log_refused(error) from error
            raise
        store.seq = entries[-1].seq
        memtable = store.view.memtables[0]
        memtable.pending += 1
        group.memtable = memtable
        group.entries = entries
        pending = store.pending
        size_bytes = 0
        for entry in entries:
            entry.write = group
            pending[entry.key] = entry
            size_bytes += entry.size_bytes
        store.counters.writes += len(entries)
        store.counters.bytes_written += size_bytes
        logged.add_done_callback(functools.partial(self._on_logged, group))
        return group.wait(self._loop)  # type: ignore[return-value]  # infos, or an exception

    def _on_logged(self, group: PutGroup, logged: asyncio.Future[Sequence[Position]]) -> None:
        store = self._store
        memtable = group.memtable
        assert memtable is not None
        memtable.pending -= 1
        error = AppendOutcomeUnknown(detail="cancelled") if logged.cancelled() else logged.exception()
        if error is not None:
            store.sessions.leave_group(group)
            group.finish(AppendOutcomeUnknown(detail=str(error)))
            store.fail(error if isinstance(error, NeveError) else AppendOutcomeUnknown(detail=str(error)))
            return
        store.applied = applied = store.applied + 1
        entries = group.entries
        grown_bytes = memtable.apply_all(entries, logged.result(), applied, snapshot_applied=store.snapshot_applied)
        store.share.add(grown_bytes)
        pending = store.pending
        infos = []
        for entry in entries:
            entry.write = None
            key = entry.key
            if pending.get(key) is entry:
                del pending[key]
            fields = (entry.version, entry.size_bytes, entry.modified_ms, entry.expires_ms, entry.crc)
            infos.append(new_info(Info, fields))
        group.outcome = tuple(infos)
        store.sessions.group_acknowledged(group)
        group.finish()
        if memtable.closed or memtable.is_full(store.config):
            store.work.set()

    async def _one_by_one(self, puts: Puts) -> Results:
        """Submit all puts now, each on its own. Errors are results."""
        started: list[asyncio.Future[tuple[Info, ...]] | NeveError] = []
        for number, key in enumerate(puts.keys):
            call_id = puts.call_ids[number]
            caller = Caller(puts.client_id if call_id else 0, call_id, puts.completed_below)
            ttl_ms = puts.ttls_ms[number] if puts.ttls_ms else 0
            try:
                started.append(
                    self._writes.start_put(key, puts.values[number], expected=ANYTHING, ttl_ms=ttl_ms, caller=caller)
                )
            except NeveError as error:
                started.append(error)
        results: list[Info | NeveError] = []
        for each in started:
            if isinstance(each, NeveError):
                results.append(each)
                continue
            try:
                (info,) = await each
                results.append(info)
            except NeveError as error:
                results.append(error)
        return results
