"""Deliberate bugs, each a change to the product's modules that lasts as long as its context. Tests alone use them.

    with BUGS["a late append cuts"].planted():
        outcome = play(17)                    # must fail, for some seed

Each has broken a real system, or undoes a rule of docs/protocol.md. `suits` says which stories can come to it at all.

Invariants: a bug changes nothing outside of its context, and nothing but what it says;
            none of this is in the product.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from neve.client.streams.core import reader as core_reader
from neve.client.streams.core.writer import WriterCore
from neve.client.streams.reading import extent_reader
from neve.client.streams.sending.append_frame import SharedSegment
from neve.client.streams.sending.replica_lane import ReplicaLane
from neve.client.streams.writer_tail import WriterTail
from neve.extent_node import core
from neve.extent_node import servicer as node_servicer
from neve.extent_node.core import append as core_append
from neve.extent_node.disk import attributes
from neve.extent_node.journal.group_commit import Committer
from neve.extent_node.store import append as store_append
from neve.extent_node.store import control as store_control
from neve.extent_node.store.replica import Replica, make_replica
from neve.extent_node.store.state import StoreState
from neve.meta import lease as meta_lease
from neve.meta import lock as meta_lock
from neve.meta.election import Leadership
from neve.meta.lease import Lease
from neve.meta.owned_key import OwnedKey
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import HEADER_BYTES, PAYLOAD_BYTES_MAX
from neve.proto.errors import LockedByOther
from neve.stream_manager.metadata.batcher import Batcher
from neve.stream_manager.metadata.records import Extent
from neve.stream_manager.metadata.replay import ReplayCache
from neve.stream_manager.nodes.collect import Collector
from neve.stream_manager.nodes.core import recovery as core_recovery
from neve.stream_manager.nodes.registry import Registry
from neve.stream_manager.streams import open_stream, seal_tail, streams
from neve.stream_manager.streams.allocate import Allocator
from neve.stream_manager.streams.core import open as core_open
from neve.stream_manager.streams.core import seal as core_seal
from neve.stream_manager.term.leader import Term
from neve.stream_manager.term.owner_checks import OwnerChecks
from tests.sim.troubles.swarm import Shape

Kind = pb.LengthAnswer.Kind
FORGETFUL = ("power cut", "power cut, and killed again", "owner dies, replica loses power")
SHORT_SEAL = r"sealed at \d+, acknowledged up to \d+ \(G2\)"
LATE_S = 30.0  # more than it takes others to lead and go on


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    what: str
    plant: Callable[[], AbstractContextManager[None]]
    suits: Callable[[Shape], bool] = lambda _: True
    needs: tuple[str, ...] = ()  # kinds of trouble, one of which the story must have
    origin: str = ""  # the scenario or the rule
    world: str = "streams"  # whose stories come to it
    shows: str = ""  # a regular expression on the error, of a bug for which there is a check: others do not count

    @contextmanager
    def planted(self) -> Iterator[None]:
        with self.plant():
            yield


BUGS: dict[str, Bug] = {}


def bug(
    name: str,
    *,
    origin: str,
    suits: Callable[[Shape], bool] = lambda _: True,
    needs: tuple[str, ...] = (),
    world: str = "streams",
    shows: str = "",
) -> Callable[[Any], Any]:
    """Register a function that changes things, given a way to change attributes for the time being."""

    def register(function: Callable[[Callable[[Any, str, Any], None]], None]) -> Any:
        @contextmanager
        def plant() -> Iterator[None]:
            with ExitStack() as undo:

                def change(target: Any, attribute: str, value: Any) -> None:
                    undo.callback(setattr, target, attribute, getattr(target, attribute))
                    setattr(target, attribute, value)

                function(change)
                yield

        what = (function.__doc__ or "").strip()
        BUGS[name] = Bug(what=what, plant=plant, suits=suits, needs=needs, origin=origin, world=world, shows=shows)
        return function

    return register


# --- the length of a seal -------------------------------------------------------------------------------------


def _change_lengths(change: Any, wrong: Callable[..., Any]) -> None:
    """Have all lengths chosen by `wrong`."""
    change(seal_tail, "choose_length", wrong)


@bug(
    "an error is length 0",
    origin="T1, rule 18",
    suits=lambda shape: shape.loses == "wipe",
    needs=("disks wiped", "one disk wiped"),
    shows=SHORT_SEAL,
)
def _error_is_zero(change: Any) -> None:
    """A replica that is missing counts as one with 0 bytes."""
    choose = core_seal.choose_length

    def wrong(answers: Any, **how: Any) -> Any:
        zero = pb.LengthAnswer(kind=Kind.LENGTH, length=0)
        missing = (Kind.NEVER_EXISTED, Kind.DELETED, Kind.DAMAGED)
        told = {n: zero if answer is not None and answer.kind in missing else answer for n, answer in answers.items()}
        how["acknowledged_end"] = None
        return choose(told, **how)

    _change_lengths(change, wrong)


@bug(
    "a seal without E is refused",
    origin="rule 18",
    suits=lambda shape: not shape.sync or shape.loses in ("wipe", "damage"),
    needs=(*FORGETFUL, "disks wiped", "one disk wiped", "bits flipped in a tail"),
)
def _refused_without_end(change: Any) -> None:
    """Where nobody knows what is acknowledged, a seal waits for all replicas: an operator has to accept a length."""
    choose = core_seal.choose_length

    def wrong(answers: Any, **how: Any) -> Any:
        decision = choose(answers, **how)
        if how["acknowledged_end"] is None and not decision.all_took_part and not decision.sealed_before:
            problem = "not all replicas can be trusted"
            raise core_seal._unavailable(how.get("extent_id", 0), answers, decision.by_node, problem)
        return decision

    _change_lengths(change, wrong)
    change(core_seal, "choose_length", wrong)


@bug(
    "a doubtful length is trusted",
    origin="T4, rule 18",
    suits=lambda shape: not shape.sync,
    needs=FORGETFUL,
    shows=SHORT_SEAL,
)
def _doubtful_is_trusted(change: Any) -> None:
    """A seal believes a replica that may have lost its page cache, and does not look at what readers were shown."""
    choose = core_seal.choose_length

    def wrong(answers: Any, **how: Any) -> Any:
        told = {}
        for node_id, answer in answers.items():
            if answer is not None and answer.kind == Kind.DOUBTFUL:
                answer = pb.LengthAnswer(kind=Kind.LENGTH, length=answer.valid_length)
            elif answer is not None and answer.kind == Kind.LENGTH:
                answer = pb.LengthAnswer.FromString(answer.SerializeToString())
                answer.committed = 0
            told[node_id] = answer
        return choose(told, **how)

    _change_lengths(change, wrong)


@bug("the seal takes the longest", origin="T4, rule 18", shows=r"are not on node \d+ \(G1\)")
def _longest(change: Any) -> None:
    """When replicas differ, a seal keeps what the longest has, and says that all took part."""
    choose = core_seal.choose_length

    def wrong(answers: Any, **how: Any) -> Any:
        decision = choose(answers, **how)
        lengths = [answer.length for answer in answers.values() if answer is not None and answer.kind == Kind.LENGTH]
        return dataclasses.replace(decision, length=max([decision.length, *lengths]))

    _change_lengths(change, wrong)


@bug("a repeated seal gives another length", origin="T3, rule 16", shows=r"ends at \d+, sealed is \d+ \(16\)")
def _another_length(change: Any) -> None:
    """Who asks again gets the length that he names, not the one that was decided."""
    answer_sealed = Allocator._answer_sealed

    async def wrong(self: Any, stream: Any, sealed: Any, request: Any, mutation: Any) -> Any:
        reply = (await answer_sealed(self, stream, sealed, request, mutation)).message()
        if request.HasField("acknowledged_end"):
            reply.sealed.seal.length = request.acknowledged_end
        return reply

    change(Allocator, "_answer_sealed", wrong)


@bug("a repeated seal gives another successor", origin="T3, rule 16", shows=r"comes after .*\(16\)")
def _another_successor(change: Any) -> None:
    """Who asks again gets one more extent, although there is one behind the sealed one."""
    change(Allocator, "_successor", lambda self, stream, sealed, mutation: None)


@bug("who took part counts as confirmed", origin="T5, rule 19", shows=r"has confirmed .*\(19, 20\)")
def _bits_at_once(change: Any) -> None:
    """The transaction of a seal lists all replicas as good."""
    sealed_at = Extent.sealed_at

    def wrong(self: Extent, length: int, **how: Any) -> Extent:
        sealed = sealed_at(self, length, **how)
        return sealed._replace(confirmed=self.node_ids)

    change(Extent, "sealed_at", wrong)


# --- writers --------------------------------------------------------------------------------------------------


@bug("two answers of three acknowledge", origin="T13, rule 5", shows=r"are not on node \d+ \(G1\)")
def _majority(change: Any) -> None:
    """A writer acknowledges when most replicas have answered."""

    def wrong(self: Any, replica: int, taken: Any) -> Any:
        if taken.end <= self._acked_ends[replica]:
            return []
        self._acked_ends[replica] = taken.end
        self._replicas[replica].failures = 0
        if self.sealing:
            return []
        committed = sorted(self._acked_ends)[len(self._replicas) // 2]
        return self._acknowledge(committed) if committed > self.committed else []

    change(WriterCore, "on_answer", wrong)
    change(WriterCore, "take_for_all", lambda self: None)  # what is sent in step is not answered one by one
    change(WriterCore, "validate", lambda self: None)


@bug("two answers of three acknowledge, in step", origin="T13, rule 5", shows=r"are not on node \d+ \(G1\)")
def _majority_in_step(change: Any) -> None:
    """The same where a segment was sent to all replicas at once, and their answers are counted."""
    make = SharedSegment.__init__

    def wrong(self: SharedSegment, lanes: Any, frames: Any, taken: Any) -> None:
        make(self, lanes, frames, taken)
        self.unanswered = max(1, len(frames) - 1)

    change(SharedSegment, "__init__", wrong)
    change(WriterCore, "validate", lambda self: None)


@bug("a seal acknowledges at once", origin="rule 16", needs=("node drained", "tail drained, nodes missing"))
def _settles_at_once(change: Any) -> None:
    """What lies in (E, L] is acknowledged although a replica took no part in the seal."""
    settle = WriterCore.settle

    def wrong(self: Any, *, sealed_length: int, all_took_part: bool) -> Any:
        return settle(self, sealed_length=sealed_length, all_took_part=True)

    change(WriterCore, "settle", wrong)


@bug("all beyond E is sent again", origin="rule 16")
def _resends_all(change: Any) -> None:
    """The writer sends again what the seal has kept."""
    settle = WriterCore.settle

    def wrong(self: Any, *, sealed_length: int, all_took_part: bool) -> Any:
        return settle(self, sealed_length=self.committed, all_took_part=all_took_part)

    change(WriterCore, "settle", wrong)


@bug(
    "a writer acknowledges while it asks",
    origin="rule 16",
    suits=lambda shape: shape.hasty and shape.append_timeout_s > 1,  # the next append is sent while an answer is out,
    needs=("slow replica and a dead one",),  # and another node fails meanwhile
)
def _acknowledges_while_sealing(change: Any) -> None:
    """Answers of replicas count after the request for the next extent was sent."""
    on_answer, on_all_answered = WriterCore.on_answer, WriterCore.on_all_answered

    def while_sealing(self: Any, what: Any, *about: Any) -> Any:
        sealing, self.sealing = self.sealing, False
        try:
            return what(self, *about)
        finally:
            self.sealing = sealing

    def wrong(self: Any, replica: int, taken: Any) -> Any:
        return while_sealing(self, on_answer, replica, taken)

    def wrong_of_all(self: Any, taken: Any) -> Any:
        return while_sealing(self, on_all_answered, taken)

    has, all_have = ReplicaLane.on_taken, ReplicaLane.on_taken_by_all

    def heard(self: Any, taken: Any) -> None:
        if self._closed and self._core.sealing and not isinstance(taken, int):
            acknowledged = self._core.on_answer(self.replica, taken)
            if acknowledged:
                self._owner.on_acknowledged(acknowledged)
            return
        has(self, taken)

    def all_heard(self: Any, part: Any) -> None:
        if self._closed and self._core.sealing:
            acknowledged = self._core.on_all_answered(part.taken)
            if acknowledged:
                self._owner.on_acknowledged(acknowledged)
            return
        all_have(self, part)

    change(WriterCore, "on_answer", wrong)
    change(WriterCore, "on_all_answered", wrong_of_all)
    change(ReplicaLane, "on_taken", heard)
    change(ReplicaLane, "on_taken_by_all", all_heard)


@bug("a lease that ended is not noticed", origin="T11, rule 2", needs=("client stopped", "metadata stalls"))
def _lease_ignored(change: Any) -> None:
    """A writer goes on, and acknowledges, after its lease has ended."""
    change(Lease, "ensure_alive", lambda self: None)
    change(Lease, "alive", lambda self: True)
    change(Lease, "remaining_s", lambda self: 1.0)
    change(OwnedKey, "_lose", lambda self, reason: None)
    change(OwnedKey, "ensure", lambda self: None)


@bug("answers that waited are believed", origin="rule 2, G5", needs=("owner stopped past its lease",))
def _late_answers(change: Any) -> None:
    """A process that was stopped past its lease acknowledges by the answers in its buffers, before a timer tells it."""

    def wrong(self: Any, extent_id: int, batches: Any) -> bool:
        self._on_acknowledged(extent_id, batches)
        return True

    change(WriterTail, "_acknowledge", wrong)


@bug("all clocks run alike", origin="rule 2", needs=("clock runs fast or slow",))
def _equal_clocks(change: Any) -> None:
    """A lease is trusted for as long as its time is by our own clock."""
    change(meta_lease, "RATE_ERROR_MAX", 0.0)


@bug("a reopening keeps its token", origin="rule 1", shows=r"\(rule 1\)")
def _equal_token(change: Any) -> None:
    """A process that opens the stream again finds its own key and adopts it."""
    step = meta_lock.next_step

    def wrong(key: bytes, kv: Any, *, value: bytes, lease_id: int, takeover_token: int | None) -> Any:
        if kv is not None and kv.lease_id == lease_id:
            return meta_lock.Held(kv)
        return step(key, kv, value=value, lease_id=lease_id, takeover_token=takeover_token)

    async def keep(self: Any) -> None:
        self._lose("released")

    change(meta_lock, "next_step", wrong)
    change(meta_lock.Lock, "release", keep)


# --- owners and managers --------------------------------------------------------------------------------------


@bug("a sealed length for a deposed owner", origin="rule 3", shows=r"which was over before \(3\)")
def _no_owner_check(change: Any) -> None:
    """A repeated request is answered without asking who holds the lock."""

    async def wrong(self: Any, lock: str, token: int) -> None:
        return None

    change(OwnerChecks, "verify", wrong)
    change(OwnerChecks, "seen", lambda self, lock, token: True)


@bug("a deposed manager opens an old tail", origin="rule 15", needs=("manager stopped",))
def _old_tail(change: Any) -> None:
    """A manager lets a new owner go on from memory: no transaction, no look at fences, and nodes obey anybody."""
    decide = core_open.decide_open

    def wrong(answers: Any, replica_node_ids: Any, *, token: int = 0) -> Any:
        told = {}
        for node_id, answer in answers.items():
            if answer is not None and (answer.fenced or answer.HasField("seal")):
                length = answer.seal.length if answer.HasField("seal") else answer.length
                answer = pb.LengthAnswer(kind=Kind.LENGTH, length=length, token=max(token, answer.token))
            told[node_id] = answer
        return decide(told, replica_node_ids, token=token)

    commit = Batcher.commit

    async def unproved(self: Any, changes: Any) -> Any:
        if not changes.writes:
            return 0
        return await commit(self, changes)

    change(open_stream, "decide_open", wrong)
    change(Batcher, "commit", unproved)
    change(node_servicer.LeaderMemory, "check", lambda self, leader: None)


@bug("a deposed manager's transaction", origin="T14, rule 19", shows=r"not written by the leader \(G7\)")
def _no_leader_compare(change: Any) -> None:
    """Transactions do not compare the leader's key."""
    change(Leadership, "guard", lambda self: ())


