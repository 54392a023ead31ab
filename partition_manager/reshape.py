"""Split, merge and move: the map and the streams change together, in one transaction, or not at all.

Invariants: a split or merge uses the partition owner's token, which its server returned when it froze the partition: if
            the server has loaded the partition again since, a late transaction finds another token (scenario T20);
            the same transaction changes the region map and compares what it replaces, so that it is applied once,
            however often it is sent (scenario T19);
            an error leaves the map unchanged and the partition with its server, which continues when it is thawed or
            when its freeze ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, cast

from neve.meta.keys import partition_lock
from neve.partition_manager import core_regions
from neve.partition_manager.answers import region_now
from neve.partition_manager.core_regions import Cause, Change, PartitionStreamIds
from neve.partition_manager.region_store import Snapshot
from neve.partition_manager.term import Term
from neve.proto import common_pb2, methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, NeveError, NotFound, VersionConflict, WrongServer
from neve.proto.method import Method, Rep, Req

log = logging.getLogger(__name__)

CONFLICTS_MAX = 10
LEFT_S_MIN = 0.05
THAW_TIMEOUT_S = 1.0

T = TypeVar("T")

_Prepared = tuple[ps.PreparePartitionMergeReply, float]  # the reply, and until when the partition stays frozen


# --- split ------------------------------------------------------------------------------------------------------


async def split_region(term: Term, request: pm.SplitRegionRequest, cause: Cause) -> pm.SplitRegionReply:
    snapshot = await term.regions.fresh()
    made = _made_before(snapshot, cause)
    if made is None:
        region = _region(snapshot, request.partition_id, request.version)
        if request.middle_key:
            core_regions.check_middle_key(region, request.middle_key)
        with term.reshape(request.partition_id):
            snapshot = await _split(term, region, request.middle_key, cause)
        made = _made_before(snapshot, cause)
        assert made is not None
    left_id, right_id = made.partition_ids
    return pm.SplitRegionReply(
        left=region_now(snapshot, left_id), right=region_now(snapshot, right_id), version=made.version
    )


async def _split(term: Term, region: pm.RegionRecord, middle_key: bytes, cause: Cause) -> Snapshot:
    right_id = await term.streams.admin.alloc_ids(4)
    twins = PartitionStreamIds(right_id + 1, right_id + 2, right_id + 3)
    prepare = ps.PreparePartitionSplitRequest(call=cause.call, partition_id=region.partition_id, middle_key=middle_key)
    prepared = await _ask_server(
        term,
        region,
        methods.PARTITION_SERVER_PREPARE_PARTITION_SPLIT,
        prepare,
        timeout_s=term.config.timeouts.prepare_split_s,
    )
    until_s = term.clock() + prepared.frozen_ms / 1000

    def decide(snapshot: Snapshot) -> Change:
        _check_unchanged(snapshot, region)
        core_regions.check_middle_key(region, prepared.middle_key)
        return core_regions.split(
            snapshot.made,
            region.partition_id,
            middle_key=prepared.middle_key,
            right_id=right_id,
            right_streams=twins,
            cause=cause,
        )

    async def send(writes: list[sm.MetaWrite], timeout_s: float) -> None:
        request = sm.SplitStreamsRequest(writes=writes)
        for end, twin_id in ((prepared.log, twins.log), (prepared.row, twins.row), (prepared.meta, twins.meta)):
            request.streams.add(
                stream_id=end.stream_id,
                owner=prepared.owner,
                acknowledged_end=end.acknowledged_end,
                extent_id=end.extent_id,
                new_stream_id=twin_id,
                new_lock=partition_lock(right_id),
            )
        await term.streams.admin.split_streams(request, timeout_s=timeout_s)

    async with _thawing(term, (region, prepared.owner)):
        return await _commit(term, decide, send, cause, until_s=until_s)


# --- merge ------------------------------------------------------------------------------------------------------


async def merge_regions(term: Term, request: pm.MergeRegionsRequest, cause: Cause) -> pm.MergeRegionsReply:
    snapshot = await term.regions.fresh()
    made = _made_before(snapshot, cause)
    if made is None:
        left = _region(snapshot, request.left_partition_id, request.version)
        right = _region(snapshot, request.right_partition_id, request.version)
        core_regions.check_neighbours(left, right)
        with term.reshape(left.partition_id, right.partition_id):
            snapshot = await _merge(term, left, right, cause)
        made = _made_before(snapshot, cause)
        assert made is not None
    return pm.MergeRegionsReply(region=region_now(snapshot, made.partition_ids[0]), version=made.version)


async def _merge(term: Term, left: pm.RegionRecord, right: pm.RegionRecord, cause: Cause) -> Snapshot:
    # Memory is flushed first, while both partitions still serve, so that little is left to do when they are frozen.
    await asyncio.gather(_flush(term, left, cause), _flush(term, right, cause))
    outcomes = await asyncio.gather(
        _prepare_merge(term, left, cause), _prepare_merge(term, right, cause), return_exceptions=True
    )
    frozen = [
        (region, outcome[0].owner)
        for region, outcome in zip((left, right), outcomes, strict=True)
        if not isinstance(outcome, BaseException)
    ]
    async with _thawing(term, *frozen):
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return await _merge_frozen(term, left, right, cause, cast("list[_Prepared]", outcomes))


async def _merge_frozen(
    term: Term, left: pm.RegionRecord, right: pm.RegionRecord, cause: Cause, prepared: list[_Prepared]
) -> Snapshot:
    (one, one_until_s), (two, two_until_s) = prepared

    def decide(snapshot: Snapshot) -> Change:
        _check_unchanged(snapshot, left)
        _check_unchanged(snapshot, right)
        manifests = [one.manifest, two.manifest]
        return core_regions.merge(
            snapshot.made, left.partition_id, right.partition_id, manifests=manifests, cause=cause
        )

    async def send(writes: list[sm.MetaWrite], timeout_s: float) -> None:
        request = sm.MergeStreamsRequest(writes=writes)
        for end, absorbed in ((one.log, two.log), (one.row, two.row), (one.meta, two.meta)):
            request.streams.add(
                stream_id=end.stream_id,
                owner=one.owner,
                end=end,
                absorbed_stream_id=absorbed.stream_id,
                absorbed_owner=two.owner,
                absorbed_end=absorbed,
            )
        await term.streams.admin.merge_streams(request, timeout_s=timeout_s)

    return await _commit(term, decide, send, cause, until_s=min(one_until_s, two_until_s))


async def _flush(term: Term, region: pm.RegionRecord, cause: Cause) -> None:
    request = ps.FlushPartitionRequest(call=cause.call, partition_id=region.partition_id)
    timeout_s = term.config.timeouts.prepare_merge_s
    await _ask_server(term, region, methods.PARTITION_SERVER_FLUSH_PARTITION, request, timeout_s=timeout_s)


async def _prepare_merge(term: Term, region: pm.RegionRecord, cause: Cause) -> _Prepared:
    """Freeze a partition. Returns the reply, and until when the freeze holds."""
    request = ps.PreparePartitionMergeRequest(call=cause.call, partition_id=region.partition_id)
    reply = await _ask_server(
        term,
        region,
        methods.PARTITION_SERVER_PREPARE_PARTITION_MERGE,
        request,
        timeout_s=term.config.timeouts.prepare_merge_s,
    )
    return reply, term.clock() + reply.frozen_ms / 1000


# --- move -------------------------------------------------------------------------------------------------------


async def move_region(term: Term, request: pm.MoveRegionRequest, cause: Cause) -> pm.MoveRegionReply:
    snapshot = await term.regions.fresh()
    made = _made_before(snapshot, cause)
    if made is None:
        with term.reshape(request.partition_id):

            def decide(snapshot: Snapshot) -> Change:
                _region(snapshot, request.partition_id, request.version)
                if request.server_id not in snapshot.servers:
                    raise NotFound(kind="partition server", name=str(request.server_id))
                change = core_regions.move(snapshot.made, {request.partition_id: request.server_id}, cause)
                return change or core_regions.remember(snapshot.made, request.partition_id, cause)

            snapshot = await term.regions.commit(decide)
        made = _made_before(snapshot, cause)
        assert made is not None
    return pm.MoveRegionReply(region=region_now(snapshot, request.partition_id), version=made.version)


async def set_balancing(term: Term, request: pm.SetBalancingRequest, cause: Cause) -> pm.SetBalancingReply:
    def decide(snapshot: Snapshot) -> Change:
        return core_regions.pause_balancing(snapshot.made, request.paused, cause)

    made = _made_before(await term.regions.fresh(), cause)
    if made is None:
        made = _made_before(await term.regions.commit(decide), cause)
        assert made is not None
    return pm.SetBalancingReply(version=made.version)


# --- helpers
# -------------------------------------------------------------------------------------------------------


def _made_before(snapshot: Snapshot, cause: Cause) -> pm.ReplayedCall | None:
    made = snapshot.made.call_made(cause.call)
    if made is not None and made.method_id != cause.method_id:
        detail = f"{cause.call.client_id:x}/{cause.call.call_id} was another request"
        raise InvalidArgument(what="call", detail=detail)
    return made


def _region(snapshot: Snapshot, partition_id: int, version: int) -> pm.RegionRecord:
    """The region, if it has not changed since the map that the caller saw. Version 0: in any case."""
    region = snapshot.made.get(partition_id)
    if version and region.version > version:
        raise VersionConflict(what=f"partition {partition_id}", version=version, version_now=region.version)
    return region


def _check_unchanged(snapshot: Snapshot, region: pm.RegionRecord) -> None:
    now = snapshot.made.get(region.partition_id)
    if now != region:
        raise VersionConflict(what=f"partition {region.partition_id}", version=region.version, version_now=now.version)


@asynccontextmanager
async def _thawing(term: Term, *frozen: tuple[pm.RegionRecord, common_pb2.Owner]) -> AsyncIterator[None]:
    """A context that thaws the frozen partitions, as far as possible, if its body fails.

    Thawing is safe even if the change was or is still being committed: a server loads what the map says, and its
    new token invalidates the old one.
    """
    try:
        yield
    except NeveError:
        await asyncio.gather(*(_thaw(term, region, owner) for region, owner in frozen))
        raise


async def _thaw(term: Term, region: pm.RegionRecord, owner: common_pb2.Owner) -> None:
    request = ps.ThawPartitionRequest(partition_id=region.partition_id, owner=owner)
    try:
        await _ask_server(term, region, methods.PARTITION_SERVER_THAW_PARTITION, request, timeout_s=THAW_TIMEOUT_S)
    except NeveError as error:
        log.info("partition_not_thawed partition_id=%d error=%s", region.partition_id, error)


async def _ask_server(
    term: Term, region: pm.RegionRecord, method: Method[Req, Rep], request: Req, *, timeout_s: float
) -> Rep:
    entry = term.regions.snapshot().servers.get(region.server_id)
    if entry is None:
        raise WrongServer(partition_id=region.partition_id, detail="no server has it just now")
    channel = term.channels.channel(entry.wire_address)
    return (await channel.call(method, request, timeout_s=timeout_s)).message


async def _commit(
    term: Term,
    decide: Callable[[Snapshot], Change],
    send: Callable[[list[sm.MetaWrite], float], Awaitable[None]],
    cause: Cause,
    *,
    until_s: float,
) -> Snapshot:
    """Have the stream manager commit the change while the freeze holds.

    If other regions change meanwhile, it decides again.
    """
    until_s = min(until_s, term.clock() + term.config.timeouts.reshape_s)
    snapshot = term.regions.snapshot()
    for _ in range(CONFLICTS_MAX):
        term.ensure_leading()
        change = decide(snapshot)
        left_s = until_s - term.clock()
        if left_s < LEFT_S_MIN:
            break
        try:
            await send(term.regions.writes(snapshot, change), left_s)
            return await term.regions.known(change.version)
        except NeveError as error:
            # Whatever the error, the change may be applied: by an earlier try, or after the connection was lost.
            if await term.regions.was_made(cause):
                return await term.regions.known(change.version)
            if not isinstance(error, VersionConflict):
                raise
            log.info("reshape_decided_again version=%d error=%s", change.version, error)
            snapshot = await term.regions.fresh()
    raise VersionConflict(what="region map", detail="it changed too fast, or the partition's server was too slow")
