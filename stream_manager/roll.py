"""The transaction of a writer's usual roll, put together in one go from what the last roll of its stream left at hand.

Usual is: every replica of the tail took part, the tail is young, nothing is known against it, and of the stream's other
extents none is young but the one that was sealed before, whose confirmation was heard and is taken along. Whatever is
not usual is `seal_tail.commit_seal`'s, which does the same for every case. Here it takes a quarter of the time, and it
was two thirds of an allocation's.

Invariants: what is compared, written and applied is what `commit_seal` would compare, write and apply: a test compares;
            it is done only while nobody else holds an extent that it writes: it never waits for one;
            what is at hand of a stream counts only while the state has the very record that it was made from.
"""

from __future__ import annotations

from neve.meta.lock import lock_key
from neve.meta.txn import ITEM_BYTES
from neve.proto import stream_manager_pb2 as sm
from neve.proto.fields import SMALL, varint
from neve.rpc.service import Encoded
from neve.stream_manager import describe, rolled_records
from neve.stream_manager import record_codec as codec
from neve.stream_manager import records as r
from neve.stream_manager.changes import YOUNG_WINDOW, OwnerClaim, Ready, Rolled
from neve.stream_manager.confirm import agreed_digest, believed, heard_end, seal_behind
from neve.stream_manager.context import LeaderContext, Mutation
from neve.stream_manager.heard import Heard
from neve.stream_manager.locks import EXTENT_LOCK, Key
from neve.stream_manager.places import Places
from neve.stream_manager.records import Extent, Stream

STREAMS_MAX = 10_000  # whose parts are at hand: some KiB each

_new = tuple.__new__  # as in records.py


class AtHand:
    """Of one stream: parts of its record and of its description, as bytes; and its roll, while one is under way."""

    __slots__ = (
        "before",
        "before_body",
        "before_seal",
        "behind",
        "between",
        "claims",
        "heard",
        "held",
        "ids",
        "info_rest",
        "info_stem",
        "lock_key",
        "next_body",
        "next_ids",
        "next_info",
        "next_nodes",
        "others",
        "seal",
        "size_bytes",
        "stem",
        "stream",
        "stream_key",
        "stream_number",
        "successor",
        "tail_body",
        "tail_id",
        "tail_info",
        "tail_nodes",
    )

    def __init__(self, ctx: LeaderContext, stream: Stream, tail: Extent) -> None:
        self.stream = stream  # the state's own record, of which these are
        self.stream_key = ctx.root + r.STREAMS + r.id_text(stream.stream_id)
        self.stream_number = varint(stream.stream_id)
        self.lock_key = lock_key(ctx.root, stream.lock)
        self.claims: dict[bytes, OwnerClaim] = {self.lock_key: OwnerClaim(stream.lock, 0)}
        self.size_bytes = 3 * ITEM_BYTES + 2 * len(self.stream_key) + len(self.lock_key)  # of a roll without its record
        self.stem = codec.new_stem(stream)
        self.between, self.behind = rolled_records.fixed_parts(stream)
        self.info_stem = describe.new_stem(stream)
        self.info_rest = describe.rest_of_info(stream)
        self.ids = codec.packed_ids(stream)
        self.others = stream.extent_ids[-YOUNG_WINDOW:-1]  # those beside the tail that may be young
        self.before_body = b""  # of the extent before the tail; empty: not at hand
        self.before_seal = b""  # its seal, as it was before anybody had confirmed
        self.tail_id = tail.extent_id
        self.tail_body = codec.new_body(tail)
        self.tail_info = b""
        self.tail_nodes: object = None  # `State.nodes_as_of` when `tail_info` was made; None: it was not
        # Of the roll that is under way: the stream's lock is held.
        self.successor: Extent
        self.before: Extent | None  # the tail's predecessor, if it is young
        self.heard: Heard | None  # of that one
        self.held: tuple[Key, ...] = ()
        self.seal = b""  # the tail's
        self.next_ids = b""
        self.next_body = b""
        self.next_info = b""
        self.next_nodes: object = None