@bug("young orphans are deleted", origin="T37, rule 24", shows=r"\(24\)")
def _no_grace(change: Any) -> None:
    """The collector orders deleted what metadata does not know, however young, without its transaction."""
    due = Collector._due

    def wrong(self: Any, found: Any, odd: Any, trouble: Any, now_s: float) -> bool:
        if self._ctx.state.extents.get(found.extent_id) is None:
            return True
        return due(self, found, odd, trouble, now_s)

    async def allowed(self: Any, found: Any, trouble: Any) -> bool:
        return True

    change(Collector, "_due", wrong)
    change(Collector, "_allow", allowed)
    change(Collector, "_still_odd", lambda self, found, trouble: True)


@bug(
    "a stale leader's delete order",
    origin="rule 24",
    needs=("metadata refuses", "metadata stalls"),
    shows=r"\(24\)",
)
def _stale_order(change: Any) -> None:
    """A leader that was replaced hears of it late, and orders deleted what its successor has made and it does not know:
    without a transaction, and no node knows whom to obey. It asks nodes what they have with every beat: its successor
    makes something for as long as it counts on nodes that it does not hear."""
    due, heartbeat = Collector._due, Registry.heartbeat

    def is_replaced(part: Any) -> bool:
        return bool(part._ctx.ensure_leading.__self__._leadership.lost.is_set())

    def wrong(self: Any, found: Any, odd: Any, trouble: Any, now_s: float) -> bool:
        if is_replaced(self) and self._ctx.state.extents.get(found.extent_id) is None:
            return True
        return due(self, found, odd, trouble, now_s)

    def curious(self: Any, request: Any) -> Any:
        reply = heartbeat(self, request)
        reply.report_replicas |= is_replaced(self)
        return reply

    async def allowed(self: Any, found: Any, trouble: Any) -> bool:
        return True

    _leads_on(change)
    change(Registry, "heartbeat", curious)
    change(Collector, "_due", wrong)
    change(Collector, "_allow", allowed)
    change(Collector, "_still_odd", lambda self, found, trouble: True)
    change(node_servicer.LeaderMemory, "check", lambda self, leader: None)


