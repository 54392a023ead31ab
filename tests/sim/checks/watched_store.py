"""The metadata store of a simulation, which looks at every transaction that it is asked to apply.

Invariants: what breaks a rule is noted when it is committed, with its revision, and is never forgotten:
            G7: keys of the managers change only by transactions that compare the key of whoever leads then: the stream
            managers' their leader's, those of the region map and of partition servers the partition managers';
            G3: a seal, once written, never changes: not its length, nor a digest that was there;
            G2: a seal keeps what was acknowledged before;
            rules 19, 20: a replica counts as confirmed only if that very one was heard to confirm the seal, or to be
            copied, with this length and digest, since its bit was last taken back;
            an id of a stream, an extent or a recovery task is never used again, nor for two of them, and one of a node
            never for another one: extents stay their stream's, tasks their extent's, nodes their address's;
            rule 2: a lease that ends is over by its holder's clock;
            a holding of a lock, by its token, is over when its key is deleted, or with its owner's lease: a key that
            somebody else has put in its place leaves an owner who does not know it yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from neve.meta import keys
from neve.meta.lock import lock_key
from neve.meta.memory.client import MemoryClient, MemoryStore
from neve.meta.memory.link import FaultPlan
from neve.meta.txn import (
    Compare,
    Delete,
    Get,
    KeyRange,
    KeyValue,
    Operation,
    Put,
    Relation,
    Target,
    TxnResult,
    as_range,
)
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.record_kinds import NODE, TASK
from neve.stream_manager.metadata.records import Extent, ReplicaAt, read_extent, read_stream
from tests.sim.processes.processes import Process

GUARDED = (r.STREAMS, r.EXTENTS, r.NODES, r.NAMES, r.TASKS, r.REPLAY, r.QUOTAS, r.SETTINGS, r.COMMITS)
GUARDED_REGIONS = (keys.REGION_MAP, keys.REGIONS, keys.PARTITION_SERVERS)


def _compares(compares: Sequence[Compare], leader: KeyValue | None) -> bool:
    """Whether they hold only while this one leads."""
    return leader is not None and any(
        compare.key == leader.key
        and compare.target is Target.CREATE_REVISION
        and compare.relation is Relation.EQUAL
        and compare.operand == leader.create_revision
        for compare in compares
    )


def _is_exact(compare: Compare) -> bool:
    """Whether it holds for one revision of a key alone, or for its absence."""
    return compare.target is Target.MOD_REVISION or (compare.target is Target.CREATE_REVISION and not compare.operand)


class WatchedStore(MemoryStore):
    def __init__(self, root: bytes) -> None:
        super().__init__()
        self.root = root
        self._locks = lock_key(root, "")
        self.violations: list[str] = []
        self.seals: dict[int, int] = {}  # lengths by extent id, as they were first written
        self.acknowledged: dict[int, int] = {}  # by extent id, how far writers were told that it is safe
        self.leaders: list[bytes] = []  # values of the election's keys, in the order in which they led
        self.nodes_of: dict[int, tuple[int, ...]] = {}  # by extent id, as last written
        self.linked: dict[int, int] = {}  # by extent id, the revision at which it became a part of a stream
        self.behind: dict[int, int] = {}  # by extent id, the one that was made to go on behind it
        # What replicas, by extent id, were heard to have for good: length and digest (wire_watch.py tells of it).
        self.told_whole: dict[tuple[int, ReplicaAt], tuple[int, bytes]] = {}
        self.bits_checked = 0
        self.on_linked: Callable[[int], None] = lambda _: None
        self.on_sealed: Callable[[int, int, int], None] = lambda *_: None  # extent id, length, revision; once
        self.on_changed: list[Callable[[], None]] = []  # called at every revision, before anybody else hears of it
        self.over: set[int] = set()  # tokens of locks
        self.on_over: Callable[[int], None] = lambda _: None  # told such a token
        self._held: dict[bytes, int] = {}  # tokens, by the keys of locks
        self._tokens: dict[int, list[int]] = {}  # by lease
        self._made: dict[int, str] = {}  # ids that the counter gave out, and what was made with them first
        self._addresses: dict[int, str] = {}  # of nodes, by id
        self._tasks: dict[bytes, int] = {}  # task ids, by key
        self._open: dict[int, Extent] = {}  # as they were when they were linked
        self._confirmed: dict[int, frozenset[ReplicaAt]] = {}  # by extent id, as last written
        self._leaving: frozenset[int] = frozenset()
        self._holders: list[tuple[Process, MemoryClient]] = []
        self._lists: dict[bytes, tuple[int, ...]] = {}  # extents, by the key of their stream

    def connect(self, process: Process, *, plan: FaultPlan, call_timeout_s: float) -> MemoryClient:
        """A process's connection, whose leases are measured by its own clock and looked at when they end here."""
        client = self.client(plan=plan, call_timeout_s=call_timeout_s)
        client.clock = process.time
        self._holders.append((process, client))
        return client

    def end_lease(self, lease_id: int) -> None:
        """Whoever holds it must know by its own clock that it may be over, before others get what it held."""
        self._holders = [(process, client) for process, client in self._holders if not process.killed]
        for process, client in self._holders:
            lease = client._leases._leases.get(lease_id)
            if lease is not None and not lease.lost.is_set() and client.clock() < lease._deadline_s:
                left_s = lease._deadline_s - client.clock()
                self.violations.append(f"lease {lease_id} is over, and {process.name} trusts it for {left_s:.4f} s (2)")
        for token in self._tokens.pop(lease_id, ()):
            self._end_holding(token)
        super().end_lease(lease_id)

    def all_keys(self) -> tuple[KeyValue, ...]:
        return self.key_space.read(KeyRange.prefix(self.root)).kvs

    def txn(self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> TxnResult:
        leader, regions_leader = self._leader(), self.regions_leader()
        puts = [op for op in success if isinstance(op, Put)]
        old = {op.key: self.at(op.key) for op in puts if self._is_extent(op.key)}
        result = super().txn(compares, success, failure)
        branch = success if result.succeeded else failure
        held = compares if result.succeeded else ()
        if any(self._is_guarded(op, GUARDED) for op in branch) and not _compares(held, leader):
            self.violations.append(f"revision {result.revision} was not written by the leader (G7): {held}")
        if any(self._is_guarded(op, GUARDED_REGIONS) for op in branch) and not _compares(held, regions_leader):
            self._check_reshaped(branch, held, leader, result.revision)
        for op in branch:
            self._watch_lock(op, result.revision)
        if result.succeeded:
            self._leaving = self._left_by(success)
            for key, before in old.items():
                self._check_extent(before, self.at(key), result.revision)
            for op in puts:
                if op.key.startswith(self.root + r.STREAMS):
                    self._check_young(op, result.revision)
                elif op.key.startswith(self.root + r.TASKS):
                    self._check_task(op, result.revision)
                elif op.key.startswith(self.root + r.NODES):
                    self._check_node(op, result.revision)
            for each in success:
                if isinstance(each, Delete):
                    self._lists.pop(as_range(each.keys).start, None)
                    self._tasks.pop(as_range(each.keys).start, None)
        return result

    def _watch_lock(self, op: Operation, revision: int) -> None:
        if isinstance(op, Put) and op.key.startswith(self._locks):
            self._held[op.key] = revision
            self._tokens.setdefault(op.lease_id, []).append(revision)
        elif isinstance(op, Delete) and (token := self._held.pop(as_range(op.keys).start, 0)):
            self._end_holding(token)

    def _end_holding(self, token: int) -> None:
        if token not in self.over:
            self.over.add(token)
            self.on_over(token)

    def _wake(self) -> None:
        """Something has changed, by a transaction or by the end of a lease."""
        self._note_leader(self._leader())
        for look in self.on_changed:
            look()
        super()._wake()

    def _note_leader(self, leader: KeyValue | None) -> None:
        value = b"" if leader is None else leader.value
        if not self.leaders or self.leaders[-1] != value:
            self.leaders.append(value)

    def _left_by(self, operations: Sequence[Operation]) -> frozenset[int]:
        """What was listed by the streams that these change: it may go to another one by the same transaction."""
        lists = (
            self._lists.get(op.key if isinstance(op, Put) else as_range(op.keys).start, ())
            for op in operations
            if not isinstance(op, Get)
        )
        return frozenset(extent_id for listed in lists for extent_id in listed)

    def extents_of(self, stream_id: int) -> tuple[int, ...]:
        """As its record has them; none if there is no such stream."""
        return self._lists.get(self.root + r.STREAMS + r.id_text(stream_id), ())

    def opened_on(self, extent_id: int) -> tuple[int, ...]:
        """The nodes that had it while it was open; none if it was never linked."""
        opened = self._open.get(extent_id)
        return () if opened is None else opened.node_ids

    def is_listed(self, extent_id: int) -> bool:
        return any(extent_id in listed for listed in self._lists.values())

    # --- G7 --------------------------------------------------------------------------------------------------

    def _leader(self) -> KeyValue | None:
        return self._oldest(r.election_prefix(self.root))

    def regions_leader(self) -> KeyValue | None:
        """Of the partition managers."""
        return self._oldest(self.root + keys.PARTITION_MANAGERS)

    def _oldest(self, election: bytes) -> KeyValue | None:
        """The oldest key of an election. Beside it are those of bids that were given up: `<election>-void/`."""
        found = self.key_space.read(KeyRange.prefix(election + b"/")).kvs
        return min(found, key=lambda kv: kv.create_revision, default=None)

    def _is_guarded(self, op: Operation, kinds: Sequence[bytes]) -> bool:
        """Ids are not: whoever follows hands them out, too."""
        prefixes = tuple(self.root + kind for kind in kinds)
        if isinstance(op, Put):
            return op.key.startswith(prefixes)
        if not isinstance(op, Delete):
            return False
        changed = as_range(op.keys)  # perhaps of many kinds
        return any(changed.start.startswith(prefix) or changed.contains(prefix) for prefix in prefixes)

    def _check_reshaped(
        self, branch: Sequence[Operation], compares: Sequence[Compare], leader: KeyValue | None, revision: int
    ) -> None:
        """A split or a merge goes through the stream manager, which does not know who leads the partition managers. It
        is the map itself that it compares then: the one on which the change was decided, key by key."""
        told = f"revision {revision} was not written by the partition managers' leader"
        if not _compares(compares, leader):
            self.violations.append(f"{told} (G7): {compares}")
            return
        touched = [op for op in branch if self._is_guarded(op, GUARDED_REGIONS)]
        changed = [
            op.key if isinstance(op, Put) else as_range(op.keys).start for op in touched if not isinstance(op, Get)
        ]
        if self.root + keys.REGION_MAP not in changed:
            self.violations.append(f"{told}, and leaves the map's version as it was (G7): {compares}")
        compared = [each.key for each in compares if each.relation is Relation.EQUAL and _is_exact(each)]
        for key in changed:
            if key not in compared:
                self.violations.append(f"{told}, and overwrites {key!r} whatever it is (G7): {compares}")

    # --- G3 --------------------------------------------------------------------------------------------------

    def _is_extent(self, key: bytes) -> bool:
        return key.startswith(self.root + r.EXTENTS)

    def at(self, key: bytes) -> KeyValue | None:
        found = self.key_space.read(as_range(key)).kvs
        return found[0] if found else None

    # --- ids -------------------------------------------------------------------------------------------------

    def made_with_ids(self) -> Counter[str]:
        """How many streams, extents and tasks there have been."""
        return Counter(self._made.values())

    def claim(self, number: int, what: str, revision: int) -> None:
        """One counter gives out the ids of streams, extents, tasks and partitions."""
        if self._made.setdefault(number, what) != what:
            self.violations.append(f"revision {revision}: the id of {what} {number} is a {self._made[number]}'s")

    def _check_task(self, op: Put, revision: int) -> None:
        task = TASK.decode(b"", op.value, revision)
        if self._tasks.get(op.key) == task.task_id:
            return
        if task.task_id in self._made:
            self.violations.append(f"revision {revision}: the id of task {task.task_id} was used before")
        self._made[task.task_id] = "task"
        self._tasks[op.key] = task.task_id

    def _check_node(self, op: Put, revision: int) -> None:
        node = NODE.decode(b"", op.value, revision)
        known = self._addresses.setdefault(node.node_id, node.wire_address)
        if node.wire_address != known:
            told = f"node {node.node_id} was {known}, and is {node.wire_address}"
            self.violations.append(f"revision {revision}: {told}")

    def _check_young(self, op: Put, revision: int) -> None:
        """Those in a stream's record that have no key of their own: what their keys say counts more."""
        stream, young = read_stream(op.value, revision)
        before = self._lists.get(op.key)
        if before is None and stream.stream_id in self._made:
            self.violations.append(f"revision {revision}: the id of stream {stream.stream_id} was used before")
        self.claim(stream.stream_id, "stream", revision)
        known = frozenset(before or ())
        for extent_id in stream.extent_ids:
            if extent_id not in known:
                if extent_id in self.linked and not self.is_listed(extent_id) and extent_id not in self._leaving:
                    self.violations.append(f"revision {revision}: the id of extent {extent_id} was used before")
                self.claim(extent_id, "extent", revision)
                self.linked.setdefault(extent_id, revision)
                self.on_linked(extent_id)
        if len({*stream.extent_ids}) != len(stream.extent_ids):
            self.violations.append(f"revision {revision}: stream {stream.stream_id} lists an extent twice")
        self._lists[op.key] = stream.extent_ids
        for extent in young:
            self._check_same(extent, revision)
            at = stream.extent_ids.index(extent.extent_id) if extent.extent_id in stream.extent_ids else 0
            if at and extent.stream_id == stream.stream_id:
                self.behind.setdefault(stream.extent_ids[at - 1], extent.extent_id)
            self.nodes_of[extent.extent_id] = extent.node_ids
            if self.at(self.root + r.EXTENTS + r.id_text(extent.extent_id)) is None:
                self._check_seal(extent, revision)
                self._check_bits(extent, revision)

    def _check_same(self, extent: Extent, revision: int) -> None:
        """Another one with its id would be another stream's, or elsewhere while it is open (8)."""
        first = self._open.setdefault(extent.extent_id, extent)
        if extent.stream_id != first.stream_id or (extent.seal is None and extent.replicas != first.replicas):
            self.violations.append(f"revision {revision}: extent {extent.extent_id} was {first}, and is {extent}")

    def _check_seal(self, new: Extent, revision: int) -> None:
        length = None if new.seal is None else new.seal.length
        known = self.seals.get(new.extent_id)
        if known is not None and length != known:
            self.violations.append(f"revision {revision}: extent {new.extent_id} sealed at {known}, now {length} (G3)")
        if length is not None:
            self.seals.setdefault(new.extent_id, length)
            if known is None:
                self.on_sealed(new.extent_id, length, revision)
            told = self.acknowledged.get(new.extent_id, 0)
            if length < told:
                self.violations.append(
                    f"revision {revision}: extent {new.extent_id} sealed at {length}, acknowledged up to {told} (G2)"
                )

    def _check_bits(self, new: Extent, revision: int) -> None:
        """Who took part in a seal has not confirmed it: a bit is of a replica that has said so (19, 20, 22)."""
        confirmed = frozenset(replica for replica in new.replicas if replica.node_id in new.confirmed)
        before = self._confirmed.get(new.extent_id, frozenset())
        self._confirmed[new.extent_id] = confirmed
        for replica in new.replicas:
            if replica in before and replica not in confirmed:  # found bad: what it has said until now counts no more
                self.told_whole.pop((new.extent_id, replica), None)
            if replica not in confirmed or replica in before:
                continue
            self.bits_checked += 1
            told = self.told_whole.get((new.extent_id, replica))
            if new.seal is None or told != (new.seal.length, new.seal.digest):
                what = f"extent {new.extent_id}, {new.seal}, counts as confirmed by {replica}"
                said = "has confirmed nothing" if told is None else f"has confirmed {told}"
                self.violations.append(f"revision {revision}: {what}, which {said} (19, 20)")

    def _check_extent(self, before: KeyValue | None, after: KeyValue | None, revision: int) -> None:
        if after is None:
            return
        new = read_extent(after.value, after.mod_revision)
        self._check_seal(new, revision)
        self._check_bits(new, revision)
        self._check_same(new, revision)
        self.nodes_of[new.extent_id] = new.node_ids
        if before is None:
            return
        old = read_extent(before.value, before.mod_revision)
        if new.eversion < old.eversion:
            self.violations.append(f"revision {revision}: extent {new.extent_id} goes back to {new.eversion}")
        if old.seal is not None and new.seal is not None and old.seal.digest not in (b"", new.seal.digest):
            self.violations.append(f"revision {revision}: extent {new.extent_id} has another digest (20)")
        if old.seal is None and new.replicas != old.replicas:
            self.violations.append(f"revision {revision}: the open extent {new.extent_id} changes its replicas (8)")
