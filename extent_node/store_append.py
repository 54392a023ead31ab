"""Append: writes segments to their replicas and waits until each may be answered (rules 4, 5, 9, 10).

The common case runs without an await up to the durability: decide, write to the page cache, note. A segment that needs
more (a higher token, a comparison, `unsynced`, a replica in use) gets its turn in the replica's line and a task. The
call has none: it is answered at once, or by whoever settles the last of its segments (`WhenDurable`).

Invariants: segments of one extent are carried out in the order in which they came, over all calls;
            what was written stays written: a caller that gives up takes back nothing (rule 6);
            a caller that gives up leaves nothing waiting behind, however long a disk hangs;
            an error is one segment's, never the whole call's, unless the call itself makes no sense.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any

from neve.extent_node import blocks, core
from neve.extent_node.commit_queue import AppendCall
from neve.extent_node.disk import FULL, DiskState
from neve.extent_node.fs import Buffer
from neve.extent_node.replica import NO_FD, Replica
from neve.extent_node.store_state import StoreState
from neve.extent_node.store_verify import ensure_verified
from neve.proto import common_pb2, errors
from neve.proto import extent_node_pb2 as pb
from neve.proto.crc import COPY_BYTES_MAX
from neve.proto.errors import Conflict, Internal, InvalidArgument, NeveError, Overloaded, ReplicaMissing
from neve.rpc.service import Answer

_ANY = common_pb2.Replica()
ALL_TAKEN = pb.AppendBlockReply(all_taken=True)  # of whoever it is: nobody changes it
PREALLOCATE_FAST_S = 1.0  # who takes less for a step of reserved blocks may overtake the next one

_WRITABLE = DiskState.WRITABLE  # a look at a member of an enumeration costs more than a call


class WhenDurable(Answer[pb.AppendBlockReply]):
    """The answer to segments of which some are not settled: it comes when all are durable, or cannot become so."""

    __slots__ = ("_brief", "_call", "_extent_ids", "_store")

    def __init__(self, store: StoreState, extent_ids: Sequence[int], call: AppendCall, *, brief: bool) -> None:
        self._store = store
        self._extent_ids = extent_ids
        self._call = call
        self._brief = brief

    def then(self, on_done: Callable[[pb.AppendBlockReply | None, BaseException | None], None]) -> None:
        self._call.then(lambda: on_done(_reply(self._store, self._extent_ids, self._call, brief=self._brief), None))

    def abandon(self) -> None:
        self._call.give_up()
        _forget(self._store, self._extent_ids, self._call)

    def __await__(self) -> Generator[Any, Any, pb.AppendBlockReply]:
        return _finish(self._store, self._extent_ids, self._call, brief=self._brief).__await__()


Begun = pb.AppendBlockReply | WhenDurable


def append_now(
    store: StoreState, segments: Sequence[pb.Segment], attachment: memoryview, *, brief: bool
) -> Begun | None:
    """The answer, or what it comes from. None, and nothing has happened, if it is not to be had without a wait.
    `brief`: if all segments are taken the answer says just that, for a result for each costs a frame of many streams
    more than most else about it, here and at its caller's."""
    if store.dirty.must_wait or store.stopping:
        return None
    if len(segments) == 1 and (begun := _append_one(store, segments[0], attachment, brief=brief)) is not None:
        return begun
    return _append_all(store, segments, attachment, brief=brief)


async def append(
    store: StoreState, segments: Sequence[pb.Segment], attachment: memoryview, *, brief: bool
) -> pb.AppendBlockReply:
    """One result for each segment, in their order. The attachment must not change until this returns."""
    store.check_running()
    if store.dirty.must_wait:
        await store.dirty.wait_for_room()
    begun = _append_all(store, segments, attachment, brief=brief)
    return begun if isinstance(begun, pb.AppendBlockReply) else await begun


