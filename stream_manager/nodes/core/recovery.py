"""Which replicas are lost, which to recover first, and how many at a time. No I/O, no clock.

    lost            node dead, node unknown, disk gone, replica bad          a hard loss: its bytes may be gone
                    node draining                                            a soft loss: still good to copy from
    due             hard losses of dead nodes wait `delay_s`, since most dead nodes are being restarted;
                    a second hard loss of the same extent ends the wait; all others are due at once
    first           fewest confirmed replicas left; draining last; then by id, so that a run can be repeated

Invariants: a copy is made from confirmed replicas only (protocol rule 22), the good ones first;
            the bounds on tasks, on tasks per node and on bytes per second hold however much is lost at once.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from neve.stream_manager.metadata.records import Extent, ReplicaAt

COPY_BYTES_PER_S_MIN = 1 << 20  # a copy that may use less is not worth a task: it waits for a share


class Reason(enum.Enum):
    """Why a replica must be replaced. The value is for people."""

    NODE_UNKNOWN = "its node is no longer known"
    NODE_DEAD = "its node is dead"
    DISK_GONE = "its disk is offline or gone"
    BAD = "it is damaged or missing"
    DRAINING = "its node is being emptied"

    @property
    def hard(self) -> bool:
        return self is not Reason.DRAINING


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong in the cluster at the moment."""

    known: Mapping[int, object]  # node ids in metadata
    dead_due_s: Mapping[int, float] = field(default_factory=dict)  # dead nodes → when recovery may begin
    gone_disks: Mapping[tuple[int, str], object] = field(default_factory=dict)
    bad: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (extent, node) → incarnation of the bad file
    draining: Mapping[int, object] = field(default_factory=dict)

    def nodes(self) -> dict[int, None]:
        """All nodes whose replicas may be lost; not those of single bad replicas."""
        return dict.fromkeys([*self.dead_due_s, *(node_id for node_id, _ in self.gone_disks), *self.draining])

    def reason(self, extent_id: int, replica: ReplicaAt) -> Reason | None:
        node_id = replica.node_id
        if node_id in self.dead_due_s:
            return Reason.NODE_DEAD
        if node_id not in self.known:
            return Reason.NODE_UNKNOWN
        if (node_id, replica.disk_uuid) in self.gone_disks:
            return Reason.DISK_GONE
        if self.bad and self.bad.get((extent_id, node_id)) == replica.incarnation:
            return Reason.BAD
        if node_id in self.draining:
            return Reason.DRAINING
        return None


@dataclass(frozen=True, slots=True)
class Loss:
    """A replica of a sealed extent that must be replaced."""

    extent_id: int
    replica: ReplicaAt
    reason: Reason
    left: int  # confirmed replicas that can be relied on
    due_s: float

    @property
    def rank(self) -> tuple[int, bool, int]:
        """Urgency; lower is more urgent."""
        return self.left, not self.reason.hard, self.extent_id


def worst_loss(extent: Extent, trouble: Trouble) -> Loss | None:
    """The extent's most urgent loss; None if it has none."""
    reasons = [(replica, trouble.reason(extent.extent_id, replica)) for replica in extent.replicas]
    lost = [(replica, reason) for replica, reason in reasons if reason is not None]
    if not lost:
        return None
    hard = [(replica, reason) for replica, reason in lost if reason.hard]
    hard_nodes = {replica.node_id for replica, _ in hard}
    left = sum(node_id not in hard_nodes for node_id in extent.confirmed)

    def due_s(replica: ReplicaAt, reason: Reason) -> float:
        if reason is not Reason.NODE_DEAD or len(hard) > 1:
            return 0.0
        return trouble.dead_due_s[replica.node_id]

    made = [Loss(extent.extent_id, replica, reason, left, due_s(replica, reason)) for replica, reason in hard or lost]
    return min(made, key=lambda loss: loss.due_s)


def sources_for(extent: Extent, lost: ReplicaAt | None, trouble: Trouble) -> list[ReplicaAt]:
    """Confirmed replicas to copy from: first the good ones, then those that may have only some good blocks.

    A bad replica is a source, too. Blocks are checked one by one and the whole by its digest, so two replicas with
    different bad blocks still make one good copy. `lost` is a bad replica, unless it is only being moved away.
    """
    good, suspected = [], []
    for replica in extent.replicas:
        if replica.node_id not in extent.confirmed:
            continue
        reason = trouble.reason(extent.extent_id, replica)
        if reason is Reason.BAD or (reason is None and replica == lost):
            suspected.append(replica)
        elif reason in (None, Reason.DRAINING):
            good.append(replica)
    return good + suspected


# --- bounds ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """What one running copy uses."""

    node_ids: tuple[int, ...]  # its target and its first source
    bytes_per_s: int


class Budget:
    """What all copies together may use; created for each pass from the running ones."""

    def __init__(self, *, tasks_max: int, tasks_per_node_max: int, bytes_per_s_max: int, copy_bytes_per_s_max: int):
        self._tasks_max = tasks_max
        self._tasks_per_node_max = tasks_per_node_max
        self._copy_bytes_per_s_max = copy_bytes_per_s_max
        self._bytes_per_s_left = bytes_per_s_max
        self._tasks = 0
        self._by_node: Counter[int] = Counter()

    def take(self, share: Share) -> None:
        self._tasks += 1
        self._bytes_per_s_left -= share.bytes_per_s
        self._by_node.update(share.node_ids)

    def give_back(self, share: Share) -> None:
        self._tasks -= 1
        self._bytes_per_s_left += share.bytes_per_s
        self._by_node.subtract(share.node_ids)

    @property
    def tasks_left(self) -> int:
        return max(0, self._tasks_max - self._tasks)

    def busy(self) -> frozenset[int]:
        """Nodes that already take part in as many copies as they may."""
        return frozenset(node_id for node_id, count in self._by_node.items() if count >= self._tasks_per_node_max)

    def rate(self) -> int:
        """Bytes per second for one more copy; 0: there is no share left."""
        rate = min(self._copy_bytes_per_s_max, self._bytes_per_s_left)
        small = min(COPY_BYTES_PER_S_MIN, self._copy_bytes_per_s_max)
        return rate if self.tasks_left and rate >= small else 0

    def first_source(self, sources: Iterable[ReplicaAt]) -> ReplicaAt | None:
        """The least busy source; None if all are busy."""
        free = [source for source in sources if self._by_node[source.node_id] < self._tasks_per_node_max]
        return min(free, key=lambda source: (self._by_node[source.node_id], source.node_id), default=None)
