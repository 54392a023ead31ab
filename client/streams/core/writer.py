"""The state of a writer's tail: which block is where, which replica has it, and what the reply to a seal settles.

    push ─→ queue ─→ take: placed at the tail's end, sent ─→ on_answer of every replica ─→ acknowledged
                     take_for_all                        ─→ on_all_answered
                                                     └──→ on_failure ─→ resend, retry, replace the extent, or stop
    begin_seal ─→ nothing is acknowledged ─→ settle: acknowledged, acknowledged when confirmed, back to the queue

Invariants: a placed block stays at its offset until the extent is sealed, even if its caller cancels (protocol rule 6);
            a block is acknowledged when every replica of the tail has answered for it (protocol rule 5); between
            `begin_seal` and `settle`, only the reply to the seal acknowledges blocks (protocol rule 16);
            answers may overtake each other: an end covers everything below it, so the highest counts;
            no block is lost or in two places: what the sealed extent does not contain goes into its successor, in
            order (guarantee G6).
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from neve.client.streams.core.batch import Batch, PayloadRun, Ticket, Waiter, cut_runs
from neve.proto.blocks import HEADER_BYTES, split_record
from neve.proto.crc import Buffer
from neve.proto.errors import (
    AcknowledgedLost,
    Cancelled,
    Conflict,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    ExtentFenced,
    ExtentSealed,
    Gap,
    Internal,
    LockedByOther,
    NeveError,
    Overloaded,
    ShuttingDown,
)


@dataclass(frozen=True, slots=True)
class Tail:
    """The open extent, as the manager described it."""

    extent_id: int
    limit_bytes: int
    node_ids: tuple[int, ...]  # of its replicas


class Taken(NamedTuple):
    """Consecutive batches that form a segment, for one replica or for all of them."""

    first_number: int
    epoch: int
    offset: int
    end: int
    batches: list[Batch]
    more: bool  # there is more to send after it


_new_taken = tuple.__new__  # costs a third of Taken(…)


class Verdict(enum.Enum):
    """How to handle a replica that refused a segment or did not answer."""

    RESEND = enum.auto()  # immediately, from the length that it reported
    RETRY = enum.auto()  # after a pause
    REPLACE = enum.auto()  # the node does not work: seal the extent and continue in another one
    SEALED = enum.auto()  # another process has begun to seal the extent: find out how that ended
    STOP = enum.auto()  # the writer has ended
    NONE = enum.auto()  # a late result of a failure that was already handled


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of a seal. The batches in `confirm` are acknowledged when every replica has confirmed the seal."""

    extent_id: int
    acknowledged: list[Batch]
    confirm: list[Batch]
    resent_bytes: int


class _ReplicaState:
    """Progress of sending to one replica of the tail."""

    __slots__ = ("epoch", "failures", "next_number", "resend_from")

    def __init__(self, next_number: int) -> None:
        self.next_number = next_number  # the batch to send next
        self.epoch = 0  # counts how often sending went back to an earlier batch
        self.resend_from = next_number  # the batch that sending last went back to
        self.failures = 0  # consecutive, without progress


_RETRY = (Cancelled, ConnectFailed, ConnectionLost, DeadlineExceeded, Overloaded, ShuttingDown)


def judge(error: NeveError) -> Verdict:
    """Return the verdict for an error, before attempts are counted."""
    if isinstance(error, Gap):
        return Verdict.RESEND
    if isinstance(error, (Conflict, LockedByOther)):
        return Verdict.STOP
    if isinstance(error, (ExtentFenced, ExtentSealed)):
        return Verdict.SEALED
    return Verdict.RETRY if isinstance(error, _RETRY) else Verdict.REPLACE