def _append_one(store: StoreState, segment: pb.Segment, attachment: memoryview, *, brief: bool) -> Begun | None:
    """As `_append_all`, for a segment that is alone in its frame and needs no task, as most writers' frames have it.
    None, and nothing has happened, if it takes more. What is decided and done is the same, with fewer objects."""
    found = store.replicas.get(segment.extent_id)
    if found is None or not found.verified or found.lock.held or found.disk.state is not _WRITABLE:
        return None
    decision = core.decide_append(found.state, segment, attachment)
    if type(decision) is not core.Append or decision.mark_unsynced or decision.skip_bytes:
        return None
    error: NeveError | None = None
    if decision.durable_to:
        call, extent_ids = AppendCall(1), (found.extent_id,)
        error = call.errors[0] = _carry_out(store, found, decision, attachment, call, 0)
        if error is not None:
            return _reply(store, extent_ids, call, brief=brief)
        if call.records:
            store.committer.call_together(call)
        return WhenDurable(store, extent_ids, call, brief=brief)
    if decision.write_bytes:
        error = _write(store, found, attachment)
    if error is not None:
        return _reply(store, [found.extent_id], _failed(error), brief=brief)
    _note(store, found, decision)
    if brief:
        return ALL_TAKEN
    reply = pb.AppendBlockReply()
    reply.results.add(end=decision.end, length=found.state.length)
    return reply


def _failed(error: NeveError) -> AppendCall:
    call = AppendCall(1)
    call.errors[0] = error
    return call


def _append_all(store: StoreState, segments: Sequence[pb.Segment], attachment: memoryview, *, brief: bool) -> Begun:
    """Begin each segment, in their order; each that needs more than that has a task of its own."""
    segments = segments[:]  # a list: protobuf's own sequences are slow to go over
    bodies = _split(segments, attachment)
    call = AppendCall(len(segments))
    extent_ids = [segment.extent_id for segment in segments]
    for number, extent_id in enumerate(extent_ids):
        _begin(store, extent_id, segments[number], bodies[number], call, number)
    if call.records:
        store.committer.call_together(call)
    if call.pending:
        return WhenDurable(store, extent_ids, call, brief=brief)
    return _reply(store, extent_ids, call, brief=brief)


async def _finish(
    store: StoreState, extent_ids: Sequence[int], call: AppendCall, *, brief: bool
) -> pb.AppendBlockReply:
    """Until nothing of it is pending, or its caller gives up."""
    if call.pending:
        try:
            await call.wait()
        except asyncio.CancelledError:
            _forget(store, extent_ids, call)
            raise
    return _reply(store, extent_ids, call, brief=brief)


def _split(segments: Sequence[pb.Segment], attachment: memoryview) -> list[Buffer]:
    """Each segment's bytes. If they do not add up, nothing can be told apart and nothing is written.

    Small ones are copied, once: checksum and journal want `bytes`, and who waits long pins no large buffer.
    """
    bodies: list[Buffer] = []
    start = 0
    for segment in segments:
        sizes = segment.block_sizes
        end = start + (sizes[0] if len(sizes) == 1 else blocks.sum_sizes(sizes))
        body = attachment[start:end]
        bodies.append(bytes(body) if end - start <= COPY_BYTES_MAX else body)
        start = end
    if start != len(attachment):
        detail = f"they add up to {start} bytes, and {len(attachment)} bytes came"
        raise InvalidArgument(what="block_sizes", detail=detail)
    return bodies


def _forget(store: StoreState, extent_ids: Sequence[int], call: AppendCall) -> None:
    store.committer.forget_call(call)
    for extent_id in extent_ids:
        found = store.replicas.get(extent_id)
        if found is not None:
            store.committer.forget(found, call)


def _reply(store: StoreState, extent_ids: Sequence[int], call: AppendCall, *, brief: bool) -> pb.AppendBlockReply:
    if brief and not any(call.errors):
        return ALL_TAKEN
    reply = pb.AppendBlockReply()
    add_result, replicas = reply.results.add, store.replicas
    for extent_id, end, error in zip(extent_ids, call.ends, call.errors, strict=True):
        found = replicas.get(extent_id)
        length = found.state.length if found is not None else None
        if error is None:
            add_result(end=end, length=length)
        else:
            store.counters.append_refusals += 1
            add_result(length=length, error=errors.to_message(error))
    return reply


