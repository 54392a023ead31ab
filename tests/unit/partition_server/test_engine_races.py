"""What a partition does at the same time: tables that are committed while extents are given back, tables merged while
partitions are merged, uploads that are aborted while they become objects, an owner that is none any more.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from neve.client.streams.writer import Writer
from neve.partition_server.engine.engine import Operation, Partition
from neve.partition_server.engine.entry import Entry
from neve.partition_server.engine.memory import MemoryBudget
from neve.partition_server.engine.writes import Writes
from neve.partition_server.tables.committer import Committer
from neve.proto import partition_server_pb2 as ps
from neve.proto.crc import crc32c
from neve.proto.errors import AppendOutcomeUnknown, Internal, NeveError, NotFound, NotOwner, WrongServer
from tests.unit.partition_server.rig import CONFIG, PartitionRig, call, on_cluster
from tests.unit.partition_server.test_engine_tables import contents, fill

QUIET = dataclasses.replace(CONFIG, maintenance_s=10_000.0)


class Gate:
    """Holds a coroutine function's calls until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        original: Callable[..., Coroutine[Any, Any, Any]] = getattr(type(owner), name)

        async def held(*arguments: Any, **how: Any) -> Any:
            self.reached.set()
            await self.open.wait()
            return await original(owner, *arguments, **how)

        monkeypatch.setattr(owner, name, held)


class LateCommitter:
    """Makes changes when it is told to."""

    def __init__(self, committer: Committer, go: asyncio.Event) -> None:
        self._committer = committer
        self._go = go
        self.idle = committer.idle

    async def commit(self, **change: Any) -> Any:
        await self._go.wait()
        return await self._committer.commit(**change)


@pytest.mark.parametrize("caller_goes_away", [False, True])
def test_a_flushed_table_keeps_its_extents_until_its_manifest_is_acknowledged(caller_goes_away: bool) -> None:
    @on_cluster(extent_bytes=12_000)
    async def story(rig: PartitionRig) -> None:
        config = dataclasses.replace(QUIET, value_threshold_bytes=1000, memtable_bytes=1_000_000)
        region = await rig.create()
        partition = await rig.load(region, config=config)
        expected = await fill(partition, range(200))
        with pytest.MonkeyPatch.context() as monkeypatch:
            gate = Gate(monkeypatch, partition._store.streams.meta, "append")
            flushing = asyncio.ensure_future(partition.flush())
            await gate.reached.wait()
            if caller_goes_away:
                flushing.cancel()
                await asyncio.gather(flushing, return_exceptions=True)
            await partition._reclaimer._tidy_row()
            gate.open.set()
            if not caller_goes_away:
                await flushing
        await partition.flush()
        (table,) = partition._store.view.tables
        assert len(table.row_extents) > 2
        assert partition._store.share.used_bytes == 0
        assert await contents(await rig.crash_and_load(region, config=config)) == expected

    story()


def test_a_manifest_that_fails_after_its_caller_has_gone_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    unseen: list[dict[str, Any]] = []

    @on_cluster()
    async def story(rig: PartitionRig) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        partition = await rig.load(await rig.create())
        await fill(partition, range(3))
        with pytest.MonkeyPatch.context() as monkeypatch:
            reached, go = asyncio.Event(), asyncio.Event()

            async def fail(_: bytes) -> Any:
                reached.set()
                await go.wait()
                raise AppendOutcomeUnknown(detail="the writer has ended")

            monkeypatch.setattr(partition._store.streams.meta, "append", fail)
            flushing = asyncio.ensure_future(partition.flush())
            await reached.wait()
            flushing.cancel()
            await asyncio.gather(flushing, return_exceptions=True)
            go.set()
            await asyncio.sleep(1)
            gc.collect()

    with caplog.at_level(logging.INFO):
        story()
    assert unseen == []
    assert [record.message.split()[0] for record in caplog.records].count("manifest_not_written") == 1


