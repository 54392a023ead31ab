"""The batcher: commits the changes of many requests in one guarded transaction, and settles unknown outcomes.

Invariants: every transaction compares the leader's key, so that a deposed manager changes nothing (guarantee G7);
            changes are applied to memory only when etcd is known to have them, and before any request is answered;
            an unknown outcome is settled by sending the identical transaction again, until the outcome is known or the
            term is over (protocol rule 19); until then its requests are not answered, so their locks stay held;
            the requests of a refused batch are tried again one by one, so that a stale or malformed one fails alone;
            no transaction compares a key for one request and writes it for another: each sees the other, or fails;
            a transaction that was given up can never be applied later.

How a repeated transaction is recognised: each batch travels in a lane, which carries one batch at a time. The batch
puts its own number into `commits/{lane}`, and compares that key with what the lane's previous batch left there. So it
is applied at most once, however often it arrives. If a repetition fails, the same transaction reads the lane's key: if
the batch's number is there, an earlier try was applied, at that key's mod revision. If it is not there and some try is
still in doubt, the lane's key is replaced ("voided") before the batch counts as failed: a try that is still under way
then finds another revision and does nothing. Batches of different lanes change different records, because their
requests hold the locks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from neve.meta.election import Leadership
from neve.meta.store import MetaStore
from neve.meta.txn import (
    ITEM_BYTES,
    REQUEST_BYTES_MAX,
    TXN_OPS_MAX,
    KeyValue,
    TxnResult,
)
from neve.meta.waiting import LeaseBackoff
from neve.proto import records_pb2 as pb
from neve.proto.errors import (
    Internal,
    MaybeApplied,
    MetaUnavailable,
    NeveError,
    NotLeader,
    NotOwner,
    TooLarge,
    VersionConflict,
)
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.changes import Changes

log = logging.getLogger(__name__)

OWN_ITEMS = 2  # in every transaction: the leader's key and the lane's
ITEMS_MAX = TXN_OPS_MAX - OWN_ITEMS
OWN_BYTES = 1024
BYTES_MAX = REQUEST_BYTES_MAX // 2 - OWN_BYTES  # half: large transactions delay all others in etcd
QUEUE_MAX = 20_000
BATCHES_IN_FLIGHT_MAX = 4  # concurrent transactions, each in a lane of its own
UNSENT_TRIES_MAX = 5  # for a transaction that was certainly not applied


def lane_key(root: bytes, lane: int) -> bytes:
    return root + r.COMMITS + b"%02x" % lane


@dataclass(slots=True)
class Counters:
    batches: int = 0
    committed: int = 0
    failed: int = 0
    repeated: int = 0  # transactions that were sent again because their outcome was unknown
    split: int = 0  # batches that failed, so that their requests were tried one by one


class _Pending:
    """Changes that wait to be committed. If `future` is done before they are sent, their flow was cancelled."""

    __slots__ = ("changes", "future", "items")

    def __init__(self, changes: Changes, items: int, future: asyncio.Future[int]) -> None:
        self.changes = changes
        self.items = items  # compares or writes, whichever are more
        self.future = future


class _Batch:
    """Changes that are committed in one transaction, and their keys."""

    __slots__ = ("pending", "revisions", "values")

    def __init__(self, *pending: _Pending) -> None:
        self.pending = list(pending)
        self.revisions: dict[bytes, int] = {}
        self.values: dict[bytes, bytes | None] = {}
        for one in pending:
            self.revisions.update(one.changes.revisions)
            self.values.update(one.changes.values)


class _Lane:
    __slots__ = ("held_up", "key", "revision", "task")

    def __init__(self, key: bytes, revision: int) -> None:
        self.key = key
        self.revision = revision  # of its key, as the lane's last batch or an earlier leader left it; 0: absent
        self.task: asyncio.Task[None] | None = None
        self.held_up = False  # its batch has an unknown outcome and is being sent again


class Batcher:
    """The batcher of a term. It calls `apply` with committed changes, and `on_deposed` if etcd has another leader."""

    def __init__(
        self,
        store: MetaStore,
        leadership: Leadership,
        *,
        root: bytes,
        lane_revisions: Sequence[int],
        apply: Callable[[Changes, int], None],
        on_deposed: Callable[[str], None],
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._lanes = [_Lane(lane_key(root, number), revision) for number, revision in enumerate(lane_revisions)]
        self._apply = apply
        self._on_deposed = on_deposed
        self._queue: deque[_Pending] = deque()
        self._queued_items = 0
        self._in_flight = 0  # batches, without those in lanes that are held up
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._ended: NotLeader | None = None
        self._pumping = False
        self.counters = Counters()

    def commit(self, changes: Changes) -> asyncio.Future[int]:
        """Commit changes; see `context.Commit`. The caller awaits the result at once."""
        if self._ended is not None:
            raise self._fresh_end()
        changes.finish()
        compares, writes = len(changes.revisions), len(changes.values)
        items = compares if compares > writes else writes
        if items > ITEMS_MAX or changes.size_bytes > BYTES_MAX:
            # A flow with so many changes must split its work, because etcd would refuse the transaction.
            raise TooLarge(what=f"transaction with {items} items", size_bytes=changes.size_bytes, limit_bytes=BYTES_MAX)
        if len(self._queue) >= QUEUE_MAX:
            raise MetaUnavailable(detail=f"{QUEUE_MAX} changes are waiting already")
        future: asyncio.Future[int] = self._loop.create_future()
        self._queue.append(_Pending(changes, items, future))
        self._queued_items += items
        if not self._pumping:  # at the end of this step of the loop: all that come in it share a batch
            self._pumping = True
            self._loop.call_soon(self._pump)
        return future

    async def settled(self) -> None:
        """Wait until the outcome of everything in flight is known: then memory has no gaps below that revision."""
        tasks = [lane.task for lane in self._lanes if lane.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def end(self, reason: str) -> None:
        """End the term: from now on no request succeeds."""
        if self._ended is not None:
            return
        self._ended = NotLeader(detail=reason)
        for lane in self._lanes:
            if lane.task is not None:
                lane.task.cancel()
        waiting, self._queue = list(self._queue), deque()
        for pending in waiting:
            self._fail(pending, self._fresh_end())

    async def stopped(self) -> None:
        tasks = [lane.task for lane in self._lanes if lane.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- forming batches -------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Start batches.

        While some are in flight, it waits for more changes, until all batches are done or a new one is full. That
        makes fewer and larger transactions.
        """
        self._pumping = False
        for lane in self._lanes:
            if not self._queue or self._ended is not None:
                return
            if lane.task is not None:
                continue
            if self._in_flight and self._queued_items < ITEMS_MAX:
                return
            self._in_flight += 1
            batch = self._take_batch()
            lane.task = asyncio.get_running_loop().create_task(self._carry(lane, batch))
            lane.task.add_done_callback(partial(self._on_carried, batch))

    def _on_carried(self, batch: _Batch, task: asyncio.Task[None]) -> None:
        """Fail the requests of a batch whose task was cancelled before its first step."""
        if task.cancelled() and self._ended is not None:
            self._fail_all(batch.pending, self._fresh_end())

    def _take_batch(self) -> _Batch:
        """Take as many changes from the head of the queue as fit into a transaction and do not conflict."""
        batch = _Batch()
        queue, together, revisions, values = self._queue, batch.pending, batch.revisions, batch.values
        keys: set[bytes] = set()  # compared and written
        items = size_bytes = 0
        while queue:
            pending = queue[0]
            changes = pending.changes
            compared, written = changes.revisions, changes.values
            items += pending.items
            size_bytes += changes.size_bytes
            if together:
                if items > ITEMS_MAX or size_bytes > BYTES_MAX:
                    break
                if not (keys.isdisjoint(written) and keys.isdisjoint(compared)) and _in_the_way(batch, changes):
                    break
            queue.popleft()
            self._queued_items -= pending.items
            if pending.future.done():  # cancelled before anything was sent
                items -= pending.items
                size_bytes -= changes.size_bytes
                continue
            together.append(pending)
            revisions.update(compared)
            values.update(written)
            keys.update(compared, written)
        return batch

    # --- committing a batch ----------------------------------------------------------------------------------

    async def _carry(self, lane: _Lane, batch: _Batch) -> None:
        try:
            if batch.pending:
                await self._settle(lane, batch)
        except asyncio.CancelledError:
            self._fail_all(batch.pending, self._fresh_end())
            raise
        except NeveError as error:
            self._fail_all(batch.pending, error)
        except Exception as error:
            # After a bug here memory may be behind etcd, so that no later decision of this term can be trusted.
            log.exception("batch_failed lane=%r", lane.key)
            self._fail_all(batch.pending, Internal(detail=repr(error)))
            self._on_deposed(f"a batch failed: {error!r}")
        finally:
            lane.task = None
            if lane.held_up:
                lane.held_up = False
            else:
                self._in_flight -= 1
            self._pump()

    async def _settle(self, lane: _Lane, batch: _Batch) -> None:
        """Send the batch until its outcome is known, and settle its requests."""
        revision = await self._send(lane, batch)
        if isinstance(revision, int):
            for pending in batch.pending:
                self._apply(pending.changes, revision)
            self.counters.committed += len(batch.pending)
            for pending in batch.pending:
                if not pending.future.done():
                    pending.future.set_result(revision)
        elif len(batch.pending) == 1:
            self._fail(batch.pending[0], revision)
        else:
            self.counters.split += 1
            for pending in batch.pending:
                try:
                    await self._settle(lane, _Batch(pending))
                except MetaUnavailable as error:
                    self._fail(pending, error)

    async def _send(self, lane: _Lane, batch: _Batch) -> int | NeveError:
        """Send the batch. Returns the revision at which it was applied, or why it was not and never will be."""
        self._number += 1
        self.counters.batches += 1
        number = self._number
        mark = pb.CommitRecord(term=self._leadership.create_revision, number=number).SerializeToString()
        guard = self._leadership.guard()
        revisions = {lane.key: lane.revision, **batch.revisions}
        values: dict[bytes, bytes | None] = {lane.key: mark, **batch.values}
        reads = [lane.key, self._leadership.key]
        # A single request gets the reason of its failure; in a larger batch each is tried again first
        if len(batch.pending) == 1:
            reads += batch.revisions
        backoff = LeaseBackoff(self._leadership.lease)
        in_doubt = False
        tries = 0
        while True:
            self._ensure()
            try:
                result = await self._store.write(guard, revisions, values, reads)
            except MaybeApplied as error:
                in_doubt = True
                log.warning("commit_unknown lane=%r number=%d error=%s", lane.key, number, error)
            except MetaUnavailable as error:
                tries += 1
                if not in_doubt and tries >= UNSENT_TRIES_MAX:
                    return error
                log.info("commit_unsent lane=%r number=%d error=%s", lane.key, number, error)
            except NeveError as error:
                if in_doubt:  # another try cannot settle it: only a new term can read the outcome
                    self._depose(f"a transaction in doubt was refused: {error}")
                return error
            else:
                if result.succeeded:
                    lane.revision = result.revision
                    return result.revision
                stands = result.get_at(0).first
                if stands is not None and stands.value == mark:  # an earlier try of this transaction
                    lane.revision = stands.mod_revision
                    return stands.mod_revision
                self._check_lane(lane, stands, result.get_at(1).first)
                applied = await self._void(lane, number, mark) if in_doubt else None
                return applied or _reason(batch, result)
            self.counters.repeated += 1
            if not lane.held_up:  # other batches do not wait for it
                lane.held_up = True
                self._in_flight -= 1
                self._pump()
            await backoff.pause()

    async def _void(self, lane: _Lane, number: int, mark: bytes) -> int | None:
        """Make sure that a batch can never be applied later. Returns its revision if it was applied after all."""
        voided = pb.CommitRecord(term=self._leadership.create_revision, number=number, voided=True)
        value = voided.SerializeToString()
        backoff = LeaseBackoff(self._leadership.lease)
        while True:
            self._ensure()
            try:
                result = await self._store.write(
                    self._leadership.guard(),
                    {lane.key: lane.revision},
                    {lane.key: value},
                    [lane.key, self._leadership.key],
                )
            except (MaybeApplied, MetaUnavailable) as error:
                log.warning("void_unanswered lane=%r error=%s", lane.key, error)
                await backoff.pause()
                continue
            except NeveError as error:  # as in _send: only a new term can read the outcome
                self._depose(f"the end of a transaction in doubt was refused: {error}")
                raise
            if result.succeeded:
                lane.revision = result.revision
                return None
            stands = result.get_at(0).first
            if stands is not None and stands.value in (mark, value):
                lane.revision = stands.mod_revision
                return stands.mod_revision if stands.value == mark else None
            self._check_lane(lane, stands, result.get_at(1).first)

    def _check_lane(self, lane: _Lane, stands: KeyValue | None, leader: KeyValue | None) -> None:
        """Check the lane's key and the leader's.

        Only the leader writes a lane: if either differs, this term is over.
        """
        if leader is None or leader.create_revision != self._leadership.create_revision:
            self._depose("the election key is no longer this manager's")
        if (stands.mod_revision if stands is not None else 0) != lane.revision:
            log.error("lane_changed lane=%r revision=%d stands=%s", lane.key, lane.revision, stands)
            self._depose("another process wrote a commit key")

    def _depose(self, reason: str) -> None:
        self._on_deposed(reason)
        self.end(reason)
        raise self._fresh_end()

    # --- endings ---------------------------------------------------------------------------------------------

    def _ensure(self) -> None:
        if self._ended is not None:
            raise self._fresh_end()
        try:
            self._leadership.ensure()
        except NeveError as error:
            self._depose(str(error))

    def _fresh_end(self) -> NotLeader:
        return NotLeader(detail=self._ended.detail if self._ended is not None else "the term is over")

    def _fail_all(self, batch: list[_Pending], error: NeveError) -> None:
        for pending in batch:
            self._fail(pending, error)

    def _fail(self, pending: _Pending, error: NeveError) -> None:
        if not pending.future.done():
            self.counters.failed += 1
            pending.future.set_exception(error)


