"""Sealing and commit length: scenarios T1 to T10 on a whole stream layer.

Each story sets the stage, lets something happen, and ends with `settle`: all trouble is over, the cluster repairs
itself, and whatever was acknowledged is there, once, in order and on every replica.
"""

from __future__ import annotations

import asyncio

import pytest

from neve.client.streams.types import Stream
from neve.proto.errors import AppendOutcomeUnknown, NeveError, SealUnavailable
from neve.stream_manager.metadata.records import Extent
from tests.sim import raw
from tests.sim.cluster import SimCluster, simulated
from tests.sim.network.link import fixed_delay
from tests.sim.processes.client import SimClient, SimWriter
from tests.unit.extent_node.store.rig import block_of

LARGE = 1 << 20  # an extent that no story fills


async def written(
    cluster: SimCluster, count: int = 5, *, name: str = "writer", sync: bool = True
) -> tuple[Stream, SimClient, SimWriter, Extent]:
    """A stream with some acknowledged records, its writer, and the extent where they are."""
    stream = await cluster.create_stream(replicas=3, sync=sync, extent_bytes_max=LARGE)
    client = await cluster.client(name)
    writer = await client.writer(stream.id)
    await writer.append_some(count, 100)
    return stream, client, writer, cluster.tail(stream.id)


def length_of(writer: SimWriter) -> int:
    committed = writer.writer.committed
    assert committed is not None
    return committed.offset


def sealed_length(cluster: SimCluster, extent: Extent) -> int:
    seal = cluster.stored_state().extents[extent.extent_id].seal
    assert seal is not None, "it is open"
    return seal.length


async def only_on(cluster: SimCluster, writer: SimWriter, extent: Extent, node_ids: list[int], count: int = 1) -> int:
    """Append what reaches these nodes only, so that it is not acknowledged; returns the length there."""
    others = [node_id for node_id in extent.node_ids if node_id not in node_ids]
    for node_id in others:
        cluster.network.partition(writer.client.name, f"node{node_id}")
    for _ in range(count):
        writer.submit(100)
    before = len(cluster.bytes_on(others[0], extent.extent_id) or b"")
    await cluster.wait(0.1)
    lengths = [len(cluster.bytes_on(node_id, extent.extent_id) or b"") for node_id in node_ids]
    assert min(lengths) > before, "they have more than the others"
    return min(lengths)


@pytest.mark.parametrize("lost", ["file", "disk"])
@pytest.mark.parametrize("sealed_by", ["owner", "successor"])
@simulated()
async def test_t01_a_lost_replica_is_not_length_zero(cluster: SimCluster, lost: str, sealed_by: str) -> None:
    stream, client, writer, extent = await written(cluster)
    acknowledged = length_of(writer)
    node = cluster.nodes[extent.node_ids[0]]
    cluster.unreliable.add(node.node_id)
    node.kill()
    if lost == "file":
        node.fs.unlink(node.extent_path(extent.extent_id))
    else:
        node.wipe()
    await node.start()
    if sealed_by == "owner":
        await writer.append(100)  # it finds the replica gone, and goes on in another extent
    else:
        client.kill()
        for node_id in extent.node_ids:  # none of them remembers how much is committed: lengths alone must tell
            cluster.nodes[node_id].kill()
            await cluster.nodes[node_id].start()
        await (await cluster.take_over("other", stream.id)).append(100)
    assert sealed_length(cluster, extent) == acknowledged
    await cluster.settle()