@on_cluster(extent_bytes=12_000)
async def test_tables_merged_while_partitions_are_merged_do_not_take_away_what_the_merge_is_told(
    rig: PartitionRig,
) -> None:
    config = dataclasses.replace(QUIET, value_threshold_bytes=1000)
    region = await rig.create()
    partition = await rig.load(region, config=config)
    expected = await fill(partition, range(200))
    await partition.flush()
    expected |= await fill(partition, range(0, 200, 2), mark=b"new")
    await partition.flush()
    left, right = await rig.split(region, b"k0100")
    partition = await rig.load(left, config=config)
    await rig.load(right, config=config)
    with pytest.MonkeyPatch.context() as monkeypatch:
        log = Gate(monkeypatch, partition._store.streams.log, "freeze")  # asked for behind the last manifest
        late = LateCommitter(partition._committer, log.reached)
        monkeypatch.setattr(partition._compactor, "_committer", late)
        compacting = asyncio.ensure_future(partition.compact(full=True))
        merging = asyncio.ensure_future(rig.merge(left, right))
        await log.reached.wait()
        await asyncio.wait([compacting])
        log.open.set()
        merged = await merging
    assert isinstance(compacting.exception(), NeveError)
    assert await contents(await rig.load(merged, config=config)) == expected


@on_cluster(extent_bytes=12_000)
async def test_an_upload_aborted_while_it_becomes_an_object_keeps_the_values_extents(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region, config=QUIET)
    value = b"x" * 11_000
    caller = call(5, 1)
    upload_id = await partition.begin_upload(b"large", call=caller)
    await partition.upload_part(upload_id, b"large", offset=0, payload=value)
    await fill(partition, range(20))
    await partition.flush()
    (upload,) = partition._uploads._uploads.values()
    needed = {part.extent_id for part in upload.parts}
    with pytest.MonkeyPatch.context() as monkeypatch:
        gate = Gate(monkeypatch, partition._store, "until_room")
        completing = asyncio.ensure_future(
            partition.complete_upload(upload_id, b"large", size_bytes=11_000, value_crc32c=crc32c(value), call=caller)
        )
        await gate.reached.wait()
        await partition.abort_upload(upload_id, b"large")
        await partition._reclaimer.tidy()
        gate.open.set()
        await completing
    assert needed <= set(await rig.stream_extents(region.log_stream_id))
    _, pieces = await partition.get(b"large")
    assert b"".join(pieces) == value
    await partition.flush()
    assert not len(partition._store.pins)


@on_cluster()
async def test_a_batch_whose_caller_goes_away_between_two_large_values_pins_nothing(rig: PartitionRig) -> None:
    """Short story 31 of the larger world: the first value's extents would never have been given back."""
    partition = await rig.load(await rig.create(), config=QUIET)
    write_parts = partition._writes.write_parts
    second = asyncio.Event()

    async def held(key: bytes, *arguments: Any, **how: Any) -> Any:
        if key == b"b":
            second.set()
            await asyncio.Event().wait()
        return await write_parts(key, *arguments, **how)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(partition._writes, "write_parts", held)
        operations = [Operation(key, key * 5000, None, 0) for key in (b"a", b"b")]
        batch = asyncio.ensure_future(partition.batch(operations, call=call(5, 1)))
        await second.wait()
        assert len(partition._store.pins)
        batch.cancel()
        await asyncio.gather(batch, return_exceptions=True)
    assert not len(partition._store.pins)