@bug(
    "a deposed manager answers reads",
    origin="T14, rule 25",
    suits=lambda shape: shape.operators > 0,  # who make streams that it has not heard of
    needs=("metadata refuses", "metadata stalls"),
    shows=r"nobody has deleted it|nobody has taken it out|has read the stream, and not found|s old'",
)
def _deposed_reads(change: Any) -> None:
    """A leader that was replaced hears of it late, and answers from what it knows; its transactions fail."""
    _leads_on(change)


def _leads_on(change: Any) -> None:
    """A manager does not look at its lease, nor when it commits, and ends its term long after that is lost."""
    begin = Term.__init__

    def begin_late(self: Any, **how: Any) -> None:
        begin(self, **how)
        lost = how["leadership"].lost
        lost.remove_callback(self.end)
        lost.add_callback(lambda reason: asyncio.get_running_loop().call_later(LATE_S, self.end, reason))

    def unaware(self: Any) -> None:
        if self.over:
            raise self._not_leader()

    change(Term, "ensure_leading", unaware)
    change(Term, "__init__", begin_late)
    change(Batcher, "_ensure", lambda self: None)


@bug("truncation takes one extent more", origin="rule 23", suits=lambda shape: shape.operators > 0)
def _truncates_more(change: Any) -> None:
    """Off by one: the extent that truncation should begin with goes, too."""
    unlink = streams._unlink

    async def wrong(ctx: Any, stream: Any, extent_ids: Any, owner: Any, mutation: Any, **how: Any) -> Any:
        if how.get("truncated_before") and len(stream.extent_ids) > len(extent_ids) + 1:
            extent_ids = stream.extent_ids[: len(extent_ids) + 1]
        return await unlink(ctx, stream, extent_ids, owner, mutation, **how)

    change(streams, "_unlink", wrong)


