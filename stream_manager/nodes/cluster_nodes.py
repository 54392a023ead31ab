"""The background work of one term of leadership on nodes and their replicas.

    registry.py          identity, heartbeats, health, placement        modes.py            operators' orders
    replica_reports.py   which replicas nodes have                      bad_replicas.py     suspected replicas
    recovery.py          lost replicas are copied anew                  reconcile.py        missing confirmations
    open_extents.py      open extents with a lost replica are sealed    collect.py          unneeded replicas go
    unread_tails.py      idle unreadable tails are sealed               relocate.py         nodes' locations

Invariants: each part has a loop of its own, whose passes end; after a pass that fails comes the next one;
            nothing here outlives the term: a new term starts from etcd and from what nodes report;
            a flow's report to a part (`note`, `note_removed`, `suspect`) neither waits nor raises.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from neve.meta.core_retry import Delays
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, NeveError, NotLeader
from neve.stream_manager.metadata.record_kinds import SETTINGS
from neve.stream_manager.metadata.records import NodeEntry, Settings
from neve.stream_manager.nodes.bad_replicas import BadReplicas
from neve.stream_manager.nodes.collect import Collector
from neve.stream_manager.nodes.modes import NodeModes
from neve.stream_manager.nodes.recovery import Recovery
from neve.stream_manager.nodes.registry import Registry
from neve.stream_manager.nodes.relocate import Relocation
from neve.stream_manager.nodes.replica_reports import ReplicaReports
from neve.stream_manager.placement.topology import Topology, resolver_for
from neve.stream_manager.streams.open_extents import OpenExtents
from neve.stream_manager.streams.reconcile import Reconciler
from neve.stream_manager.streams.unread_tails import UnreadTails
from neve.stream_manager.term.context import LeaderContext, Mutation
from neve.stream_manager.term.hold_ups import Problems

log = logging.getLogger(__name__)

REGION_CHARS_MAX = 256
REGIONS_MAX = 1_000

Pass = Callable[[float], Coroutine[Any, Any, None]]


class ClusterNodes:
    """The parts, their loops, and replies that need several parts."""

    def __init__(self, ctx: LeaderContext) -> None:
        self._ctx = ctx
        config = ctx.config.recovery
        self.problems = Problems(Delays(config.retry_delay_s, config.retry_delay_s_max))
        topology = Topology(resolver_for(ctx.config.topology))
        self.registry = Registry(ctx, topology, on_bad=lambda bad: self.bad.report(bad))
        self.relocation = Relocation(ctx, topology)
        self.recovery = Recovery(ctx, self.registry, self.problems)
        self.open_extents = OpenExtents(ctx, self.recovery, self.problems)
        self.reconciler = Reconciler(ctx, self.recovery, self.problems)
        self.bad = BadReplicas(ctx, self.registry, self.recovery)
        self.collector = Collector(ctx, self.recovery.trouble)
        self.unread = UnreadTails(ctx, self.problems)
        self.reports = ReplicaReports(
            ctx, on_report=self.collector.take, on_suspect=self.bad.suspect, on_open=self.unread.note
        )
        self.modes = NodeModes(ctx, self.recovery)

    # --- the term --------------------------------------------------------------------------------------------

    def start(self) -> None:
        poll_s = self._ctx.config.recovery.poll_s
        loops: list[tuple[str, Pass, float]] = [
            ("registry", self.registry.run_once, self._ctx.config.health.heartbeat_s),
            ("relocation", self.relocation.run_once, self._ctx.config.health.heartbeat_s),
            ("node_modes", self.modes.run_once, poll_s),
            ("recovery", self.recovery.run_once, poll_s),
            ("open_extents", self.open_extents.run_once, poll_s),
            ("unread_tails", self.unread.run_once, poll_s),
            ("reconcile", self.reconciler.run_once, poll_s),
            ("bad_replicas", self.bad.run_once, poll_s),
            ("collect", self.collector.run_once, min(poll_s, self._ctx.config.collecting.interval_s)),
        ]
        for name, work, interval_s in loops:
            self._ctx.spawn(self._repeat(name, work, interval_s), name=name)

    async def _repeat(self, name: str, work: Pass, interval_s: float) -> None:
        while True:
            # Random, so that parts and managers do not run in step
            await asyncio.sleep(interval_s * self._ctx.rng.uniform(0.8, 1.2))
            try:
                self._ctx.ensure_leading()
                await work(self._ctx.clock())
            except NotLeader as error:
                if self._ctx.tasks.ended:
                    return
                # A node knows of a newer leader, so this term is about to end
                log.warning("pass_refused part=%s error=%s", name, error)
            except NeveError as error:
                log.warning("pass_failed part=%s error=%s", name, error)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._ctx.tasks.ended or task is None or task.cancelling():
                    raise
                # Something inside was cancelled, which is no reason to end the loop
                log.exception("pass_broken part=%s", name)
            except Exception:  # top of a daemon's loop
                log.exception("pass_broken part=%s", name)

    # --- orders of operators ---------------------------------------------------------------------------------

    async def set_node_mode(self, request: sm.SetNodeModeRequest, mutation: Mutation) -> sm.SetNodeModeReply:
        node = await self.modes.set_mode(request, mutation)
        return sm.SetNodeModeReply(node=self.node_record(node))

    async def set_placement(self, request: sm.SetPlacementRequest, mutation: Mutation) -> sm.SetPlacementReply:
        """Stop placing extents in a region, or resume it."""
        ctx, region = self._ctx, request.region
        if not region or len(region) > REGION_CHARS_MAX:
            raise InvalidArgument(what="region", detail=f"a name of 1 to {REGION_CHARS_MAX} characters is required")
        async with ctx.locks.hold(settings=["cluster"]):
            old = ctx.state.settings
            regions = [name for name in old.stopped_regions if name != region]
            if request.stopped:
                regions.append(region)
            if len(regions) > REGIONS_MAX:
                raise InvalidArgument(what="region", detail=f"{REGIONS_MAX} regions are stopped already")
            if mutation.replayed is None and tuple(regions) != old.stopped_regions:
                changes = ctx.changes()
                changes.put(SETTINGS, old if old.mod_revision else None, Settings(tuple(regions)))
                mutation.record(changes)
                await ctx.commit(changes)
                log.info("placement_set region=%s stopped=%s by=%s", region, request.stopped, mutation.principal)
        return sm.SetPlacementReply()

    # --- nodes, as only the leader knows them ---------------------------------------------------------------

    def node_record(self, node: NodeEntry) -> sm.NodeRecord:
        return self.registry.node_record(node, self.modes.hold_ups(node))

    def failures(self, node_id: int) -> float:
        return self.registry.failures.failures(node_id, self._ctx.clock())
