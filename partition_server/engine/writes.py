"""Writes of a partition: puts, deletes and batches. Decides, appends one log record, applies it when acknowledged.

    enter: a repeated call? ─→ room ─→ decide and submit, no await between ─→ acknowledged ─→ memtable ─→ answer

Invariants: one write is one log record, and seqs are in log order;
            a condition is checked against the newest state with pending writes. The answer, also a refusal, waits until
            the writes that it rests on are acknowledged;
            a large value is in the log before the record that names it;
            a write that the log did not acknowledge raises AppendOutcomeUnknown and ends the partition: the next load
            finds out whether it exists.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from neve.client.streams.types import Position
from neve.partition_server.engine.entry import GONE, PUT, Entry, Part, Parts
from neve.partition_server.engine.lookups import Lookups
from neve.partition_server.engine.memtable import Memtable
from neve.partition_server.engine.operations import (
    ANYTHING,
    Operation,
    check_size,
    check_ttl,
    check_value,
    expanded,
)
from neve.partition_server.engine.shared import Store
from neve.partition_server.engine.write import Outcome, Write
from neve.partition_server.log import log_format
from neve.partition_server.log.log_format import BatchDelete, BatchPut, Caller
from neve.proto.crc import Buffer, crc32c
from neve.proto.errors import (
    AppendOutcomeUnknown,
    Cancelled,
    ConditionFailed,
    Internal,
    InvalidArgument,
    NeveError,
    Overloaded,
)

log = logging.getLogger(__name__)

BATCH_OPERATIONS_MAX = 10_000


class Writes:
    def __init__(self, store: Store, lookups: Lookups) -> None:
        self._store = store
        self._lookups = lookups
        self._loop = store.loop

    # --- calls -----------------------------------------------------------------------------------------------

    def start_put(
        self, key: bytes, value: Buffer, *, expected: int | None, ttl_ms: int, caller: Caller
    ) -> asyncio.Future[Outcome]:
        """Submit a put before returning. A plain put, as most are, needs no task."""
        store = self._store
        store.check_key(key)
        store.check_writable()
        check_value(value)
        check_ttl(ttl_ms)
        write, is_new = store.sessions.enter(caller, store.wall_ms())
        future = write.wait(self._loop)
        if not is_new:
            return future
        if expected is ANYTHING and len(value) <= store.part_bytes and not store.must_wait():
            try:
                self._submit_put(write, key, value, ttl_ms)
                return future
            except Overloaded:
                pass  # the writer is full: a task waits for it
            except Exception as error:  # noqa: BLE001 - raised to the callers, and logged
                self._give_up(write, self._caller_error(error))
                return future
        task = self._loop.create_task(self._run(write, self._put, key, value, expected, ttl_ms))
        future.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)
        task.add_done_callback(functools.partial(self._on_task_done, write))
        return future

    async def delete(self, key: bytes, *, expected: int | None, caller: Caller) -> bool:
        """Delete an object; returns whether it existed."""
        store = self._store
        store.check_key(key)
        store.check_writable()
        write, is_new = store.sessions.enter(caller, store.wall_ms())
        future = write.wait(self._loop)
        if is_new:
            await self._run(write, self._delete, key, expected)
        return bool(await future)

    async def batch(self, operations: Sequence[Operation], *, caller: Caller) -> Outcome:
        store = self._store
        if not 0 < len(operations) <= BATCH_OPERATIONS_MAX:
            detail = f"{len(operations)}, at least 1 and at most {BATCH_OPERATIONS_MAX}"
            raise InvalidArgument(what="operations", detail=detail)
        for each in operations:
            store.check_key(each.key)
            if each.value is not None:
                check_value(each.value)
            check_ttl(each.ttl_ms)
        check_size("batch", sum(len(each.value) for each in operations if each.value is not None))
        store.check_writable()
        write, is_new = store.sessions.enter(caller, store.wall_ms())
        future = write.wait(self._loop)
        if is_new:
            await self._run(write, self._batch, operations)
        return expanded(await future, operations)

    async def put_parts(
        self, key: bytes, parts: Parts, *, expected: int | None, ttl_ms: int, crc: int, size_bytes: int, caller: Caller
    ) -> Outcome:
        """Put an object whose value is already in the log."""
        store = self._store
        store.check_key(key)
        store.check_writable()
        write, is_new = store.sessions.enter(caller, store.wall_ms())
        future = write.wait(self._loop)
        if not is_new:
            return await future
        store.pins.add(part.extent_id for part in parts)  # keeps the parts if the upload ends meanwhile
        try:
            await self._run(write, self._name_parts, key, parts, expected, ttl_ms, crc, size_bytes)
            return await future
        finally:
            self.release_parts(write, parts)

    async def move(self, entry: Entry, value: Buffer | Parts) -> bool:
        """Move an object's value, acknowledged on return. False if the value is no longer the newest."""
        write = Write(log_format.NOBODY)
        parts = value if isinstance(value, tuple) else ()
        self._store.pins.add(part.extent_id for part in parts)  # until the write is settled, even without its caller
        try:
            while True:
                await self._store.until_room()
                newest = (await self._lookups.current([entry.key]))[entry.key]
                if newest is None or newest.kind != PUT or newest.seq != entry.seq:
                    return False
                record, moved = log_format.encode_move(entry, value, seq=self._store.seq + 1)
                if await self._submitted(write, record, [moved], ()):
                    await write.wait(self._loop)
                    return True
        finally:
            self.release_parts(write, parts)

    # --- decide and submit -----------------------------------------------------------------------------------

    async def _run(self, write: Write, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Do the work of a new write. A failure before its submission has no effect."""
        try:
            await work(write, *arguments)
        except Exception as error:
            self._give_up(write, self._caller_error(error))
            raise
        except asyncio.CancelledError:
            self._give_up(write, Cancelled(detail="its caller went away"))
            raise

    def _on_task_done(self, write: Write, task: asyncio.Task[None]) -> None:
        """Callers already have the task's error, unless it was cancelled before its first step."""
        if task.cancelled():
            self._give_up(write, Cancelled(detail="its caller went away"))
        else:
            task.exception()  # seen

    def _caller_error(self, error: Exception) -> NeveError:
        """Return the error for callers. A bug fails only the write that met it, and leaves no call pending."""
        if isinstance(error, NeveError):
            return error
        log.error("write_failed partition_id=%d", self._store.partition_id, exc_info=error)
        return Internal(detail=f"{type(error).__name__}: {error}")

    def _give_up(self, write: Write, error: NeveError) -> None:
        if write.memtable is None:  # otherwise its record is submitted, and stays
            if isinstance(error, ConditionFailed):
                self._store.sessions.refused(write, error)
            else:
                self._store.sessions.leave(write)
            write.finish(error)

    async def _put(self, write: Write, key: bytes, value: Buffer, expected: int | None, ttl_ms: int) -> None:
        if len(value) > self._store.part_bytes:
            parts = await self.write_parts(key, value, upload_id=0, offset=0)
            try:
                await self._name_parts(write, key, parts, expected, ttl_ms, crc32c(value), len(value))
            finally:
                self.release_parts(write, parts)
            return
        while True:
            await self._store.until_room()
            if expected is not ANYTHING:
                await self._expect(write, key, expected)
            try:
                self._submit_put(write, key, value, ttl_ms)
                return
            except Overloaded:
                await self._store.log_ready(len(value) + log_format.HEADER_BYTES + len(key))

    def _submit_put(self, write: Write, key: bytes, value: Buffer, ttl_ms: int) -> None:
        store = self._store
        now_ms = store.wall_ms()
        record, entry = log_format.encode_put(
            key,
            value,
            seq=store.seq + 1,
            caller=write.caller,
            modified_ms=now_ms,
            expires_ms=now_ms + ttl_ms if ttl_ms else 0,
            crc=crc32c(value),
        )
        self._submit(write, record, [entry], (entry.info(),))
        store.counters.bytes_written += entry.size_bytes

    async def _name_parts(
        self, write: Write, key: bytes, parts: Parts, expected: int | None, ttl_ms: int, crc: int, size_bytes: int
    ) -> None:
        store = self._store
        while True:
            await store.until_room()
            if expected is not ANYTHING:
                await self._expect(write, key, expected)
            now_ms = store.wall_ms()
            record, entry = log_format.encode_put_parts(
                key,
                parts,
                seq=store.seq + 1,
                caller=write.caller,
                modified_ms=now_ms,
                expires_ms=now_ms + ttl_ms if ttl_ms else 0,
                crc=crc,
                size_bytes=size_bytes,
            )
            if await self._submitted(write, record, [entry], (entry.info(),)):
                store.counters.bytes_written += size_bytes
                return

    async def _delete(self, write: Write, key: bytes, expected: int | None) -> None:
        store = self._store
        while True:
            await store.until_room()
            found = (await self._lookups.current([key]))[key]
            now_ms = store.wall_ms()
            if expected is not ANYTHING:
                await self._check(found, expected, now_ms)
            if found is None or not found.exists(now_ms):  # nothing to log
                await self._rest_on(found)
                store.ensure_owner()
                store.sessions.refused(write, None)
                write.finish()
                return
            write.rests_on = [found.write] if found.write is not None else []
            record, entry = log_format.encode_delete(key, seq=store.seq + 1, caller=write.caller, modified_ms=now_ms)
            if await self._submitted(write, record, [entry], (GONE,)):
                return

    async def _batch(self, write: Write, operations: Sequence[Operation]) -> None:
        """Conditions refer to the state before the batch."""
        store = self._store
        pinned: list[Part] = []
        conditions = [(each.key, each.expected) for each in operations if each.expected is not ANYTHING]
        try:
            prepared = await self._prepare_batch(operations, pinned)
            while True:
                await store.until_room()
                current = await self._lookups.current({key for key, _ in conditions})
                now_ms = store.wall_ms()
                for key, expected in conditions:
                    assert expected is not None
                    await self._check(current[key], expected, now_ms)
                write.rests_on = [found.write for found in current.values() if found is not None and found.write]
                timed = [
                    replace(each, expires_ms=now_ms + each.expires_ms)
                    if isinstance(each, BatchPut) and each.expires_ms
                    else each
                    for each in prepared
                ]
                record, entries = log_format.encode_batch(
                    timed, seq=store.seq + 1, caller=write.caller, modified_ms=now_ms
                )
                outcome = tuple(entry.info() if entry.kind == PUT else GONE for entry in entries)
                if await self._submitted(write, record, entries, outcome):
                    store.counters.bytes_written += sum(entry.size_bytes for entry in entries)
                    return
        finally:
            self.release_parts(write, tuple(pinned))

    async def _prepare_batch(self, operations: Sequence[Operation], pinned: list[Part]) -> list[BatchPut | BatchDelete]:
        """Prepare the operations with their checksums. `expires_ms` is still a time to live.

        In a large batch, large values are written ahead in parts, which are added to `pinned` even after a failure.
        """
        store = self._store
        total_bytes = sum(len(each.value) for each in operations if each.value is not None)
        fits = total_bytes + sum(len(each.key) + log_format.OPERATION_BYTES for each in operations) <= store.part_bytes
        inline_max = store.part_bytes if fits else store.config.value_threshold_bytes
        prepared: list[BatchPut | BatchDelete] = []
        for each in operations:
            if each.value is None:
                prepared.append(BatchDelete(each.key))
                continue
            value: Buffer | Parts = each.value
            if len(each.value) > inline_max:
                parts = await self.write_parts(each.key, each.value, upload_id=0, offset=0)
                pinned += parts
                value = parts
            prepared.append(BatchPut(each.key, value, each.ttl_ms, crc32c(each.value), len(each.value)))
        return prepared

    # --- conditions ------------------------------------------------------------------------------------------

    async def _expect(self, write: Write, key: bytes, expected: int) -> None:
        """Raise ConditionFailed unless the key is as expected. Does not await if it is."""
        found = (await self._lookups.current([key]))[key]
        await self._check(found, expected, self._store.wall_ms())
        write.rests_on = [found.write] if found is not None and found.write is not None else []

    async def _check(self, found: Entry | None, expected: int, now_ms: int) -> None:
        version = found.version if found is not None and found.exists(now_ms) else 0
        if version == expected:
            return
        await self._rest_on(found)
        self._store.ensure_owner()
        raise ConditionFailed(version=version)

    async def _rest_on(self, found: Entry | None) -> None:
        """A refusal reveals what was found, so wait until that is acknowledged."""
        if found is not None and found.write is not None:
            await found.write.wait(self._loop)

    # --- the log ---------------------------------------------------------------------------------------------

    async def _submitted(self, write: Write, record: bytes, entries: list[Entry], outcome: Outcome) -> bool:
        """Submit the write. False if the writer was full: after waiting for room, the caller decides again."""
        try:
            self._submit(write, record, entries, outcome)
        except Overloaded:
            self._store.check_writable()
            await self._store.log_ready(len(record))
            return False
        return True

    def _submit(self, write: Write, record: bytes, entries: list[Entry], outcome: Outcome) -> None:
        """Append to the log and mark as pending. Overloaded, without any effect, if the writer is full."""
        store = self._store
        store.check_writable()
        try:
            future = store.streams.log.submit(record)
        except Overloaded:
            raise
        except NeveError as error:
            raise store.log_refused(error) from error
        store.seq = entries[-1].seq
        memtable = store.view.memtables[0]
        memtable.pending += 1
        write.memtable = memtable
        write.entries = entries
        write.outcome = outcome
        pending = store.pending
        for entry in entries:
            entry.write = write
            pending[entry.key] = entry
        store.counters.writes += len(entries)
        future.add_done_callback(functools.partial(self._on_logged, write))

    def _on_logged(self, write: Write, future: asyncio.Future[Position]) -> None:
        store = self._store
        memtable = write.memtable
        assert memtable is not None
        memtable.pending -= 1
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            store.sessions.leave(write)
            write.finish(AppendOutcomeUnknown(detail=str(error)))
            store.fail(error if isinstance(error, NeveError) else AppendOutcomeUnknown(detail=str(error)))
            return
        position = future.result()
        store.applied = applied = store.applied + 1
        pending = store.pending
        grown_bytes = 0
        memtable.note_record(write.entries[-1].seq, position)
        for entry in write.entries:
            entry.write = None
            grown_bytes += memtable.apply(entry, position, applied, snapshot_applied=store.snapshot_applied)
            if pending.get(entry.key) is entry:
                del pending[entry.key]
        store.share.add(grown_bytes)
        store.sessions.acknowledged(write)
        if not write.rests_on:
            write.finish()
        else:
            self._finish_on_ground(write)
        if memtable.closed or memtable.is_full(store.config):
            store.work.set()

    def _finish_on_ground(self, write: Write, _: object = None) -> None:
        """The write is acknowledged: answer it when all writes that it rests on are."""
        for ground in write.rests_on:
            if not ground.done:
                ground.wait(self._loop).add_done_callback(functools.partial(self._finish_on_ground, write))
                return
            if ground.error is not None:
                write.finish(AppendOutcomeUnknown(detail=str(ground.error)))
                return
        write.finish()

    # --- values in parts -------------------------------------------------------------------------------------

    async def write_parts(self, key: bytes, value: Buffer, *, upload_id: int, offset: int) -> Parts:
        """Append the value in parts and return their places. Each is pinned until `release_parts`."""
        store = self._store
        view = memoryview(value)
        step = store.part_bytes
        pending: list[tuple[asyncio.Future[Position], int, int]] = []
        try:
            for at in range(0, len(view), step):
                piece = view[at : at + step]
                record, value_at = log_format.encode_part(key, piece, upload_id=upload_id, offset=offset + at)
                future = None
                while future is None:
                    await store.until_room()
                    try:
                        future = store.streams.log.submit(record)
                    except Overloaded:
                        await store.log_ready(len(record))
                    except NeveError as error:
                        raise store.log_refused(error) from error
                memtable = store.view.memtables[0]
                memtable.pending += 1  # prevents its flush, and a cut of the log, until this is acknowledged
                # A future of its own: the log's future may be done, and this coroutine resume, before the callback has
                # pinned the extent. A pin was once removed before it was added.
                pinned: asyncio.Future[Position] = self._loop.create_future()
                future.add_done_callback(functools.partial(self._on_part_logged, memtable, pinned))
                pending.append((pinned, value_at, len(piece)))
            for future, _, _ in pending:
                await asyncio.shield(future)
        except BaseException:
            for future, _, _ in pending:
                future.add_done_callback(self._unpin)
            raise
        return tuple(Part(*future.result(), value_at, length) for future, value_at, length in pending)

    def _on_part_logged(
        self, memtable: Memtable, pinned: asyncio.Future[Position], future: asyncio.Future[Position]
    ) -> None:
        store = self._store
        memtable.pending -= 1
        error = future.exception()
        if error is not None:
            store.fail(error if isinstance(error, NeveError) else AppendOutcomeUnknown(detail=str(error)))
            pinned.set_exception(error)
            pinned.exception()  # marks it as seen, since its waiter may be gone
        else:
            store.pins.add([future.result().extent_id])
            pinned.set_result(future.result())
        if memtable.closed:
            store.work.set()

    def _unpin(self, future: asyncio.Future[Position]) -> None:
        if future.exception() is None:
            self._store.pins.remove([future.result().extent_id])

    def release_parts(self, write: Write | None, parts: Parts) -> None:
        """Unpin the parts when the write is settled: then the memtable refers to them, or the write has failed."""

        def release(_: object = None) -> None:
            self._store.pins.remove(part.extent_id for part in parts)

        if not parts:
            return
        if write is None or write.done or write.memtable is None:
            release()
        else:
            write.wait(self._loop).add_done_callback(release)
