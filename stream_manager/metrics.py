"""A stream manager's Prometheus metrics: leadership, metadata, batches and calls.

A call only increments counters; gauges are computed from the state when Prometheus scrapes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from neve.proto import stream_manager_pb2 as sm
from neve.rpc.call_times import CallTimes
from neve.stream_manager.manager import Manager
from neve.stream_manager.metadata.state import State
from neve.stream_manager.streams import reads
from neve.stream_manager.term.leader import Term

log = logging.getLogger(__name__)

COUNTED_MAX = 10_000  # extents that a scrape examines itself, which takes some milliseconds


class ManagerMetrics(CallTimes):
    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Time from receiving a call that changes metadata to its answer."
        super().__init__(registry, "neve_manager_call_seconds", text)


class ManagerCollector(Collector):
    """Gauges of the term, or of the followed state, at the time of a scrape. Counters are of the current term."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._lacking = LackingCount()

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
                self._lacking.count(state),
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


class LackingCount:
    """The number of under-replicated extents.

    A few are counted at once. If there are many, as after the death of a large node, counting would block the loop.
    Then a task counts them, yielding to the loop, and the next scrape gets the result.
    """

    def __init__(self) -> None:
        self._state: State | None = None  # the state to which `_known` belongs
        self._known = 0
        self._task: asyncio.Task[None] | None = None

    def count(self, state: State) -> int:
        candidates = len(state.unconfirmed_extents) + sum(len(state.extents_on(node)) for node in state.dead_nodes())
        if candidates <= COUNTED_MAX:
            return len(reads.lacking_extents(state))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._count(state), name="lacking-count")
            self._task.add_done_callback(self._counted)
        # Before the first count it is an upper bound, in which an extent with two dead nodes counts twice.
        return self._known if self._state is state else min(candidates, len(state.extents))

    async def _count(self, state: State) -> None:
        known, _ = await reads.count_lacking(state)
        self._state, self._known = state, known

    def _counted(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("lacking_count_failed", exc_info=error)


def _nodes(state: State, term: Term | None) -> GaugeMetricFamily:
    """Nodes by health.

    Only the leader gets heartbeats, so only it knows suspect nodes. Decommissioned ones are left out.
    """
    counts = {"alive": 0, "suspect": 0, "dead": 0}
    for node in state.nodes.values():
        if node.mode == sm.NODE_MODE_DECOMMISSIONED:
            continue
        suspect = term is not None and term.cluster_nodes.registry.seems_down(node.node_id)
        counts["dead" if node.dead else "suspect" if suspect else "alive"] += 1
    text = "Nodes by health, without decommissioned ones; a manager that does not lead counts suspect ones as alive."
    family = GaugeMetricFamily("neve_nodes", text, labels=["health"])
    for health, count in counts.items():
        family.add_metric([health], count)
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
