"""The open tail extent of a writer: one lane for each replica, and the roll into the next extent.

Invariants: the request to seal names the acknowledged end E. Once it is sent, only its reply acknowledges bytes of that
            extent (protocol rule 16); what the sealed extent does not contain goes into its successor;
            nothing is sent to a prepared extent before it is linked (protocol rule 8);
            every acknowledgement is preceded by a check of the lock against the lease's clock (protocol rule 2);
            a writer ends after ROLLS_MAX rolls without an acknowledged byte, because then no node is at fault.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from neve.client.manager_link import ManagerLink, may_heal
from neve.client.streams.core.batch import Batch
from neve.client.streams.core.writer import Tail, Verdict, WriterCore
from neve.client.streams.options import ClientOptions
from neve.client.streams.reading.replica_history import NodeHistory
from neve.client.streams.sending.append_frame import SharedSegment
from neve.client.streams.sending.node_sender import NodeSenders
from neve.client.streams.sending.replica_lane import ReplicaLane
from neve.client.streams.sending.segment_codec import PlaceEncoder
from neve.meta.core_retry import Backoff, Delays
from neve.meta.lock import Lock
from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.blocks import HEADER_BYTES
from neve.proto.errors import (
    Conflict,
    Internal,
    NeveError,
    NotEnoughNodes,
    RequestError,
    SealUnavailable,
    StreamSealed,
)

log = logging.getLogger(__name__)

REPORT_TIMEOUT_S = 5.0
ROLLS_MAX = 8  # consecutive rolls without an acknowledged byte
PREPARE_AT = 0.8  # fraction of an extent's limit at which the next extent is prepared
REPUBLISH_COMMITTED_S = 10.0  # an idle writer republishes `committed`, because a node that restarted has forgotten it

# The stream cannot continue until these heal. The writer waits for that as long as it waits for an extent.
_WORTH_WAITING = (NotEnoughNodes, SealUnavailable)

OnAcknowledged = Callable[[int, list[Batch]], None]


class WriterTail:
    """The tail of one opened writer. It calls `on_acknowledged` for acknowledged batches and, once, `on_end`."""

    def __init__(
        self,
        core: WriterCore,
        *,
        stream_id: int,
        lock: Lock,
        no_sync: bool,
        link: ManagerLink,
        senders: NodeSenders,
        history: NodeHistory,
        options: ClientOptions,
        rng: random.Random,
        on_acknowledged: OnAcknowledged,
        on_unknown: Callable[[list[Batch]], None],
        on_settled: Callable[[], None],
        on_end: Callable[[NeveError], None],
    ) -> None:
        self._core = core
        self._stream_id = stream_id
        self._lock = lock
        self._no_sync = no_sync
        self._link = link
        self._senders = senders
        self._history = history
        self._options = options
        self._rng = rng
        self._on_acknowledged = on_acknowledged
        self._on_unknown = on_unknown
        self._on_settled = on_settled
        self._on_end = on_end
        self._lanes: list[ReplicaLane] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._rolling = False
        self._rolls_without_progress = 0
        self._prepared: sm.ExtentInfo | None = None
        self._prepare_above = 0
        self._preparing: asyncio.Task[None] | None = None
        self._armed = False  # `on_turn_over` or `on_idle` will be called
        self._pushed_when_armed = 0
        self._pushed_when_published = -1  # appended bytes when `committed` was last published on its own
        self._republish_bucket = 0  # timer bucket of the next republication; 0: none
        self._publishing: asyncio.Future[None] | None = None
        self._report: asyncio.Task[None] | None = None  # of a conflict; it continues after the writer has ended
        self._closed = False
        self._resends = 0
        self.rolls = 0
        self.resent_bytes = 0
        self.confirming: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def owner(self) -> common_pb2.Owner:
        return common_pb2.Owner(lock=self._lock.name, token=self._lock.token)

    @property
    def resends(self) -> int:
        return self._resends + sum(lane.resends for lane in self._lanes)

    async def open(self) -> None:
        """Have the manager raise our token on all replicas, and continue at their end (protocol rules 14 and 15)."""
        request = sm.CheckCommitLengthRequest(stream_id=self._stream_id, owner=self.owner)
        reply = await self._link.order(methods.STREAM_MANAGER_CHECK_COMMIT_LENGTH, request)
        self._link.note_revision(reply.stream.mod_revision)
        self._lock.ensure()  # the lease may have ended during the call (scenario T18)
        self._use(reply.tail, reply.length)

    def _use(self, info: sm.ExtentInfo, length: int) -> None:
        options = self._options
        limit_bytes = info.extent_bytes_max
        node_ids = tuple(each.replica.node_id for each in info.replicas)
        if not node_ids or limit_bytes <= HEADER_BYTES:
            raise Internal(detail=f"the manager described extent {info.extent_id}, which cannot be written: {info}")
        self._core.payload_bytes_max = min(options.block_payload_bytes_max, limit_bytes - HEADER_BYTES)
        self._core.open(Tail(info.extent_id, limit_bytes, node_ids), length)
        self._prepare_above = int(limit_bytes * PREPARE_AT)
        self._prepared = self._preparing = None
        places = PlaceEncoder()
        shared_segments: list[SharedSegment] = []
        self._lanes = [
            ReplicaLane(
                self,
                self._core,
                self._senders.to(each.address),
                pb.Segment(
                    extent_id=info.extent_id,
                    replica=each.replica,
                    eversion=info.eversion,
                    token=self._lock.token,
                    no_sync=self._no_sync,
                ),
                places,
                shared_segments,
                replica=number,
                published=0,
                options=options,
                rng=self._rng,
            )
            for number, each in enumerate(info.replicas)
        ]
        self.wake()
        if length:
            self._arm_idle_timer()  # a node that restarted has forgotten `committed`

    def wake(self, *, hurry: bool = False) -> None:
        """There is something to send. `hurry`: its caller awaits the append and will send nothing else before."""
        if not self._rolling:
            self._senders.wake(self._lanes, hurry=hurry)

    def close(self) -> None:
        """Stop sending and acknowledging."""
        self._closed = True
        self._cancel_republication()
        for lane in self._lanes:
            lane.close()
        for task in [*self._tasks, *self.confirming.values()]:
            task.cancel()
        self.on_published()

    async def closed(self) -> None:
        """Wait for the tasks that `close` has cancelled, and for a report of a conflict."""
        reports = [self._report] if self._report is not None else []
        await asyncio.gather(*self._tasks, *self.confirming.values(), *reports, return_exceptions=True)

    # --- events of the lanes ---------------------------------------------------------------------------------

    def on_acknowledged(self, batches: list[Batch]) -> None:
        core = self._core
        if batches:
            assert core.tail is not None
            if not self._acknowledge(core.tail.extent_id, batches):
                return
            self._rolls_without_progress = 0
            if core.end > self._prepare_above:
                self._prepare_above = core.tail.limit_bytes
                self._preparing = self._spawn(self._prepare())
            if not self._armed and not core.held_bytes:
                self._armed = True
                self._senders.note_idle(self)
        if core.full and not core.sealing and core.is_drained:
            self._begin_roll()

    def _acknowledge(self, extent_id: int, batches: list[Batch]) -> bool:
        """Acknowledge the batches. False if the lock may have been lost (protocol rule 2): then the writer ends."""
        try:
            self._lock.ensure()
        except NeveError as error:
            self._on_end(error)
            self._on_unknown(batches)  # the core has already dropped them
            return False
        self._on_acknowledged(extent_id, batches)
        return True

    def on_replica_failed(self, lane: ReplicaLane, verdict: Verdict, error: NeveError) -> None:
        if verdict is Verdict.STOP:
            if isinstance(error, Conflict):  # protocol rule 7: an alarm that a person must look at
                log.error(
                    "append_conflict stream_id=%d extent_id=%d node_id=%d offset=%d",
                    *(self._stream_id, error.extent_id, lane.node_id, error.offset),
                )
                self._report_conflict(lane, error)
            self._on_end(error)
            return
        log.warning(
            "replica_failed stream_id=%d node_id=%d verdict=%s error=%s",
            *(self._stream_id, lane.node_id, verdict.name.lower(), error),
        )
        if verdict is Verdict.REPLACE:
            self._history.failed(lane.node_id)
        if self._rolls_without_progress >= ROLLS_MAX:
            self._on_end(error)
            return
        self._begin_roll()

    def _report_conflict(self, lane: ReplicaLane, error: Conflict) -> None:
        """Ask the manager to seal the extent and compare its replicas under any later owner.

        If this report is lost, the node still reports the conflict when a manager asks it.
        """
        bad = sm.BadReplica(
            extent_id=error.extent_id,
            replica=common_pb2.Replica(node_id=lane.node_id),
            offset=error.offset,
            reason=str(error),
            reporter=f"client {self._link.client_id:016x}",
            conflict=True,
        )
        if self._report is None:
            self._report = self._loop.create_task(self._send_report(bad), name=f"conflict-{error.extent_id}")

    async def _send_report(self, bad: sm.BadReplica) -> None:
        request = sm.ReportBadReplicaRequest(bad_replicas=[bad])
        try:
            await self._link.order(methods.STREAM_MANAGER_REPORT_BAD_REPLICA, request, timeout_s=REPORT_TIMEOUT_S)
        except NeveError as error:
            log.warning("conflict_not_reported extent_id=%d error=%s", bad.extent_id, error)

    # --- publishing `committed` on its own -------------------------------------------------------------------

    def _arm_idle_timer(self) -> None:
        self._armed = True
        self._pushed_when_armed = self._core.pushed_bytes
        when_idle = self._senders.when_idle
        when_idle.add(self, when_idle.now_s() + self._options.committed_idle_s)

    def on_turn_over(self) -> None:
        """Callers that append one record after another have appended their next one by now."""
        if self._core.held_bytes:
            self._armed = False
        else:
            self._arm_idle_timer()

    def on_idle(self) -> None:
        """`committed_idle_s` has passed since the timer was armed."""
        self._armed = False
        if self._core.held_bytes:
            return  # busy: acknowledging these bytes arms the timer again
        if self._core.pushed_bytes != self._pushed_when_armed:
            self._arm_idle_timer()  # not idle for long enough
        else:  # one turn later: this turn may have acknowledged an append whose caller has not run yet
            self._loop.call_soon(self._publish_if_idle)

    def _publish_if_idle(self) -> None:
        pushed_bytes = self._core.pushed_bytes
        if pushed_bytes != self._pushed_when_armed or self._closed or self._rolling:
            return
        if pushed_bytes == self._pushed_when_published:
            self.republish_committed()  # nothing was sent since, so a restarted node has gone unnoticed
        else:
            self._pushed_when_published = pushed_bytes
            self.publish_committed()
        self._cancel_republication()
        when_idle = self._senders.when_idle
        # Rounded up to full seconds, so that all writers share few timers; the exact time does not matter.
        self._republish_bucket = when_idle.add(self, float(int(when_idle.now_s() + REPUBLISH_COMMITTED_S) + 1))

    def _cancel_republication(self) -> None:
        if self._republish_bucket:
            self._senders.when_idle.remove(self, self._republish_bucket)
            self._republish_bucket = 0

    def publish_committed(self) -> None:
        for lane in self._lanes:
            lane.publish_committed()

    def republish_committed(self) -> None:
        for lane in self._lanes:
            lane.republish_committed()

    async def republish_and_wait(self, timeout_s: float) -> None:
        """Publish `committed` to every replica again, and wait until all have it or the time is up.

        Nothing depends on it.
        """
        self._publishing = self._loop.create_future()
        self.republish_committed()
        self.on_published()
        await asyncio.wait([self._publishing], timeout=timeout_s)
        self._publishing = None

    def on_published(self) -> None:
        published = self._publishing
        if published is not None and not published.done():
            committed = self._core.committed
            if self._closed or self._rolling or all(lane.published >= committed for lane in self._lanes):
                published.set_result(None)

    # --- the next extent -------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Have the manager prepare the next extent. If that fails, the roll allocates one."""
        tail = self._core.tail
        try:
            reply = await self._link.order(
                methods.STREAM_MANAGER_PREPARE_EXTENT,
                sm.PrepareExtentRequest(stream_id=self._stream_id, owner=self.owner),
            )
        except NeveError as error:
            log.info("prepare_failed stream_id=%d error=%s", self._stream_id, error)
            return
        if self._core.tail is tail:
            self._prepared = reply.extent

    def _begin_roll(self) -> None:
        if self._rolling or self._closed:
            return
        self._rolling = True
        self._rolls_without_progress += 1
        for lane in self._lanes:
            lane.close()
            self._resends += lane.resends
        self._lanes = []
        self.on_published()
        self._spawn(self._roll(self._core.begin_seal()))

    def freeze(self) -> tuple[int, int] | None:
        """Stop acknowledging, for a seal that the client requests. Returns the extent and its acknowledged end E.

        From now on, only the reply to the seal acknowledges bytes (protocol rule 16). Returns None if the tail is
        already being sealed for another reason.
        """
        if self._rolling or self._closed:
            return None
        self._rolling = True
        for lane in self._lanes:
            lane.close()
        self.on_published()
        assert self._core.tail is not None
        return self._core.tail.extent_id, self._core.begin_seal()

    def _jitter(self) -> float:
        return self._rng.uniform(0.5, 1.0)

    async def _roll(self, acknowledged_end: int) -> None:
        try:
            if self._rolls_without_progress > 1:
                delays = Delays(self._options.append_retry_delay_s, self._options.roll_timeout_s)
                await asyncio.sleep(delays.after(self._rolls_without_progress, factor=self._jitter()))
            if self._preparing is not None:  # the manager handles one call of a stream at a time anyway
                await asyncio.wait([self._preparing], timeout=self._options.append_timeout_s)
            reply = await self._alloc(acknowledged_end)
            self._link.note_revision(reply.stream.mod_revision)
            self._lock.ensure()
            settlement = self._core.settle(sealed_length=reply.sealed.seal.length, all_took_part=reply.all_took_part)
            log.info(
                "extent_rolled stream_id=%d extent_id=%d length=%d acknowledged=%d resent_bytes=%d next=%d",
                *(self._stream_id, settlement.extent_id, reply.sealed.seal.length, acknowledged_end),
                *(settlement.resent_bytes, reply.tail.extent_id),
            )
            self.rolls += 1
            self.resent_bytes += settlement.resent_bytes
            if settlement.acknowledged and not self._acknowledge(settlement.extent_id, settlement.acknowledged):
                return
            if settlement.confirm:
                self._spawn_confirm(settlement.extent_id)
                self._on_settled()
            if not reply.HasField("tail"):
                raise StreamSealed(stream_id=self._stream_id)  # an operator sealed it; what it contains is acknowledged
            if reply.tail.seal.length:
                # Only we may write there and we have not: its blocks would be taken for ours (protocol rule 16).
                tail = reply.tail
                raise Internal(detail=f"the new tail, extent {tail.extent_id}, is already sealed at {tail.seal.length}")
            self._rolling = False
            self._use(reply.tail, 0)
        except NeveError as error:
            self._on_end(error)

    async def _alloc(self, acknowledged_end: int) -> sm.StreamAllocExtentReply:
        """Have the manager seal the tail and link the next extent. Repeating the request is safe (protocol rule 16)."""
        options = self._options
        tail = self._core.tail
        assert tail is not None
        deadline_s = self._loop.time() + options.roll_timeout_s
        backoff = Backoff(options.retry_delays, self._jitter)
        avoid = self._history.failed_lately()
        request = sm.StreamAllocExtentRequest(
            call=self._link.next_call(),
            stream_id=self._stream_id,
            owner=self.owner,
            extent_id=tail.extent_id,
            acknowledged_end=acknowledged_end,
            prepared_extent_id=self._usable_prepared(avoid),
            avoid_node_ids=avoid,
        )
        while True:
            self._lock.ensure()
            left_s = max(deadline_s - self._loop.time(), options.retry_delay_s_min)
            try:
                return await self._link.order(methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT, request, timeout_s=left_s)
            except NeveError as error:
                if request.prepared_extent_id and isinstance(error, RequestError):
                    request.prepared_extent_id = 0  # it may be too old to be linked (protocol rule 24)
                    request.call.CopyFrom(self._link.next_call())  # a call id stands for exactly one request
                    continue
                if not isinstance(error, _WORTH_WAITING):
                    raise
                delay_s = backoff.next_s()
                if self._loop.time() + delay_s >= deadline_s:
                    raise
                log.info("alloc_refused stream_id=%d error=%s", self._stream_id, error)
            await asyncio.sleep(delay_s)

    def _usable_prepared(self, avoid: list[int]) -> int:
        prepared, self._prepared = self._prepared, None
        if prepared is None or any(each.replica.node_id in avoid for each in prepared.replicas):
            return 0
        return prepared.extent_id

    def _spawn_confirm(self, extent_id: int) -> None:
        task = self._loop.create_task(self._confirm(extent_id), name=f"confirm-{extent_id}")
        self.confirming[extent_id] = task
        task.add_done_callback(lambda _: self.confirming.pop(extent_id, None))

    async def _confirm(self, extent_id: int) -> None:
        """Wait until every replica has confirmed the seal, then acknowledge what waited for that.

        This may take as long as a recovery. It ends when the writer ends, or after `confirm_timeout_s`.
        """
        deadline_s = self._loop.time() + self._options.confirm_timeout_s
        request = sm.WaitConfirmedRequest(extent_id=extent_id, owner=self.owner, stream_id=self._stream_id)
        backoff = Backoff(self._options.retry_delays, self._jitter)
        while True:
            try:
                await self._link.order(methods.STREAM_MANAGER_WAIT_CONFIRMED, request)
                break
            except NeveError as error:
                if not (may_heal(error) or error.retriable) or self._loop.time() >= deadline_s:
                    self._on_end(error)
                    return
                log.info("wait_confirmed_unanswered extent_id=%d error=%s", extent_id, error)
            await asyncio.sleep(backoff.next_s())
        self._acknowledge(extent_id, self._core.on_confirmed(extent_id))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("writer_task_failed stream_id=%d", self._stream_id, exc_info=error)
            self._on_end(Internal(detail=f"{type(error).__name__}: {error}"))