@bug(
    "a deleted stream's tail is not fenced",
    origin="T45, rule 23",
    suits=lambda shape: shape.operators > 0,
    shows=r"\(2, 23, G5\)",
)
def _deletes_unfenced(change: Any) -> None:
    """Whoever has the stream open goes on writing to it."""

    async def wrong(*_: Any) -> bool:
        return True

    change(streams, "_fence_for_ever", wrong)


@bug(
    "a manager's repeated call is executed again",
    origin="T50, rule 26",
    suits=lambda shape: shape.operators > 0,
    shows=r"\(26\)",
)
def _replays_nothing(change: Any) -> None:
    """Nobody looks whether a call was answered before."""
    change(ReplayCache, "find", lambda self, call, **how: None)


@bug(
    "a dead node's replicas stay lost",
    origin="T43",
    suits=lambda shape: shape.loses == "vanish",
    needs=("node vanishes",),
)
def _no_recovery(change: Any) -> None:
    """Nothing is copied for nodes that are declared dead."""
    change(core_recovery, "worst_loss", lambda extent, trouble: None)


# --- nodes ----------------------------------------------------------------------------------------------------


@bug("a late append cuts", origin="T2, rule 4", shows=r"answers \d+ for extent \d+, and had answered \d+")
def _late_append_cuts(change: Any) -> None:
    """A repeated segment ends the replica where it ends."""
    note = store_append._note

    def wrong(store: Any, found: Any, decision: Any) -> None:
        note(store, found, decision)
        if not decision.write_bytes and 0 < decision.end < found.state.length:
            found.cut(decision.end)
            found.state.length = decision.end
            found.state.durable_end = min(found.state.durable_end, decision.end)
            found.state.journaled_end = min(found.state.journaled_end, decision.end)
            found.state.committed = min(found.state.committed, decision.end)
            found.in_place_end = min(found.in_place_end, decision.end)

    change(store_append, "_note", wrong)


