"""The manager's orders: create, raise, fence, seal, delete, quarantine (protocol rules 14, 17, 20, 22 and 24).

Invariants: each order runs in the replica's turn, so that no append comes in between (protocol rule 14);
            each runs in a task of the store's own: a caller that gives up does not leave it half done;
            steps are in the order that core's effects state. A crash between two of them is repaired by the next start
            or by a repeated request.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from neve.extent_node import core
from neve.extent_node.disk.attributes import Meta, Seal
from neve.extent_node.disk.block_scan import Scan
from neve.extent_node.disk.disk import FULL, Disk, DiskState
from neve.extent_node.store.replica import Replica, make_replica
from neve.extent_node.store.state import StoreState
from neve.extent_node.store.verify import ensure_verified, scan_replica
from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import (
    DiskFailed,
    DiskFull,
    ExtentSealed,
    NeveError,
    Overloaded,
    ReplicaDamaged,
    ReplicaDeleted,
    WrongReplica,
)

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def _order(
    function: Callable[Concatenate[StoreState, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[StoreState, P], Coroutine[Any, Any, T]]:
    """Run the function in a task of the store's own. The number of such tasks is bounded."""

    @functools.wraps(function)
    async def run(store: StoreState, /, *args: P.args, **kwargs: P.kwargs) -> T:
        store.check_running()
        return await store.order(function(store, *args, **kwargs))

    return run


# --- create --------------------------------------------------------------------------------------------------


@_order
async def create(store: StoreState, request: pb.CreateExtentRequest) -> common_pb2.Replica:
    extent_id = request.extent_id
    await _wait_for_name(store, extent_id)
    replica = store.replicas.get(extent_id)
    if replica is not None:
        async with store.turn(replica):
            if not replica.gone:
                await ensure_verified(store, replica)
                return await _create_again(store, replica, request)
    decision = core.decide_create(store.existing(extent_id), request)
    if isinstance(decision, core.Refuse):
        raise decision.error
    disk = _choose_disk(store, request)
    if store.unsealed >= store.config.open_replicas_max:
        raise Overloaded(what="open replicas on this node")
    meta = Meta(
        extent_id=extent_id,
        eversion=request.eversion,
        incarnation=store.rng.getrandbits(63) + 1,  # never 0, which in a request means "any"
        stream_id=request.stream_id,
        created_ms=store.wall_clock_ms(),
        extent_bytes_max=request.extent_bytes_max,
        node_id=store.config.node_id,
        disk_uuid=disk.uuid,
    )
    name_taken = store.creating[extent_id] = asyncio.get_running_loop().create_future()
    try:
        made = await store.run(_make, disk, meta, min(store.config.preallocate_bytes, meta.extent_bytes_max))
    except OSError as error:
        raise store.disk_error(disk, extent_id, error) from error
    finally:
        del store.creating[extent_id]
        name_taken.set_result(None)
    store.replicas[extent_id] = made
    store.names_changed = True
    disk.extents += 1
    store.unsealed += 1
    store.counters.creates += 1
    return made.state.ref()


def _make(disk: Disk, meta: Meta, preallocate_bytes: int) -> Replica:
    return make_replica(disk, meta, preallocate_bytes=preallocate_bytes)


async def _create_again(store: StoreState, replica: Replica, request: pb.CreateExtentRequest) -> common_pb2.Replica:
    decision = core.decide_create(replica.state, request)
    if isinstance(decision, core.Refuse):
        raise decision.error
    # Make the name durable: the process that made the file may have died before that.
    try:
        await store.run(replica.fs.fsync_dir, replica.disk.extent_folder(replica.extent_id))
    except OSError as error:
        raise store.disk_error(replica.disk, replica.extent_id, error) from error
    return replica.state.ref()


async def _wait_for_name(store: StoreState, extent_id: int) -> None:
    """Wait until no other task makes or removes this extent's file."""
    while (busy := store.creating.get(extent_id)) is not None:
        await asyncio.shield(busy)