def _begin(store: StoreState, extent_id: int, segment: pb.Segment, body: Buffer, call: AppendCall, number: int) -> None:
    """Carry the segment out as far as that needs no waiting; the rest goes on in a task, in the replica's line."""
    found = store.replicas.get(extent_id)
    if found is None:
        missing = core.present(store.existing(extent_id), wanted=_ANY, extent_id=extent_id)
        call.errors[number] = missing if isinstance(missing, NeveError) else ReplicaMissing(extent_id=extent_id)
        return
    if found.verified and not found.lock.held:
        if found.disk.state is not _WRITABLE or found.state.read_only is not None:
            found.follow_disk()
        decision = core.decide_append(found.state, segment, body)
        if type(decision) is core.Append:
            if not decision.mark_unsynced:
                call.errors[number] = _carry_out(store, found, decision, body, call, number)
                return
        elif isinstance(decision, core.Refuse):
            call.errors[number] = decision.error
            return
    if found.lock.waiting >= store.config.append_waiters_max:
        call.errors[number] = Overloaded(what="requests that wait for one replica")
        return
    call.pending += 1
    # The place in the line is taken now: the next segment for this extent must come behind this one.
    place = found.lock.enqueue()
    if not place.done():
        if call.places is None:
            call.places = []
        call.places.append((found.lock, place))
    store.spawn(_append_in_turn(store, found, place, segment, body, call, number))


def _carry_out(
    store: StoreState, found: Replica, decision: core.Append, body: Buffer, call: AppendCall, number: int
) -> NeveError | None:
    """Write and note, on the loop. If the answer must wait for durability, the call is told to expect it. Small bytes
    that go to the journal are written to their file later, several appends at once."""
    committer = store.committer
    offset, skip_bytes, write_bytes, end, _, _, durable_to = decision
    piece: Buffer | None = None
    if write_bytes:
        piece = body[skip_bytes:] if skip_bytes else body
        if durable_to and len(piece) <= COPY_BYTES_MAX and found.may_be_late(end) and committer.may_go_together(call):
            piece = bytes(piece)
            error = _write_late(store, found) if found.is_late_enough(len(piece)) else None
            if error is None and committer.take_together(found, end, call, number, offset, piece):
                found.keep_late(piece)
                _note(store, found, decision)
                call.ends[number] = end
                call.pending += 1
                return None
        else:
            error = None
        if error is None:
            error = _write(store, found, piece)
        if error is not None:
            return error
    _note(store, found, decision)
    call.ends[number] = end
    if durable_to:
        call.pending += 1
        wait = committer.wait_durable if len(call.ends) == 1 else committer.wait_together
        wait(found, durable_to, call, number, offset, piece)
    return None


def _write(store: StoreState, found: Replica, body: Buffer) -> NeveError | None:
    try:
        if found.fd == NO_FD:
            found.open()
        found.write(body)
    except OSError as error:
        store.counters.write_failures += 1
        return store.disk_error(found.disk, found.extent_id, error)
    return None


def _write_late(store: StoreState, found: Replica) -> NeveError | None:
    try:
        found.write_late()
    except OSError as error:
        store.counters.write_failures += 1
        return store.disk_error(found.disk, found.extent_id, error)
    return None


def _note(store: StoreState, found: Replica, decision: core.Append) -> None:
    state, (offset, _, write_bytes, _, committed, _, _) = found.state, decision
    if write_bytes:
        end = offset + write_bytes
        state.note_appended(end)
        counters = store.counters
        counters.appends += 1
        counters.appended_bytes += write_bytes
        store.dirty.add(found, write_bytes)
        if end > found.allocate_at:
            _preallocate(store, found)
    if committed > state.committed:
        state.note_committed(committed)
        if found.followers:
            found.wake_followers()


