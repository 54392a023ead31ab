"""Copies sealed extents from other nodes: recovers a lost replica, or fills a short one (protocol rules 20 and 22).

A task reads ranges from one source after another, checks each of them at this end too, and keeps whole blocks with the
right CRC. It requests wrong or missing bytes from the next source, from the last good block on. So a copy succeeds as
long as every block is good somewhere. At the end the digest of all bytes must be the seal's.

    start ─→ replica here? ─→ good already, every byte verified ───────────────────→ DONE
                           ─→ draft ─→ ranges … ─→ digest ─→ fsync ─→ install ─────→ DONE
                                        └ all sources failed at one block ─────────→ FAILED, nothing is left

Invariants: DONE means: this task verified every byte, and all are on stable storage, under a durable name (scenarios
            T34 and T35);
            one task for an extent at a time; a task that is ordered again runs once;
            bytes a second are bounded over all tasks, and for each task as its order says;
            tasks are not kept over a restart: the manager's query then returns UNKNOWN, and the manager orders again.
Not here:   which replicas to make (the manager decides).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from neve.extent_node.core import Refuse
from neve.extent_node.core import copy as core_copy
from neve.extent_node.disk.attributes import Seal
from neve.extent_node.store.audit import audit
from neve.extent_node.store.bandwidth import Pacer
from neve.extent_node.store.control import quarantine
from neve.extent_node.store.copy import Draft
from neve.extent_node.store.replica import Replica
from neve.extent_node.store.storage import Storage
from neve.proto import blocks, errors
from neve.proto import extent_node_pb2 as pb
from neve.proto.crc import crc32c
from neve.proto.errors import (
    AlreadyExists,
    ConnectFailed,
    Internal,
    InvalidArgument,
    NeveError,
    Overloaded,
    ReplicaDamaged,
    ShuttingDown,
)
from neve.proto.methods import EXTENT_NODE_READ_RANGE
from neve.proto.stream_manager_pb2 import BadReplica
from neve.rpc.pool import ChannelPool

log = logging.getLogger(__name__)

State = pb.CopyStatusReply

COPY_LANE = 1  # copies have their own connections, so that appends and heartbeats do not wait behind them
RANGE_BYTES = 1 << 20
REPLY_SLACK_BYTES = 4096  # for a reply's message beside its attachment
CALL_TIMEOUT_S = 30.0
# Rounds over all sources, if a failure may be temporary: an overload or a restart of a node should not end the copy of
# 2 GiB. Longer trouble is left to the manager, which may know better sources by then.
ROUNDS_MAX = 4
ROUND_PAUSE_S = 2.0
FINISHED_MAX = 1024  # finished tasks whose status is kept; a manager queries it within seconds
DECISIONS_MAX = 10  # changes of the replica by others during one task; even one is rare


class _SourceFailed(Exception):
    """This source did not return the next block. `damage`: its bytes are wrong, and will be wrong the next time."""

    def __init__(self, error: NeveError, *, damage: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.damage = damage


@dataclass(slots=True)
class Counters:
    """Counts since the process started, for metrics."""

    tasks_started: int = 0
    tasks_done: int = 0
    tasks_failed: int = 0
    copied_bytes: int = 0  # that arrived and were right
    source_failures: int = 0  # a source did not return a range
    bad_blocks: int = 0  # of those: the returned bytes were wrong


@dataclass(slots=True)
class _Task:
    request: pb.StartCopyRequest
    pacer: Pacer
    status: pb.CopyStatusReply
    work: asyncio.Task[None] | None = None
    used: set[int] = field(default_factory=set)  # indexes of the sources with bytes in the draft
    reported: set[int] = field(default_factory=set)  # indexes of the sources reported to `on_bad`
    digest: bytes = b""  # the expected one; the first source's if the order has none


class Copier:
    """Runs the node's copy tasks."""

    def __init__(
        self,
        storage: Storage,
        channels: ChannelPool,
        *,
        tasks_max: int,
        bytes_per_s_max: int,
        rng: random.Random | None = None,
        on_bad: Callable[[BadReplica], None] | None = None,
        reporter: str = "",
        range_bytes: int = RANGE_BYTES,
    ) -> None:
        """`bytes_per_s_max` over all tasks, 0: no bound. `on_bad` is called for sources with wrong bytes."""
        self.counters = Counters()
        self._store = storage.state
        self._copies = storage.copies
        self._channels = channels
        self._tasks_max = tasks_max
        self._pacer = Pacer(bytes_per_s=bytes_per_s_max, burst_bytes=range_bytes)
        self._rng = rng or random.Random()
        self._on_bad = on_bad
        self._reporter = reporter
        self._range_bytes = range_bytes
        self._tasks: dict[int, _Task] = {}  # by task id; finished ones in order of their end, before running ones
        self._running: dict[int, _Task] = {}  # by extent id
        self._stopping = False

    # --- requests --------------------------------------------------------------------------------------------

    def start(self, request: pb.StartCopyRequest) -> None:
        """Accept a task, or raise the refusal. One that is running or done is accepted and not begun again."""
        if self._stopping:
            raise ShuttingDown()
        wrong = core_copy.check_copy(request)
        if wrong is not None:
            raise wrong
        known = self._tasks.get(request.task_id)
        if known is not None and known.request.extent_id != request.extent_id:
            detail = f"task {request.task_id} is for extent {known.request.extent_id}"
            raise InvalidArgument(what="task_id", detail=detail)
        if known is not None and self._still_holds(known):
            return
        other = self._running.get(request.extent_id)
        if other is not None:
            detail = f"task {other.request.task_id} runs"
            raise AlreadyExists(kind="copy of extent", name=str(request.extent_id), detail=detail)
        if len(self._running) >= self._tasks_max:
            raise Overloaded(what="copy tasks", detail=f"{len(self._running)} run")
        decision = self._copies.decide(request)
        if isinstance(decision, Refuse):
            raise decision.error
        self._copies.choose_disk(request)
        self._begin(request)

    def status(self, task_id: int) -> pb.CopyStatusReply:
        task = self._tasks.get(task_id)
        if task is None:
            return pb.CopyStatusReply(state=State.UNKNOWN, task_id=task_id)
        return _copy_of(task.status)

    def statuses(self) -> list[pb.CopyStatusReply]:
        """The status of all running tasks, and of the last finished ones."""
        return [_copy_of(task.status) for task in self._tasks.values()]

    async def wait(self, task_id: int) -> pb.CopyStatusReply:
        """Wait until that task has ended, if it runs."""
        task = self._tasks.get(task_id)
        if task is not None and task.work is not None:
            await asyncio.shield(task.work)
        return self.status(task_id)

    async def stop(self) -> None:
        """End all tasks and remove their drafts; before the store stops."""
        self._stopping = True
        works = [task.work for task in self._running.values() if task.work is not None]
        for work in works:
            work.cancel()
        if works:
            await asyncio.wait(works)

    # --- a task's life ---------------------------------------------------------------------------------------

    def _still_holds(self, task: _Task) -> bool:
        """Whether a new run would give the same status: the task runs, or its replica still exists."""
        if task.status.state == State.RUNNING:
            return True
        replica = self._store.replicas.get(task.request.extent_id)
        return (
            task.status.state == State.DONE
            and replica is not None
            and replica.state.damaged_at is None
            and replica.state.meta.incarnation == task.status.replica.incarnation
        )

    def _begin(self, request: pb.StartCopyRequest) -> None:
        kept = pb.StartCopyRequest()
        kept.CopyFrom(request)
        task = _Task(
            kept,
            pacer=Pacer(bytes_per_s=request.bytes_per_s_max, burst_bytes=self._range_bytes),
            status=pb.CopyStatusReply(state=State.RUNNING, task_id=request.task_id, extent_id=request.extent_id),
        )
        self._tasks.pop(request.task_id, None)
        self._tasks[request.task_id] = self._running[request.extent_id] = task
        self.counters.tasks_started += 1
        task.work = asyncio.get_running_loop().create_task(self._run(task))

    async def _run(self, task: _Task) -> None:
        request, status = task.request, task.status
        try:
            replica = await self._copy(task)
        except NeveError as error:
            self._failed(task, error)
        except asyncio.CancelledError:
            status.state = State.FAILED
            status.error.CopyFrom(errors.to_message(ShuttingDown()))
            log.info("copy_stopped task=%d extent_id=%d", request.task_id, request.extent_id)
            raise
        except Exception as error:  # top of the task: the manager gets every error as its status
            log.exception("copy_broken task=%d extent_id=%d", request.task_id, request.extent_id)
            self._failed(task, Internal(detail=f"{type(error).__name__}: {error}"))
        else:
            assert replica.state.seal is not None
            seal = replica.state.seal
            status.state = State.DONE
            status.replica.CopyFrom(replica.state.ref())
            status.seal.length, status.seal.eversion, status.seal.digest = seal.length, seal.eversion, seal.digest
            self.counters.tasks_done += 1
            log.info("copy_done task=%d extent_id=%d length=%d", request.task_id, request.extent_id, seal.length)
        finally:
            del self._running[request.extent_id]
            self._forget_oldest()

    def _failed(self, task: _Task, error: NeveError) -> None:
        task.status.state = State.FAILED
        task.status.error.CopyFrom(errors.to_message(error))
        self.counters.tasks_failed += 1
        log.error("copy_failed task=%d extent_id=%d error=%s", task.request.task_id, task.request.extent_id, error)

    def _forget_oldest(self) -> None:
        finished = [task_id for task_id, task in self._tasks.items() if task.status.state != State.RUNNING]
        for task_id in finished[: max(0, len(finished) - FINISHED_MAX)]:
            del self._tasks[task_id]

    # --- the replica on this node ----------------------------------------------------------------------------

    async def _copy(self, task: _Task) -> Replica:
        """Work until there is a verified replica. If something else changes it meanwhile, decide again."""
        request = task.request
        for _ in range(DECISIONS_MAX):
            decision = self._copies.decide(request)
            if isinstance(decision, Refuse):
                raise decision.error
            if isinstance(decision, core_copy.QuarantineFirst):
                await self._quarantine(request, decision.reason)
            elif isinstance(decision, core_copy.VerifyHere):
                replica = await self._verify_here(task)
                if replica is not None:
                    return replica
            else:
                replica = await self._make(task)
                if replica is not None:
                    return replica
        raise Internal(detail=f"the replica changed {DECISIONS_MAX} times while it was copied")

    async def _quarantine(self, request: pb.StartCopyRequest, reason: str) -> None:
        replica = self._store.replicas.get(request.extent_id)
        if replica is not None:
            incarnation = replica.state.meta.incarnation
            await quarantine(self._store, request.extent_id, incarnation=incarnation, reason=reason)

    async def _verify_here(self, task: _Task) -> Replica | None:
        """Return the existing replica if every byte of it is right (scenario T35). A wrong one is marked as damaged."""
        replica = self._store.replicas.get(task.request.extent_id)
        if replica is None:
            return None
        result = await audit(self._store, task.request.extent_id, pacer=self._pacer)
        if result.finding is not None or result.skipped or replica.gone:
            return None
        if result.replica.incarnation != replica.state.meta.incarnation:
            return None
        await self._copies.sync_name(replica)
        return replica

    async def _make(self, task: _Task) -> Replica | None:
        request = task.request
        draft = await self._copies.begin(request)
        try:
            seal = await self._fill(task, draft)
            await draft.finish(seal)
            return await self._copies.install(draft, request)
        finally:
            await draft.discard()

    # --- bytes -----------------------------------------------------------------------------------------------

    async def _fill(self, task: _Task, draft: Draft) -> Seal:
        """Fill the draft until its digest is right; if it is wrong, start again with another source first."""
        request = task.request
        count = len(request.sources)
        task.digest = request.seal.digest
        for first in range(count):
            task.used.clear()
            await self._fetch_all(task, draft, [(first + step) % count for step in range(count)])
            digest = await draft.digest()
            task.digest = task.digest or digest
            if digest == task.digest:
                return Seal(length=request.seal.length, eversion=request.seal.eversion, digest=digest)
            # Every block is valid but the whole is not: blocks of something else. Only if all came from one source is
            # it known which source is wrong.
            detail = f"the digest of what was copied is {digest.hex()}, the seal's is {task.digest.hex()}"
            log.error("copy_digest_wrong extent_id=%d sources=%s", request.extent_id, sorted(task.used))
            if len(task.used) == 1:
                self._report(task, task.used.pop(), offset=0, reason=detail)
            if first < count - 1:
                await draft.restart()
                task.status.copied_bytes = 0
        raise ReplicaDamaged(extent_id=request.extent_id, offset=0, detail=detail)

    async def _fetch_all(self, task: _Task, draft: Draft, order: list[int]) -> None:
        """Fetch every block, from the first source in `order` as long as it succeeds, then from the next."""
        length = task.request.seal.length
        failures: dict[int, _SourceFailed] = {}  # by source index: failures at the present block
        rounds = 0
        while draft.length < length:
            start = draft.length
            index = next(index for index in order if index not in failures)
            try:
                await self._fetch_from(task, draft, index)
            except _SourceFailed as failure:
                self._note_failure(task, draft, index, failure)
                if draft.length > start:
                    failures.clear()
                    rounds = 0
                failures[index] = failure
            if len(failures) == len(order):
                rounds += 1
                self._give_up(task, draft, failures, rounds)
                await asyncio.sleep(ROUND_PAUSE_S * rounds * self._rng.uniform(0.5, 1.0))
                failures.clear()

    def _give_up(self, task: _Task, draft: Draft, failures: dict[int, _SourceFailed], rounds: int) -> None:
        """Raise, unless another round may help."""
        may_pass = any(failure.error.retriable for failure in failures.values())
        if may_pass and rounds < ROUNDS_MAX:
            return
        sources = task.request.sources
        reasons = "; ".join(f"{sources[index].address}: {failure.error}" for index, failure in failures.items())
        detail = f"no source gave the block at {draft.length}: {reasons}"
        if any(failure.damage for failure in failures.values()):
            raise ReplicaDamaged(extent_id=task.request.extent_id, offset=draft.length, detail=detail)
        raise ConnectFailed(address=sources[0].address, detail=detail)

    async def _fetch_from(self, task: _Task, draft: Draft, index: int) -> None:
        """Fetch blocks from this source until the end, or until it fails. Good blocks stay in the draft."""
        length = task.request.seal.length
        rest = b""  # the beginning of a block, from this source
        while draft.length < length:
            self._check_order(task.request)
            offset = draft.length + len(rest)
            size_bytes = min(max(self._range_bytes, _lacking(rest)), length - offset)
            if size_bytes == 0:
                problem = blocks.Problem(draft.length, blocks.ProblemKind.CUT_SHORT, "it reaches beyond the seal")
                raise self._bad_block(task, index, problem)
            await self._pacer.take(size_bytes)
            await task.pacer.take(size_bytes)
            chunk = await self._read_range(task, index, offset, size_bytes)
            buffer = rest + bytes(chunk)
            taken = await draft.take(buffer)
            if taken.valid_bytes:
                task.used.add(index)
                task.status.copied_bytes = draft.length
                self.counters.copied_bytes += taken.valid_bytes
            if taken.problem is not None:
                raise self._bad_block(task, index, taken.problem)
            rest = buffer[taken.valid_bytes :]

    async def _read_range(self, task: _Task, index: int, offset: int, size_bytes: int) -> memoryview:
        """The bytes as the source read them from its disk; they are checked as blocks later."""
        wanted, source = task.request, task.request.sources[index]
        request = pb.ReadRangeRequest(
            extent_id=wanted.extent_id, replica=source.replica, offset=offset, length=size_bytes
        )
        try:
            reply = await self._channels.channel(source.address, lane=COPY_LANE).call(
                EXTENT_NODE_READ_RANGE,
                request,
                timeout_s=CALL_TIMEOUT_S,
                reply_bytes_max=size_bytes + REPLY_SLACK_BYTES,
            )
        except NeveError as error:
            raise _SourceFailed(error, damage=isinstance(error, ReplicaDamaged)) from error
        seal, chunk = reply.message.seal, reply.attachment
        if seal.length != wanted.seal.length or (task.digest and seal.digest != task.digest):
            detail = f"it is sealed as length {seal.length}, digest {seal.digest.hex()}: not the ordered extent"
            self._report(task, index, offset=0, reason=detail)
            raise _SourceFailed(ReplicaDamaged(extent_id=wanted.extent_id, offset=0, detail=detail), damage=True)
        if len(chunk) != size_bytes or crc32c(chunk) != reply.message.payload_crc32c:
            detail = f"bytes [{offset}, {offset + size_bytes}) were changed or cut on the way"
            raise _SourceFailed(errors.ConnectionLost(address=source.address, detail=detail), damage=False)
        task.digest = task.digest or seal.digest
        return chunk

    def _check_order(self, request: pb.StartCopyRequest) -> None:
        """Raise if the order no longer holds, for example after a delete: then the rest need not be copied."""
        decision = self._copies.decide(request)
        if isinstance(decision, Refuse):
            raise decision.error

    # --- sources that fail -----------------------------------------------------------------------------------

    def _bad_block(self, task: _Task, index: int, problem: blocks.Problem) -> _SourceFailed:
        """The reply's checksum shows that the source read these bytes from its disk, and they are wrong."""
        self.counters.bad_blocks += 1
        self._report(task, index, offset=problem.offset, reason=str(problem))
        error = ReplicaDamaged(extent_id=task.request.extent_id, offset=problem.offset, detail=str(problem))
        return _SourceFailed(error, damage=True)

    def _note_failure(self, task: _Task, draft: Draft, index: int, failure: _SourceFailed) -> None:
        source = task.request.sources[index]
        log.warning(
            "copy_source_failed task=%d extent_id=%d source=%s offset=%d error=%s",
            task.request.task_id,
            task.request.extent_id,
            source.address,
            draft.length,
            failure.error,
        )
        self.counters.source_failures += 1

    def _report(self, task: _Task, index: int, *, offset: int, reason: str) -> None:
        if self._on_bad is not None and index not in task.reported:
            task.reported.add(index)
            self._on_bad(
                BadReplica(
                    extent_id=task.request.extent_id,
                    replica=task.request.sources[index].replica,
                    offset=offset,
                    reason=reason,
                    reporter=self._reporter,
                )
            )


def _lacking(rest: bytes) -> int:
    """How many bytes the block that begins with `rest` lacks; 0 while its header is incomplete."""
    if len(rest) < blocks.HEADER_BYTES:
        return 0
    _, size_bytes, _ = blocks.parse_header(rest)
    return blocks.HEADER_BYTES + size_bytes - len(rest)


def _copy_of(status: pb.CopyStatusReply) -> pb.CopyStatusReply:
    copied = pb.CopyStatusReply()
    copied.CopyFrom(status)
    return copied
