"""Looks at every message of a story: what a process has promised once, it must never go back on.

    Nodes     a length that a node has answered for is never answered shorter, unless it says that it is in doubt
              (rules 5, 12, 14); what it has fenced, or raised to a token, grows no more by older ones, whatever
              happened to its power in between (4, 14); after a failed sync it takes nothing more (T23); a replica
              that has confirmed a seal, or was copied, has that seal for good (20, 22)
    Managers  a seal has one length, whoever asks, and one extent behind it, the next one in the stored list, unless
              that was taken out of the stream (16); an owner who was replaced before he asked is told none (3); a
              manager that did not lead while a call was under way answers none that needs a leader (25); what was
              ordered deleted because metadata did not know it is never linked (24)

Invariants: it judges what a process says at the moment it is said, by what was said before: nobody's memory is asked;
            it changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from neve.meta.lock import lock_key
from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import Gap
from neve.rpc.wire.frame import Kind
from neve.stream_manager.metadata.records import ReplicaAt, replica_at
from tests.sim.checks.watched_store import WatchedStore
from tests.sim.network.frames import Frame
from tests.sim.network.pipe import Pipe

ALL_METHODS: dict[int, Any] = {
    each.method_id: each
    for service in (methods.EXTENT_NODE, methods.STREAM_MANAGER, methods.PARTITION_MANAGER, methods.PARTITION_SERVER)
    for each in service
}
OWNERS_CALLS = frozenset(
    method.method_id
    for method in (
        methods.STREAM_MANAGER_CHECK_COMMIT_LENGTH,
        methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT,
        methods.STREAM_MANAGER_WAIT_CONFIRMED,
    )
)
CALLS_KEPT_MAX = 10_000

Listener = Callable[[str, str, str, str], None]  # method, "request" or "reply", source, target


@dataclass(slots=True)
class _Asked:
    """A call that a server has begun."""

    request: Frame
    client: str
    begun_s: float
    deposed: bool = False
    leaders: int = 0  # how many there had been until then


@dataclass(frozen=True, slots=True)
class Sealed:
    """A node has said that this making of a replica has this seal."""

    replica: ReplicaAt
    length: int
    digest: bytes
    at_s: float


@dataclass(slots=True)
class Promise:
    """What a node has said of one replica."""

    length: int = 0  # that it has, for certain
    synced_length: int = 0  # that no loss of power takes away
    token: int = 0  # below which it takes nothing more
    token_length: int = 0  # when it said so
    unsynced: bool = False  # it was sent something that need not be on its disk when it is answered
    sent_length: int = 0  # of what it was sent
    fenced_length: int | None = None
    sealed: Sealed | None = None


class WireWatch:
    def __init__(self, etcd: WatchedStore, hosts: dict[str, str]) -> None:
        self.violations: list[str] = []
        self.listeners: dict[Listener, None] = {}
        self.extents_ordered: set[int] = set()  # that nodes were asked to make, or to delete
        self.streams_ordered: set[tuple[object, int]] = set()  # calls that make one, each however often it was sent
        self.fences: dict[tuple[str, int], pb.LengthAnswer] = {}  # what nodes have answered to the last, by extent
        self.damaged: set[str] = set()  # hosts on whose disks bits were flipped
        self.without_disk: set[str] = set()  # hosts that had to do without one, for a while
        self.lost_bytes: Callable[[str], bool] = lambda _: False  # whether disks of this host were lost or damaged
        self.seals_checked = 0  # what was said of replicas that had confirmed a seal
        self.length_on: Callable[[str, int], int | None] = lambda *_: None  # of a replica now: node, extent id
        self.on_committed: Callable[[str, int, int], None] = lambda *_: None  # client, extent id, how far
        self.on_told: Callable[[str, int, int], None] = lambda *_: None  # node, extent id, how far readers may go
        self._etcd = etcd
        self._addresses = hosts  # of the managers, by host
        self._asked: dict[tuple[str, int], _Asked] = {}
        self._promises: dict[tuple[str, int], Promise] = {}
        self._processes: dict[int, float] = {}  # by process id, when a node's process was first heard
        self._sync_failed: dict[tuple[str, int], tuple[float, Callable[[], bool]]] = {}
        self._successors: dict[tuple[int, int], int] = {}  # of extents, by stream and extent, as first answered
        self._deleted: set[int] = set()  # extents that were ordered deleted while metadata did not know them
        self._judges: dict[int, Callable[[str, _Asked, Any, Any], None]] = {
            methods.EXTENT_NODE_APPEND_BLOCK.method_id: self._on_append,
            methods.EXTENT_NODE_RAISE_TOKEN.method_id: self._on_length,
            methods.EXTENT_NODE_FENCE.method_id: self._on_fence,
            methods.EXTENT_NODE_SEAL_EXTENT.method_id: self._on_seal,
            methods.EXTENT_NODE_DESCRIBE_REPLICA.method_id: self._on_described,
            methods.STREAM_MANAGER_CHECK_COMMIT_LENGTH.method_id: self._on_opened,
            methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT.method_id: self._on_alloc,
            methods.STREAM_MANAGER_WAIT_CONFIRMED.method_id: self._on_owner,
        }
        self._nodes_say: dict[int, Callable[[str, Any], None]] = {  # what nodes tell of themselves
            methods.STREAM_MANAGER_REGISTER_NODE.method_id: self._on_registers,
            methods.STREAM_MANAGER_HEARTBEAT.method_id: self._on_heartbeat,
            methods.STREAM_MANAGER_REPORT_REPLICAS.method_id: self._on_report,
        }
        etcd.on_linked = self._on_linked

    def __call__(self, event: str, pipe: Pipe, frame: Frame) -> None:
        kind = frame.kind
        if kind == Kind.REQUEST:
            if event == "deliver":
                self._begun(pipe, frame)
            elif event == "send":
                if frame.method_id == methods.EXTENT_NODE_FENCE.method_id:
                    self.fences.pop((pipe.target, pb.FenceRequest.FromString(frame.message).extent_id), None)
                elif (judge := self._nodes_say.get(frame.method_id)) is not None:
                    judge(pipe.source, ALL_METHODS[frame.method_id].request.FromString(frame.message))
                if self.listeners:
                    self._tell(frame, "request", pipe)
        elif event == "send" and kind in (Kind.REPLY, Kind.ERROR):
            asked = self._asked.pop((pipe.name, frame.call_id), None)
            if asked is not None and kind == Kind.REPLY:
                method = ALL_METHODS[frame.method_id]
                request = method.request.FromString(asked.request.message)
                reply = method.reply.FromString(frame.message)
                self._judges[frame.method_id](pipe.source, asked, request, reply)
            if self.listeners and kind == Kind.REPLY:
                self._tell(frame, "reply", pipe)

    def _tell(self, frame: Frame, kind: str, pipe: Pipe) -> None:
        for listener in [*self.listeners]:
            listener(ALL_METHODS[frame.method_id].name, kind, pipe.source, pipe.target)

    def _begun(self, pipe: Pipe, frame: Frame) -> None:
        if frame.method_id == methods.EXTENT_NODE_CREATE_EXTENT.method_id:
            self.extents_ordered.add(pb.CreateExtentRequest.FromString(frame.message).extent_id)
        elif frame.method_id == methods.EXTENT_NODE_DELETE_EXTENT.method_id:
            self._on_delete(pb.DeleteExtentRequest.FromString(frame.message))
        elif frame.method_id == methods.STREAM_MANAGER_CREATE_STREAM.method_id:
            call = sm.CreateStreamRequest.FromString(frame.message).call
            self.streams_ordered.add((call.client_id, call.call_id) if call.call_id else (pipe.name, frame.call_id))
        elif frame.method_id == methods.STREAM_MANAGER_SPLIT_STREAMS.method_id:
            split = sm.SplitStreamsRequest.FromString(frame.message)
            self.streams_ordered.update(("split", each.new_stream_id) for each in split.streams)
        if frame.method_id not in self._judges:
            return
        if frame.method_id == methods.EXTENT_NODE_APPEND_BLOCK.method_id:
            for segment in pb.AppendBlockRequest.FromString(frame.message).segments:
                promise = self._promise(pipe.target, segment.extent_id)
                promise.unsynced |= segment.no_sync
                promise.sent_length = max(promise.sent_length, segment.offset + sum(segment.block_sizes))
        asked = _Asked(frame, pipe.source, asyncio.get_running_loop().time())
        if frame.method_id in OWNERS_CALLS:
            owner = ALL_METHODS[frame.method_id].request.FromString(frame.message).owner
            asked.deposed = not self._is_owner(owner)
            asked.leaders = len(self._etcd.leaders)
        if len(self._asked) >= CALLS_KEPT_MAX:
            self._wrong(f"{len(self._asked)} calls wait for answers: too many to judge these")
            self._asked.clear()
        self._asked[pipe.name, frame.call_id] = asked

    def _wrong(self, what: str) -> None:
        self.violations.append(f"{asyncio.get_running_loop().time():.3f} {what}")

    # --- nodes -----------------------------------------------------------------------------------------------

    def promises_of(self, node: str) -> list[tuple[int, Promise]]:
        """What a node has said of its replicas, by extent."""
        return [(extent_id, promise) for (host, extent_id), promise in self._promises.items() if host == node]

    def sync_failed(self, node: str, extent_id: int, *, lives: Callable[[], bool]) -> None:
        """A sync of this replica has failed; `lives`: whether the process that was told so still runs."""
        self._sync_failed[node, extent_id] = (asyncio.get_running_loop().time(), lives)

    def _promise(self, node: str, extent_id: int) -> Promise:
        return self._promises.setdefault((node, extent_id), Promise())

    def _on_append(self, node: str, asked: _Asked, request: pb.AppendBlockRequest, reply: pb.AppendBlockReply) -> None:
        if reply.all_taken and not request.brief:
            self._wrong(f"{node} answered {asked.client} in brief, who had not asked for that")
        results = [self._taken_whole(node, each) for each in request.segments] if reply.all_taken else reply.results
        for segment, result in zip(request.segments, results, strict=True):
            promise = self._promise(node, segment.extent_id)
            self.on_committed(asked.client, segment.extent_id, segment.committed)
            if (not result.HasField("error") or result.error.code == Gap.code) and result.HasField("length"):
                self._check_length(node, segment.extent_id, result.length)
            if not result.HasField("error"):
                self.on_told(node, segment.extent_id, segment.committed)
            if result.HasField("error") or not segment.block_sizes:
                continue
            what = f"{node} took an append to extent {segment.extent_id} up to {result.end}, token {segment.token}"
            if promise.fenced_length is not None and result.end > promise.fenced_length:
                self._wrong(f"{what}, and had fenced it at {promise.fenced_length} (14)")
            if segment.token < promise.token and result.end > promise.token_length:
                self._wrong(f"{what}, and had promised {promise.token} at {promise.token_length} (4, 14)")
            failed = self._sync_failed.get((node, segment.extent_id))
            if failed is not None and failed[0] < asked.begun_s and failed[1]():
                self._wrong(f"{what}, after a sync of it had failed (T23)")
            sealed = promise.sealed
            if sealed is not None and sealed.replica == replica_at(segment.replica) and result.end > sealed.length:
                self._wrong(f"{what}, and had confirmed its seal at {sealed.length} (20)")
            promise.length = max(promise.length, result.end)
            if not segment.no_sync:
                promise.synced_length = max(promise.synced_length, result.end)
            if segment.token > promise.token:
                promise.token, promise.token_length = segment.token, result.end

    def _taken_whole(self, node: str, segment: pb.Segment) -> pb.SegmentResult:
        """What an answer that is not brief would say of it."""
        length = self.length_on(node, segment.extent_id)
        return pb.SegmentResult(end=segment.offset + sum(segment.block_sizes), length=length)

    def _on_length(
        self, node: str, asked: _Asked, request: pb.RaiseTokenRequest | pb.FenceRequest, reply: pb.LengthAnswer
    ) -> None:
        if reply.HasField("replica"):
            seal = reply.seal if reply.HasField("seal") else None
            self._check_sealed(node, request.extent_id, reply.replica, seal, reply.kind, since_s=asked.begun_s)
        if reply.HasField("seal"):
            return
        if reply.kind != pb.LengthAnswer.LENGTH:
            self._check_excuse(node, request.extent_id, reply.kind)
            return
        self._check_length(node, request.extent_id, reply.length)
        promise = self._promise(node, request.extent_id)
        promise.length = max(promise.length, reply.length)
        promise.synced_length = max(promise.synced_length, reply.length)
        if reply.token > promise.token:
            promise.token, promise.token_length = reply.token, reply.length
        if reply.fenced:
            promise.fenced_length = reply.length

    def _check_excuse(self, node: str, extent_id: int, kind: pb.LengthAnswer.Kind) -> None:
        """Of a replica that has no length to tell. What it has answered for with a sync, and nothing else, is on its
        disk: if nobody took or damaged that, it is there; and in no doubt, unless it has begun to write more, of which
        a loss of power may have left anything (13)."""
        promise, node_id = self._promise(node, extent_id), int(node.removeprefix("node"))
        if not promise.synced_length or promise.unsynced or kind == pb.LengthAnswer.DELETED:
            return
        if kind != pb.LengthAnswer.NEVER_EXISTED and promise.sent_length > promise.synced_length:
            return
        if self.lost_bytes(node) or node in self.damaged or node in self.without_disk:
            return
        if self._etcd.is_listed(extent_id) and node_id in self._etcd.nodes_of[extent_id]:
            says = f"{node} says {pb.LengthAnswer.Kind.Name(kind)} of extent {extent_id}"
            self._wrong(f"{says}, and had {promise.synced_length} bytes on its disk, which is well (12, 18)")

    def _on_fence(self, node: str, asked: _Asked, request: pb.FenceRequest, reply: pb.LengthAnswer) -> None:
        self.fences[node, request.extent_id] = reply
        self._on_length(node, asked, request, reply)

    def _on_seal(self, node: str, asked: _Asked, request: pb.SealExtentRequest, reply: pb.SealExtentReply) -> None:
        had = min(self._promise(node, request.extent_id).synced_length, request.seal.length)
        if not reply.confirmed and reply.length < had and node not in self.damaged:
            self._wrong(f"{node} has {reply.length} of extent {request.extent_id}, and had {had} on its disk (5, 14)")
        seal = reply.seal if reply.confirmed else None
        self._check_sealed(
            node, request.extent_id, request.replica, seal, pb.LengthAnswer.LENGTH, since_s=asked.begun_s
        )
        if reply.confirmed:
            self._note_sealed(node, request.extent_id, request.replica, reply.seal)

    def _note_sealed(self, node: str, extent_id: int, replica: common_pb2.Replica, seal: common_pb2.Seal) -> None:
        made = replica_at(replica)
        self._etcd.told_whole[extent_id, made] = (seal.length, seal.digest)
        promise = self._promise(node, extent_id)
        if promise.sealed is None or promise.sealed.replica != made:
            promise.sealed = Sealed(made, seal.length, seal.digest, asyncio.get_running_loop().time())

    def _check_sealed(
        self,
        node: str,
        extent_id: int,
        replica: common_pb2.Replica,
        seal: common_pb2.Seal | None,
        kind: pb.LengthAnswer.Kind,
        *,
        since_s: float,
    ) -> None:
        """What a node says of a replica, and does not know from before `since_s`. No loss of power takes a seal back
        that was confirmed, nor the bytes below it; another making of the replica is not bound by it."""
        sealed = self._promise(node, extent_id).sealed
        if sealed is None or sealed.at_s >= since_s or sealed.replica != replica_at(replica) or self.lost_bytes(node):
            return
        self.seals_checked += 1
        if (
            seal is None
            or (seal.length, seal.digest) != (sealed.length, sealed.digest)
            or kind != pb.LengthAnswer.LENGTH
        ):
            says = f"{pb.LengthAnswer.Kind.Name(kind)}, {'not sealed' if seal is None else f'sealed at {seal.length}'}"
            self._wrong(
                f"{node} says of extent {extent_id}: {says}, and had confirmed its seal at {sealed.length} (20)"
            )

    def _on_described(
        self, node: str, asked: _Asked, request: pb.DescribeReplicaRequest, reply: pb.ReplicaInfo
    ) -> None:
        seal = reply.seal if reply.HasField("seal") else None
        self._check_sealed(node, reply.extent_id, reply.replica, seal, reply.kind, since_s=asked.begun_s)

    def _on_registers(self, node: str, request: sm.RegisterNodeRequest) -> None:
        self._processes.setdefault(request.process_id, asyncio.get_running_loop().time())

    def _on_heartbeat(self, node: str, request: sm.HeartbeatRequest) -> None:
        for copy in request.copies:
            if copy.state == pb.CopyStatusReply.DONE:
                self._note_sealed(node, copy.extent_id, copy.replica, copy.seal)

    def _on_report(self, node: str, request: sm.ReportReplicasRequest) -> None:
        """A page may have waited for its manager: it is certainly newer than what an earlier process has said."""
        since_s = self._processes.get(request.process_id, 0.0)
        for info in request.replicas:
            seal = info.seal if info.HasField("seal") else None
            self._check_sealed(node, info.extent_id, info.replica, seal, info.kind, since_s=since_s)

    def _check_length(self, node: str, extent_id: int, length: int) -> None:
        had = self._promise(node, extent_id).length
        if length < had:
            self._wrong(f"{node} answers {length} for extent {extent_id}, and had answered {had} (4, 5, 12, 14)")

    # --- managers --------------------------------------------------------------------------------------------

    def _on_owner(self, manager: str, asked: _Asked, request: Any, reply: Any) -> None:
        name = ALL_METHODS[asked.request.method_id].name
        if asked.deposed:
            self._wrong(f"{manager} answered {name} to token {request.owner.token}, which was over before (3)")
        leaders: Sequence[bytes] = self._etcd.leaders[max(0, asked.leaders - 1) :]
        if not any(self._addresses[manager].encode() in each for each in leaders):
            self._wrong(f"{manager} answered {name}, and did not lead: {leaders} (25)")

    def _on_opened(self, manager: str, asked: _Asked, request: Any, reply: sm.CheckCommitLengthReply) -> None:
        self._on_owner(manager, asked, request, reply)
        if reply.HasField("sealed"):
            self._check_decided(manager, reply.sealed)
        if reply.HasField("tail") and reply.stream.extent_ids[-1] != reply.tail.extent_id:
            self._wrong(
                f"{manager} opens extent {reply.tail.extent_id}, and its list is {reply.stream.extent_ids} (15)"
            )
        if reply.HasField("tail") and reply.tail.extent_id in self._etcd.seals and self._is_owner(request.owner):
            self._wrong(f"{manager} opens extent {reply.tail.extent_id}, which is sealed (15)")

    def _is_owner(self, owner: common_pb2.Owner) -> bool:
        held = self._etcd.at(lock_key(self._etcd.root, owner.lock))
        return held is not None and held.mod_revision == owner.token

    def _check_decided(self, manager: str, sealed: sm.ExtentInfo) -> None:
        """A seal is in etcd before anybody hears of it."""
        decided, length = self._etcd.seals.get(sealed.extent_id), sealed.seal.length
        if length != decided or not sealed.HasField("seal"):
            self._wrong(f"{manager} says that extent {sealed.extent_id} ends at {length}, sealed is {decided} (16)")

    def _on_alloc(self, manager: str, asked: _Asked, request: Any, reply: Any) -> None:
        self._on_owner(manager, asked, request, reply)
        extent_id = reply.sealed.extent_id
        self._check_decided(manager, reply.sealed)
        if reply.HasField("tail"):
            self._check_successor(manager, request.stream_id, extent_id, reply.tail.extent_id)

    def _check_successor(self, manager: str, stream_id: int, extent_id: int, successor_id: int) -> None:
        listed = self._etcd.extents_of(stream_id)
        first = self._successors.setdefault((stream_id, extent_id), successor_id)
        what = f"{manager} says that extent {successor_id} comes after {extent_id} in stream {stream_id}"
        if successor_id != first and first in listed:
            self._wrong(f"{what}, and that was {first} before (16)")
        if {extent_id, successor_id} <= {*listed} and listed.index(successor_id) != listed.index(extent_id) + 1:
            self._wrong(f"{what}, whose list is {listed} (16)")

    def _on_delete(self, request: pb.DeleteExtentRequest) -> None:
        extent_id, node_id = request.extent_id, request.replica.node_id
        self.extents_ordered.add(extent_id)
        if not self._etcd.is_listed(extent_id):
            self._deleted.add(extent_id)
        elif node_id in self._etcd.nodes_of[extent_id]:
            self._wrong(f"node {node_id} is to delete extent {extent_id}, and is to have it (24)")

    def _on_linked(self, extent_id: int) -> None:
        if extent_id in self._deleted:
            self._wrong(f"extent {extent_id} is linked, and was ordered deleted (24)")
