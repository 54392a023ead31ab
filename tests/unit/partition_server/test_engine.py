"""A partition's objects: put, get, delete, conditions, batches, and what is left of them after a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from neve.partition_server.engine.engine import Operation, Partition
from neve.proto import partition_server_pb2 as ps
from neve.proto.crc import crc32c
from neve.proto.errors import ConditionFailed, InvalidArgument, NotFound, TooLarge, WrongServer
from tests.unit.partition_server.rig import PartitionRig, call, on_cluster

ABSENT = ps.Condition(absent=True)


async def value_of(partition: Partition, key: bytes, **how: Any) -> bytes:
    _, pieces = await partition.get(key, **how)
    return b"".join(pieces)


@on_cluster()
async def test_an_object_is_there_from_its_answer_on_and_after_a_crash(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    info = await partition.put(b"key", b"value", ttl_ms=0)
    assert (info.key, info.size_bytes, info.value_crc32c) == (b"key", 5, crc32c(b"value"))
    assert await value_of(partition, b"key") == b"value"
    partition = await rig.crash_and_load(region)
    assert await value_of(partition, b"key") == b"value"
    assert await partition.head(b"key") == info


@on_cluster()
async def test_a_deleted_object_is_gone_and_stays_gone(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    await partition.put(b"key", b"value")
    assert await partition.delete(b"key") is True
    assert await partition.delete(b"key") is False
    with pytest.raises(NotFound):
        await partition.get(b"key")
    partition = await rig.crash_and_load(region)
    with pytest.raises(NotFound):
        await partition.head(b"key")
    again = await partition.put(b"key", b"again", condition=ABSENT)
    assert again.version > 2


@on_cluster()
async def test_large_values_go_in_parts_and_ranges_of_them_can_be_read(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    value = bytes(range(256)) * 40  # 10,240 bytes, in seven parts
    await partition.put(b"large", value)
    for _ in range(2):
        assert await value_of(partition, b"large") == value
        assert await value_of(partition, b"large", offset=1499, length=2) == value[1499:1501]
        assert await value_of(partition, b"large", offset=10_000) == value[10_000:]
        assert await value_of(partition, b"large", offset=10_240) == b""
        with pytest.raises(InvalidArgument):
            await partition.get(b"large", offset=10_241)
        partition = await rig.crash_and_load(region)


@on_cluster()
async def test_an_expired_object_counts_as_absent(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    info = await partition.put(b"key", b"value", ttl_ms=5_000)
    assert info.expires_ms == info.modified_ms + 5_000
    await asyncio.sleep(4)
    assert await value_of(partition, b"key") == b"value"
    await asyncio.sleep(2)
    with pytest.raises(NotFound):
        await partition.get(b"key")
    with pytest.raises(ConditionFailed) as failed:
        await partition.put(b"key", b"new", condition=ps.Condition(version=info.version))
    assert failed.value.version == 0
    assert await partition.delete(b"key") is False
    await partition.put(b"key", b"new", condition=ABSENT)
    assert await value_of(await rig.crash_and_load(region), b"key") == b"new"


@on_cluster()
async def test_conditions_see_writes_that_are_not_acknowledged_yet(rig: PartitionRig) -> None:
    """Of many conditional puts at once, one wins; each one's version is a condition for the next, in one breath."""
    region = await rig.create()
    partition = await rig.load(region)
    outcomes = await asyncio.gather(
        *(partition.put(b"key", b"%d" % n, condition=ABSENT) for n in range(10)), return_exceptions=True
    )
    won = [outcome for outcome in outcomes if isinstance(outcome, ps.ObjectInfo)]
    assert len(won) == 1
    assert {type(outcome) for outcome in outcomes if outcome is not won[0]} == {ConditionFailed}
    assert {o.version for o in outcomes if isinstance(o, ConditionFailed)} == {won[0].version}
    chain = [
        asyncio.ensure_future(partition.put(b"key", b"next", condition=ps.Condition(version=won[0].version + n)))
        for n in range(5)
    ]
    infos = await asyncio.gather(*chain)
    assert [info.version for info in infos] == [won[0].version + 1 + n for n in range(5)]
    deleting = asyncio.ensure_future(partition.delete(b"key", condition=ps.Condition(version=infos[-1].version)))
    await asyncio.sleep(0)
    putting = asyncio.ensure_future(partition.put(b"key", b"after", condition=ABSENT))
    assert await deleting is True
    await putting
    assert await value_of(await rig.crash_and_load(region), b"key") == b"after"