@bug("old tokens are accepted", origin="T11, rule 4")
def _old_tokens(change: Any) -> None:
    """A replica takes appends of an owner who was replaced."""
    refusal = core_append._refusal

    def wrong(state: Any, segment: Any, *, writes: bool) -> Any:
        error = refusal(state, segment, writes=writes)
        return None if isinstance(error, LockedByOther) else error

    change(core_append, "_refusal", wrong)


@bug(
    "fences do not last",
    origin="T12, rule 14",
    needs=("power cut", "power cut everywhere"),
    shows=r"took an append .*and had (fenced it|promised \d+) at",
)
def _volatile_fence(change: Any) -> None:
    """Token and fence are answered before they are durable; the data is."""

    def wrong(self: Any, token: int | None, fence: bool) -> None:
        if token is not None:
            self.fs.set_xattr(self.fd, attributes.TOKEN, attributes.encode_token(token))
        if fence:
            self.fs.set_xattr(self.fd, attributes.FENCED, attributes.encode_flag(attributes.FENCED))
        self.sync_data()

    change(Replica, "persist", wrong)


@bug(
    "a seal is confirmed before it is durable",
    origin="rule 20",
    needs=("power cut", "power cut everywhere", "power cut, and killed again"),
    shows=r"had confirmed its seal at \d+ \(20\)",
)
def _volatile_seal(change: Any) -> None:
    """A seal is set and answered for, and nothing of it is synced: neither the bytes nor the attribute."""

    def wrong(self: Any, seal: Any) -> None:
        self.fs.set_xattr(self.fd, attributes.SEAL, attributes.encode_seal(seal))
        self.fs.truncate(self.fd, seal.length)

    change(Replica, "persist_seal", wrong)


