"""What Prometheus sees of a manager."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from neve.stream_manager.metrics import LATENCY_BUCKETS_S, ManagerCollector, ManagerMetrics
from tests.unit.stream_manager.manager_rig import Cluster, simulated


def test_a_duration_is_counted_in_its_bucket_and_all_above() -> None:
    registry = CollectorRegistry()
    metrics = ManagerMetrics(registry)
    for duration_s in (0.0001, 0.03, 99.0):
        metrics.observe("CreateStream", duration_s)
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    assert family.type == "histogram"
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    assert len(buckets) == len(LATENCY_BUCKETS_S) + 1
    assert (buckets["0.001"], buckets["0.025"], buckets["0.05"], buckets["30.0"], buckets["+Inf"]) == (1, 1, 2, 2, 3)
    values = {sample.name: sample.value for sample in family.samples}
    assert values["neve_manager_call_seconds_count"] == 3
    assert values["neve_manager_call_seconds_sum"] > 99


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
            registry = CollectorRegistry()
            registry.register(ManagerCollector(manager))
            families = text_string_to_metric_families(generate_latest(registry).decode())
            found = {sample.name: sample.value for family in families for sample in family.samples}
            assert found["neve_manager_leading"] == leading
            assert found["neve_streams"] == 1
            assert found["neve_extents"] == 2
            assert found["neve_open_extents"] == 1
            assert ("neve_manager_batch_committed_total" in found) == bool(leading)