@pytest.mark.parametrize("size_bytes", [50, 900])
def test_t11_an_owner_whose_extents_were_given_back_by_the_next_one_calls_no_object_absent(size_bytes: int) -> None:
    """A value in a table, and one in the log."""

    @on_cluster()
    async def story(rig: PartitionRig) -> None:
        region = await rig.create()
        partition = await rig.load(region, config=QUIET)
        await partition.put(b"key", b"v" * size_bytes)
        await partition.flush()
        store = partition._store

        async def gone(*_: object, **__: object) -> None:
            raise NotFound(kind="extent", name="7")

        async def ask(owner: Partition) -> NeveError:
            outcomes = await asyncio.gather(owner.get(b"key"), return_exceptions=True)
            assert isinstance(outcomes[0], NeveError), outcomes
            return outcomes[0]

        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(store.streams.client, "read_record", gone)
            store.cache._blocks.clear()
            assert isinstance(await ask(partition), Internal), "it is ours: that is damage"

            def lost() -> None:
                raise NotOwner(detail="somebody else has it")

            monkeypatch.setattr(store, "streams", dataclasses.replace(store.streams, ensure_owner=lost))
            assert isinstance(await ask(partition), WrongServer)

    story()


def test_what_ends_after_its_partition_has_left_changes_no_budget() -> None:
    budget = MemoryBudget(1000)
    gone, other = budget.share(), budget.share()
    gone.add(300)
    other.add(100)
    gone.leave()
    gone.add(50)  # acknowledged late
    gone.remove(300)  # flushed late
    assert budget.used_bytes == other.used_bytes == 100


@on_cluster()
async def test_a_closed_partition_keeps_no_entry_and_calls_no_object_absent(rig: PartitionRig) -> None:
    """Its memory goes at once, by itself: not when somebody looks for cycles."""
    region = await rig.create()
    partition = await rig.load(region)
    await asyncio.gather(*(partition.put(b"k%03d" % number, b"x" * 100) for number in range(50)))
    kept = list(partition._store.view.memtables)
    pages = await partition.scan(limit=3)
    gc.disable()
    try:
        reading = [asyncio.ensure_future(partition.get(b"k%03d" % number)) for number in range(50)]
        scanning = asyncio.ensure_future(partition.scan(limit=3, continuation=pages.continuation))
        closing = asyncio.ensure_future(rig.run(region, partition.close()))
        outcomes = await asyncio.gather(*reading, scanning, return_exceptions=True)
        await closing
        assert not any(isinstance(outcome, NotFound) for outcome in outcomes)
        assert not any(memtable.entries for memtable in kept)
        assert not partition._store.pending
        assert not len(partition._store.sessions)
        for read in (partition.get(b"k001"), partition.head(b"k001"), partition.scan(limit=1)):
            with pytest.raises(WrongServer):
                await read
    finally:
        gc.enable()


async def uploaded(partition: Partition) -> None:
    upload_id = await partition.begin_upload(b"new")
    await partition.upload_part(upload_id, b"new", offset=0, payload=b"part")


ASKED: dict[str, Callable[[Partition], Coroutine[Any, Any, Any]]] = {
    "get": lambda partition: partition.get(b"key"),
    "get of a key that is not there": lambda partition: partition.get(b"absent"),
    "head": lambda partition: partition.head(b"key"),
    "scan": lambda partition: partition.scan(limit=1),
    "put": lambda partition: partition.put(b"key", b"again"),
    "put in parts": lambda partition: partition.put(b"key", b"x" * 5000),
    "put on a condition": lambda partition: partition.put(b"key", b"again", condition=ps.Condition(absent=True)),
    "delete": lambda partition: partition.delete(b"key"),
    "delete of a key that is not there": lambda partition: partition.delete(b"absent"),
    "batch": lambda partition: partition.batch([Operation(b"key", b"again")]),
    "upload": uploaded,
}


@pytest.mark.parametrize("ending", ["its lease is lost", "it was closed"])
@pytest.mark.parametrize("asked", ASKED)
def test_callers_of_a_partition_that_has_ended_are_told_to_ask_elsewhere(asked: str, ending: str) -> None:
    """`LeaseLost` is about a lease of the server's, and would tell its callers to stop; `ShuttingDown` is about a
    server, and this one goes on. If no other server answers in time, a user of the client sees this error (stories
    753453766 and 753454019 of the larger world)."""

    @on_cluster()
    async def story(rig: PartitionRig) -> None:
        region = await rig.create()
        partition = await rig.load(region, config=QUIET)
        await partition.put(b"key", b"value")
        if ending == "its lease is lost":
            rig.loaded[region.partition_id].group.lock.lease.abandon("its time to live has passed")
        else:
            await rig.run(region, partition.close())
        for _ in range(2):  # the first call may be the one that notices
            with pytest.raises(WrongServer, match=f"partition {region.partition_id} has ended here") as told:
                await ASKED[asked](partition)
            assert told.value.partition_id == region.partition_id
            assert told.value.retriable
            assert not told.value.outcome_unknown

    story()


