"""Creating a new extent on its nodes, before any metadata names it (protocol rule 17).

Invariants: when it returns, every replica is on its node, empty, durable, and known by node, disk and incarnation;
            nothing refers to it yet: if the flow fails or the manager dies, the collector removes the orphans;
            if a node fails, other nodes are chosen under a new extent id: an id never has two sets of replicas.
"""

from __future__ import annotations

import logging

from neve.proto.errors import NeveError, NotEnoughNodes, NotLeader
from neve.proto.stream_policy import StreamPolicy
from neve.stream_manager.metadata.records import Extent, ReplicaAt
from neve.stream_manager.term.context import LeaderContext

log = logging.getLogger(__name__)

TRIES_MAX = 4
EVERSION_FIRST = 1

_NO_NODES: frozenset[int] = frozenset()


def link_before_s(ctx: LeaderContext) -> float:
    """Until when an extent that is created now may be linked: half the collector's grace period (protocol rule 24)."""
    return ctx.clock() + ctx.config.collecting.grace_s / 2


async def make_extent(
    ctx: LeaderContext, policy: StreamPolicy, *, stream_id: int, avoid: frozenset[int] = _NO_NODES
) -> Extent:
    """Create an extent; raises `NotEnoughNodes` if no set of nodes could be found."""
    failed: dict[int, NeveError] = {}
    for _ in range(TRIES_MAX):
        try:
            choices = ctx.ensembles.choose(policy, avoid=avoid, excluded=frozenset(failed) if failed else _NO_NODES)
        except NotEnoughNodes as error:
            raise _with_failures(error, failed) from None
        extent_id = ctx.ids.take_now() or await ctx.ids.take()
        made = await ctx.nodes.create_all(
            extent_id,
            choices,
            eversion=EVERSION_FIRST,
            extent_bytes_max=policy.extent_bytes_max,
            stream_id=stream_id,
        )
        errors = {c.node_id: m for c, m in zip(choices, made, strict=True) if isinstance(m, NeveError)}
        if not errors:
            return Extent(
                extent_id=extent_id,
                eversion=EVERSION_FIRST,
                replicas=tuple([replica for replica in made if isinstance(replica, ReplicaAt)]),
                extent_bytes_max=policy.extent_bytes_max,
                created_ms=ctx.wall_ms(),
                stream_id=stream_id,
            )
        for node_id, failure in errors.items():
            log.warning("extent_not_made extent_id=%d node_id=%d error=%s", extent_id, node_id, failure)
            if isinstance(failure, NotLeader):  # the node knows of a later election
                raise NotLeader(leader=failure.leader, detail=failure.detail)
        failed.update(errors)
    raise _with_failures(NotEnoughNodes(wanted=policy.replicas, available=0), failed)


def _with_failures(error: NotEnoughNodes, failed: dict[int, NeveError]) -> NotEnoughNodes:
    failures = "; ".join(f"node {node_id} failed: {failure}" for node_id, failure in failed.items())
    detail = ". ".join(part for part in (error.detail, failures) if part)
    return NotEnoughNodes(wanted=error.wanted, available=error.available, detail=detail)