@on_cluster()
async def test_a_batch_is_all_or_nothing(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    old = await partition.put(b"a", b"1")
    operations = [
        Operation(b"a", b"2", expected=old.version),
        Operation(b"b", b"x" * 5000),
        Operation(b"c", None),
        Operation(b"d", b"", ttl_ms=1000),
    ]
    infos = await partition.batch(operations)
    assert [info.size_bytes for info in infos] == [1, 5000, 0, 0]
    assert infos[2].version == 0
    assert infos[3].expires_ms == infos[3].modified_ms + 1000
    with pytest.raises(ConditionFailed):
        await partition.batch([Operation(b"z", b"no"), Operation(b"a", b"3", expected=old.version)])
    for _ in range(2):
        assert await value_of(partition, b"a") == b"2"
        assert await value_of(partition, b"b") == b"x" * 5000
        with pytest.raises(NotFound):
            await partition.get(b"z")
        partition = await rig.crash_and_load(region)


@on_cluster()
async def test_t50_a_repeated_call_is_executed_once_also_after_a_load(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    first = await partition.put(b"key", b"mine", call=call(7, 1))
    await partition.put(b"key", b"theirs", call=call(8, 1))
    batch = [Operation(b"x", b"1"), Operation(b"key", b"batched")]
    infos = await partition.batch(batch, call=call(7, 2))
    deleted = await partition.delete(b"x", call=call(7, 3))
    await partition.put(b"x", b"new", call=call(8, 2))
    for _ in range(2):
        assert await partition.put(b"key", b"mine", call=call(7, 1)) == first
        assert await partition.batch(batch, call=call(7, 2)) == infos
        assert await partition.delete(b"x", call=call(7, 3)) is deleted is True
        assert await value_of(partition, b"key") == b"batched"
        assert await value_of(partition, b"x") == b"new"
        partition = await rig.crash_and_load(region)
    both = await asyncio.gather(*(partition.put(b"twice", b"1", call=call(7, 9)) for _ in range(2)))
    assert both[0] == both[1]
    await partition.put(b"key", b"later", call=call(7, 10, completed_below=9))
    with pytest.raises(InvalidArgument):
        await partition.put(b"key", b"mine", call=call(7, 1))


@on_cluster()
async def test_keys_and_values_outside_of_the_bounds_are_refused(rig: PartitionRig) -> None:
    region = await rig.create(start=b"b", end=b"d")
    partition = await rig.load(region)
    for key in (b"a", b"d", b"zz"):
        with pytest.raises(WrongServer):
            await partition.put(key, b"")
        with pytest.raises(WrongServer):
            await partition.get(key)
    with pytest.raises(InvalidArgument):
        await partition.put(b"", b"")
    with pytest.raises(TooLarge):
        await partition.put(b"b" * 4097, b"")
    with pytest.raises(TooLarge):
        await partition.put(b"b", bytes(32 * 1024 * 1024 + 1))
    with pytest.raises(InvalidArgument):
        await partition.put(b"b", b"", condition=ps.Condition(version=0))
    await partition.put(b"b", b"")
    assert await value_of(partition, b"b") == b""


@on_cluster()
async def test_a_value_that_is_not_admitted_is_not_read(rig: PartitionRig) -> None:
    partition = await rig.load(await rig.create())
    await partition.put(b"key", b"v" * 5000)
    told: list[int] = []

    def admit(size_bytes: int) -> None:
        told.append(size_bytes)
        raise TooLarge(what="value", size_bytes=size_bytes, limit_bytes=1)

    async def read(*_: object) -> list[memoryview]:
        raise AssertionError("it was read")

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(partition._values, "read", read)
        with pytest.raises(TooLarge):
            await partition.get(b"key", offset=1000, admit=admit)
    assert told == [4000]
    _, pieces = await partition.get(b"key", admit=told.append)
    assert (told, b"".join(pieces)) == ([4000, 5000], b"v" * 5000)


@on_cluster()
async def test_t50_a_late_copy_of_a_refused_call_does_nothing(rig: PartitionRig) -> None:
    """Its caller was told that nothing was done, and others went on from there."""
    partition = await rig.load(await rig.create())
    assert not await partition.delete(b"a", call=call(7, 1))
    await partition.put(b"a", b"1", call=call(8, 1))
    assert not await partition.delete(b"a", call=call(7, 1))
    assert await value_of(partition, b"a") == b"1"
    with pytest.raises(ConditionFailed):
        await partition.put(b"a", b"2", condition=ABSENT, call=call(7, 2))
    assert await partition.delete(b"a", call=call(8, 2))
    with pytest.raises(ConditionFailed):
        await partition.put(b"a", b"2", condition=ABSENT, call=call(7, 2))
    with pytest.raises(NotFound):
        await partition.get(b"a")
    await partition.put(b"a", b"3", condition=ABSENT, call=call(7, 3))