def _choose_disk(store: StoreState, request: pb.CreateExtentRequest) -> Disk:
    wanted, extent_id = request.replica, request.extent_id
    if wanted.node_id and wanted.node_id != store.config.node_id:
        detail = f"node {wanted.node_id} is wanted, this is node {store.config.node_id}"
        raise WrongReplica(extent_id=extent_id, detail=detail)
    if wanted.disk_uuid:
        disk = store.disks.get(wanted.disk_uuid)
        if disk is None:
            raise WrongReplica(extent_id=extent_id, detail=f"disk {wanted.disk_uuid} is not here")
        candidates = [disk]
    else:
        candidates = sorted(store.disks.values(), key=lambda disk: disk.usage.free_bytes, reverse=True)
    for disk in candidates:
        if disk.state is DiskState.WRITABLE:
            return disk
    disk = candidates[0]
    refusal = DiskFailed if disk.state is DiskState.OFFLINE else DiskFull
    raise refusal(extent_id=extent_id, disk=disk.uuid, detail=disk.reason)


# --- raise and fence -----------------------------------------------------------------------------------------


@_order
async def raise_token(store: StoreState, request: pb.RaiseTokenRequest) -> pb.LengthAnswer:
    return await _persist(store, request, lambda state: core.decide_raise(state, request))


@_order
async def fence(store: StoreState, request: pb.FenceRequest) -> pb.LengthAnswer:
    return await _persist(store, request, lambda state: core.decide_fence(state, request))


async def _persist(
    store: StoreState,
    request: pb.RaiseTokenRequest | pb.FenceRequest,
    decide: Callable[[core.ReplicaState], core.Persist | core.Ready | core.Refuse],
) -> pb.LengthAnswer:
    # Wait for a running Create or copy: a reply of "never existed" would be wrong a moment later.
    await _wait_for_name(store, request.extent_id)
    replica = store.replicas.get(request.extent_id)
    if replica is None:
        return core.length_answer(store.existing(request.extent_id))
    async with store.turn(replica):
        if replica.gone:
            return core.length_answer(store.existing(request.extent_id))
        await ensure_verified(store, replica)
        decision = decide(replica.state)
        if isinstance(decision, core.Refuse):
            raise decision.error
        if isinstance(decision, core.Persist):
            await _apply_persist(store, replica, decision)
        return core.length_answer(replica.state)


async def _apply_persist(store: StoreState, replica: Replica, decision: core.Persist) -> None:
    store.open(replica)
    await store.sync_attributes(replica, replica.persist, decision.token, decision.fence)
    if decision.token is not None:
        replica.state.note_token(decision.token)
    if decision.fence:
        replica.state.note_fenced()
    if decision.clear_unsynced:
        await store.sync_attributes(replica, replica.clear_unsynced)
        replica.state.note_unsynced(False)


# --- seal ----------------------------------------------------------------------------------------------------


@_order
async def seal(store: StoreState, request: pb.SealExtentRequest) -> pb.SealExtentReply:
    await _wait_for_name(store, request.extent_id)
    replica = store.replicas.get(request.extent_id)
    if replica is None:
        raise store.absence(request.extent_id)
    async with store.turn(replica):
        await ensure_verified(store, replica)
        decision = core.decide_seal(replica.state, request)
        if isinstance(decision, core.Refuse):
            raise decision.error
        if isinstance(decision, core.Confirmed):
            return _confirmed(replica)
        if isinstance(decision, core.Quarantine):
            await _quarantine(store, replica, decision.error)
            raise decision.error
        store.open(replica)
        try:
            if decision.fence:
                await store.sync_attributes(replica, replica.persist, None, True)
                replica.state.note_fenced()
            if isinstance(decision, core.NotConfirmed):
                return pb.SealExtentReply(confirmed=False, length=decision.length)
            return await _verify_and_seal(store, replica, request)
        except OSError as error:
            raise store.disk_error(replica.disk, replica.extent_id, error) from error


async def _verify_and_seal(store: StoreState, replica: Replica, request: pb.SealExtentRequest) -> pb.SealExtentReply:
    result = await scan_replica(store, replica, end=request.seal.length)
    decision = core.decide_verified(replica.state, request, problem=result.problem, digest=result.digest)
    if isinstance(decision, core.NotConfirmed):
        log.error("replica_damaged extent_id=%d problem=%s", replica.extent_id, result.problem)
        replica.state.note_damaged(decision.length)
        return pb.SealExtentReply(confirmed=False, length=decision.length)
    if isinstance(decision, core.Quarantine):
        await _quarantine(store, replica, decision.error)
        raise decision.error
    await _write_index(store, replica, decision.seal, result)
    await store.sync_attributes(replica, replica.persist_seal, decision.seal)
    store.committer.note_cut(replica, decision.seal.length)
    store.committer.note_in_place(replica, decision.seal.length)
    replica.state.note_sealed(decision.seal)
    # The remaining waiting appends had bytes above the seal: they were never acknowledged, and are gone.
    sealed = ExtentSealed(extent_id=replica.extent_id, length=decision.seal.length)
    store.committer.abandon(replica, sealed)
    store.unsealed -= 1
    store.counters.seals += 1
    try:
        await store.run_on(replica, replica.forget_doubt)
    finally:  # it is sealed, whether or not the attributes are removed
        replica.close()
        replica.wake_followers()
    log.info("replica_sealed extent_id=%d length=%d", replica.extent_id, decision.seal.length)
    return _confirmed(replica)