async def _append_in_turn(
    store: StoreState,
    found: Replica,
    place: asyncio.Future[None],
    segment: pb.Segment,
    body: Buffer,
    call: AppendCall,
    number: int,
) -> None:
    """The long way. Settles the call's segment, now or by the commit that follows."""
    try:
        async with store.turn(found, place):
            decision = await _accept(store, found, segment, body)
            call.ends[number] = decision.end
            if decision.durable_to and not call.given_up:
                piece = body[decision.skip_bytes :] if decision.write_bytes else None
                store.committer.wait_durable(found, decision.durable_to, call, number, decision.write_offset, piece)
                return
    except NeveError as error:
        call.settle(number, error)
    except OSError as error:
        call.settle(number, store.disk_error(found.disk, found.extent_id, error))
    except Exception as error:
        # A bug: the caller, who waits for all of its segments, must not wait for ever. The task's end is logged.
        call.settle(number, Internal(detail=f"{type(error).__name__}: {error}"))
        raise
    else:
        call.settle(number, None)


async def _accept(store: StoreState, found: Replica, segment: pb.Segment, body: Buffer) -> core.Append:
    """Step by step until the segment is written and, if it rests on the page cache, `unsynced` is durable."""
    await ensure_verified(store, found)  # raises if it is gone
    compared: core.Compared | None = None
    while True:
        if compared is None:
            decision = core.decide_append(found.state, segment, body)
        else:
            decision = core.decide_compared(found.state, segment, body, compared)
        if isinstance(decision, core.Refuse):
            if isinstance(decision.error, Conflict):
                store.counters.conflicts += 1
                found.state.conflict = True
            raise decision.error
        store.open(found)
        if isinstance(decision, core.PersistToken):
            await store.sync_attributes(found, found.persist, decision.token, False)
            found.state.note_token(decision.token)
        elif isinstance(decision, core.CompareOverlap):
            here = await store.run_on(found, found.read, decision.start, decision.end - decision.start)
            compared = core.compare(segment, body, here, decision)
        else:
            break
    if decision.write_bytes:
        error = _write(store, found, body[decision.skip_bytes :])
        if error is not None:
            raise error
    _note(store, found, decision)
    if decision.mark_unsynced:
        await store.sync_attributes(found, found.persist_unsynced)
        found.state.note_unsynced(True)
    return decision


def _preallocate(store: StoreState, found: Replica) -> None:
    """Reserve the next step of blocks, ahead of the appends that need them. Who uses one up at once gets twice as much:
    a writer that overtakes the reservation pays for each block that it finds unreserved."""
    config, limit = store.config, found.state.meta.extent_bytes_max
    if not config.preallocate_bytes or found.allocated_bytes >= limit:
        found.allocate_at = limit  # which no append goes beyond
        return
    now_s = asyncio.get_running_loop().time()
    step_bytes = config.preallocate_bytes
    if now_s - found.allocated_s < PREALLOCATE_FAST_S:
        hasty_bytes = min(2 * found.allocation_bytes, config.preallocate_bytes_max)
        if hasty_bytes > step_bytes and found.disk.has_room_for(hasty_bytes):
            step_bytes = hasty_bytes
    found.allocated_s = now_s
    end = min(limit, max(found.allocated_bytes, found.state.length) + step_bytes)
    found.note_allocated(end, step_bytes=step_bytes)
    store.spawn(_preallocate_to(store, found, end))


async def _preallocate_to(store: StoreState, found: Replica, end: int) -> None:
    if found.gone or not found.state.is_open:
        return
    cuts = found.cuts
    try:
        if await store.run_beside(found, found.fs.preallocate, found.fd, end) and found.cuts == cuts:
            found.reserved_bytes = max(found.reserved_bytes, end)
    except OSError as error:
        least_bytes = store.config.preallocate_bytes
        if error.errno in FULL and found.allocation_bytes > least_bytes:
            # No room for the haste, which says nothing yet about room for a step of the usual size. What there was the
            # file may have now (ext4 keeps it), and others need it.
            if not found.gone and found.state.is_open:
                found.cut_to(found.file_end)
            found.allocated_s = 0.0
            return
        # Only a reservation: the disk's state follows, and appends find out for themselves.
        store.disk_error(found.disk, found.extent_id, error)
