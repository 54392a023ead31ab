"""Streams as wholes: what readers get of a stream that was punched, merged or split."""

from __future__ import annotations

import asyncio

import pytest

from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import AppendOutcomeUnknown, ShuttingDown
from tests.sim import raw
from tests.sim.checks.ledger import payloads
from tests.sim.cluster import SimCluster, simulated
from tests.sim.processes.client import SimClient, SimWriter

RECORD_BYTES = 2500  # three blocks, of which one and a half records fit into an extent


async def merge(cluster: SimCluster, client: SimClient, writer: SimWriter, absorbed: SimWriter) -> None:
    """Their streams, as their owners."""
    request = sm.MergeStreamsRequest()
    request.streams.add(
        stream_id=writer.session.stream_id,
        owner=raw.owner_of(writer),
        absorbed_stream_id=absorbed.session.stream_id,
        absorbed_owner=raw.owner_of(absorbed),
    )
    cluster.ledger.merged[absorbed.session.stream_id] = writer.session.stream_id
    await client.run(client.neve.admin.merge_streams(request, timeout_s=10.0))


@simulated()
async def test_a_record_does_not_go_on_behind_a_hole(cluster: SimCluster) -> None:
    """Its middle was punched out: what stands behind the hole is the end of another record (found by a story)."""
    stream = await cluster.create_stream(replicas=3, extent_bytes_max=4000)
    client = await cluster.client("writer")
    writer = await client.writer(stream.id)
    positions = await writer.append_some(8, RECORD_BYTES)
    appended = [attempt.payload for attempt in writer.session.attempts]
    extent_ids = cluster.state.streams[stream.id].extent_ids
    hole = extent_ids[1]
    assert positions[1].extent_id == extent_ids[0]
    assert positions[2].extent_id == hole  # begins in it, and ends behind it
    cluster.ledger.removed[stream.id] = {hole}
    await client.run(client.neve.punch(stream.id, [hole]))
    assert cluster.stored_state().streams[stream.id].after_hole == (extent_ids[2],)
    await writer.flush()
    reader = await cluster.client("reader")
    read = payloads(await reader.read(stream.id))
    assert read[0] == appended[0]
    assert set(read) <= set(appended)
    assert appended[1] not in read
    assert read[1:] == [payload for payload, at in zip(appended, positions, strict=True) if at.extent_id > hole]
    await cluster.settle()


@simulated()
async def test_a_record_goes_on_behind_an_extent_that_held_nothing_of_it(cluster: SimCluster) -> None:
    """It was sealed before anything was written to it, and is punched out later: it is no hole (found by seed 582)."""
    stream = await cluster.create_stream(replicas=3, extent_bytes_max=4000)
    client = await cluster.client("writer")
    writer = await client.writer(stream.id)
    hosts = [node.host for node in cluster.nodes.values()]
    loop = asyncio.get_running_loop()
    rolls: list[str] = []

    def look(method: str, kind: str, source: str, target: str) -> None:
        """Whoever was given an extent reaches nobody, until it asks for the next one."""
        if method == "StreamAllocExtent":
            rolls.append(kind)
            for host in hosts:
                if rolls == ["request", "reply"]:
                    loop.call_soon(cluster.network.partition, target, host)
                elif kind == "request":
                    loop.call_soon(cluster.network.heal, source, host)

    cluster.wire.listeners[look] = None
    await writer.append_some(4, RECORD_BYTES)
    cluster.wire.listeners.pop(look)
    appended = [attempt.payload for attempt in writer.session.attempts]
    first, empty, *_ = extent_ids = cluster.state.streams[stream.id].extent_ids
    seal = cluster.state.extents[empty].seal
    assert seal is not None
    assert seal.length == 0
    spanning = [each for each in writer.session.attempts if {extent_id for extent_id, _ in each.ends} > {first}]
    assert len(spanning) == 1
    cluster.ledger.removed[stream.id] = {empty}
    await client.run(client.neve.punch(stream.id, [empty]))
    assert cluster.stored_state().streams[stream.id].extent_ids == (first, *extent_ids[2:])
    assert cluster.stored_state().streams[stream.id].after_hole == ()
    await writer.flush()
    reader = await cluster.client("reader")
    assert payloads(await reader.read(stream.id)) == appended
    await cluster.settle()


@simulated()
async def test_a_record_of_one_stream_does_not_go_on_in_another_that_it_absorbed(cluster: SimCluster) -> None:
    client = await cluster.client("owner")
    streams = [await cluster.create_stream(replicas=3, extent_bytes_max=4000) for _ in range(2)]
    writers = [await client.writer(stream.id) for stream in streams]
    for writer in writers:
        await writer.append_some(5, RECORD_BYTES)
    first, second = (cluster.state.streams[stream.id].extent_ids for stream in streams)
    cluster.ledger.removed[streams[1].id] = {second[0]}
    await client.run(client.neve.punch(streams[1].id, [second[0]]))  # now it begins in the middle of a record
    await merge(cluster, client, *writers)
    merged = cluster.stored_state().streams[streams[0].id]
    assert merged.extent_ids == (*first, *second[1:])
    assert merged.after_hole == (second[1],)
    appended = {attempt.payload for writer in writers for attempt in writer.session.attempts}
    reader = await cluster.client("reader")
    assert set(payloads(await reader.read(streams[0].id))) < appended
    await cluster.settle()


@simulated()
async def test_a_writer_that_did_not_hear_of_a_merge_acknowledges_nothing_of_the_other_stream(
    cluster: SimCluster,
) -> None:
    """Its next extent is there already, with as many bytes as it waits for, and they are the other stream's."""
    client = await cluster.client("owner")
    streams = [await cluster.create_stream(replicas=3, extent_bytes_max=4000) for _ in range(2)]
    writers = [await client.writer(stream.id) for stream in streams]
    for writer in writers:
        await writer.append_some(3, 300)
    await merge(cluster, client, *writers)
    late = [writers[0].submit(300) for _ in range(5)]
    with pytest.raises(AppendOutcomeUnknown):
        await writers[0].flush()
    assert all(attempt.settled and attempt.position is None for attempt in late)
    await writers[0].abort()
    again = await client.writer(streams[0].id)
    await again.append_some(3, 300)
    await again.close()
    appended = [attempt.payload for writer in (*writers, again) for attempt in writer.session.attempts[:3]]
    reader = await cluster.client("reader")
    assert payloads(await reader.read(streams[0].id)) == appended
    await cluster.settle()


@simulated()
async def test_a_seal_that_is_given_up_ends_its_writer(cluster: SimCluster) -> None:
    client = await cluster.client("owner")
    stream = await cluster.create_stream(replicas=3, extent_bytes_max=4000)
    writer = await client.writer(stream.id)
    await writer.append_some(3, 300)
    leader = await cluster.leader()
    leader.kill()
    sealing = client.process.spawn(client.neve.seal(stream.id))
    await cluster.wait(0.5)
    sealing.cancel()
    await asyncio.wait([sealing])
    assert sealing.cancelled()
    assert isinstance(writer.writer.error, ShuttingDown)
    await asyncio.wait_for(writer.writer.close(), timeout=10.0)
    leader.start()
    await cluster.settle()
