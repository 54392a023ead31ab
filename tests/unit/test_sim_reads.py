"""What readers had to see, and which unsynced records may be lost: spoiled readings, seals and caches are noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from tests.sim.checks import reads
from tests.sim.checks.ledger import Attempt, Sighting
from tests.sim.cluster import SimCluster, simulated

MISSED = "has read the stream, and not found"


async def written(cluster: SimCluster, *, weak: bool = False, count: int = 3, size_bytes: int = 300) -> int:
    """A stream with some records, of which all nodes know."""
    stream = await cluster.create_stream(replicas=3)
    writer = await (await cluster.client("writer")).writer(stream.id, sync=not weak)
    writer.session.weak = weak
    await writer.append_some(count, size_bytes)
    await writer.flush()
    await asyncio.sleep(0.1)
    return stream.id


async def read(cluster: SimCluster, stream_id: int) -> Sighting:
    """As it came; what is spoiled then is looked at once more."""
    reader = await cluster.client(f"reader{len(cluster.clients)}")
    await reader.read(stream_id)
    assert not cluster.violations
    return cluster.ledger.sightings[-1]


def found_by(cluster: SimCluster) -> str:
    found, cluster.violations = " ".join(cluster.violations), []
    return found


@pytest.mark.parametrize("size_bytes", [300, 2500])  # in the open extent, and over the ends of some
@simulated(nodes=3)
async def test_a_read_that_ends_early_without_an_error_is_noticed(cluster: SimCluster, size_bytes: int) -> None:
    sighting = await read(cluster, await written(cluster, count=4, size_bytes=size_bytes))
    last = sighting.records.pop()
    cluster.ledger.on_read(sighting)
    assert MISSED in found_by(cluster)
    sighting.records.clear()
    cluster.ledger.removed[sighting.stream_id] = {last.position.extent_id}
    cluster.ledger.on_read(sighting)
    assert str(last.position) not in found_by(cluster)


@simulated(nodes=3)
async def test_an_open_end_is_missed_only_if_no_node_had_to_forget_it(cluster: SimCluster) -> None:
    sighting = await read(cluster, await written(cluster))
    sighting.records.clear()
    cluster.ledger.on_read(sighting)
    assert found_by(cluster).count(MISSED) == 3
    cluster.nodes[2].kill()
    await cluster.nodes[2].start()
    cluster.ledger.on_read(sighting)
    assert not found_by(cluster)


@simulated(nodes=3)
async def test_an_old_list_excuses_what_is_behind_it_unless_managers_have_heard(cluster: SimCluster) -> None:
    stream_id = await written(cluster, count=30)
    await asyncio.sleep(2 * reads.LAG_S)
    sighting = await read(cluster, stream_id)
    first = cluster.etcd.extents_of(stream_id)[0]
    sighting.records.clear()
    sighting.revision = cluster.etcd.linked[first]
    cluster.ledger.on_read(sighting)
    missed = found_by(cluster)
    assert f"acknowledged at {first}:0" in missed  # its nodes were told of it
    assert missed.count(MISSED) < 30
    assert "is told of stream" not in missed
    cluster.readings.troubles = {"watches interrupted"}
    cluster.ledger.on_read(sighting)
    assert "is told of stream" not in found_by(cluster)
    cluster.readings.troubles = {"node killed"}
    cluster.ledger.on_read(sighting)
    assert "is told of stream" in found_by(cluster)


@pytest.mark.parametrize(("troubles", "is_noticed"), [((), True), (("node killed",), False), (None, False)])
@simulated(nodes=3)
async def test_a_follower_that_stalls_is_noticed_where_nothing_explains_it(
    cluster: SimCluster, troubles: Collection[str] | None, is_noticed: bool
) -> None:
    cluster.readings.troubles = troubles
    stream_id = await written(cluster)
    sighting, task = (await cluster.client("reader")).follow(stream_id)
    await asyncio.sleep(reads.STALL_S + 1)
    assert len(sighting.records) == 3
    sighting.records.pop()
    task.cancel()
    await asyncio.wait([task])
    assert ("has been given nothing" in found_by(cluster)) == is_noticed


def _last(cluster: SimCluster) -> tuple[Attempt, int, int]:
    attempt = cluster.ledger.sessions[-1].attempts[-1]
    return attempt, *attempt.ends[-1]


@pytest.mark.parametrize("power_cuts", [0, 1, 2, 3])
@simulated(nodes=4)
async def test_an_unsynced_record_is_lost_only_if_all_of_its_replicas_have_lost_their_caches(
    cluster: SimCluster, power_cuts: int
) -> None:
    await written(cluster, weak=True)
    attempt, extent_id, end = _last(cluster)
    for node_id in cluster.etcd.opened_on(extent_id)[:power_cuts]:
        cluster.nodes[node_id].power_cut()
    assert cluster.may_be_lost(attempt) == (power_cuts == 3)
    cluster.etcd.on_sealed(extent_id, end - 1, 99)
    assert ("have lost their caches" in found_by(cluster)) == (power_cuts < 3)


@simulated(nodes=4)
async def test_a_cache_that_was_lost_before_or_elsewhere_explains_nothing(cluster: SimCluster) -> None:
    for node in cluster.nodes.values():
        node.power_cut()
        await node.start()
    await asyncio.sleep(1)
    await written(cluster, weak=True)
    attempt, extent_id, end = _last(cluster)
    assert not cluster.may_be_lost(attempt)
    cluster.etcd.on_sealed(extent_id, end, 99)
    await asyncio.sleep(1)
    for node in cluster.nodes.values():
        node.power_cut()
    assert not cluster.may_be_lost(attempt)  # it was sealed before


@simulated(nodes=3, node_options={"disks": 2})
async def test_a_disk_that_was_remounted_loses_nothing_of_the_other_one(cluster: SimCluster) -> None:
    await written(cluster, weak=True)
    attempt, extent_id, _ = _last(cluster)
    for other in (True, False):
        for node in cluster.nodes.values():
            held = [number for number in range(2) if node.fs.stat(node.extent_path(extent_id, number)) is not None]
            node.note_cache_lost(f"/disk{1 - held[0] if other else held[0]}")
        assert cluster.may_be_lost(attempt) != other