@bug(
    "lengths come from the page cache",
    origin="T4, rule 14",
    suits=lambda shape: not shape.sync or shape.mixed,
    needs=("power cut", "power cut everywhere"),
)
def _page_cache_length(change: Any) -> None:
    """Raise and Fence answer a length whose bytes are not durable, and forget that."""

    def wrong(self: Any, token: int | None, fence: bool) -> None:
        if token is not None:
            self.fs.set_xattr(self.fd, attributes.TOKEN, attributes.encode_token(token))
        if fence:
            self.fs.set_xattr(self.fd, attributes.FENCED, attributes.encode_flag(attributes.FENCED))

    def forget(self: Any) -> None:
        self.fs.remove_xattr(self.fd, attributes.UNSYNCED)

    change(Replica, "persist", wrong)
    change(Replica, "clear_unsynced", forget)


@bug(
    "doubt ends with the process",
    origin="rule 12",
    suits=lambda shape: not shape.sync or shape.mixed,
    needs=("power cut, and killed again", "owner dies, replica loses power"),
)
def _doubt_forgotten(change: Any) -> None:
    """A replica that may have lost bytes is doubtful in memory only: the second restart trusts it."""
    change(Replica, "persist_doubt", lambda self, doubt: None)


@bug(
    "no replica is doubtful",
    origin="T22, rule 12",
    suits=lambda shape: not shape.sync,
    needs=FORGETFUL,
)
def _no_doubt(change: Any) -> None:
    """After a power cut a replica without its page cache is as good as any."""
    change(core, "doubt_on_start", lambda state, **how: None)


@bug(
    "every restart brings doubt",
    origin="rule 12",
    suits=lambda shape: shape.sync,
    needs=("node killed", *FORGETFUL),
    shows=r"which is well \(12, 18\)",
)
def _needless_doubt(change: Any) -> None:
    """Whatever was open when a process began is doubtful, also if all of it was synced."""

    def wrong(state: Any, **how: Any) -> Any:
        return attributes.Doubt.POWER_CUT if state.seal is None and state.doubt is None else None

    change(core, "doubt_on_start", wrong)


