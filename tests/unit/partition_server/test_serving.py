"""The process part: frames of many operations, calls that are held, ranges that are not ours."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from neve.partition_server.config import Serving
from neve.partition_server.hosted import Hosted, Phase
from neve.partition_server.server import surroundings
from neve.proto import common_pb2, methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import (
    ConditionFailed,
    InvalidArgument,
    NeveError,
    NotFound,
    Overloaded,
    TooLarge,
    WrongServer,
    from_message,
)
from neve.rpc.service import Channel, Reply
from tests.sim.partitions import PartitionCluster, partitioned
from tests.sim.processes.manager import wall_ms
from tests.sim.processes.node import CLUSTER
from tests.sim.processes.partitions import CLIENT_OPTIONS

Kind = ps.MultiOperation.Kind


def channel_to(cluster: PartitionCluster, server_id: int) -> Channel:
    return cluster.sim.network.channel("caller", cluster.servers[server_id].address, cluster=CLUSTER)


async def multi(channel: Channel, *operations: ps.MultiOperation, **how: Any) -> Reply[ps.MultiReply]:
    call = common_pb2.CallId(client_id=77, completed_below=1)
    request = ps.MultiRequest(call=call, operations=operations, **how.pop("fields", {}))
    return await channel.call(methods.PARTITION_SERVER_MULTI, request, **{"timeout_s": 20.0, **how})


def put(key: bytes, value: bytes, call_id: int, **fields: Any) -> ps.MultiOperation:
    return ps.MultiOperation(kind=Kind.PUT, key=key, value_bytes=len(value), call_id=call_id, **fields)


@partitioned(seed=41, servers=2, server={"multi_reply_bytes_max": 3000})
async def test_each_operation_of_a_frame_has_its_own_answer(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"m")
    here = cluster.region(b"a").server_id
    channel = channel_to(cluster, here)
    values = [b"1" * 2000, b"2" * 2000, b"3"]
    reply = await multi(
        channel,
        put(b"a", values[0], 1),
        put(b"b", values[1], 2),
        put(b"c", values[2], 3),
        put(b"z", b"", 4),
        put(b"d", b"", 5, condition=ps.Condition(version=99)),
        attachment=values,
    )
    results = reply.message.results
    assert [result.info.size_bytes for result in results[:3]] == [2000, 2000, 1]
    assert isinstance(from_message(results[3].error), WrongServer), "the other server has it"
    assert isinstance(from_message(results[4].error), ConditionFailed)
    wanted = [
        ps.MultiOperation(kind=Kind.GET, key=b"a"),
        ps.MultiOperation(kind=Kind.GET, key=b"b"),
        ps.MultiOperation(kind=Kind.GET, key=b"c"),
        ps.MultiOperation(kind=Kind.HEAD, key=b"b"),
        ps.MultiOperation(kind=Kind.GET, key=b"gone"),
        ps.MultiOperation(kind=Kind.DELETE, key=b"c", call_id=6),
        ps.MultiOperation(key=b"a"),
    ]
    reply = await multi(channel, *wanted, reply_bytes_max=10_000)
    results = reply.message.results
    assert bytes(reply.attachment) == values[0] + values[2]
    assert [result.value_bytes for result in results[:3]] == [2000, 0, 1]
    assert isinstance(from_message(results[1].error), TooLarge), "there was no room beside the first"
    assert results[3].info.size_bytes == 2000
    assert isinstance(from_message(results[4].error), NotFound)
    assert results[5].existed
    assert isinstance(from_message(results[6].error), InvalidArgument)
    with pytest.raises(InvalidArgument):
        await multi(channel, put(b"a", b"123", 7), attachment=[b"12"])


async def put_many(channel: Channel, first_call: int, items: dict[bytes, bytes], **fields: Any) -> ps.PutManyReply:
    request = ps.PutManyRequest(
        call=common_pb2.CallId(client_id=77, completed_below=1),
        keys=list(items),
        call_ids=range(first_call, first_call + len(items)),
        value_bytes=map(len, items.values()),
    )
    for name, value in fields.items():
        request.ClearField(name)
        request.MergeFrom(ps.PutManyRequest(**{name: value}))
    reply = await channel.call(
        methods.PARTITION_SERVER_PUT_MANY, request, timeout_s=20.0, attachment=list(items.values())
    )
    return reply.message


@partitioned(seed=47, servers=2)
async def test_puts_in_columns_are_answered_each_for_itself(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"c", b"m")
    here = cluster.region(b"a").server_id
    channel = channel_to(cluster, here)
    ours = {key for key in (b"a", b"b", b"d", b"z") if cluster.region(key).server_id == here}
    items = {b"a": b"one", b"d": b"", b"z": b"three", b"b": b"four" * 100}
    reply = await put_many(channel, 1, items, ttl_ms=[0, 0, 0, 5000])
    kv = await cluster.kv()
    failed = {failure.index: from_message(failure.error) for failure in reply.failures}
    for number, (key, value) in enumerate(items.items()):
        if key not in ours:
            assert isinstance(failed[number], WrongServer), key
            assert not reply.versions[number]
            continue
        found = await kv.get(key)
        assert found.value == value
        assert found.info.version == reply.versions[number] > 0
        assert found.info.crc32c == reply.value_crc32c[number]
        assert found.info.modified_ms == reply.modified_ms[number]
    assert (await kv.head(b"b")).expires_ms == reply.modified_ms[3] + 5000
    again = await put_many(channel, 1, items, ttl_ms=[0, 0, 0, 5000])
    assert list(again.versions) == list(reply.versions), "once (T50)"
    wrong: list[dict[str, Any]] = [
        {"keys": []},
        {"call_ids": [1]},
        {"ttl_ms": [1]},
        {"value_bytes": [1, 2, 3, 4]},
        {"value_bytes": [1]},
    ]
    for fields in wrong:
        with pytest.raises(InvalidArgument):
            await put_many(channel, 9, items, **fields)


@partitioned(seed=48, server={"serving": Serving(hold_s=30.0, frozen_ms=3000)})
async def test_puts_to_a_frozen_partition_are_held_until_it_is_served_again(cluster: PartitionCluster) -> None:
    await cluster.bootstrap()
    region = cluster.region(b"a")
    channel = channel_to(cluster, region.server_id)
    prepare = ps.PreparePartitionSplitRequest(partition_id=region.partition_id, middle_key=b"m")
    await channel.call(methods.PARTITION_SERVER_PREPARE_PARTITION_SPLIT, prepare, timeout_s=10.0)
    putting = asyncio.ensure_future(put_many(channel, 1, {b"a": b"1", b"z": b"2"}))
    await asyncio.sleep(1)
    assert not putting.done()
    reply = await putting
    assert all(reply.versions)
    assert not reply.failures
    kv = await cluster.kv()
    assert (await kv.get(b"z")).value == b"2"


@partitioned(seed=42)
async def test_a_repeated_write_in_another_frame_is_executed_once(cluster: PartitionCluster) -> None:
    await cluster.bootstrap()
    channel = channel_to(cluster, cluster.region(b"a").server_id)
    first = (await multi(channel, put(b"a", b"1", 1), attachment=[b"1"])).message.results[0]
    other = (await multi(channel, put(b"a", b"2", 2), attachment=[b"2"])).message.results[0]
    again = (await multi(channel, put(b"a", b"1", 1), attachment=[b"1"])).message.results[0]
    assert again.info == first.info
    found = await multi(channel, ps.MultiOperation(kind=Kind.GET, key=b"a"))
    assert bytes(found.attachment) == b"2"
    assert found.message.results[0].info.version == other.info.version


@partitioned(seed=43)
async def test_a_caller_with_a_newer_map_is_held_until_the_server_has_it(cluster: PartitionCluster) -> None:
    await cluster.bootstrap()
    region = cluster.region(b"a")
    channel = channel_to(cluster, 3 - region.server_id)
    head = ps.HeadRequest(key=b"a", regions_version=2)
    held = asyncio.ensure_future(channel.call(methods.PARTITION_SERVER_HEAD, head, timeout_s=20.0))
    await asyncio.sleep(0.5)
    assert not held.done()
    await cluster.move(region.partition_id, 3 - region.server_id)
    with pytest.raises(NotFound):  # it answers, by now
        await held
    old = channel_to(cluster, region.server_id)
    with pytest.raises(WrongServer) as told:
        await old.call(methods.PARTITION_SERVER_HEAD, ps.HeadRequest(key=b"a"), timeout_s=5.0)
    assert told.value.regions_version == 2, "the caller learns which map to ask for"
    never = ps.HeadRequest(key=b"a", regions_version=99)
    with pytest.raises(WrongServer):
        await channel.call(methods.PARTITION_SERVER_HEAD, never, timeout_s=30.0)


@partitioned(seed=44, server={"serving": Serving(held_calls_max=3, hold_s=4.0, frozen_ms=60_000)})
async def test_held_calls_are_bounded_in_number_and_in_time(cluster: PartitionCluster) -> None:
    await cluster.bootstrap()
    region = cluster.region(b"a")
    server = cluster.servers[region.server_id]
    channel = channel_to(cluster, region.server_id)
    prepare = ps.PreparePartitionSplitRequest(partition_id=region.partition_id, middle_key=b"m")
    reply = await channel.call(methods.PARTITION_SERVER_PREPARE_PARTITION_SPLIT, prepare, timeout_s=10.0)
    assert (reply.message.middle_key, reply.message.owner.lock) == (b"m", region.lock)
    heads = [
        asyncio.ensure_future(channel.call(methods.PARTITION_SERVER_HEAD, ps.HeadRequest(key=b"a"), timeout_s=20.0))
        for _ in range(5)
    ]
    await asyncio.sleep(0.5)
    assert server.host_.held == 3
    outcomes = await asyncio.gather(*heads, return_exceptions=True)
    assert sorted(type(each).__name__ for each in outcomes) == ["Overloaded"] * 2 + ["WrongServer"] * 3
    assert server.host_.held == 0
    with pytest.raises(NeveError):  # frozen once is frozen
        await channel.call(methods.PARTITION_SERVER_PREPARE_PARTITION_SPLIT, prepare, timeout_s=3.0)


@partitioned(seed=45)
async def test_a_scan_beyond_the_partition_is_not_called_complete(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"m")
    channel = channel_to(cluster, cluster.region(b"a").server_id)

    async def scan(**fields: Any) -> ps.ScanReply:
        request = ps.ScanRequest(limit=10, **fields)
        return (await channel.call(methods.PARTITION_SERVER_SCAN, request, timeout_s=10.0)).message

    assert (await scan(start=b"a", end=b"m")).continuation == b""
    assert (await scan(prefix=b"b")).continuation == b""
    for beyond in ({"start": b"a"}, {"start": b"a", "end": b"n"}, {"prefix": b"m"}, {"start": b"z"}):
        with pytest.raises(WrongServer):
            await scan(**beyond)


@partitioned(seed=46)
async def test_a_partition_whose_streams_fail_is_loaded_again(cluster: PartitionCluster) -> None:
    """Somebody takes the lock over, which nobody of ours does: the server loses it, and has it back when it is free."""
    await cluster.bootstrap()
    kv = await cluster.kv()
    await kv.put(b"a", b"1")
    region = cluster.region(b"a")
    hosted = cluster.servers[region.server_id].host_.hosted[region.partition_id]
    stranger = await cluster.sim.client("stranger")
    writer = await stranger.run(stranger.neve.writer(region.log_stream_id, takeover=True).open())
    await cluster.until(lambda: hosted.phase is not Phase.SERVING, "it has lost the lock")
    reading = asyncio.ensure_future(kv.get(b"a"))
    await asyncio.sleep(1.0)
    assert not reading.done()
    await stranger.run(writer.close())
    assert (await reading).value == b"1"
    assert hosted.loads == 2


@partitioned(seed=47, servers=1)
async def test_what_the_map_says_after_the_lock_was_taken_is_what_counts(cluster: PartitionCluster) -> None:
    """A server whose news is old may get a lock that is free: it must not serve by what it believed before."""
    await cluster.bootstrap()
    region = cluster.region(b"a")
    await cluster.servers[1].stop()
    client = await cluster.sim.client("late", options=CLIENT_OPTIONS)
    config = cluster.servers[1].config
    around = surroundings(config, client.neve, rng=random.Random(1), wall_ms=wall_ms)
    stale = pm.RegionRecord()
    stale.CopyFrom(region)
    stale.epoch += 1
    for wanted, server_id, served in ((region, 2, False), (stale, 1, False), (region, 1, True)):
        hosted = client.process.enter(lambda w=wanted, s=server_id: Hosted(around, w, server_id=s))
        running = client.process.spawn(hosted.run())
        await asyncio.sleep(5.0)
        assert (hosted.phase is Phase.SERVING, hosted.loads) == (served, int(served)), hosted.error
        hosted.want(None)
        await running


@partitioned(servers=2)
async def test_a_partition_that_was_given_away_and_back_at_once_is_served(cluster: PartitionCluster) -> None:
    """As by a watch that was down meanwhile, and then tells both in one turn."""
    await cluster.bootstrap()
    kv = await cluster.kv("kv")
    await kv.put(b"a", b"1")
    region = cluster.region(b"a")
    hosted = cluster.servers[region.server_id].host_.hosted[region.partition_id]
    hosted.want(None)
    hosted.want(region)
    assert hosted.phase is not Phase.SERVING
    await cluster.until(lambda: hosted.phase is Phase.SERVING, "it is served again")
    assert (await kv.get(b"a")).value == b"1"


def test_bounds_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="frozen_ms"):
        Serving(frozen_ms=0)
    assert issubclass(Overloaded, NeveError)