def _in_the_way(batch: _Batch, changes: Changes) -> bool:
    """Whether one writes what the other writes or compares, or they compare a key with different revisions."""
    if any(key in batch.values or key in batch.revisions for key in changes.values):
        return True
    return any(
        key in batch.values or batch.revisions.get(key, revision) != revision
        for key, revision in changes.revisions.items()
    )


def _reason(batch: _Batch, result: TxnResult) -> NeveError:
    """Why the transaction failed: for one request the compare that failed; for several only that one did."""
    if len(batch.pending) > 1:
        return VersionConflict(what="batch")
    changes = batch.pending[0].changes
    for index, (key, wanted) in enumerate(changes.revisions.items(), start=OWN_ITEMS):
        kv = result.get_at(index).first
        revision_now = kv.mod_revision if kv is not None else 0
        if revision_now == wanted:
            continue
        claim = changes.owners.get(key)
        if claim is not None:
            return NotOwner(lock=claim.lock, token=claim.token, detail="the lock is not held with this token")
        what = key[len(changes.root) :].decode(errors="replace")
        return VersionConflict(what=what, version=wanted, version_now=revision_now)
    return Internal(detail="a transaction failed though all its compares hold")


# The size of a transaction's own items beside its changes; `check_txn` counts the same way.
assert OWN_BYTES > 4 * (ITEM_BYTES + 128)