async def _write_index(store: StoreState, replica: Replica, made: Seal, result: Scan) -> None:
    try:
        await store.run(replica.write_index, made, result)
    except OSError as error:
        if error.errno not in FULL:
            raise
        # Derived data: on a full disk the seal continues without it, and the first read makes it again.
        log.warning("index_not_written extent_id=%d error=%s", replica.extent_id, error)


def _confirmed(replica: Replica) -> pb.SealExtentReply:
    message = core.seal_message(replica.state)
    return pb.SealExtentReply(confirmed=True, seal=message, length=message.length)


# --- delete and quarantine -----------------------------------------------------------------------------------


@_order
async def delete(store: StoreState, request: pb.DeleteExtentRequest) -> bool:
    """Delete a replica; returns whether there was one. Leaves a tombstone in any case."""
    extent_id = request.extent_id
    await _wait_for_name(store, extent_id)
    replica = store.replicas.get(extent_id)
    if replica is None:
        await _bury_only(store, request)
        return False
    async with store.turn(replica):
        if replica.gone:
            return False
        decision = core.decide_delete(replica.state, request)
        if isinstance(decision, core.Refuse):
            raise decision.error
        assert isinstance(decision, core.MoveToTrash), decision
        disk, now_ms = replica.disk, store.wall_clock_ms()
        incarnation = replica.state.meta.incarnation
        with contextlib.suppress(OSError):  # it is moved even without its deferred bytes
            replica.write_deferred()
        try:
            await store.run(disk.bury, extent_id, decision.tombstone.eversion, now_ms)
            await store.run(disk.move_to_trash, extent_id, incarnation, now_ms)
        except OSError as error:
            raise store.disk_error(disk, extent_id, error) from error
        store.tombstones[extent_id] = decision.tombstone
        store.counters.deletes += 1
        store.remove(replica, ReplicaDeleted(extent_id=extent_id))
        return True


async def _bury_only(store: StoreState, request: pb.DeleteExtentRequest) -> None:
    decision = core.decide_delete(store.existing(request.extent_id), request)
    if not isinstance(decision, core.NothingToDelete) or decision.tombstone is None:
        return
    tombstone = decision.tombstone
    usable = [disk for disk in store.disks.values() if disk.state is not DiskState.OFFLINE]
    if not usable:
        raise DiskFailed(extent_id=tombstone.extent_id, detail="no disk is left for the tombstone")
    try:
        await store.run(usable[0].bury, tombstone.extent_id, tombstone.eversion, store.wall_clock_ms())
    except OSError as error:
        raise store.disk_error(usable[0], tombstone.extent_id, error) from error
    store.tombstones[tombstone.extent_id] = tombstone


@_order
async def quarantine(store: StoreState, extent_id: int, *, incarnation: int, reason: str) -> bool:
    """Move a wrong replica aside; returns whether it was still there."""
    replica = store.replicas.get(extent_id)
    if replica is None or replica.state.meta.incarnation != incarnation:
        return False
    async with store.turn(replica):
        if replica.gone:
            return False
        error = ReplicaDamaged(extent_id=extent_id, offset=0, detail=f"quarantined: {reason}")
        await _quarantine(store, replica, error)
        return True


async def _quarantine(store: StoreState, replica: Replica, error: NeveError) -> None:
    log.error("replica_quarantined extent_id=%d disk=%s reason=%s", replica.extent_id, replica.disk.uuid, error)
    with contextlib.suppress(OSError):  # it is moved even without its deferred bytes
        replica.write_deferred()
    try:
        await store.run(
            replica.disk.move_to_quarantine, replica.extent_id, replica.state.meta.incarnation, store.wall_clock_ms()
        )
    except OSError as failure:
        raise store.disk_error(replica.disk, replica.extent_id, failure) from failure
    store.counters.quarantines += 1
    store.quarantined[replica.extent_id] = None
    store.remove(replica, error)