# --- scans and what is put meanwhile -------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "old_count", "new_count"), [(5, 50, 40), (1000, 600, 2300)])
def test_t51_keys_that_are_put_during_a_scan_hide_none_of_those_behind_them(
    limit: int, old_count: int, new_count: int
) -> None:
    @on_cluster()
    async def story(rig: PartitionRig) -> None:
        config = dataclasses.replace(QUIET, memtable_bytes=1 << 24, memtable_records=10**6)
        partition = await rig.load(await rig.create(), config=config, memory_bytes=1 << 28)
        old = [b"a%04d" % number for number in range(limit)] + [b"z%04d" % number for number in range(old_count)]
        await asyncio.gather(*(partition.put(key, b"old") for key in old))
        page = await partition.scan(limit=limit)
        found = [info.key for info in page.infos]
        for first in range(0, new_count, 100):
            news = [b"z0000m%04d" % number for number in range(first, min(first + 100, new_count))]
            await asyncio.gather(*(partition.put(key, b"new") for key in news))
        while page.continuation:
            page = await partition.scan(limit=limit, continuation=page.continuation)
            found += [info.key for info in page.infos]
        assert found == old

    story()


# --- uploads that end while extents are given back -----------------------------------------------------------


@on_cluster(extent_bytes=12_000)
async def test_t40_an_upload_that_becomes_a_table_while_its_extent_is_emptied_keeps_it(rig: PartitionRig) -> None:
    region = await rig.create()
    config = dataclasses.replace(QUIET, memtable_bytes=1 << 20)
    partition = await rig.load(region, config=config)
    value = b"x" * 3_000
    upload_id = await partition.begin_upload(b"large", call=call(5, 1))
    await partition.upload_part(upload_id, b"large", offset=0, payload=value)
    (first, *_) = await rig.stream_extents(region.log_stream_id)
    for number in range(20):
        await partition.put(b"k%d" % number, bytes([number]) * 900)
    await partition.flush()
    move, completed = Writes.move, False

    async def complete() -> None:
        nonlocal completed
        completed = True
        await partition.complete_upload(
            upload_id, b"large", size_bytes=len(value), value_crc32c=crc32c(value), call=call(5, 1)
        )
        await partition.flush()

    async def move_slowly(self: Writes, entry: Entry, payload: Any) -> Any:
        if not completed:
            await complete()
        return await move(self, entry, payload)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writes, "move", move_slowly)
        await partition.reclaim([first])
    if not completed:
        await complete()
    partition = await rig.crash_and_load(region, config=config)
    _, pieces = await partition.get(b"large")
    assert b"".join(pieces) == value


# --- the end, in the turn in which the background was woken --------------------------------------------------


@pytest.mark.parametrize("how", ["freeze", "close"])
def test_a_partition_ends_right_after_the_put_that_filled_its_memtable(how: str) -> None:
    @on_cluster()
    async def story(rig: PartitionRig) -> None:
        config = dataclasses.replace(CONFIG, memtable_bytes=2_000, memtables_closed_max=5)
        partition = await rig.load(await rig.create(), config=config, memory_bytes=1 << 24)
        await asyncio.sleep(5)  # the background waits for work
        await partition.put(b"k", b"x" * 1_400)
        await partition.put(b"k2", b"x" * 1_400)
        ended = asyncio.ensure_future(getattr(partition, how)())
        done, _ = await asyncio.wait([ended], timeout=3600)
        assert done, f"{how} has not ended in an hour"
        ended.result()

    story()


