"""Flushes, merges, splits, moves of values and the giving back of extents: what is stored stays, what is dead goes."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import pytest

from neve.partition_server.engine.engine import Operation, Partition
from neve.partition_server.engine.writes import Writes
from neve.partition_server.log import reclaimer as reclaimer_module
from neve.partition_server.tables import committer as committer_module
from neve.partition_server.tables.table_writer import TableWriter
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.crc import crc32c
from neve.proto.errors import ConditionFailed, InvalidArgument, NeveError, NotFound, Overloaded
from tests.unit.partition_server.rig import CONFIG, PartitionRig, call, on_cluster

SIZES = (10, 150, 250, 900, 4000)


async def fill(partition: Partition, keys: range, *, mark: bytes = b"v") -> dict[bytes, bytes]:
    """Values of all kinds: inline, pointed to, in parts."""
    made = {b"k%04d" % n: random.Random(f"{mark!r} {n}").randbytes(SIZES[n % len(SIZES)]) for n in keys}
    await asyncio.gather(*(partition.put(key, value) for key, value in made.items()))
    return made


async def contents(partition: Partition) -> dict[bytes, bytes]:
    """All that a scan finds, checked against gets."""
    found: dict[bytes, bytes] = {}
    continuation = b""
    while True:
        page = await partition.scan(limit=50, continuation=continuation, with_values=True)
        data = b"".join(page.values)
        for info in page.infos:
            found[info.key], data = data[: info.size_bytes], data[info.size_bytes :]
            assert crc32c(found[info.key]) == info.value_crc32c
        continuation = page.continuation
        if not continuation:
            break
    for key, value in found.items():
        _, pieces = await partition.get(key)
        assert b"".join(pieces) == value
    return found


async def log_and_row(rig: PartitionRig, region: pm.RegionRecord) -> tuple[set[int], set[int]]:
    return (
        set(await rig.stream_extents(region.log_stream_id)),
        set(await rig.stream_extents(region.row_stream_id)),
    )


@on_cluster()
async def test_what_was_flushed_is_read_from_tables_and_the_log_is_cut(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    small = {b"k%04d" % n: b"%d" % n * 20 for n in range(2000)}
    for at in range(0, 2000, 250):
        await asyncio.gather(*(partition.put(key, small[key]) for key in sorted(small)[at : at + 250]))
    await partition.flush()
    state = partition.state()
    assert state.tables >= 1
    assert state.memtable_bytes == 0
    await asyncio.sleep(10)
    extent_ids = await rig.stream_extents(region.log_stream_id)
    assert state.log_replay_from.extent_id in extent_ids
    assert extent_ids.index(partition.state().log_replay_from.extent_id) == 0  # nothing before it is left
    for _ in range(2):
        assert await contents(partition) == small
        partition = await rig.crash_and_load(region)


@on_cluster()
async def test_writes_stall_while_memory_is_full_and_go_on_then(rig: PartitionRig) -> None:
    region = await rig.create()
    config = dataclasses.replace(CONFIG, maintenance_s=5.0, memtables_closed_max=1)
    partition = await rig.load(region, config=config)
    most_bytes = 0
    done = 0

    async def put_many() -> None:
        nonlocal done, most_bytes
        for number in range(400):
            await partition.put(b"k%04d" % number, b"x" * 150)
            done += 1
            most_bytes = max(most_bytes, partition.state().memtable_bytes)

    await asyncio.gather(*(put_many() for _ in range(20)))
    assert done == 8000
    assert most_bytes < 3 * CONFIG.memtable_bytes
    assert len(await contents(partition)) == 400


@on_cluster()
async def test_what_a_load_has_to_replay_is_bounded_also_if_one_key_is_written_again_and_again(
    rig: PartitionRig,
) -> None:
    region = await rig.create()
    config = dataclasses.replace(CONFIG, memtable_records=50, memtables_closed_max=1)
    partition = await rig.load(region, config=config)
    for number in range(230):
        await partition.put(b"key", b"%d" % number)
    await asyncio.sleep(3)
    assert partition.state().tables >= 1
    before = partition.state().log_replay_from
    partition = await rig.crash_and_load(region, config=config)
    assert len(partition._store.view.memtables) <= 2
    assert sum(memtable.records for memtable in partition._store.view.memtables) <= 100
    assert partition.state().log_replay_from == before, "a load flushes nothing while there is memory"
    assert await contents(partition) == {b"key": b"229"}


@on_cluster()
async def test_a_merge_of_all_tables_leaves_no_deleted_and_no_expired_object(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    expected = await fill(partition, range(100))
    await partition.put(b"short", b"lived", ttl_ms=1000)
    await partition.flush()
    for key in list(expected)[::2]:
        assert await partition.delete(key)
        del expected[key]
    await partition.flush()
    assert await contents(partition) == {**expected, b"short": b"lived"}
    await asyncio.sleep(2)
    await partition.compact(full=True)
    state = partition.state()
    assert (state.tables, state.keys) == (1, len(expected))
    for _ in range(2):
        assert await contents(partition) == expected
        partition = await rig.crash_and_load(region)
    for key in expected:
        await partition.delete(key)
    await partition.compact(full=True)
    assert partition.state().tables == 0
    assert await contents(await rig.crash_and_load(region)) == {}


@on_cluster()
async def test_a_delete_hides_older_tables_until_the_merge_that_has_them(rig: PartitionRig) -> None:
    """A merge of some tables must keep deletes that older tables still need."""
    region = await rig.create()
    config = dataclasses.replace(CONFIG, maintenance_s=1000.0, memtable_bytes=1_000_000, tables_max=3, size_ratio=1.0)
    partition = await rig.load(region, config=config)
    await fill(partition, range(100))
    await partition.flush()  # a large old one
    for number in (5, 6, 7):
        await partition.delete(b"k%04d" % number)
        await partition.flush()
    assert partition.state().tables == 4
    await partition.compact(full=False)
    assert partition.state().tables == 2
    for key in (b"k0005", b"k0006", b"k0007"):
        with pytest.raises(NotFound):
            await partition.get(key)
    assert len(await contents(await rig.crash_and_load(region, config=config))) == 97


@on_cluster(extent_bytes=12_000)
async def test_a_table_that_is_being_written_keeps_its_extents(rig: PartitionRig) -> None:
    """It is in no view yet, and its first extents are sealed already when others are looked through for garbage."""
    region = await rig.create()
    config = dataclasses.replace(CONFIG, maintenance_s=10_000.0, value_threshold_bytes=1000)
    partition = await rig.load(region, config=config)
    expected = await fill(partition, range(200))
    await partition.flush()
    expected |= await fill(partition, range(0, 200, 2), mark=b"new")
    merging = asyncio.ensure_future(partition.compact(full=True))
    looks = 0
    while not merging.done():
        await partition._reclaimer._tidy_row()
        looks += 1
    await merging
    assert looks > 3
    assert len(partition._store.view.tables[0].row_extents) > 2
    assert await contents(await rig.crash_and_load(region, config=config)) == expected


@on_cluster()
async def test_a_scan_shows_one_moment_whatever_happens_meanwhile(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    before = await fill(partition, range(60))
    page = await partition.scan(limit=5, with_values=True)
    found = [(info.key, info.version) for info in page.infos]
    data = b"".join(page.values)
    await fill(partition, range(200), mark=b"new")
    for key in list(before)[::3]:
        await partition.delete(key)
    await partition.flush()
    await partition.compact(full=True)
    extent_ids = await rig.stream_extents(region.log_stream_id)
    await partition.reclaim(extent_ids[:-1])
    await fill(partition, range(30, 90), mark=b"newer")
    await asyncio.sleep(5)
    while page.continuation:
        page = await partition.scan(limit=5, with_values=True, continuation=page.continuation)
        found += [(info.key, info.version) for info in page.infos]
        data += b"".join(page.values)
    assert [key for key, _ in found] == sorted(before)
    assert data == b"".join(before[key] for key in sorted(before))


@on_cluster()
async def test_a_scan_whose_snapshot_is_gone_goes_on_behind_its_last_key(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    before = await fill(partition, range(20))
    page = await partition.scan(limit=5)
    await partition.delete(b"k0001")
    await partition.delete(b"k0010")
    partition = await rig.crash_and_load(region)
    rest = await partition.scan(continuation=page.continuation)
    assert [info.key for info in rest.infos] == [key for key in sorted(before)[5:] if key != b"k0010"]
    with pytest.raises(InvalidArgument):
        await partition.scan(continuation=b"?")


@on_cluster()
async def test_scans_have_bounds_prefixes_and_sizes(rig: PartitionRig) -> None:
    region = await rig.create(start=b"b", end=b"y")
    partition = await rig.load(region)
    for key in (b"b", b"c1", b"c2", b"c\xff", b"d", b"x"):
        await partition.put(key, key * 100)

    async def keys(**how: Any) -> list[bytes]:
        return [info.key for info in (await partition.scan(**how)).infos]

    assert await keys() == [b"b", b"c1", b"c2", b"c\xff", b"d", b"x"]
    assert await keys(prefix=b"c") == [b"c1", b"c2", b"c\xff"]
    assert await keys(prefix=b"c", start=b"c2") == [b"c2", b"c\xff"]
    assert await keys(start=b"c2", end=b"d") == [b"c2", b"c\xff"]
    assert await keys(start=b"zz") == []
    assert await keys(max_bytes=1, with_values=True) == [b"b"]
    page = await partition.scan(max_bytes=250, with_values=True, start=b"b", limit=3)
    assert [info.key for info in page.infos] == [b"b"]
    assert (b"".join(page.values), page.left_out) == (b"b" * 100, [])
    page = await partition.scan(max_bytes=199, with_values=True)
    assert [info.key for info in page.infos] == [b"b", b"c1"], "values larger than a page count for nothing"
    assert (b"".join(page.values), page.left_out) == (b"b" * 100, [1])
    page = await partition.scan(limit=6)
    assert not page.continuation


@on_cluster()
async def test_an_object_can_be_uploaded_in_parts(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    value = random.Random(1).randbytes(20_000)
    upload_id = await partition.begin_upload(b"key", condition=ps.Condition(absent=True), call=call(5, 1))
    assert upload_id == await partition.begin_upload(b"key", condition=ps.Condition(absent=True), call=call(5, 1))
    for at in range(0, 20_000, 7000):
        part = value[at : at + 7000]
        assert await partition.upload_part(upload_id, b"key", offset=at, payload=part) == at + len(part)
        assert await partition.upload_part(upload_id, b"key", offset=at, payload=part) == at + len(part)
        others = await fill(partition, range(40))
        await partition.flush()
        await asyncio.sleep(3)  # the log is cut; but the parts are pinned, though nothing names them
    with pytest.raises(InvalidArgument):
        await partition.upload_part(upload_id, b"key", offset=30_000, payload=b"gap")
    assert len(partition._store.pins)
    with pytest.raises(NotFound):
        await partition.get(b"key")
    with pytest.raises(InvalidArgument):
        await partition.complete_upload(upload_id, b"key", size_bytes=20_000, value_crc32c=1, call=call(5, 2))
    right = {"size_bytes": 20_000, "value_crc32c": crc32c(value), "call": call(5, 3)}
    info = await partition.complete_upload(upload_id, b"key", **right)  # type: ignore[arg-type]
    for _ in range(2):
        assert await partition.complete_upload(upload_id, b"key", **right) == info  # type: ignore[arg-type]
        assert not len(partition._store.pins)
        assert await contents(partition) == {b"key": value, **others}
        _, pieces = await partition.get(b"key", offset=6_999, length=2)
        assert b"".join(pieces) == value[6_999:7_001]
        partition = await rig.crash_and_load(region)
    await partition.compact(full=True)
    assert await contents(partition) == {b"key": value, **others}


@on_cluster()
async def test_uploads_that_end_without_an_object_leave_nothing(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    refused = await partition.begin_upload(b"key", condition=ps.Condition(absent=True))
    await partition.upload_part(refused, b"key", offset=0, payload=b"x" * 5000)
    await partition.put(b"key", b"first")
    crc = crc32c(b"x" * 5000)
    with pytest.raises(ConditionFailed):
        await partition.complete_upload(refused, b"key", size_bytes=5000, value_crc32c=crc)
    aborted = await partition.begin_upload(b"key")
    await partition.upload_part(aborted, b"key", offset=0, payload=b"y" * 5000)
    await partition.abort_upload(aborted, b"key")
    await partition.abort_upload(refused, b"key")
    assert not len(partition._store.pins)
    with pytest.raises(NotFound):
        await partition.upload_part(aborted, b"key", offset=5000, payload=b"y")
    lost = await partition.begin_upload(b"key")
    partition = await rig.crash_and_load(region)
    with pytest.raises(NotFound):
        await partition.upload_part(lost, b"key", offset=0, payload=b"z")
    expected = {b"key": b"first", **await fill(partition, range(40))}
    await partition.compact(full=True)
    await asyncio.sleep(5)
    used = {extent for table in partition._store.view.tables for extent in table.log_references}
    replay_from = partition._store.log_replay_from
    assert replay_from is not None
    extent_ids = await rig.stream_extents(region.log_stream_id)
    before_replay = set(extent_ids[: extent_ids.index(replay_from.extent_id)])
    assert before_replay
    assert before_replay <= used
    assert await contents(partition) == expected


# --- log extents ---------------------------------------------------------------------------------------------


@on_cluster()
async def test_live_values_are_moved_out_of_a_log_extent_before_it_goes(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    expected = await fill(partition, range(100))
    versions = {key: (await partition.head(key)).version for key in expected}
    await partition.flush()
    extent_ids = await rig.stream_extents(region.log_stream_id)
    punched, kept, moved_bytes = await partition.reclaim([*extent_ids[:3], 999_999])
    assert punched == list(extent_ids[:3])
    assert kept == []
    assert moved_bytes > 0
    assert not set(punched) & set(await rig.stream_extents(region.log_stream_id))
    for _ in range(2):
        assert await contents(partition) == expected
        assert {key: (await partition.head(key)).version for key in expected} == versions
        partition = await rig.crash_and_load(region)
    assert (await partition.reclaim(punched)) == ([], [], 0)


@on_cluster()
async def test_t40_a_value_that_is_overwritten_or_deleted_while_it_is_moved_stays_so(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    expected = await fill(partition, range(60))
    await partition.flush()
    extent_ids = (await rig.stream_extents(region.log_stream_id))[:-1]

    async def meanwhile() -> None:
        for number, key in enumerate(sorted(expected)):
            if number % 3 == 0:
                expected[key] = b"new" * 200
                await partition.put(key, expected[key])
            elif number % 3 == 1:
                del expected[key]
                await partition.delete(key)

    outcome, _ = await asyncio.gather(partition.reclaim(extent_ids), meanwhile())
    assert outcome[0]
    assert not len(partition._store.pins)
    for _ in range(2):
        assert await contents(partition) == expected
        partition = await rig.crash_and_load(region)
    await partition.compact(full=True)
    assert await contents(partition) == expected


@on_cluster()
async def test_t40_a_failed_move_keeps_the_extent(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    expected = await fill(partition, range(60))
    await partition.flush()
    extent_ids = (await rig.stream_extents(region.log_stream_id))[:-1]
    real, moves = Writes.move, 0

    async def failing(self: Writes, entry: Any, value: Any) -> bool:
        nonlocal moves
        moves += 1
        if moves == 3:
            raise Overloaded(what="a test")
        return await real(self, entry, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writes, "move", failing)
        with pytest.raises(Overloaded):
            await partition.reclaim(extent_ids)
    left = await rig.stream_extents(region.log_stream_id)
    assert set(extent_ids[1:]) <= set(left), "the extents after the failed one are untouched"
    for _ in range(2):
        assert await contents(partition) == expected
        partition = await rig.crash_and_load(region)
    assert (await partition.reclaim(extent_ids))[1] == []
    assert await contents(await rig.crash_and_load(region)) == expected


@on_cluster()
async def test_a_log_of_overwritten_values_is_reclaimed_by_itself(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    expected = await fill(partition, range(20))
    for number in range(40):
        await asyncio.gather(*(partition.put(b"hot%d" % n, b"%d" % number * 500) for n in range(10)))
        expected |= {b"hot%d" % n: b"%d" % number * 500 for n in range(10)}
    await partition.compact(full=True)
    await asyncio.sleep(20)
    await partition.flush()
    await asyncio.sleep(20)
    live_bytes = sum(map(len, expected.values()))
    extent_ids = await rig.stream_extents(region.log_stream_id)
    assert len(extent_ids) * rig.extent_bytes < 5 * live_bytes + 4 * rig.extent_bytes, len(extent_ids)
    for _ in range(2):
        assert await contents(partition) == expected
        partition = await rig.crash_and_load(region)


# --- crashes at each step ------------------------------------------------------------------------------------


class Stop(Exception):
    """Where a crash was asked for."""


async def crash_at(rig: PartitionRig, region: pm.RegionRecord, work: Any) -> None:
    """Run the work until it stops at the step that was prepared, and kill the process there."""
    with pytest.raises((Stop, NeveError)):
        await work
    rig.crash(region)


@pytest.mark.parametrize(
    "step", ["blocks", "footer", "opened", "manifest lost", "manifest kept", "punch row", "cut meta"]
)
def test_t27_a_crash_at_any_step_of_a_merge_loses_nothing(step: str) -> None:
    @on_cluster(seed=3, extent_bytes=12_000)
    async def story(rig: PartitionRig) -> None:
        region = await rig.create()
        config = dataclasses.replace(CONFIG, maintenance_s=10_000.0, value_threshold_bytes=1000)
        partition = await rig.load(region, config=config)
        expected = await fill(partition, range(120))
        await partition.flush()
        expected |= await fill(partition, range(0, 120, 3), mark=b"new")
        await partition.flush()
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, partition, step)
            await crash_at(rig, region, partition.compact(full=True))
        for _ in range(2):
            partition = await rig.load(region, config=config)
            assert await contents(partition) == expected
            await partition.compact(full=True)
            assert partition.state().tables == 1
            rig.crash(region)

    story()


def stop_at(patch: pytest.MonkeyPatch, partition: Partition, step: str) -> None:
    async def stop(*_: Any, **__: Any) -> Any:
        raise Stop(step)

    store = partition._store
    client = store.streams.client
    meta_append = store.streams.meta.append

    async def kept(data: bytes) -> Any:
        await meta_append(data)
        raise Stop(step)

    if step == "blocks":
        patch.setattr(TableWriter, "_send", stop)
    elif step == "footer":
        patch.setattr(TableWriter, "finish", stop)
    elif step == "opened":
        patch.setattr(committer_module.Committer, "commit", stop)
    elif step == "manifest lost":
        patch.setattr(store.streams.meta, "append", stop)
    elif step == "manifest kept":
        patch.setattr(store.streams.meta, "append", kept)
    elif step == "punch row":
        patch.setattr(client, "punch", stop)
    else:
        patch.setattr(client, "truncate", stop)


@pytest.mark.parametrize("step", ["read", "move", "moved", "punched"])
def test_t27_a_crash_at_any_step_of_reclaiming_loses_nothing(step: str) -> None:
    @on_cluster(seed=4)
    async def story(rig: PartitionRig) -> None:
        region = await rig.create()
        config = dataclasses.replace(CONFIG, maintenance_s=10_000.0)
        partition = await rig.load(region, config=config)
        expected = await fill(partition, range(80))
        await partition.flush()
        extent_ids = (await rig.stream_extents(region.log_stream_id))[:-1]
        client = partition._store.streams.client
        punch = client.punch

        async def stop(*_: Any, **__: Any) -> Any:
            raise Stop(step)

        async def punched(*arguments: Any, **how: Any) -> Any:
            await punch(*arguments, **how)
            raise Stop(step)

        with pytest.MonkeyPatch.context() as patch:
            if step == "read":
                patch.setattr(reclaimer_module.Reclaimer, "_move_keys", stop)
            elif step == "move":
                patch.setattr(Writes, "move", stop)
            else:
                patch.setattr(client, "punch", stop if step == "moved" else punched)
            await crash_at(rig, region, partition.reclaim(extent_ids))
        partition = await rig.load(region, config=config)
        assert await contents(partition) == expected
        await partition.reclaim(extent_ids)
        assert await contents(partition) == expected
        assert await contents(await rig.crash_and_load(region, config=config)) == expected

    story()


@on_cluster(seed=5, node_options={"trash_delay_s": 86_400.0})  # what merges leave behind makes no room
async def test_t24_a_merge_on_full_disks_fails_and_loses_nothing(rig: PartitionRig) -> None:
    region = await rig.create()
    config = dataclasses.replace(CONFIG, maintenance_s=10_000.0)
    partition = await rig.load(region, config=config)
    expected = await fill(partition, range(100))
    await partition.flush()
    expected |= await fill(partition, range(0, 100, 2), mark=b"new")
    for node in rig.cluster.nodes.values():
        used = node.fs.usage("/disk0")
        node.fs.set_capacity("/disk0", used.capacity_bytes - used.free_bytes + 2_000)

    async def merge_on_and_on() -> None:
        for number in range(100):  # extents that were made when there was room take some more
            value = random.Random(number).randbytes(150)
            await partition.put(b"more%d" % number, value)
            expected[b"more%d" % number] = value
            await partition.compact(full=True)

    with pytest.raises(NeveError):
        await merge_on_and_on()
    await asyncio.wait_for(partition.failed, 600)
    rig.crash(region)
    for node in rig.cluster.nodes.values():
        node.fs.set_capacity("/disk0", 1 << 40)
    await asyncio.sleep(30)
    partition = await rig.load(region, config=config)
    assert await contents(partition) == expected
    await partition.compact(full=True)
    assert await contents(await rig.crash_and_load(region, config=config)) == expected


# --- freezing, splitting, merging ----------------------------------------------------------------------------


@on_cluster()
async def test_a_frozen_partition_takes_no_write_and_goes_on_reading(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    expected = await fill(partition, range(50))
    writes = [asyncio.ensure_future(partition.put(b"last%d" % n, b"x")) for n in range(20)]
    await asyncio.sleep(0)
    ends = await partition.freeze()
    assert [end.stream_id for end in ends] == [region.log_stream_id, region.row_stream_id, region.meta_stream_id]
    for number, outcome in enumerate(await asyncio.gather(*writes, return_exceptions=True)):
        if isinstance(outcome, ps.ObjectInfo):
            expected[b"last%d" % number] = b"x"
        else:
            assert isinstance(outcome, Overloaded)
    for work in (partition.put(b"k", b"v"), partition.delete(b"k0001"), partition.batch([Operation(b"k", b"v")])):
        with pytest.raises(Overloaded):
            await work
    with pytest.raises(Overloaded):
        await partition.flush()
    assert await contents(partition) == expected
    assert await contents(await rig.crash_and_load(region)) == expected


@on_cluster(seed=8)
async def test_a_side_without_any_key_of_a_table_loads_again_after_the_table_went(rig: PartitionRig) -> None:
    """The table reaches into the side's range by its bounds, and has no key in it: nobody needs it, but the manifest of
    before the split still names it."""
    region = await rig.create()
    partition = await rig.load(region)
    expected = await fill(partition, range(50, 90))
    await partition.flush()
    left, right = await rig.split(region, b"k0010")
    partition = await rig.load(left)
    await partition.compact(full=False)  # gives back what nothing refers to
    other = await rig.load(right)
    await other.put(b"k0060", expected[b"k0060"])
    await other.compact(full=True)  # and so does the other side: the extent is gone for good
    for _ in range(2):
        partition = await rig.crash_and_load(left)
        assert await contents(partition) == {}
        await partition.put(b"a", b"1")
        await partition.delete(b"a")
    assert await contents(other) == expected


@on_cluster(seed=7)
async def test_t39_after_two_splits_each_side_has_its_own_and_nothing_leaks(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    expected = await fill(partition, range(120))
    await partition.flush()
    expected |= await fill(partition, range(0, 120, 5), mark=b"unflushed")
    calls = {}
    for number in (10, 70):
        key = b"k%04d" % number
        expected[key] = b"called"
        calls[key] = await partition.put(key, b"called", call=call(3, number))
    left, right = await rig.split(region, b"k0060")
    await rig.load(right)
    middle, right = await rig.split(right, b"k0090")
    regions = [left, middle, right]
    loaded = [await rig.load(each) for each in regions]

    def of(region: pm.RegionRecord) -> dict[bytes, bytes]:
        return {k: v for k, v in expected.items() if k >= region.start and (not region.end or k < region.end)}

    for each, part in zip(regions, loaded, strict=True):
        assert await contents(part) == of(each)
    assert await loaded[0].put(b"k0010", b"called", call=call(3, 10)) == calls[b"k0010"]
    assert await loaded[1].put(b"k0070", b"called", call=call(3, 70)) == calls[b"k0070"]

    # One side empties itself, merges and reclaims everything: the others do not notice.
    for key in of(middle):
        await loaded[1].delete(key)
        del expected[key]
    await loaded[1].compact(full=True)
    await loaded[1].reclaim((await rig.stream_extents(middle.log_stream_id))[:-1])
    for each, part in zip(regions, loaded, strict=True):
        assert await contents(part) == of(each)

    # In the end each has what it needs, and no more.
    for each, part in zip(regions, loaded, strict=True):
        await part.compact(full=True)
        extent_ids = (await rig.stream_extents(each.log_stream_id))[:-1]
        await part.reclaim(extent_ids)
        await part.compact(full=True)
        await asyncio.sleep(10)
        log, row = await log_and_row(rig, each)
        live_bytes = sum(map(len, of(each).values()))
        assert len(log) <= 4 + 2 * live_bytes // rig.extent_bytes, (each.partition_id, log)
        assert len(row) <= 3, (each.partition_id, row)
        assert await contents(await rig.crash_and_load(each)) == of(each)
    await asyncio.sleep(300)  # the managers' grace
    operator = await rig.operator()
    stored = {info.extent_id async for info in operator.admin.extents()}
    needed: set[int] = set()
    for each in regions:
        for stream_id in (each.log_stream_id, each.row_stream_id, each.meta_stream_id):
            needed |= set(await rig.stream_extents(stream_id))
    assert stored == needed


@on_cluster(seed=8)
async def test_neighbours_become_one_with_what_each_had(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    expected = await fill(partition, range(100))
    await partition.flush()
    left, right = await rig.split(region, b"k0050")
    sides = {left.partition_id: await rig.load(left), right.partition_id: await rig.load(right)}
    # The left side drops a key from all of its tables; the right one still has the table in which it was.
    assert await sides[left.partition_id].delete(b"k0010")
    del expected[b"k0010"]
    await sides[left.partition_id].compact(full=True)
    expected |= await fill(sides[left.partition_id], range(0, 50, 7), mark=b"left")
    expected |= await fill(sides[right.partition_id], range(50, 100, 7), mark=b"right")
    expected.pop(b"k0010", None)
    info = await sides[right.partition_id].put(b"k0099", b"called", call=call(9, 1))
    expected[b"k0099"] = b"called"
    merged = await rig.merge(left, right)
    partition = await rig.load(merged)
    for _ in range(2):
        assert await contents(partition) == expected
        assert await partition.put(b"k0099", b"called", call=call(9, 1)) == info
        partition = await rig.crash_and_load(merged)
    expected |= await fill(partition, range(0, 100, 9), mark=b"merged")
    assert await contents(await rig.crash_and_load(merged)) == expected
    partition = rig.loaded[merged.partition_id].partition
    await partition.compact(full=True)
    await partition.reclaim((await rig.stream_extents(merged.log_stream_id))[:-1])
    assert await contents(await rig.crash_and_load(merged)) == expected
    left, right = await rig.split(merged, b"k0030")
    assert {**await contents(await rig.load(left)), **await contents(await rig.load(right))} == expected


@on_cluster()
async def test_what_was_overwritten_stays_so_when_neighbours_become_one_again(rig: PartitionRig) -> None:
    """A table that is rewritten for one side may lose its newest rows: which table is older its highest seq does not
    tell any more."""
    config = dataclasses.replace(CONFIG, memtable_bytes=1 << 20, maintenance_s=1000.0, tables_max=2)
    rng = random.Random(1)
    low, high = await rig.create(b"", b"m"), await rig.create(b"m", b"")
    one, two = await rig.load(low, config=config), await rig.load(high, config=config)
    await one.put(b"a7", b"old")
    for number in range(14):
        await one.put(b"a3%02d" % number, rng.randbytes(190))
    await one.flush()
    for number in range(40):
        await two.put(b"z%02d" % (number % 10), rng.randbytes(190))
    await two.flush()
    await one.put(b"a7", b"new")
    for number in range(60):
        await one.put(b"a1", b"%d" % number)
    await one.flush()
    merged = await rig.merge(low, high)
    partition = await rig.load(merged, config=config)
    await partition.compact(full=False)
    left, right = await rig.split(merged, b"a5")
    await rig.load(left, config=config)
    side = await rig.load(right, config=config)
    for _ in range(3):
        await side.compact(full=False)
    assert b"".join((await side.get(b"a7"))[1]) == b"new"
    partition = await rig.load(await rig.merge(left, right), config=config)
    assert b"".join((await partition.get(b"a7"))[1]) == b"new"


@on_cluster()
async def test_the_middle_key_has_about_half_on_each_side(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    assert partition.middle_key() is None
    await partition.put(b"k", b"only")
    assert partition.middle_key() is None
    keys = [b"k%04d" % n for n in range(400)]
    await asyncio.gather(*(partition.put(key, b"x" * 100) for key in keys))
    for _ in range(2):
        middle = partition.middle_key()
        assert middle is not None
        assert 100 < keys.index(middle) < 300
        await partition.compact(full=True)


@on_cluster()
async def test_what_a_partition_tells_of_itself(rig: PartitionRig) -> None:
    region = await rig.create(start=b"a", end=b"z")
    partition = await rig.load(region)
    partition.load_now()
    expected = await fill(partition, range(50))
    await asyncio.sleep(10)
    load = partition.load_now()
    assert 4 < load.writes_per_s < 6
    assert load.size_bytes > sum(map(len, expected.values()))
    await partition.compact(full=True)
    state = partition.state()
    assert (state.partition_id, state.start, state.end, state.keys) == (region.partition_id, b"a", b"z", 50)
    assert state.tables == 1
