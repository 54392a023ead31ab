"""The key-value benchmark's client on partitions in a dict: what it counts is what was done."""

from __future__ import annotations

import pytest

from tests.bench.kv_client import Clients
from tests.unit.client.objects.scripted_partitions import CLUSTER, ScriptedCluster


async def test_the_client_loads_and_measures_what_it_is_told() -> None:
    cluster = ScriptedCluster(servers=2, split_keys=(b"bench/user092",))
    manager = await cluster.serve_on_wire()
    clients = Clients()
    where = {"store": "neve", "addresses": [manager], "cluster": CLUSTER, "objects": 300, "size_bytes": 64}
    try:
        assert await clients.take({"case": "load", **where}) > 0
        assert sum(len(partition.objects) for partition in cluster.partitions) == 300
        assert all(len(stored.value) == 64 for part in cluster.partitions for stored in part.objects.values())
        assert min(len(partition.objects) for partition in cluster.partitions) > 100  # spread over both
        before = len(cluster.executed)
        rate = await clients.take({"case": "run", **where, "mix": "put", "workers": 8, "duration_s": 0.2})
        assert rate > 0
        assert len(cluster.executed) > before
        executed = len(cluster.executed)
        assert await clients.take({"case": "run", **where, "mix": "C", "workers": 8, "duration_s": 0.2}) > 0
        assert len(cluster.executed) == executed  # C only reads
        took_s = await clients.take({"case": "latency", **where, "mix": "put", "duration_s": 0.1, "share": 0.5})
        assert took_s > 0
        with pytest.raises(KeyError):
            await clients.take({"case": "run"})
    finally:
        await clients.close()
        await cluster.stop()
