"""What Prometheus sees of a manager: whether it leads, what it holds, how its batches and calls go.

Counting on the way of a call is an addition; gauges are read from the state when Prometheus asks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from neve.rpc.call_times import CallTimes
from neve.stream_manager import reads
from neve.stream_manager.leader import Term
from neve.stream_manager.manager import Manager
from neve.stream_manager.state import State


class ManagerMetrics(CallTimes):
    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Time from receiving a call that changes metadata to its answer."
        super().__init__(registry, "neve_manager_call_seconds", text)


class ManagerCollector(Collector):
    """Gauges of the term, or of the followed state, at the moment of a scrape. Counters are of the current term."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        term = self._manager.term
        yield _gauge("neve_manager_leading", "1 while this manager leads.", float(term is not None))
        yield CounterMetricFamily("neve_manager_terms", "Terms that this process has led.", self._manager.terms)
        state = term.state if term is not None else self._manager.follower.state
        if state is not None:
            yield _gauge("neve_manager_revision", "Revision of the metadata in memory.", state.revision)
            yield _gauge("neve_streams", "Streams.", len(state.streams))
            yield _gauge("neve_extents", "Extents.", len(state.extents))
            yield _gauge("neve_open_extents", "Extents that are open.", len(state.open_extents))
            yield _gauge(
                "neve_unconfirmed_extents",
                "Sealed extents that some replica has not confirmed.",
                len(state.unconfirmed_extents),
            )
            yield _gauge("neve_sealed_bytes", "Bytes of sealed extents, one copy counted.", state.sealed_bytes)
            yield _gauge("neve_recovery_tasks", "Recovery tasks.", len(state.tasks))
            yield _gauge(
                "neve_under_replicated_extents",
                "Extents with a replica on a dead node or one that has not confirmed its seal.",
                len(reads.lacking_extents(state)),
            )
            yield _nodes(state, term)
        if term is not None:
            for field in dataclasses.fields(term.batcher.counters):
                text = f"Count of {field.name} (metadata batches) in this term."
                value = getattr(term.batcher.counters, field.name)
                yield CounterMetricFamily(f"neve_manager_batch_{field.name}", text, value=value)
            yield CounterMetricFamily(
                "neve_manager_owner_checks", "Reads that proved owners, in this term.", term.owners.reads
            )
            yield _gauge("neve_manager_requests_in_flight", "Requests in flight.", term.pipeline.in_flight)
            yield _gauge("neve_manager_replay_records", "Calls remembered against repetition.", term.replay.count)


def _nodes(state: State, term: Term | None) -> GaugeMetricFamily:
    """Who is suspect only the leader knows: it hears the heartbeats."""
    counts = {"alive": 0, "suspect": 0, "dead": 0}
    for node in state.nodes.values():
        suspect = term is not None and term.part.seems_down(node.node_id)
        counts["dead" if node.dead else "suspect" if suspect else "alive"] += 1
    text = "Nodes by health; a manager that does not lead counts suspect ones as alive."
    family = GaugeMetricFamily("neve_nodes", text, labels=["health"])
    for health, count in counts.items():
        family.add_metric([health], count)
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
