"""What callers ask beyond reason, and what is kept of it: refused by name, counted as it is, given up whole."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from neve.partition_server.engine.config import TTL_MS_MAX
from neve.partition_server.engine.engine import Info, Operation, Partition, Puts
from neve.partition_server.engine.scans import SNAPSHOT_IDLE_S
from neve.partition_server.log import log_format
from neve.partition_server.metrics import ServerMetrics
from neve.partition_server.servicer import REPLY_RESERVED_BYTES_MIN, PartitionServerServicer
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import Internal, InvalidArgument, NotOwner, WrongServer
from tests.unit.partition_server.rig import CLIENT_OPTIONS, CONFIG, PartitionRig, call, on_cluster
from tests.unit.partition_server.test_engine import value_of

KIB, MIB = 1 << 10, 1 << 20
LARGE_BLOCKS = dataclasses.replace(
    CLIENT_OPTIONS, writer_bytes_max=8 * MIB, buffer_bytes_max=16 * MIB, block_payload_bytes_max=4 * MIB
)
ONE_MEMTABLE = dataclasses.replace(CONFIG, memtable_bytes=64 * MIB, part_bytes=2 * MIB)


def under_way(partition: Partition) -> dict[int, list[int]]:
    """Calls that sessions take for running, by client."""
    return {client_id: list(each.running) for client_id, each in partition._store.sessions.all() if each.running}


@on_cluster()
async def test_a_time_to_live_that_no_record_can_hold_is_refused_by_name(rig: PartitionRig) -> None:
    partition = await rig.load(await rig.create())
    attempts: list[Any] = [
        lambda ttl_ms: partition.put(b"a", b"b", ttl_ms=ttl_ms, call=call(7, 1)),
        lambda ttl_ms: partition.put(b"a", b"b" * 5000, ttl_ms=ttl_ms, call=call(7, 2)),
        lambda ttl_ms: partition.batch([Operation(b"a", b"b", ttl_ms=ttl_ms)], call=call(7, 3)),
        lambda ttl_ms: partition.begin_upload(b"a", ttl_ms=ttl_ms, call=call(7, 4)),
    ]
    for attempt in attempts:
        for ttl_ms in (TTL_MS_MAX + 1, 2**64 - 1):
            with pytest.raises(InvalidArgument, match="ttl_ms"):
                async with asyncio.timeout(60):
                    await attempt(ttl_ms)
        assert not under_way(partition)
        await attempt(TTL_MS_MAX)
    results = await partition.start_puts(Puts([b"c", b"d"], [b"1", b"2"], [2**64 - 1, 0], 8, 0, [1, 2]))
    assert [type(each) for each in results] == [InvalidArgument, Info], "the other one is not its fault"
    assert not under_way(partition)
    assert (await partition.head(b"a")).expires_ms > TTL_MS_MAX


@on_cluster()
async def test_a_bug_ends_the_write_that_met_it_and_leaves_no_call_under_way(rig: PartitionRig) -> None:
    rig.cluster.expected_errors = ("write_failed",)
    partition = await rig.load(await rig.create())

    def bug(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    writes: list[Any] = [
        lambda: partition.put(b"a", b"b", call=call(7, 1)),
        lambda: partition.put(b"a", b"b", condition=ps.Condition(absent=True), call=call(7, 2)),
        lambda: partition.batch([Operation(b"c", b"d")], call=call(7, 3)),
        lambda: partition.start_puts(Puts([b"e"], [b"1"], (), 8, 0, [1])),
    ]
    for write in writes:
        with pytest.MonkeyPatch.context() as broken:
            for name in ("encode_put", "encode_batch", "encode_puts"):
                broken.setattr(log_format, name, bug)
            with pytest.raises((ValueError, Internal), match="a bug"):
                async with asyncio.timeout(60):
                    await write()
        assert not under_way(partition)
    for write in reversed(writes):  # the same calls: they were not done, and may be
        await write()


@on_cluster(extent_bytes=8 * MIB)
async def test_a_batch_takes_the_memory_that_its_objects_take(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region, config=ONE_MEMTABLE, memory_bytes=64 * MIB, options=LARGE_BLOCKS)
    operations = [Operation(b"key%04d" % number, b"%04d" % number * 250) for number in range(1000)]
    await partition.batch(operations)
    store = partition._store
    assert 1000 * KIB < partition.state().memtable_bytes < 2000 * KIB, "each was charged the whole record once"
    for each in operations[1:]:
        await partition.put(each.key, b"")
    kept = store.active.entries[b"key0000"]
    assert len(kept.data) == 1000, "one that is left does not keep the whole record"
    assert partition.state().memtable_bytes < 500 * KIB
    store.active.validate()


@on_cluster(extent_bytes=8 * MIB)
async def test_tables_find_the_values_of_a_batch_in_its_record(rig: PartitionRig) -> None:
    region = await rig.create()
    how: dict[str, Any] = {"config": ONE_MEMTABLE, "memory_bytes": 64 * MIB, "options": LARGE_BLOCKS}
    partition = await rig.load(region, **how)
    values = {b"key%d" % number: bytes([number]) * (90 * number) for number in range(1, 9)}
    await partition.batch([Operation(key, value) for key, value in values.items()])
    partition = await rig.crash_and_load(region, **how)
    for _ in range(2):
        for key, value in values.items():
            assert await value_of(partition, key) == value
        await partition.flush()
    in_the_log = [value for value in values.values() if len(value) >= CONFIG.value_threshold_bytes]
    assert sum(partition._store.log_references().values()) == sum(map(len, in_the_log))


@on_cluster()
async def test_t50_a_repeated_batch_has_the_same_answer_out_of_the_little_that_is_remembered(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    await partition.put(b"gone", b"1")
    batch = [
        Operation(b"gone"),
        *(Operation(b"key%d" % number, b"v" * number, ttl_ms=number * 1000) for number in range(50)),
        Operation(b"large", b"x" * 5000),
        Operation(b"gone too"),
    ]
    infos = await partition.batch(batch, call=call(7, 1))
    assert (infos[0].version, infos[-1].version) == (0, 0)
    assert infos[1].version + 50 == infos[51].version > 0
    for number in range(20):
        await partition.batch([Operation(b"other%d" % each, b"") for each in range(40)], call=call(8, number))
    for step in ("at once", "by the log", "by a manifest"):
        sessions = partition._store.sessions
        kept = [outcome for _, session in sessions.all() for outcome in session.results.values()]
        assert [len(outcome) for outcome in kept] == [1] * 21, step
        assert await partition.batch(batch, call=call(7, 1)) == infos, step
        if step == "by the log":
            await partition.flush()
        partition = await rig.crash_and_load(region)
    seq = partition._store.seq
    for other in (batch[:2], [*batch, *batch]):
        with pytest.raises(InvalidArgument):
            await partition.batch(other, call=call(7, 1))
    assert partition._store.seq == seq, "nothing was done"


@on_cluster()
async def test_a_large_value_is_read_when_there_is_room_for_the_reply(rig: PartitionRig) -> None:
    partition = await rig.load(await rig.create())
    host = cast(Any, SimpleNamespace(find=lambda *_, **__: partition))
    servicer = PartitionServerServicer(host, ServerMetrics(CollectorRegistry()), multi_reply_bytes_max=MIB)
    large = b"v" * (REPLY_RESERVED_BYTES_MIN + 1000)
    await partition.put(b"large", large)
    await partition.put(b"small", b"v")
    room = asyncio.Event()
    steps: list[object] = []
    read = partition._values.read

    async def reserve(size_bytes: int) -> None:
        steps.append(size_bytes)
        await room.wait()

    async def note_read(*arguments: Any) -> list[memoryview]:
        steps.append("read")
        return await read(*arguments)

    sent: list[bytes] = []
    call = cast(Any, SimpleNamespace(reserve_reply=reserve, attach=lambda *pieces: sent.append(b"".join(pieces))))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(partition._values, "read", note_read)
        await servicer.get(ps.GetRequest(key=b"small"), call)
        assert steps == ["read"], "not worth asking for"
        getting = asyncio.ensure_future(servicer.get(ps.GetRequest(key=b"large", offset=100), call))
        await asyncio.sleep(1)
        assert steps == ["read", len(large) - 100]
        room.set()
        await getting
    assert steps == ["read", len(large) - 100, "read"]
    assert sent == [b"v", large[100:]]


@on_cluster()
async def test_how_large_an_object_is_tells_only_who_still_owns_it(rig: PartitionRig) -> None:
    partition = await rig.load(await rig.create())
    await partition.put(b"key", b"value")
    with pytest.raises(InvalidArgument, match="offset"):
        await partition.get(b"key", offset=6)
    store = partition._store

    def lost() -> None:
        raise NotOwner(detail="somebody else has it")

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(store, "streams", dataclasses.replace(store.streams, ensure_owner=lost))
        with pytest.raises(WrongServer, match="somebody else has it"):
            await partition.get(b"key", offset=6)


@on_cluster()
async def test_what_snapshots_hold_counts_and_is_given_back_when_memory_is_short(rig: PartitionRig) -> None:
    config = dataclasses.replace(CONFIG, memtable_bytes=20_000)
    partition = await rig.load(await rig.create(), config=config, memory_bytes=200_000)
    store, scans = partition._store, partition._scans

    def seen_bytes() -> int:
        memtables = {each.number: each for view in (store.view, *scans.views()) for each in view.memtables}
        for memtable in memtables.values():
            memtable.validate()
        return sum(memtable.memory_bytes for memtable in memtables.values())

    async def write(first: int, last: int) -> None:
        for number in range(first, last):
            await partition.put(b"k%04d" % number, b"x" * 1400)

    await write(0, 12)
    page = await partition.scan(limit=1)
    await write(12, 24)
    await partition.flush()
    assert store.share.held_bytes > 12 * 1400, "the snapshot sees what was flushed"
    assert store.memory.used_bytes == seen_bytes()
    page = await partition.scan(limit=1, continuation=page.continuation)
    assert [info.key for info in page.infos] == [b"k0001"]
    held_most = 0
    for number in range(24, 624, 12):
        await write(number, number + 12)
        await partition.scan(limit=1)
        assert store.memory.used_bytes == seen_bytes() < 250_000
        held_most = max(held_most, store.memory.held_bytes)
    assert 0 < held_most <= 100_000, "half of it at most"
    rest = await partition.scan(continuation=page.continuation)
    assert len(rest.infos) == 622, "in a new snapshot, behind the last key"
    assert not rest.continuation
    await asyncio.sleep(SNAPSHOT_IDLE_S + 5)
    assert len(scans) == 0
    assert store.memory.held_bytes == 0
    assert store.memory.used_bytes == seen_bytes()
    assert not store.held
    assert not store.unseen


@on_cluster()
async def test_a_snapshot_that_a_page_is_made_of_stays_and_is_given_up_behind_it(rig: PartitionRig) -> None:
    config = dataclasses.replace(CONFIG, memtable_bytes=20_000)
    partition = await rig.load(await rig.create(), config=config, memory_bytes=40_000)
    for number in range(12):
        await partition.put(b"k%04d" % number, b"x" * 1400)
    store, scans = partition._store, partition._scans
    gate, read = asyncio.Event(), partition._values.read

    async def slowly(*arguments: Any) -> list[memoryview]:
        await gate.wait()
        return await read(*arguments)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(partition._values, "read", slowly)
        scanning = asyncio.ensure_future(partition.scan(limit=3, with_values=True))
        await asyncio.sleep(0.1)
        await partition.flush()
        store.memory.bytes_max = 20_000
        store.memory.spare()
        assert len(scans) == 1, "it is in use"
        assert store.memory.short
        gate.set()
        page = await scanning
    assert b"".join(page.values) == b"x" * 4200
    assert len(scans) == 0
    assert not store.memory.held_bytes


@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_an_idle_partition_gives_back_what_is_gone(how: str) -> None:
    """Goal: nothing but time passes after the last write. The log extents go that had the values, and merging ends."""

    @on_cluster(extent_bytes=30_000)
    async def story(rig: PartitionRig) -> None:
        region = await rig.create()
        config = dataclasses.replace(CONFIG, flush_after_s=5.0, expired_s_max=600.0)
        partition = await rig.load(region, config=config)
        for number in range(50):
            await partition.put(b"k%02d" % number, b"x" * 4000, ttl_ms=1000 if how == "expired" else 0)
        await asyncio.sleep(30)
        assert len(await rig.stream_extents(region.log_stream_id)) > 5
        if how == "deleted":
            for number in range(50):
                await partition.delete(b"k%02d" % number)
        await asyncio.sleep(700)
        assert len(await rig.stream_extents(region.log_stream_id)) <= 2
        assert partition.state().tables == 0
        manifests = partition._committer.number
        await asyncio.sleep(700)
        assert partition._committer.number == manifests

    story()
