"""Replies to read requests about streams, extents, nodes and the cluster, from a state in memory.

Invariants: a reply carries its revision; the servicer has made the request wait until `revision_min` is met;
            a description by id leaves out unknown ids, and the caller can see which are missing;
            pages are bounded and in the order of ids: a listing neither repeats nor skips records that exist from its
            first page to its last.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from neve.proto import common_pb2
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, NotFound
from neve.stream_manager.metadata import describe
from neve.stream_manager.metadata.quota import QuotaTable
from neve.stream_manager.metadata.records import Extent, NodeEntry
from neve.stream_manager.metadata.state import State
from neve.stream_manager.term.loop_yield import LoopYield

PAGE_MAX = 1000  # records in one reply
SCAN_MAX = 20_000  # records that one page looks at: a filter without matches must not block the loop
EXTENTS_MAX = 5_000  # described in one reply: a message has 4 MiB at most
LISTED_IDS_MAX = 200_000  # extent ids in one page of streams


def has_streams(state: State, request: sm.DescribeStreamsRequest) -> bool:
    """Whether all requested streams exist."""
    return state.streams.keys() >= {*request.stream_ids} and state.names.keys() >= {*request.names}


def describe_streams(state: State, request: sm.DescribeStreamsRequest) -> sm.DescribeStreamsReply:
    """Describe streams. A single requested stream that does not exist is `NotFound`, so that the user sees why."""
    wanted = list(request.stream_ids)
    wanted += [state.names[name].stream_id for name in request.names if name in state.names]
    found = [state.streams[stream_id] for stream_id in dict.fromkeys(wanted) if stream_id in state.streams]
    if not found and len(request.stream_ids) + len(request.names) == 1:
        name = request.names[0] if request.names else str(request.stream_ids[0])
        raise NotFound(kind="stream", name=name)
    reply = sm.DescribeStreamsReply(streams=map(describe.stream_info, found), revision=state.revision)
    if request.with_extents:
        extent_ids = dict.fromkeys(extent_id for stream in found for extent_id in stream.extent_ids)
        reply.extents.extend(
            describe.extent_info(state, state.extents[extent_id])
            for extent_id in itertools.islice(extent_ids, EXTENTS_MAX)
            if extent_id in state.extents
        )
    return reply


def in_read_order(extents: Iterable[sm.ExtentInfo], failures: Callable[[int], float]) -> None:
    """Sort replicas for readers: those on nodes that failed recently last, and unconfirmed ones after all others.

    Readers know their own location, so nearness is left to them.
    """
    for info in extents:
        sealed = info.HasField("seal")
        ranks = [(sealed and not one.confirmed, failures(one.replica.node_id)) for one in info.replicas]
        if any(rank != ranks[0] for rank in ranks):
            info.replicas.sort(key=lambda one: (sealed and not one.confirmed, failures(one.replica.node_id)))


def list_streams(state: State, request: sm.ListStreamsRequest) -> sm.ListStreamsReply:
    limit = min(request.limit or PAGE_MAX, PAGE_MAX)
    wanted = dict(request.labels).items()
    reply = sm.ListStreamsReply(revision=state.revision)
    last_seen = request.after_stream_id
    listed_ids = 0
    for looked_at, stream in enumerate(state.streams_after(last_seen)):
        if len(reply.streams) == limit or looked_at == SCAN_MAX or listed_ids > LISTED_IDS_MAX:
            reply.more = True
            break
        last_seen = stream.stream_id
        if wanted <= dict(stream.labels).items():
            reply.streams.append(describe.stream_info(stream))
            listed_ids += len(stream.extent_ids)
    if reply.more and (not reply.streams or reply.streams[-1].stream_id != last_seen):
        # The caller continues after the last stream of the page. If that one does not match, it shows how far the
        # scan got.
        reply.scanned_stream_id = last_seen
    return reply


def describe_extents(state: State, request: sm.DescribeExtentsRequest) -> sm.DescribeExtentsReply:
    if len(request.extent_ids) > EXTENTS_MAX:
        raise InvalidArgument(what="extent_ids", detail=f"{len(request.extent_ids)}, at most {EXTENTS_MAX} at a time")
    reply = sm.DescribeExtentsReply(revision=state.revision)
    for extent_id in dict.fromkeys(request.extent_ids):
        extent = state.extents.get(extent_id)
        if extent is not None:
            reply.extents.append(describe.extent_info(state, extent, with_streams=request.with_streams))
    return reply


def list_extents(state: State, request: sm.ListExtentsRequest) -> sm.ListExtentsReply:
    limit = min(request.limit or PAGE_MAX, PAGE_MAX)
    dead = state.dead_nodes()
    reply = sm.ListExtentsReply(revision=state.revision)
    last_seen = request.after_extent_id
    for looked_at, extent in enumerate(state.extents_after(last_seen)):
        if len(reply.extents) == limit or looked_at == SCAN_MAX:
            reply.more = True
            break
        last_seen = extent.extent_id
        if request.node_id and request.node_id not in extent.node_ids:
            continue
        if request.open_only and extent.seal is not None:
            continue
        if request.under_replicated and not under_replicated(extent, dead):
            continue
        reply.extents.append(describe.extent_info(state, extent, with_streams=request.with_streams))
    if reply.more and (not reply.extents or reply.extents[-1].extent_id != last_seen):
        reply.scanned_extent_id = last_seen
    return reply


NodeRecordOf = Callable[[NodeEntry], sm.NodeRecord]


def list_nodes(state: State, request: sm.ListNodesRequest, record_of: NodeRecordOf) -> sm.ListNodesReply:
    wanted = list(request.node_ids) or sorted(state.nodes)
    nodes = [record_of(state.nodes[node_id]) for node_id in wanted if node_id in state.nodes]
    return sm.ListNodesReply(nodes=nodes, revision=state.revision)


async def cluster_status(
    state: State,
    *,
    cluster: str,
    leader: common_pb2.Leader | None,
    managers: list[str],
    record_of: NodeRecordOf,
) -> sm.ClusterStatusReply:
    """The cluster's status.

    Totals are kept with the state. Only extents that may lack a replica are examined, and the loop is yielded in
    between.
    """
    lacking, endangered = await count_lacking(state)
    reply = sm.ClusterStatusReply(
        cluster=cluster,
        revision=state.revision,
        streams=len(state.streams),
        extents=len(state.extents),
        open_extents=len(state.open_extents),
        bytes=state.sealed_bytes,
        under_replicated=lacking,
        unconfirmed=len(state.unconfirmed_extents),
        one_loss_from_danger=endangered,
        tasks=len(state.tasks),
        nodes=[record_of(state.nodes[node_id]) for node_id in sorted(state.nodes)],
        managers=managers,
    )
    if leader is not None:
        reply.leader.CopyFrom(leader)
    return reply


def lacking_extents(state: State) -> dict[int, None]:
    """All extents that are `under_replicated`, without examining every extent."""
    lacking = dict.fromkeys(state.unconfirmed_extents)
    for node_id in sorted(state.dead_nodes()):
        lacking.update(state.extents_on(node_id))
    return lacking


async def count_lacking(state: State) -> tuple[int, int]:
    """How many extents are `under_replicated`, and how many are one loss away from danger.

    It examines only the extents that may be.
    """
    dead = state.dead_nodes()
    loop_yield = LoopYield()
    lacking = endangered = 0
    for node_id in (None, *sorted(dead)):
        for extent_id in list(state.unconfirmed_extents if node_id is None else state.extents_on(node_id)):
            if loop_yield.is_due():
                await loop_yield.pause()
            extent = state.extents.get(extent_id)
            if extent is None:
                continue
            unconfirmed = extent_id in state.unconfirmed_extents
            first_dead = min((held for held in extent.node_ids if held in dead), default=None)
            if unconfirmed if node_id is not None else not unconfirmed:
                continue  # already counted as an unconfirmed extent
            if node_id is not None and first_dead != node_id:
                continue  # already counted with another of its nodes
            lacking += 1
            endangered += usable_replicas(extent, dead) <= 1
    for extent_id in list(state.single_extents):
        if loop_yield.is_due():
            await loop_yield.pause()
        extent = state.extents.get(extent_id)
        endangered += extent is not None and not under_replicated(extent, dead)
    return lacking, endangered


def under_replicated(extent: Extent, dead: frozenset[int]) -> bool:
    """Whether the extent has fewer good replicas than it should: one is on a dead node, or has not confirmed the
    seal."""
    return usable_replicas(extent, dead) < len(extent.replicas)


def usable_replicas(extent: Extent, dead: frozenset[int]) -> int:
    good = extent.node_ids if extent.seal is None else extent.confirmed
    return sum(1 for node_id in good if node_id not in dead)


def list_quotas(state: State, quotas: QuotaTable) -> sm.ListQuotasReply:
    return sm.ListQuotasReply(quotas=[quota_usage(state, quotas, prefix) for prefix in sorted(state.quotas)])


def quota_usage(state: State, quotas: QuotaTable, prefix: str) -> sm.QuotaUsage:
    usage = quotas.usage(prefix)
    reply = sm.QuotaUsage(streams=usage.streams, extents=usage.extents, bytes=usage.size_bytes)
    quota = state.quotas.get(prefix)
    if quota is not None:
        reply.quota.CopyFrom(
            sm.Quota(
                prefix=prefix,
                streams_max=quota.streams_max,
                extents_max=quota.extents_max,
                bytes_max=quota.bytes_max,
            )
        )
    else:
        reply.quota.prefix = prefix
    return reply
