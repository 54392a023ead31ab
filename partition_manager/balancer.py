"""The leader's background work: assigns partitions of dead servers to live ones, and balances the load.

Invariants: a server is dead when its registration is gone, because its lease has ended: then it serves nothing;
            in a new term, servers that were not seen yet keep their partitions for a grace: whole clusters start, too;
            balancing can be paused; replacing dead servers cannot;
            a failed step is logged, and tried again in a later round.
"""

from __future__ import annotations

import asyncio
import logging

from neve.partition_manager import core_balance, core_regions, reshape
from neve.partition_manager.core_balance import Balance, Merge, Split, Step, touched_by
from neve.partition_manager.core_regions import Change
from neve.partition_manager.region_store import Snapshot
from neve.partition_manager.term import Term
from neve.proto import methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import NeveError

log = logging.getLogger(__name__)

RETRY_S = 1.0
MOVES_MAX = 60  # regions in one transaction, which could hold 120


class Balancer:
    """The two background loops of a term. Call `changed` after every change of the map or the registrations."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._changed = asyncio.Event()
        self._balance = Balance(term.config.balance)

    def start(self) -> None:
        self._term.tasks.spawn(self._replace_dead(), name="replace-dead")
        self._term.tasks.spawn(self._even_out(), name="even-out")

    def changed(self) -> None:
        self._changed.set()

    # --- dead servers ----------------------------------------------------------------------------------------

    async def _replace_dead(self) -> None:
        while True:
            self._changed.clear()
            wait_s = await self._one_replacing()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass  # the grace has ended, or it is time to try again

    async def _one_replacing(self) -> float | None:
        """Assign partitions once. Returns for how long to wait for a change; None: until there is one."""
        term = self._term
        try:
            snapshot = term.regions.snapshot()
            term.servers.registered(snapshot.servers.keys())
            if snapshot.map is None or not self._wanted(snapshot):
                return None if snapshot.map is None else self._grace_left_s(snapshot)
            await term.regions.commit(self._decide_assignments)
            return 0.0  # a large map takes several transactions
        except NeveError as error:  # also if this manager was deposed: then the term has ended, and this task with it
            log.warning("reassignment_failed error=%s", error)
            return RETRY_S

    def _wanted(self, snapshot: Snapshot) -> dict[int, int]:
        term = self._term
        regions = snapshot.made.regions
        servers = set(snapshot.servers)
        if not servers:
            return {}
        if self._grace_left_s(snapshot) is not None:
            # Expected servers count as present, so that their partitions stay with them.
            absent = {region.server_id for region in regions if region.server_id} - servers
            servers |= {each for each in absent if not term.servers.was_seen(each)}
        found = core_balance.assign(regions, servers, term.servers.loads(regions))
        return {partition_id: server for partition_id, server in found.items() if server in snapshot.servers}

    def _grace_left_s(self, snapshot: Snapshot) -> float | None:
        """The rest of the grace while an expected server may still register; None if there is none."""
        term = self._term
        left_s = term.begun_s + term.config.start_grace_s - term.clock()
        if left_s <= 0:
            return None
        expected = {region.server_id for region in snapshot.made.regions if region.server_id} - set(snapshot.servers)
        return left_s if any(not term.servers.was_seen(each) for each in expected) else None

    def _decide_assignments(self, snapshot: Snapshot) -> Change | None:
        self._term.servers.registered(snapshot.servers.keys())
        wanted = list(self._wanted(snapshot).items())[:MOVES_MAX]
        cause = self._term.own_cause(methods.PARTITION_MANAGER_MOVE_REGION)
        return core_regions.move(snapshot.made, dict(wanted), cause)

    # --- balance ---------------------------------------------------------------------------------------------

    async def _even_out(self) -> None:
        while True:
            await asyncio.sleep(self._term.config.balance.interval_s)
            try:
                snapshot = self._term.regions.snapshot()
            except NeveError as error:
                log.info("balancing_waits error=%s", error)
                continue
            if snapshot.map is not None and not snapshot.map.balancing_paused:
                await self._one_round(snapshot)

    async def _one_round(self, snapshot: Snapshot) -> None:
        term = self._term
        regions = snapshot.made.regions
        loads = term.servers.loads(regions)
        servers = sorted(snapshot.servers)
        for step in self._balance.round(regions, servers, loads, now_s=term.clock()):
            log.info("balance_step step=%s", step)
            try:
                touched = await self._carry_out(step)
            except NeveError as error:
                log.warning("balance_step_failed step=%s error=%s", step, error)
                touched = touched_by(step)
            self._balance.rest(touched, now_s=term.clock())

    async def _carry_out(self, step: Step) -> list[int]:
        """Execute a step. Returns the partitions that it changed."""
        term = self._term
        if isinstance(step, Split):
            cause = term.own_cause(methods.PARTITION_MANAGER_SPLIT_REGION)
            reply = await reshape.split_region(term, pm.SplitRegionRequest(partition_id=step.partition_id), cause)
            return [reply.left.partition_id, reply.right.partition_id]
        if isinstance(step, Merge):
            cause = term.own_cause(methods.PARTITION_MANAGER_MERGE_REGIONS)
            request = pm.MergeRegionsRequest(left_partition_id=step.left_id, right_partition_id=step.right_id)
            await reshape.merge_regions(term, request, cause)
        else:
            cause = term.own_cause(methods.PARTITION_MANAGER_MOVE_REGION)
            move = pm.MoveRegionRequest(partition_id=step.partition_id, server_id=step.server_id)
            await reshape.move_region(term, move, cause)
        return touched_by(step)