@on_cluster(extent_bytes=12_000)
async def test_a_partition_that_is_closed_while_extents_are_given_back_keeps_what_lives_in_them(
    rig: PartitionRig,
) -> None:
    """A closed partition has let its tables go: it must not take that for a log in which nothing lives (T40)."""
    region = await rig.create()
    partition = await rig.load(region, config=QUIET)
    expected = await fill(partition, range(100))
    await partition.flush()
    before = await rig.stream_extents(region.log_stream_id)
    with pytest.MonkeyPatch.context() as monkeypatch:
        gate = Gate(monkeypatch, partition._lookups, "current")
        reclaiming = asyncio.ensure_future(partition.reclaim(before[:2]))
        await gate.reached.wait()
        await partition.close()
        gate.open.set()
        await asyncio.wait([reclaiming])
    assert isinstance(reclaiming.exception(), WrongServer)
    assert await rig.stream_extents(region.log_stream_id) == before
    assert await contents(await rig.crash_and_load(region, config=QUIET)) == expected


@on_cluster(extent_bytes=12_000)
async def test_a_partition_that_is_closed_while_tables_are_merged_writes_no_manifest(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region, config=QUIET)
    expected = await fill(partition, range(100))
    await partition.flush()
    expected |= await fill(partition, range(50, 150))
    with pytest.MonkeyPatch.context() as monkeypatch:
        gate = Gate(monkeypatch, partition._flusher, "_write")
        compacting = asyncio.ensure_future(partition.compact(full=True))
        await gate.reached.wait()
        await partition.close()
        gate.open.set()
        await asyncio.wait([compacting])
    assert isinstance(compacting.exception(), WrongServer)
    assert await contents(await rig.crash_and_load(region, config=QUIET)) == expected


@on_cluster()
async def test_a_flush_ends_though_somebody_else_flushed_what_came_behind_it(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region, config=QUIET)
    await fill(partition, range(10))
    with pytest.MonkeyPatch.context() as monkeypatch:
        gate = Gate(monkeypatch, partition._flusher, "_flush_one")
        flushing = asyncio.ensure_future(partition.flush())
        await gate.reached.wait()
        expected = await fill(partition, range(10, 20))
        monkeypatch.undo()
        await partition.flush()
        gate.open.set()
        async with asyncio.timeout(10.0):
            await flushing
    assert expected.items() <= (await contents(partition)).items()


@on_cluster()
async def test_a_load_ends_though_all_nodes_restart_while_the_log_is_read(rig: PartitionRig) -> None:
    """Short story 356 of the larger world: they have forgotten how far it may read, after its end was written."""
    region = await rig.create()
    expected = await fill(await rig.load(region, config=QUIET), range(20))
    rig.crash(region)
    append = Writer.append

    async def append_and_restart(writer: Writer, payload: bytes) -> Any:
        position = await append(writer, payload)
        await asyncio.sleep(0.1)  # all of them are told
        for node in rig.cluster.nodes.values():
            node.kill()
            await node.start()
        return position

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "append", append_and_restart)
        async with asyncio.timeout(30.0):
            partition = await rig.load(region, config=QUIET)
    assert await contents(partition) == expected


@on_cluster()
async def test_t40_a_value_that_is_overwritten_while_it_is_read_to_be_moved_stays_so(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region, config=QUIET)
    expected = await fill(partition, range(60))
    await partition.flush()
    extent_id, *_ = await rig.stream_extents(region.log_stream_id)
    moved = Writes.move
    overwritten: set[bytes] = set()

    async def overwrite_first(writes: Writes, entry: Entry, value: Any) -> bool:
        expected[entry.key] = b"new" * 200
        await partition.put(entry.key, expected[entry.key])
        overwritten.add(entry.key)
        return await moved(writes, entry, value)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Writes, "move", overwrite_first)
        await partition.reclaim([extent_id])
    assert overwritten
    assert await contents(partition) == expected
    assert await contents(await rig.crash_and_load(region, config=QUIET)) == expected
