"""etcd's key space as plain code: revisions, transactions, history, compaction. No clock, no loop, no I/O.

Invariants: the revision grows by one for each transaction that changes something, and by none otherwise;
            until it is compacted, a read at a revision sees exactly the result of the transactions up to it;
            a transaction is checked completely before it changes anything, so it cannot fail half-way.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from neve.meta.store import Event, EventKind, RangePage, WatchBatch
from neve.meta.txn import (
    EXACT,
    OPEN_END,
    Compare,
    Delete,
    DeleteResult,
    Get,
    GetResult,
    KeyRange,
    KeyValue,
    Operation,
    OperationResult,
    Put,
    PutResult,
    Relation,
    Target,
    TxnResult,
    as_range,
)
from neve.proto.errors import Compacted, InvalidArgument, LeaseLost


def _compare_holds(compare: Compare, kv: KeyValue | None) -> bool:
    if compare.target is Target.VALUE:
        if kv is None:
            return False  # etcd: an absent key has no value, so even "not equal" is false
        return _relates(kv.value, compare.relation, compare.operand)
    found = 0 if kv is None else getattr(kv, compare.target.value)
    return _relates(found, compare.relation, compare.operand)


def _relates(found: int | bytes, relation: Relation, operand: int | bytes) -> bool:
    if relation is Relation.EQUAL:
        return found == operand
    if relation is Relation.NOT_EQUAL:
        return found != operand
    if isinstance(found, bytes):
        assert isinstance(operand, bytes), operand
        return found > operand if relation is Relation.GREATER else found < operand
    assert isinstance(operand, int), operand
    return found > operand if relation is Relation.GREATER else found < operand


def _tombstone(key: bytes, revision: int) -> KeyValue:
    return KeyValue(key, b"", create_revision=0, mod_revision=revision, version=0)


class KeySpace:
    """All keys with their history since the last compaction."""

    def __init__(self) -> None:
        self.revision = 1  # etcd's, when it is empty
        self.compact_revision = -1  # as etcd's: compacting at 0 is allowed once
        self.leases: dict[int, set[bytes]] = {}  # lease id to the keys on it
        self._keys: list[bytes] = []  # sorted; every key that has a history
        self._history: dict[bytes, list[KeyValue]] = {}  # by mod revision; version 0 is a tombstone
        self._batches: list[WatchBatch] = []  # by revision

    # --- reads ---------------------------------------------------------------------------------------------

    def read(self, keys: KeyRange, *, limit: int = 0, revision: int = 0) -> RangePage:
        """The caller has run `store.check_read`."""
        if revision > self.revision:
            raise InvalidArgument(what="revision", detail=f"{revision} is in the future of {self.revision}")
        if 0 < revision < self.compact_revision:
            raise Compacted(revision_min=self.compact_revision)
        at = revision or self.revision
        found = self._found(keys, at)
        kvs = found[:limit] if limit else found
        return RangePage(tuple(kvs), more=len(kvs) < len(found), count=len(found), revision=at)

    def first_batch(self, revision: int, keys: KeyRange) -> WatchBatch | None:
        """The first batch at or above `revision` with an event in the range."""
        assert revision > self.compact_revision, f"{revision} is compacted ({self.compact_revision})"
        index = bisect.bisect_left(self._batches, revision, key=lambda batch: batch.revision)
        for batch in self._batches[index:]:
            events = tuple(event for event in batch.events if keys.contains(event.kv.key))
            if events:
                return WatchBatch(batch.revision, events)
        return None

    def _found(self, keys: KeyRange, revision: int) -> list[KeyValue]:
        return [kv for key in self._keys_in(keys) if (kv := self._at(key, revision)) is not None]

    def _keys_in(self, keys: KeyRange) -> list[bytes]:
        first = bisect.bisect_left(self._keys, keys.start)
        if keys.end == EXACT:
            return self._keys[first : first + 1] if keys.start in self._history else []
        last = len(self._keys) if keys.end == OPEN_END else bisect.bisect_left(self._keys, keys.end)
        return self._keys[first:last]

    def _at(self, key: bytes, revision: int) -> KeyValue | None:
        history = self._history.get(key, [])
        index = bisect.bisect_right(history, revision, key=lambda kv: kv.mod_revision)
        return history[index - 1] if index and history[index - 1].version else None

    # --- writes --------------------------------------------------------------------------------------------

    def txn(self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> TxnResult:
        """The caller has run `txn.check_txn`."""
        succeeded = all(_compare_holds(compare, self._at(compare.key, self.revision)) for compare in compares)
        branch = success if succeeded else failure
        for op in branch:  # like etcd, check only the branch that is taken
            if isinstance(op, Put) and op.lease_id and op.lease_id not in self.leases:
                raise LeaseLost(lease_id=op.lease_id, detail="the store does not know it")
        events: list[Event] = []
        responses = tuple(self._run(op, events) for op in branch)
        self._commit(events)
        return TxnResult(succeeded, self.revision, responses)

    def end_lease(self, lease_id: int) -> None:
        """Forget the lease and delete its keys, all in one revision."""
        events: list[Event] = []
        for key in sorted(self.leases.get(lease_id, ())):
            self._delete(key, events)
        self.leases.pop(lease_id, None)
        self._commit(events)

    def compact(self, revision: int) -> None:
        if revision <= self.compact_revision:
            raise Compacted(revision_min=self.compact_revision)
        if revision > self.revision:
            raise InvalidArgument(what="revision", detail=f"{revision} is in the future of {self.revision}")
        self.compact_revision = revision
        self._batches = [batch for batch in self._batches if batch.revision > revision]
        for key, history in self._history.items():
            kept = bisect.bisect_right(history, revision, key=lambda kv: kv.mod_revision)
            self._history[key] = history[max(0, kept - 1) :]
            if kept and not history[kept - 1].version:
                self._history[key] = history[kept:]
        self._history = {key: history for key, history in self._history.items() if history}
        self._keys = sorted(self._history)

    def _run(self, op: Operation, events: list[Event]) -> OperationResult:
        pending_revision = self.revision + 1  # a read in a transaction sees the writes before it
        if isinstance(op, Put):
            self._put(op, events)
            return PutResult()
        if isinstance(op, Delete):
            deleted = self._found(as_range(op.keys), pending_revision)
            for kv in deleted:
                self._delete(kv.key, events)
            return DeleteResult(len(deleted))
        assert isinstance(op, Get), op
        found = self._found(as_range(op.keys), pending_revision)
        kvs = found[: op.limit] if op.limit else found
        return GetResult(tuple(kvs), more=len(kvs) < len(found), count=len(found))

    def _put(self, op: Put, events: list[Event]) -> None:
        revision = self.revision + 1
        old = self._at(op.key, revision)
        kv = KeyValue(
            op.key,
            op.value,
            create_revision=old.create_revision if old else revision,
            mod_revision=revision,
            version=old.version + 1 if old else 1,
            lease_id=op.lease_id,
        )
        if old is not None and old.lease_id in self.leases:
            self.leases[old.lease_id].discard(op.key)
        if op.lease_id:
            self.leases[op.lease_id].add(op.key)
        self._record(EventKind.PUT, kv, events)

    def _delete(self, key: bytes, events: list[Event]) -> None:
        revision = self.revision + 1
        old = self._at(key, revision)
        assert old is not None, f"deleting {key!r}, which does not exist"
        if old.lease_id in self.leases:
            self.leases[old.lease_id].discard(key)
        self._record(EventKind.DELETE, _tombstone(key, revision), events)

    def _record(self, kind: EventKind, kv: KeyValue, events: list[Event]) -> None:
        if kv.key not in self._history:
            bisect.insort(self._keys, kv.key)
        self._history.setdefault(kv.key, []).append(kv)
        events.append(Event(kind, kv))

    def _commit(self, events: list[Event]) -> None:
        if events:
            self.revision += 1
            self._batches.append(WatchBatch(self.revision, tuple(events)))

    def validate(self) -> None:
        """Assert the facts that only a bug in this class can break. The simulator calls it after every step."""
        assert self._keys == sorted(self._history), "the key index and the histories differ"
        assert self.compact_revision <= self.revision
        for key, history in self._history.items():
            revisions = [kv.mod_revision for kv in history]
            assert revisions == sorted(set(revisions)), f"{key!r} has two versions in one revision"
            last = history[-1]
            for lease_id, keys in self.leases.items():
                assert (key in keys) == (last.version > 0 and last.lease_id == lease_id), (key, lease_id)
