"""A partition manager's Prometheus metrics: leadership, the map, the servers, and the duration of calls."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from neve.partition_manager.manager import Manager
from neve.rpc.call_times import CallTimes


class ManagerMetrics(CallTimes):
    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Time from receiving a call that changes the region map or a registration to its answer."
        super().__init__(registry, "neve_partition_manager_call_seconds", text)


class ManagerCollector(Collector):
    """Gauges at the time of a scrape."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        manager = self._manager
        leading = float(manager.term is not None)
        yield _gauge("neve_partition_manager_leading", "1 while this manager leads.", leading)
        yield CounterMetricFamily("neve_partition_manager_terms", "Terms that this process has led.", manager.terms)
        state = manager.follower.state
        if state is None:
            return
        yield _gauge("neve_region_map_version", "Version of the region map.", state.version)
        yield _gauge("neve_regions", "Regions.", len(state.regions))
        yield _gauge("neve_partition_servers", "Partition servers that are registered.", len(state.servers))
        homeless = sum(each.record.server_id not in state.servers for each in state.regions.values())
        yield _gauge("neve_regions_without_server", "Regions whose server is not registered.", homeless)
        paused = float(state.map is not None and state.map.record.balancing_paused)
        yield _gauge("neve_balancing_paused", "1 while nothing is moved, split or merged by itself.", paused)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