class Rolls:
    """Of one term."""

    def __init__(self, ctx: LeaderContext) -> None:
        self._ctx = ctx
        self._at_hand: dict[int, AtHand] = {}  # by stream id
        self._places = Places(ctx.state)
        self.count = 0  # transactions that were made here

    def begin(
        self,
        stream: Stream,
        tail: Extent,
        successor: Extent,
        mutation: Mutation,
        *,
        token: int,
        length: int,
        link_before_s: float,
    ) -> tuple[AtHand, Ready] | None:
        """What is to be committed; then comes `end`, whatever became of that, and, if it was done, `answer`. None: it
        is not usual, and nothing was done. The caller holds the stream's lock; every replica of `tail` has answered the
        fence, and none says that anything is wrong with it."""
        ctx = self._ctx
        tail_id, stream_id, successor_id = tail.extent_id, tail.stream_id, successor.extent_id
        extents = ctx.state.extents
        if tail_id in ctx.conflicts or extents.get(tail_id) is not tail or ctx.clock() >= link_before_s:
            return None
        if stream.sealed or tail.mod_revision:
            return None
        hand = self._at_hand.get(stream_id)
        if hand is None or hand.stream is not stream:
            hand = self._remember(stream, tail)
        heard = ctx.heard.of(stream_id)
        before = None
        for extent_id in hand.others:
            other = extents[extent_id]
            if not other.mod_revision:
                if heard is None or extent_id != heard.extent_id:
                    return None
                before = other
        waiters, tail_lock = ctx.locks.waiters, (EXTENT_LOCK, tail_id)
        if tail_lock in waiters:  # somebody holds it
            return None
        if before is not None:
            before_lock = (EXTENT_LOCK, before.extent_id)
            if before_lock in waiters:
                return None
            waiters[before_lock] = None
            held: tuple[Key, ...] = (tail_lock, before_lock)
        elif heard is not None:
            return None
        else:
            held = (tail_lock,)
        waiters[tail_lock] = None
        ctx.linking[successor_id] = None
        ctx.heard.take(stream_id)
        hand.successor, hand.before, hand.heard, hand.held = successor, before, heard, held
        try:
            return hand, self._changes(hand, tail, mutation, token, length)
        except BaseException:
            self.end(hand)
            raise

    def end(self, hand: AtHand) -> None:
        ctx = self._ctx
        del ctx.linking[hand.successor.extent_id]
        ctx.locks.release_all(hand.held)
        if hand.heard is not None:
            heard_end(ctx, hand.heard)

    def _changes(self, hand: AtHand, tail: Extent, mutation: Mutation, token: int, length: int) -> Ready:
        """What `commit_seal` records by the methods of `Changes`, one by one."""
        stream, stream_key, lock_name, successor = hand.stream, hand.stream_key, hand.lock_key, hand.successor
        claim = hand.claims[lock_name]
        if claim.token != token:
            hand.claims = {lock_name: OwnerClaim(claim.lock, token)}
        successor_id = successor.extent_id
        number = varint(successor_id)
        ids = hand.next_ids = hand.ids + number
        next_body, hand.next_info, hand.next_nodes = self._places.new_extent(successor, number, hand.stream_number)
        hand.next_body = next_body
        sealed = tail.sealed_at(length, all_took_part=True)
        seal = hand.seal = codec.encoded_seal(sealed.seal)
        call = mutation.stream_call((stream.stream_id,), (tail.extent_id, successor_id))
        record = rolled_records.rolled_stream(
            hand.stem,
            ids,
            hand.between,
            stream.version + 1,
            codec.sealed_record(hand.tail_body, sealed.eversion, seal),
            next_body + b"\x18" + SMALL[successor.eversion],
            call or stream.linked_by,
            hand.behind,
        )
        values: dict[bytes, bytes | None] = {stream_key: record}
        size_bytes = hand.size_bytes + len(record)
        confirmed = hand.before
        if confirmed is not None:
            key = self._ctx.root + r.EXTENTS + r.id_text(confirmed.extent_id)
            record, confirmed = self._confirmed(hand, confirmed)
            values[key] = record
            size_bytes += ITEM_BYTES + len(key) + len(record)
        return Ready(
            self._ctx.root,
            {stream_key: stream.mod_revision, lock_name: token},
            values,
            hand.claims,
            call,
            _new(Rolled, (confirmed, sealed, successor, stream, call)),
            size_bytes,
        )

    def _confirmed(self, hand: AtHand, before: Extent) -> tuple[bytes, Extent]:
        """The extent before the tail, with what was heard of it, and its record."""
        heard = hand.heard
        assert heard is not None, before
        digest = agreed_digest(self._ctx, before, heard)
        if digest and hand.before_body and before.all_took_part and not before.conflict:
            confirmed = before.confirmed_by_all(digest)
            nodes, seal = confirmed.confirmed, hand.before_seal
            return rolled_records.confirmed_record(hand.before_body, before.eversion, seal, digest, nodes), confirmed
        confirmed = believed(self._ctx, before, heard.confirmed, heard.asked_at) or before
        return codec.encode_extent(confirmed, hand.before_body), confirmed

    def answer(self, hand: AtHand) -> Encoded[sm.StreamAllocExtentReply]:
        """It is committed. Keep at hand what the next roll needs."""
        self.count += 1
        state, successor, tail_id = self._ctx.state, hand.successor, hand.tail_id
        seal_behind(self._ctx, tail_id)
        stream, sealed, nodes = state.streams[successor.stream_id], state.extents[tail_id], state.nodes_as_of
        tail_info = hand.tail_info if hand.tail_nodes is nodes else describe.fixed_info(state, sealed)
        next_info = hand.next_info if hand.next_nodes is nodes else describe.fixed_info(state, successor)
        seal, ids = hand.seal, hand.next_ids
        hand.stream = stream
        hand.ids = ids
        hand.before_body, hand.before_seal, hand.tail_body = hand.tail_body, seal, hand.next_body
        hand.tail_info, hand.tail_nodes = next_info, nodes
        hand.tail_id, hand.others = successor.extent_id, (tail_id,)
        return describe.rolled_reply(
            hand.info_stem,
            stream.version,
            stream.mod_revision,
            ids,
            hand.info_rest,
            describe.sealed_extent_info(sealed, tail_info, seal),
            next_info + b"\x10" + SMALL[successor.eversion],
        )

    def _remember(self, stream: Stream, tail: Extent) -> AtHand:
        if len(self._at_hand) >= STREAMS_MAX:
            self._at_hand.clear()
        hand = self._at_hand[stream.stream_id] = AtHand(self._ctx, stream, tail)
        return hand