class WriterCore:
    """A writer's appends: queued, placed in the tail, acknowledged.

    `run_bytes_max` is about one frame. Records larger than `payload_bytes_max` take several blocks.
    """

    def __init__(self, *, run_bytes_max: int, payload_bytes_max: int, attempts_max: int) -> None:
        self.run_bytes_max = run_bytes_max
        self.small_bytes_max = run_bytes_max // 4  # a frame may exceed its size by this, to avoid a small one after it
        self.payload_bytes_max = payload_bytes_max
        self._attempts_max = attempts_max
        self.tail: Tail | None = None
        self.end = 0  # of the placed blocks
        self.committed = 0  # acknowledged by all replicas of the tail
        self.full = False  # the next block does not fit: seal the tail once all of it is acknowledged
        self.sealing = False
        self.pushed_bytes = 0  # all appended bytes
        self.settled_bytes = 0  # of these, acknowledged, or sealed and waiting to be confirmed
        self._queue: deque[PayloadRun | Batch] = deque()  # without a place
        self._run: PayloadRun | None = None  # the last one of the queue, if single payloads may still join it
        self._placed: deque[Batch] = deque()  # in the tail, not acknowledged
        self._first_number = 0  # of the first placed batch; numbers continue across extents
        self._replicas: list[_ReplicaState] = []
        self._acked_ends: list[int] = []  # for each replica: the end that it has answered for individually
        self._all_acked_end = 0  # the end that all replicas have answered for together; a lower bound for each
        self._confirming: dict[int, list[Batch]] = {}

    # --- appends ---------------------------------------------------------------------------------------------

    def push(self, payload: Buffer, waiter: Waiter) -> bool:
        """Append a record of one block. Returns True if the queue was empty, so that the sender must be woken."""
        size_bytes = len(payload) + HEADER_BYTES
        self.pushed_bytes += size_bytes
        run = self._run
        if run is not None and run.size_bytes + size_bytes <= self.run_bytes_max:
            run.payloads.append(payload)
            run.waiters.append(waiter)  # type: ignore[union-attr]  # the open run has them
            run.size_bytes += size_bytes
            return False
        self._run = run = PayloadRun([payload], size_bytes, waiters=[waiter])
        self._queue.append(run)
        return len(self._queue) == 1

    def push_many(self, payloads: list[Buffer], size_bytes: int, waiter: Waiter) -> bool:
        """Append records of one block each, acknowledged together. `size_bytes` includes headers. Keeps the list."""
        self._run = None
        was_empty = not self._queue
        ticket = Ticket(waiter, len(payloads), is_record=False)
        self._queue.extend(cut_runs(payloads, size_bytes, ticket, run_bytes_max=self.run_bytes_max))
        self.pushed_bytes += size_bytes
        return was_empty

    def push_record(self, record: Buffer, waiter: Waiter) -> bool:
        """Append a record of several blocks."""
        self._run = None
        was_empty = not self._queue
        parts = split_record(record, payload_bytes_max=self.payload_bytes_max)
        ticket = Ticket(waiter, len(parts), is_record=True)
        for index, (block_type, payload) in enumerate(parts):
            size_bytes = len(payload) + HEADER_BYTES
            self._queue.append(
                PayloadRun([payload], size_bytes, ticket=ticket, first_index=index, block_type=block_type)
            )
            self.pushed_bytes += size_bytes
        return was_empty

    @property
    def held_bytes(self) -> int:
        """Bytes that are appended, and neither acknowledged nor sealed."""
        return self.pushed_bytes - self.settled_bytes

    @property
    def is_drained(self) -> bool:
        """Whether everything that is placed in the tail is acknowledged."""
        return not self._placed

    # --- sending ---------------------------------------------------------------------------------------------

    def open(self, tail: Tail, length: int) -> None:
        """Continue in this extent, of which every replica has `length` bytes."""
        assert not self._placed, "the last tail is not settled"
        self.tail = tail
        self.end = self.committed = length
        self.full = self.sealing = False
        self._replicas = [_ReplicaState(self._first_number) for _ in tail.node_ids]
        self._acked_ends = [length for _ in tail.node_ids]
        self._all_acked_end = length

    def has_more(self, replica: int) -> bool:
        """Whether there is something to send to this replica."""
        if self.sealing:
            return False
        if self._next_number(replica) < self._first_number + len(self._placed):
            return True
        return bool(self._queue) and not self.full

    def take(self, replica: int, bytes_max: int, *, at_least_one: bool = True) -> Taken | None:
        """Return the next batches for this replica, about `bytes_max` in all. The first may be larger if allowed."""
        if self.sealing:
            return None
        state, placed = self._replicas[replica], self._placed
        first_number = self._next_number(replica)
        at = first_number - self._first_number
        bytes_limit = bytes_max + self.small_bytes_max
        batches: list[Batch] = []
        size_bytes = 0
        while size_bytes < bytes_max or not batches:
            batch = placed[at] if at < len(placed) else self._place()
            if batch is None:
                break
            if size_bytes + batch.size_bytes > bytes_limit and (batches or not at_least_one):
                break
            batches.append(batch)
            size_bytes += batch.size_bytes
            at += 1
        if not batches:
            return None
        state.next_number = self._first_number + at
        more = at < len(placed) or (bool(self._queue) and not self.full)
        offset = batches[0].offset
        return Taken(first_number, state.epoch, offset, offset + size_bytes, batches, more)

    def take_for_all(self) -> Taken | None:
        """Return the same segment that `take` would return for each replica, or None if they differ.

        This works if one small batch is all there is to send, as when a caller awaits each append. After None, call
        `take` for each replica.
        """
        queue = self._queue
        if len(queue) != 1 or queue[0].size_bytes > self.small_bytes_max or self.sealing:
            return None
        number = self._first_number + len(self._placed)
        replicas = self._replicas
        for state in replicas:
            if state.next_number != number or state.epoch:
                return None
        batch = self._place()
        if batch is None:
            return None
        for state in replicas:
            state.next_number = number + 1
        offset = batch.offset
        return _new_taken(Taken, (number, 0, offset, offset + batch.size_bytes, [batch], False))

    def _next_number(self, replica: int) -> int:
        """Return the number of the batch to send next. After going back, skips batches answered in the meantime."""
        state, acked_end = self._replicas[replica], self._acked_ends[replica]
        if not state.epoch:
            return state.next_number
        number = max(state.next_number, self._first_number)
        while (at := number - self._first_number) < len(self._placed) and self._placed[at].end <= acked_end:
            number += 1
        return number

    def _place(self) -> Batch | None:
        """Place the next batch of the queue at the tail's end. None if the queue is empty or the tail is full."""
        if not self._queue or self.full:
            return None
        assert self.tail is not None
        item = self._queue[0]
        if isinstance(item, PayloadRun):
            if item is self._run:
                self._run = None
            batch = self._queue[0] = item.encode()
        else:
            batch = item
        room_bytes = self.tail.limit_bytes - self.end
        if batch.size_bytes > room_bytes:
            self.full = True
            fitting = batch.blocks_within(room_bytes)
            if not fitting:
                return None
            batch, self._queue[0] = batch.split(fitting)
        else:
            self._queue.popleft()
        batch.offset = self.end
        self.end += batch.size_bytes
        self._placed.append(batch)
        return batch

    # --- answers ---------------------------------------------------------------------------------------------

    def on_answer(self, replica: int, taken: Taken) -> list[Batch]:
        """The replica has everything up to the segment's end. Returns the batches that are now acknowledged."""
        acked_ends, end = self._acked_ends, taken.end
        if end <= acked_ends[replica] or end <= self._all_acked_end:
            return []
        acked_ends[replica] = end
        self._replicas[replica].failures = 0
        committed = min(acked_ends)
        return self._acknowledge(committed) if committed > self.committed and not self.sealing else []

    def on_all_answered(self, taken: Taken) -> list[Batch]:
        """Every replica has everything up to the end of a segment of `take_for_all`: like `on_answer` for each.

        Failure counts need no reset: a replica that has failed gets no such segments.
        """
        end = taken.end
        if end <= self._all_acked_end:
            return []
        self._all_acked_end = end
        return [] if self.sealing else self._acknowledge(end)

    def _acknowledge(self, committed: int) -> list[Batch]:
        acknowledged = []
        placed = self._placed
        while placed and placed[0].offset + placed[0].size_bytes <= committed:
            batch = placed.popleft()
            acknowledged.append(batch)
            self.settled_bytes += batch.size_bytes
            self.committed = batch.offset + batch.size_bytes
        self._first_number += len(acknowledged)
        return acknowledged

    def on_failure(self, replica: int, taken: Taken, error: NeveError, *, length: int | None = None) -> Verdict:
        """The replica refused the segment, or its outcome is unknown. Returns how to handle the replica.

        `length` is the replica's length, which it reports with a Gap. Answers held back for `on_all_answered` must be
        passed to `on_answer` first.
        """
        state = self._replicas[replica]
        verdict = judge(error)
        if self.sealing and verdict is not Verdict.STOP:
            return Verdict.NONE
        if verdict not in (Verdict.RESEND, Verdict.RETRY):
            return verdict
        if taken.epoch != state.epoch and taken.first_number >= state.resend_from:
            return Verdict.NONE  # sent again already, or about to be
        state.failures += 1
        if state.failures >= self._attempts_max:
            return Verdict.REPLACE
        back_to = max(taken.first_number, self._first_number)
        if verdict is Verdict.RESEND:
            if length is None or length < max(self._acked_ends[replica], self._all_acked_end):
                return Verdict.REPLACE  # it has lost bytes that it had answered for, so it cannot be trusted
            back_to = self._number_at(length)
        state.next_number = min(state.next_number, back_to)
        state.resend_from = state.next_number
        state.epoch += 1
        return verdict

    def failures(self, replica: int) -> int:
        """Return the number of consecutive failures without progress."""
        return self._replicas[replica].failures

    def _number_at(self, offset: int) -> int:
        """Return the number of the batch that contains this offset; at the end, the next number."""
        for index, batch in enumerate(self._placed):
            if offset < batch.end:
                return self._first_number + index
        return self._first_number + len(self._placed)

    # --- the end of an extent --------------------------------------------------------------------------------

    def begin_seal(self) -> int:
        """Stop sending and acknowledging in this extent (protocol rule 16). Returns E for the request to seal."""
        assert self.tail is not None
        self.sealing = True
        return self.committed

    def settle(self, *, sealed_length: int, all_took_part: bool) -> Settlement:
        """The extent is sealed at this length. The caller then calls `open` with the successor."""
        assert self.sealing
        assert self.tail is not None
        if sealed_length < self.committed:
            raise AcknowledgedLost(
                extent_id=self.tail.extent_id,
                sealed_length=sealed_length,
                acknowledged=self.committed,
                detail="without sync, all replicas lost power; with sync this is a bug",
            )
        inside: list[Batch] = []
        outside: list[Batch] = []
        for batch in self._placed:
            if batch.end <= sealed_length:
                inside.append(batch)
                continue
            fitting = batch.blocks_within(sealed_length - batch.offset) if batch.offset < sealed_length else 0
            if fitting:
                head, batch = batch.split(fitting)
                inside.append(head)
            outside.append(batch)
        end = inside[-1].end if inside else self.committed
        if end != sealed_length:
            detail = f"extent {self.tail.extent_id} is sealed at {sealed_length}; no block ends there but at {end}"
            raise Internal(detail=detail)
        self._first_number += len(self._placed)
        self._placed.clear()
        for batch in outside:
            batch.offset = -1
        self._queue.extendleft(reversed(outside))
        self.settled_bytes += sum(batch.size_bytes for batch in inside)
        resent_bytes = sum(batch.size_bytes for batch in outside)
        if all_took_part or not inside:
            return Settlement(self.tail.extent_id, inside, [], resent_bytes)
        for batch in inside:
            batch.buffers = ()  # never sent again, so only its waiters are kept
        self._confirming[self.tail.extent_id] = inside
        return Settlement(self.tail.extent_id, [], inside, resent_bytes)

    def on_confirmed(self, extent_id: int) -> list[Batch]:
        """Every replica has confirmed the seal. Returns the batches that waited for that, now acknowledged."""
        return self._confirming.pop(extent_id, [])

    def abandon(self) -> list[Waiter]:
        """The writer has ended. Returns all waiters, each once, in order (protocol rule 2)."""
        items: list[PayloadRun | Batch] = [batch for batches in self._confirming.values() for batch in batches]
        items += self._placed
        items += self._queue
        self._confirming.clear()
        self._placed.clear()
        self._queue.clear()
        self._run = None
        self.settled_bytes = self.pushed_bytes
        waiters: list[Waiter] = []
        seen: dict[int, Ticket] = {}
        for item in items:
            if item.waiters is not None:
                waiters += item.waiters
            elif item.ticket is not None and id(item.ticket) not in seen:
                seen[id(item.ticket)] = item.ticket
                waiters.append(item.ticket.waiter)
        return waiters

    def validate(self) -> None:
        """For tests: raises AssertionError where the state contradicts itself."""
        offset = self.committed
        for batch in self._placed:
            assert batch.offset == offset, (batch.offset, offset)
            offset = batch.end
            assert sum(batch.block_sizes) == batch.size_bytes == sum(map(len, batch.buffers)), batch.block_sizes
        assert offset == self.end, (offset, self.end)
        for state, acked_end in zip(self._replicas, self._acked_ends, strict=True):
            assert state.next_number <= self._first_number + len(self._placed), state.next_number
            assert self.sealing or max(acked_end, self._all_acked_end) >= self.committed, (acked_end, self.committed)
        waiting = sum(item.size_bytes for item in self._queue)
        assert self.held_bytes == waiting + self.end - self.committed, (self.held_bytes, waiting)
        assert self.tail is None or self.end <= self.tail.limit_bytes, self.end