@simulated()
async def test_t02_a_late_duplicate_append_cuts_nothing(cluster: SimCluster) -> None:
    stream, client, writer, extent = await written(cluster, 3)
    node_id = extent.node_ids[2]
    before = cluster.bytes_on(node_id, extent.extent_id)
    assert before is not None
    # A frame of the first append, which a slow connection delivers when more has been acknowledged.
    first = before[: len(before) // 3]
    cluster.network.set_link("old-connection", f"node{node_id}", delay=fixed_delay(1.0))
    late = asyncio.ensure_future(
        raw.append(cluster, node_id, extent, 0, [first], token=writer.session.token, host="old-connection")
    )
    await writer.append_some(3, 100)
    assert not late.done()
    assert await late == len(first)  # recognised by its bytes
    after = cluster.bytes_on(node_id, extent.extent_id)
    assert after is not None
    assert len(after) == length_of(writer) > len(before)
    client.kill()
    await (await cluster.take_over("other", stream.id)).append()
    await cluster.settle()
    assert len(cluster.ledger.acknowledged()) == 7


@simulated()
async def test_t03_a_seal_is_decided_once_also_over_a_change_of_leader(cluster: SimCluster) -> None:
    stream, client, writer, extent = await written(cluster)
    acknowledged = length_of(writer)
    longest = extent.node_ids[0]
    await only_on(cluster, writer, extent, [longest])  # lengths are now like 10, 9, 9
    client.kill()
    second = await cluster.client("second")
    owner = raw.owner_of(await second.writer(stream.id, takeover=True))
    assert sealed_length(cluster, extent) == acknowledged
    successor = cluster.tail(stream.id).extent_id
    for node_id in extent.node_ids[1:]:  # only the longest one is left to be asked
        cluster.nodes[node_id].kill()
    again = await raw.alloc(second, owner, stream.id, extent.extent_id)
    assert (again.sealed.seal.length, again.tail.extent_id) == (acknowledged, successor)
    (await cluster.leader()).kill()
    again = await raw.alloc(second, owner, stream.id, extent.extent_id)
    assert (again.sealed.seal.length, again.tail.extent_id) == (acknowledged, successor)
    await cluster.settle()
    assert sealed_length(cluster, extent) == acknowledged


@simulated()
async def test_t04_one_replica_that_may_have_lost_bytes_does_not_decide_alone(cluster: SimCluster) -> None:
    cluster.expected_errors = ("bad_replica_found", "node_dead")
    stream, client, writer, extent = await written(cluster, sync=False)
    acknowledged = length_of(writer)
    last, *others = extent.node_ids
    for node_id in others:
        cluster.nodes[node_id].kill()
    client.kill()
    cluster.nodes[last].power_cut("lose_all")
    assert len(cluster.bytes_on(last, extent.extent_id) or b"") < acknowledged, "the story needs lost bytes"
    await cluster.nodes[last].start()
    await cluster.until(lambda: cluster.state.dead_nodes() == set(others), "the others are declared dead")
    # It alone is left. Whoever asks is told to wait: its length proves nothing.
    other = await cluster.client("other")
    with pytest.raises(NeveError):
        await other.writer(stream.id, takeover=True)
    await cluster.wait(20)
    assert cluster.state.extents[extent.extent_id].seal is None
    for node_id in others:
        await cluster.nodes[node_id].start()
    await (await cluster.take_over("third", stream.id)).append()
    assert sealed_length(cluster, extent) == acknowledged
    await cluster.settle()


@simulated()
async def test_t22_a_node_that_lost_power_and_a_paused_one_do_not_outvote_the_acknowledged_bytes(
    cluster: SimCluster,
) -> None:
    cluster.expected_errors = ("bad_replica_found", "node_dead")
    stream, client, writer, extent = await written(cluster, sync=False)
    acknowledged = length_of(writer)
    cut, whole, paused = extent.node_ids
    cluster.nodes[paused].pause()
    client.kill()
    cluster.nodes[cut].power_cut("lose_all")
    assert len(cluster.bytes_on(cut, extent.extent_id) or b"") < acknowledged, "the story needs lost bytes"
    await cluster.nodes[cut].start()
    # Two of three replicas answer, and one of them is short: only the other one's length may count, or none.
    other = await cluster.client("other")
    taking_over = asyncio.create_task(other.writer(stream.id, takeover=True))
    await cluster.wait(20)
    seal = cluster.stored_state().extents[extent.extent_id].seal
    assert seal is None or seal.length == acknowledged
    # The whole replica goes away, and the paused one comes back: now these two are most of what answers.
    cluster.nodes[whole].pause()
    cluster.nodes[paused].resume()
    await cluster.wait(20)
    cluster.nodes[whole].resume()
    await asyncio.gather(taking_over, return_exceptions=True)
    other.kill()
    await (await cluster.take_over("third", stream.id)).append()
    assert sealed_length(cluster, extent) == acknowledged
    await cluster.settle()


@simulated()
async def test_t04_an_operator_accepts_the_longest_when_all_are_back_and_most_are_doubtful(cluster: SimCluster) -> None:
    cluster.expected_errors = ("bad_replica_found",)
    stream, client, writer, extent = await written(cluster, sync=False)
    acknowledged = length_of(writer)
    client.kill()
    for node_id in extent.node_ids[1:]:
        cluster.nodes[node_id].power_cut("lose_all")
        await cluster.nodes[node_id].start()
    other = await cluster.client("other")
    with pytest.raises(SealUnavailable):
        await other.writer(stream.id, takeover=True)
    other.kill()
    await cluster.settle()  # which plays the operator
    assert sealed_length(cluster, extent) == acknowledged


@simulated()
async def test_t05_a_replica_shorter_than_the_seal_serves_no_reads_before_it_is_filled(cluster: SimCluster) -> None:
    _, _, writer, extent = await written(cluster, sync=False)
    acknowledged = length_of(writer)
    short = extent.node_ids[1]
    data = cluster.bytes_on(extent.node_ids[0], extent.extent_id)
    cluster.nodes[short].power_cut("lose_all")
    await cluster.nodes[short].start()
    assert len(cluster.bytes_on(short, extent.extent_id) or b"") < acknowledged, "the story needs lost bytes"
    await writer.append(100)  # the replica has less than it had answered for: the extent is sealed at E
    assert sealed_length(cluster, extent) == acknowledged

    def whole() -> bool:
        now = cluster.stored_state().extents[extent.extent_id]
        held = cluster.bytes_on(short, extent.extent_id)
        if short in now.confirmed:
            assert held == data, "it is listed as good, and is not"
        return now.all_confirmed

    while not whole():
        try:
            given = await raw.read(cluster, short, extent.extent_id)
        except NeveError:
            given = b""
        assert data is not None
        assert data.startswith(given)
        await cluster.wait(0.01)
    await cluster.settle()


@simulated()
async def test_t06_a_seal_at_length_zero_is_a_seal(cluster: SimCluster) -> None:
    stream = await cluster.create_stream(replicas=3)
    empty = cluster.tail(stream.id)
    first = await cluster.client("first")
    await first.writer(stream.id)
    cluster.nodes[empty.node_ids[0]].kill()
    second = await cluster.client("second")
    writer = await second.writer(stream.id, takeover=True)
    seal = cluster.state.extents[empty.extent_id].seal
    assert seal is not None
    assert seal.length == 0
    assert cluster.tail(stream.id).extent_id != empty.extent_id
    await writer.append_some(3)
    assert len(await second.read(stream.id)) >= 2  # over the empty extent
    await cluster.settle()
    assert cluster.stored_state().extents[empty.extent_id].all_confirmed


@pytest.mark.parametrize("returns_with", ["more", "less"])
@simulated()
async def test_t07_a_node_that_missed_the_seal_is_cut_or_filled_before_it_is_read(
    cluster: SimCluster, returns_with: str
) -> None:
    stream, client, writer, extent = await written(cluster)
    acknowledged = length_of(writer)
    odd = extent.node_ids[0]
    having = [odd] if returns_with == "more" else list(extent.node_ids[1:])
    longer = await only_on(cluster, writer, extent, having)
    cluster.nodes[odd].kill()
    client.kill()
    await (await cluster.take_over("other", stream.id)).append()
    length = sealed_length(cluster, extent)
    assert length == (acknowledged if returns_with == "more" else longer)
    assert len(cluster.bytes_on(odd, extent.extent_id) or b"") != length
    await cluster.nodes[odd].start()
    while odd not in cluster.state.extents[extent.extent_id].confirmed:
        try:
            given = await raw.read(cluster, odd, extent.extent_id)
        except NeveError:
            given = b""
        assert len(given) <= length
        await cluster.wait(0.01)
    assert len(cluster.bytes_on(odd, extent.extent_id) or b"") == length
    await cluster.settle()


@simulated()
async def test_t08_an_old_writer_still_connected_to_a_node_that_missed_the_seal(cluster: SimCluster) -> None:
    stream, _, writer, extent = await written(cluster)
    apart = extent.node_ids[0]
    for manager in cluster.managers.values():
        cluster.network.partition(manager.host, f"node{apart}")
    await (await cluster.take_over("other", stream.id)).append()
    length = sealed_length(cluster, extent)
    # That replica has never heard of it: it takes an append, which nobody acknowledges.
    block = block_of("late", 60)
    await raw.append(cluster, apart, extent, length, [block], token=writer.session.token)
    with pytest.raises(NeveError):
        await writer.append(100)
    cluster.network.heal_all()
    await cluster.until(lambda: apart in cluster.state.extents[extent.extent_id].confirmed, "it has the seal")
    with pytest.raises(NeveError):
        await raw.append(cluster, apart, extent, length, [block], token=writer.session.token)
    assert len(cluster.bytes_on(apart, extent.extent_id) or b"") == length
    await cluster.settle()


@simulated()
async def test_t09_what_was_sealed_away_was_never_seen_by_a_reader(cluster: SimCluster) -> None:
    stream, client, writer, extent = await written(cluster)
    acknowledged = length_of(writer)
    await writer.flush()
    reader = await cluster.client("reader")
    sighting, following = reader.follow(stream.id)
    await cluster.until(lambda: len(sighting.records) == 5, "the reader has what is acknowledged")
    ahead = extent.node_ids[0]
    longer = await only_on(cluster, writer, extent, [ahead], count=3)
    assert longer > acknowledged
    assert len(await raw.read(cluster, ahead, extent.extent_id)) == acknowledged
    await cluster.wait(3)
    assert len(sighting.records) == 5
    client.kill()
    await (await cluster.take_over("other", stream.id)).append_some(2)
    assert sealed_length(cluster, extent) == acknowledged
    await cluster.until(lambda: len(sighting.records) == 7, "the reader goes on behind it")
    following.cancel()
    await cluster.settle()  # what the reader saw is what there is


@simulated(seed=10)
async def test_t10_sealed_replicas_are_equal_after_kills_cuts_and_stops_while_writing(cluster: SimCluster) -> None:
    stream = await cluster.create_stream(replicas=3, extent_bytes_max=3000)
    client = await cluster.client("writer")
    writer = await client.writer(stream.id)
    for node_id, trouble in ((1, "kill"), (2, "pause"), (3, "cut"), (4, "power")):
        pending = asyncio.ensure_future(writer.append_some(25, 200))
        await cluster.wait(0.01)
        node = cluster.nodes[node_id]
        if trouble == "kill":
            node.kill()
        elif trouble == "pause":
            node.pause()
        elif trouble == "power":
            node.power_cut("random")
        else:
            cluster.network.partition("writer", node.host)
        await pending
        await cluster.heal()
    await cluster.settle()
    extents = cluster.stored_state().extents.values()
    assert len(extents) >= 8
    for extent in extents:
        if extent.seal is not None:
            held = [cluster.bytes_on(node_id, extent.extent_id) for node_id in extent.node_ids]
            assert len(held) == 3
            assert len(set(held)) == 1, extent


@simulated()
async def test_t10_the_checkers_see_a_replica_that_differs(cluster: SimCluster) -> None:
    """The judge is judged: one flipped bit, one missing record, one that was never appended."""
    _, client, writer, extent = await written(cluster)
    await writer.close()
    await client.run(client.neve.seal(writer.session.stream_id))
    await cluster.until_in_order()
    node = cluster.nodes[extent.node_ids[0]]
    node.fs.flip(node.extent_path(extent.extent_id), 20, 1)
    with pytest.raises(AssertionError, match=r"checksum|CRC|differs"):
        await cluster.settle()
    node.fs.flip(node.extent_path(extent.extent_id), 20, 1)
    attempt = cluster.ledger.attempt(writer.session)
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    future.set_exception(AppendOutcomeUnknown(detail="as the story wants it"))
    cluster.ledger.made(writer.session, attempt, future)
    await cluster.settle()  # never acknowledged, never seen: fine
    lost = cluster.ledger.attempt(writer.session)
    found: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    position = writer.session.attempts[0].position
    found.set_result(position)
    cluster.ledger.made(writer.session, lost, found)
    with pytest.raises(AssertionError, match=r"is lost|not on node"):
        await cluster.settle()
    assert len(cluster.violations) == 3, "G1 was checked on each replica when it was acknowledged"
    cluster.violations.clear()  # they were asked for
