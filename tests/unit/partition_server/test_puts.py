"""Many puts at a time: the promises of single ones, kept for each of a group."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from neve.client.streams.types import Position
from neve.partition_server.engine.engine import Info, Partition, Puts
from neve.partition_server.tables.merge_pace import Pace
from neve.proto import partition_server_pb2 as ps
from neve.proto.crc import crc32c
from neve.proto.errors import (
    AppendOutcomeUnknown,
    ConditionFailed,
    InvalidArgument,
    NeveError,
    NotOwner,
    Overloaded,
    ShuttingDown,
    TooLarge,
    WrongServer,
)
from tests.unit.partition_server.rig import CONFIG, PartitionRig, call, on_cluster
from tests.unit.partition_server.test_engine import value_of


def puts_of(
    items: Sequence[tuple[bytes, bytes]], first_call: int, *, client: int = 7, below: int = 0, ttls: Sequence[int] = ()
) -> Puts:
    calls = range(first_call, first_call + len(items))
    return Puts([key for key, _ in items], [value for _, value in items], ttls, client, below, calls)


async def infos_of(partition: Partition, *arguments: Any, **how: Any) -> list[Info]:
    results = await partition.start_puts(puts_of(*arguments, **how))
    assert all(isinstance(each, Info) for each in results), results
    return [each for each in results if isinstance(each, Info)]


ITEMS = [(b"k%d" % number, b"value %d" % number) for number in range(20)]


@on_cluster()
async def test_a_group_is_there_from_its_answer_on_and_after_a_crash(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    infos = await infos_of(partition, [*ITEMS, (b"k3", b"again")], 1, ttls=[0] * 20 + [60_000])
    assert [info.version for info in infos] == list(range(infos[0].version, infos[0].version + 21)), "in their order"
    assert [info.crc for info in infos[:20]] == [crc32c(value) for _, value in ITEMS]
    assert infos[20].expires_ms == infos[20].modified_ms + 60_000
    assert infos[0].expires_ms == 0
    for _ in range(2):
        for key, value in ITEMS:
            assert await value_of(partition, key) == (b"again" if key == b"k3" else value)
        assert (await partition.head(b"k3")).version == infos[20].version
        partition = await rig.crash_and_load(region)
    for key, value in ITEMS:
        assert await value_of(partition, key) == (b"again" if key == b"k3" else value)


@on_cluster()
async def test_t50_each_call_of_a_group_is_executed_once_also_after_a_load(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    first = partition.start_puts(puts_of(ITEMS[:10], 1))
    overlapping = partition.start_puts(puts_of([(b"other", b"x"), *ITEMS[:12]], 0))  # call 0 is nobody's
    single = asyncio.ensure_future(partition.put(*ITEMS[4], call=call(7, 5)))
    infos = list(await first)
    assert list(await overlapping)[1:11] == infos
    assert (await single).version == infos[4].version  # type: ignore[union-attr]
    await partition.put(b"k4", b"theirs", call=call(8, 1))
    for _ in range(2):
        assert list(await partition.start_puts(puts_of(ITEMS[:10], 1))) == infos
        assert await value_of(partition, b"k4") == b"theirs"
        partition = await rig.crash_and_load(region)
    twice = Puts([b"a", b"a"], [b"1", b"1"], (), 7, 0, [30, 30])
    one, other = await partition.start_puts(twice)
    assert one == other
    await infos_of(partition, ITEMS[:2], 40, below=40)
    results = await partition.start_puts(puts_of(ITEMS[:2], 39, below=40))
    assert isinstance(results[0], InvalidArgument), "it is over"
    assert isinstance(results[1], Info)


@on_cluster()
async def test_conditions_rest_on_groups_under_way(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    before = (await partition.put(b"k1", b"")).version
    group = partition.start_puts(puts_of(ITEMS, 1))
    refused = asyncio.ensure_future(partition.put(b"k0", b"no", condition=ps.Condition(absent=True)))
    met = asyncio.ensure_future(partition.put(b"k1", b"yes", condition=ps.Condition(version=before + 2)))
    await asyncio.sleep(0)
    assert not refused.done(), "what it was refused for is not acknowledged yet"
    assert not group.done()
    with pytest.raises(ConditionFailed) as failed:
        await refused
    assert failed.value.version == before + 1
    assert (await met).version > before + 20
    assert await value_of(partition, b"k1") == b"yes"


@on_cluster()
async def test_what_is_wrong_with_one_put_is_its_own_matter(rig: PartitionRig) -> None:
    partition = await rig.load(await rig.create(b"a", b"n"))
    large = b"x" * 5000  # in parts
    items = [(b"b", b"1"), (b"z", b"2"), (b"", b"3"), (b"c" * 5000, b"4"), (b"d", large)]
    results = await partition.start_puts(puts_of(items, 1))
    kinds = [type(each) for each in results]
    assert kinds == [Info, WrongServer, InvalidArgument, TooLarge, Info]
    assert await value_of(partition, b"d") == large
    assert await value_of(partition, b"b") == b"1"


@on_cluster()
async def test_groups_wait_for_memory_and_for_the_writer(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    items = [(b"k%03d" % number, b"%3d" % number + b"x" * 1000) for number in range(500)]
    groups = [partition.start_puts(puts_of(items[at : at + 100], at + 1)) for at in range(0, 500, 100)]
    most_bytes = 0
    while not all(group.done() for group in groups):
        most_bytes = max(most_bytes, partition.state().memtable_bytes)
        await asyncio.sleep(0.001)
    assert all(isinstance(each, Info) for group in groups for each in group.result())
    assert most_bytes < 600_000, "the writer holds 200,000 bytes at most, and the memtables flush"
    for key, value in items:
        assert await value_of(partition, key) == value


@on_cluster()
async def test_a_group_that_the_log_did_not_acknowledge_ends_the_partition(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    group = partition.start_puts(puts_of(ITEMS, 1))
    repeated = partition.start_puts(puts_of(ITEMS[3:4], 4))
    await rig.loaded[region.partition_id].group.abort(NotOwner(detail="lost"))
    with pytest.raises(AppendOutcomeUnknown):
        await group
    (error,) = await repeated
    assert isinstance(error, NeveError)
    assert error.outcome_unknown
    with pytest.raises(WrongServer):
        partition.start_puts(puts_of(ITEMS, 100))


@on_cluster()
async def test_a_frozen_partition_takes_no_group(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    group = partition.start_puts(puts_of(ITEMS, 1))
    await rig.run(region, partition.freeze())
    assert group.done(), "what was under way is finished first"
    with pytest.raises(Overloaded):
        partition.start_puts(puts_of(ITEMS, 100))


@on_cluster()
async def test_a_writer_takes_a_list_whole_or_not_at_all(rig: PartitionRig) -> None:
    neve = await rig.operator()
    stream = await neve.create_stream(replicas=3, extent_bytes_max=10_000)
    async with neve.writer(stream.id) as writer:
        records = [b"%d" % number * 300 for number in range(50)]
        positions = await writer.submit_many(records)
        await asyncio.sleep(1)  # readers are told how far they may go
        assert [(each.position, bytes(each.payload)) async for each in neve.read(stream.id)] == list(
            zip(positions, records, strict=True)
        )
        assert len({position.extent_id for position in positions}) > 1, "over several extents"
        for wrong in ([], [b"a", b"x" * 30_000]):
            with pytest.raises(InvalidArgument):
                writer.submit_many(wrong)
        held: list[asyncio.Future[Sequence[Position]]] = []
        with pytest.raises(Overloaded):
            held.extend(writer.submit_many([b"x" * 900] * 10) for _ in range(10_000))
        assert [len(await each) for each in held] == [10] * len(held)
    with pytest.raises(ShuttingDown):
        writer.submit_many([b"late"])


@on_cluster()
async def test_groups_wait_for_merges_that_are_behind_and_go_on_without_them(rig: PartitionRig) -> None:
    region = await rig.create()
    config = dataclasses.replace(CONFIG, tables_max=3, tables_slow=4, memtable_bytes=8000)
    partition = await rig.load(region, config=config)
    await partition._maintenance.stop()  # merges are in trouble
    while not partition._store.is_behind():
        await infos_of(partition, ITEMS, 10_000 + partition._store.seq)
        await partition.flush()
    begun_s = asyncio.get_running_loop().time()
    late = partition.start_puts(puts_of(ITEMS, 20_000))
    await asyncio.sleep(0.1)
    assert not late.done(), "it waits for merges"
    assert all(isinstance(each, Info) for each in await late)
    assert asyncio.get_running_loop().time() - begun_s < 2, "but not for ever"


def test_a_merge_lets_in_what_it_has_paid_for() -> None:
    async def story() -> None:
        pace = Pace(asyncio.get_running_loop())
        waiting = [asyncio.ensure_future(pace.wait(100)) for _ in range(3)]
        await asyncio.sleep(0)
        assert len(pace) == 3
        for merged, left in ((399, [0, 0, 0]), (4, [1, 0, 0]), (800, [1, 1, 1])):
            pace.merged(merged)
            await asyncio.sleep(0)
            assert [each.done() for each in waiting] == [bool(each) for each in left]
        large = asyncio.ensure_future(pace.wait(100_000))
        await asyncio.sleep(0)
        pace.merged(1_000_000)
        await large
        given_up = asyncio.ensure_future(pace.wait(100))
        await asyncio.sleep(0)
        given_up.cancel()
        behind = asyncio.ensure_future(pace.wait(1))
        await asyncio.sleep(0)
        pace.merged(4)
        await behind
        ended = asyncio.ensure_future(pace.wait(100))
        await asyncio.sleep(0)
        pace.end()
        await ended
        assert not len(pace)

    asyncio.run(story())