@bug(
    "a new extent's name is not synced",
    origin="rule 11",
    suits=lambda shape: shape.sync,
    needs=("power cut", "power cut everywhere"),
    shows=r"which is well \(12, 18\)",
)
def _nameless(change: Any) -> None:
    """The file of a new replica is, and the folder that names it is not."""

    def wrong(disk: Any, meta: Any, **how: Any) -> Any:
        synced, disk.fs.fsync_dir = disk.fs.fsync_dir, lambda path: None
        try:
            return make_replica(disk, meta, **how)
        finally:
            disk.fs.fsync_dir = synced

    change(store_control, "make_replica", wrong)


@bug(
    "the journal stands above unsynced bytes",
    origin="T21, rule 10",
    suits=lambda shape: shape.sync and shape.eager_journal,
    needs=("power cut", "power cut everywhere"),
)
def _journal_above(change: Any) -> None:
    """A journal entry is written although bytes below it are in the page cache alone."""
    change(core, "may_journal", lambda state, offset: True)


@bug(
    "a sync leaves deferred writes out",
    origin="T21, T25",
    suits=lambda shape: shape.sync and shape.eager_journal,
    needs=("node killed", "power cut", "power cut everywhere"),
)
def _deferred_left_out(change: Any) -> None:
    """A file is taken for synced, and its journal for done with, while the newest bytes are in memory alone."""
    start = StoreState.start_sync

    def wrong(self: Any, found: Any, on_done: Any) -> None:
        deferred, deferred_bytes = found.deferred, found.deferred_bytes
        found.deferred, found.deferred_bytes = [], 0
        start(self, found, on_done)
        found.deferred, found.deferred_bytes = deferred, deferred_bytes

    change(StoreState, "start_sync", wrong)


@bug(
    "a sync is answered before it is done",
    origin="T21, rule 5",
    suits=lambda shape: shape.sync,
    needs=("power cut", "power cut everywhere"),
)
def _no_sync(change: Any) -> None:
    """Appends with sync are answered from the page cache, and nothing says so."""

    write_segment = store_append._write_segment

    def at_once(store: Any, replica: Any, decision: Any, body: Any, call: Any, index: int) -> Any:
        return write_segment(store, replica, decision._replace(durable_to=0), body, call, index)

    change(store_append, "_write_segment", at_once)


@bug(
    "a failed sync counts",
    origin="T23",
    suits=lambda shape: shape.loses == "errors" and shape.sync and not shape.eager_journal,  # it syncs in place
    needs=("disk errors",),
    shows=r"\(T23\)",
)
def _failed_sync_counts(change: Any) -> None:
    """An error of fdatasync is passed over."""

    on_synced = Committer._on_synced

    def wrong(self: Any, replica: Any, queue: Any, end: int, for_waiters: bool, error: OSError | None) -> None:
        on_synced(self, replica, queue, end, for_waiters, None)  # as if it had worked

    change(Committer, "_on_synced", wrong)


@bug("readers get all there is", origin="T9, rule 9")
def _reads_beyond(change: Any) -> None:
    """A replica gives readers what is not acknowledged yet."""
    decide = core.decide_read

    def wrong(existing: Any, *, wanted: Any, extent_id: int, offset: int) -> Any:
        told = getattr(existing, "committed", None)
        if told is None or existing.seal is not None:
            return decide(existing, wanted=wanted, extent_id=extent_id, offset=offset)
        existing.committed = existing.length
        try:
            return decide(existing, wanted=wanted, extent_id=extent_id, offset=offset)
        finally:
            existing.committed = told

    change(core, "decide_read", wrong)


@bug("damaged bytes are given", origin="T29, G2", suits=lambda shape: shape.loses == "damage", needs=("bits flipped",))
def _no_crc(change: Any) -> None:
    """A reader does not look at checksums."""

    def wrong(data: Any, offset: int) -> Any:
        view = memoryview(data)
        found, at = [], 0
        while len(view) - at >= HEADER_BYTES:
            _, word = core_reader._HEADER.unpack_from(view, at)
            end = at + HEADER_BYTES + (word & PAYLOAD_BYTES_MAX)
            if end > len(view):
                break
            payload = bytes(view[at + HEADER_BYTES : end])
            found.append(core_reader.Block(offset + at, offset + end, word >> 24, payload))
            at = end
        return found, None

    change(core_reader, "parse_blocks", wrong)
    change(extent_reader, "parse_blocks", wrong)


__all__ = ["BUGS", "Bug"]
