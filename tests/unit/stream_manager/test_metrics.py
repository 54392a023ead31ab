"""What Prometheus sees of a manager."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from neve.proto import stream_manager_pb2 as sm
from neve.rpc.call_times import SLOW_CALL_BUCKETS_S as LATENCY_BUCKETS_S
from neve.stream_manager import metrics
from neve.stream_manager.manager import Manager
from neve.stream_manager.metadata.record_kinds import NODE
from neve.stream_manager.metadata.records import Extent, NodeEntry, ReplicaAt
from neve.stream_manager.metadata.state import State
from neve.stream_manager.metrics import ManagerCollector, ManagerMetrics
from neve.stream_manager.streams import reads
from neve.stream_manager.streams.reads import count_lacking, lacking_extents, under_replicated, usable_replicas
from tests.unit.stream_manager.manager_rig import Cluster, simulated


def test_a_duration_is_counted_in_its_bucket_and_all_above() -> None:
    registry = CollectorRegistry()
    times = ManagerMetrics(registry)
    for duration_s in (0.0001, 0.03, 99.0):
        times.observe("CreateStream", duration_s)
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    assert family.type == "histogram"
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    assert len(buckets) == len(LATENCY_BUCKETS_S) + 1
    assert (buckets["0.001"], buckets["0.025"], buckets["0.05"], buckets["30.0"], buckets["+Inf"]) == (1, 1, 2, 2, 3)
    values = {sample.name: sample.value for sample in family.samples}
    assert values["neve_manager_call_seconds_count"] == 3
    assert values["neve_manager_call_seconds_sum"] > 99


def gauges(manager: Manager) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(ManagerCollector(manager))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples]
    return {sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value for sample in samples}


@simulated
async def test_gauges_tell_what_the_leader_and_a_follower_hold() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        stream, tail, owner = await cluster.opened()
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await cluster.until(lambda: not cluster.term.state.unconfirmed_extents)
        for number, leading in ((1, 1.0), (2, 0.0)):
            manager = cluster.managers[number].manager
            await cluster.until(lambda m=manager: m.term is not None or m.follower.state is not None)  # type: ignore[misc]
            found = gauges(manager)
            assert found["neve_manager_leading"] == leading
            assert found["neve_streams"] == 1
            assert found["neve_extents"] == 2
            assert found["neve_open_extents"] == 1
            assert ("neve_manager_batch_committed_total" in found) == bool(leading)


@simulated
async def test_gauges_tell_what_lacks_a_replica_and_which_nodes_are_down() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, nodes=(1, 2, 3, 4))
        manager = cluster.managers[1].manager
        stream, tail, owner = await cluster.opened()  # on 1, 2 and 3
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await cluster.until(lambda: not cluster.term.state.unconfirmed_extents)
        cluster.part.registry.down.add(2)  # silent, and not dead yet
        found = gauges(manager)
        assert found["neve_under_replicated_extents"] == 0
        assert [found[f"neve_nodes/{health}"] for health in ("alive", "suspect", "dead")] == [3, 1, 0]
        await cluster.declare_dead(2)
        found = gauges(manager)
        assert found["neve_under_replicated_extents"] == 2
        assert [found[f"neve_nodes/{health}"] for health in ("alive", "suspect", "dead")] == [3, 0, 1]
        assert found["neve_unconfirmed_extents"] == 0
        assert found["neve_recovery_tasks"] == 0
        state = cluster.term.state
        lacking = [
            extent.extent_id for extent in state.extents.values() if under_replicated(extent, state.dead_nodes())
        ]
        assert sorted(lacking_extents(state)) == sorted(lacking)
        dead = state.dead_nodes()
        endangered = sum(usable_replicas(extent, dead) <= 1 for extent in state.extents.values())
        assert await count_lacking(state) == (len(lacking), endangered)


@simulated
@pytest.mark.parametrize("health", [sm.NODE_HEALTH_ALIVE, sm.NODE_HEALTH_DEAD])
async def test_a_decommissioned_node_that_was_stopped_raises_no_alarm(health: sm.NodeHealth) -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, nodes=(1, 2, 3, 4))
        old = cluster.term.state.nodes[4]
        changes = cluster.term.ctx.changes()
        changes.put(NODE, old, replace(old, mode=sm.NODE_MODE_DECOMMISSIONED, health=health))
        await cluster.term.ctx.commit(changes)
        cluster.part.registry.down.add(4)
        found = gauges(cluster.managers[1].manager)
        assert [found[f"neve_nodes/{name}"] for name in ("alive", "suspect", "dead")] == [3, 0, 0]


async def test_many_that_lack_a_replica_are_counted_behind_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(b"/x/")
    for node_id in range(1, 6):
        health = sm.NODE_HEALTH_DEAD if node_id <= 2 else sm.NODE_HEALTH_ALIVE
        state._set(NODE, node_id, NodeEntry(node_id, f"a:{node_id}", health=health))
    for extent_id in range(1, 11):
        nodes = (1, 2, 3) if extent_id <= 4 else (3, 4, 5)
        replicas = tuple(ReplicaAt(node_id, "disk", 1) for node_id in nodes)
        state._set_extent(extent_id, Extent(extent_id, 1, replicas, 1, 1, stream_id=1))
    counted = metrics.LackingCount()
    assert counted.count(state) == 4
    monkeypatch.setattr(metrics, "COUNTED_MAX", 7)
    monkeypatch.setattr(reads, "lacking_extents", lambda state: pytest.fail("in one go"))
    assert counted.count(state) == 8  # until they are counted: each of the four is on two dead nodes
    await asyncio.sleep(0.05)
    assert counted.count(state) == 4
    await asyncio.sleep(0.05)
    assert counted._task is None
