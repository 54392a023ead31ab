"""The transaction of a writer's usual roll, put together in one go from what the last roll of its stream left at hand.

Usual is: every replica of the tail took part, the tail is young, nothing is known against it, and of the stream's other
extents none is young but the one that was sealed before, whose confirmation was heard and is taken along. Whatever is
not usual is `seal_tail.commit_seal`'s, which does the same for every case. Here it takes a third of the time, and it
was two thirds of an allocation's.

Invariants: what is compared, written and applied is what `commit_seal` would compare, write and apply: a test compares;
            it is done only while nobody else holds an extent that it writes: it never waits for one;
            what is at hand of a stream counts only while the state has the very record that it was made from.
Neighbours: allocate.py has made the next extent, fenced the tail and chosen its length (17, 18).
"""

from __future__ import annotations

import logging

from neve.meta.lock import lock_key
from neve.meta.txn import ITEM_BYTES
from neve.proto import stream_manager_pb2 as sm
from neve.proto.fields import varint
from neve.rpc.service import Encoded
from neve.stream_manager import describe
from neve.stream_manager import record_codec as codec
from neve.stream_manager import records as r
from neve.stream_manager.changes import YOUNG_WINDOW, Changes, OwnerClaim, Rolled
from neve.stream_manager.confirm import believed, heard_end, seal_behind
from neve.stream_manager.context import LeaderContext, Mutation
from neve.stream_manager.heard import Heard
from neve.stream_manager.locks import EXTENT_LOCK, Key
from neve.stream_manager.records import Extent, Stream

log = logging.getLogger(__name__)

STREAMS_MAX = 10_000  # whose parts are at hand: some KiB each


class AtHand:
    """Of one stream: parts of its record and of its description, as bytes."""

    __slots__ = (
        "before_body",
        "ids",
        "info_stem",
        "lock_key",
        "nodes_as_of",
        "others",
        "stem",
        "stream",
        "stream_key",
        "tail_body",
        "tail_info",
    )

    def __init__(self, ctx: LeaderContext, stream: Stream, tail: Extent) -> None:
        self.stream = stream  # the state's own record, of which these are
        self.stream_key = ctx.root + r.STREAMS + r.id_text(stream.stream_id)
        self.lock_key = lock_key(ctx.root, stream.lock)
        self.stem = codec.stream_stem(stream)
        self.info_stem = describe.stream_stem(stream)
        self.ids = codec.packed_ids(stream)
        self.tail_body = codec.extent_body(tail)
        self.tail_info = b""
        self.nodes_as_of: object = None  # when `tail_info` was made; None: it was not
        self.before_body = b""  # of the extent before the tail; empty: not at hand
        self.others = stream.extent_ids[-YOUNG_WINDOW:-1]  # those beside the tail that may be young


class Rolls:
    """Of one term."""

    def __init__(self, ctx: LeaderContext) -> None:
        self._ctx = ctx
        self._at_hand: dict[int, AtHand] = {}  # by stream id
        self.count = 0  # transactions that were made here

    async def commit(
        self,
        stream: Stream,
        tail: Extent,
        successor: Extent,
        mutation: Mutation,
        *,
        token: int,
        length: int,
        link_before_s: float,
    ) -> Encoded[sm.StreamAllocExtentReply] | None:
        """The answer, once it is committed; None: it is not usual, and nothing was done. The caller holds the stream's
        lock; every replica of `tail` has answered the fence, and none says that anything is wrong with it."""
        ctx = self._ctx
        tail_id, _, _, _, _, stream_id, _, _, _, tail_revision, _ = tail
        successor_id = successor.extent_id
        extents = ctx.state.extents
        if tail_id in ctx.conflicts or extents.get(tail_id) is not tail or ctx.clock() >= link_before_s:
            return None
        if stream.sealed or tail_revision:
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
        if heard is not None and before is None:
            return None
        held: list[Key] = [(EXTENT_LOCK, tail_id)]
        if before is not None:
            held.append((EXTENT_LOCK, before.extent_id))
        if not ctx.locks.try_take_all(held):
            return None
        ctx.linking[successor_id] = None
        ctx.heard.take(stream_id)
        try:
            body = codec.new_body(successor)
            ids = hand.ids + varint(successor_id)
            changes = ctx.changes()
            self._fill(changes, hand, tail, before, heard, successor, mutation, token, length, body, ids)
            await ctx.commit(changes)
        finally:
            del ctx.linking[successor_id]
            for key in held:
                ctx.locks.release(key)
            if heard is not None:
                heard_end(ctx, heard)
        self.count += 1
        ctx.owners.note_held(stream.lock, token)
        log.debug("extent_sealed extent_id=%d length=%d stream_id=%d", tail_id, length, stream_id)
        seal_behind(ctx, tail_id)
        return self._answer(hand, tail_id, successor, body, ids)

    def _fill(
        self,
        changes: Changes,
        hand: AtHand,
        tail: Extent,
        before: Extent | None,
        heard: Heard | None,
        successor: Extent,
        mutation: Mutation,
        token: int,
        length: int,
        body: bytes,
        ids: bytes,
    ) -> None:
        """As `commit_seal` does it by the methods of `Changes`, one by one."""
        stream, stream_key = hand.stream, hand.stream_key
        stream_id, _, lock, _, _, _, _, _, _, _, revision, *_ = stream
        tail_id, successor_id = tail.extent_id, successor.extent_id
        sealed = tail.sealed_at(length, all_took_part=True)
        new_stream = stream.rolled(successor_id, mutation.stream_call(changes, (stream_id,), (tail_id, successor_id)))
        young = (codec.encode_extent(sealed, hand.tail_body), codec.encode_open_extent(successor, body))
        record = codec.stream_record(new_stream, hand.stem, ids, young)
        lock_name = hand.lock_key
        changes.values = {stream_key: record}
        changes.revisions = {stream_key: revision, lock_name: token}
        changes.owners[lock_name] = OwnerClaim(lock, token)
        confirmed = None
        size_bytes = 3 * ITEM_BYTES + 2 * len(stream_key) + len(lock_name) + len(record)
        if before is not None:
            assert heard is not None, before
            confirmed = believed(self._ctx, before, heard.confirmed, heard.asked_at) or before
            key = self._ctx.root + r.EXTENTS + r.id_text(before.extent_id)
            record = changes.values[key] = codec.encode_extent(confirmed, hand.before_body)
            size_bytes += ITEM_BYTES + len(key) + len(record)
        changes.size_bytes = size_bytes
        changes.rolled = Rolled(confirmed, sealed, successor, new_stream)

    def _answer(
        self, hand: AtHand, tail_id: int, successor: Extent, body: bytes, ids: bytes
    ) -> Encoded[sm.StreamAllocExtentReply]:
        """And keep at hand what the next roll needs."""
        state = self._ctx.state
        stream, sealed = state.streams[successor.stream_id], state.extents[tail_id]
        fixed = hand.tail_info if hand.nodes_as_of is state.nodes_as_of else describe.fixed_info(state, sealed)
        hand.stream = stream
        hand.ids = ids
        hand.before_body, hand.tail_body = hand.tail_body, body
        hand.tail_info = describe.fixed_info(state, successor)
        hand.nodes_as_of = state.nodes_as_of
        hand.others = (tail_id,)
        return describe.joined_alloc_reply(
            describe.joined_stream_info(stream, hand.info_stem, ids),
            describe.joined_extent_info(sealed, fixed),
            describe.joined_extent_info(successor, hand.tail_info),
            all_took_part=True,
        )

    def _remember(self, stream: Stream, tail: Extent) -> AtHand:
        if len(self._at_hand) >= STREAMS_MAX:
            self._at_hand.clear()
        hand = self._at_hand[stream.stream_id] = AtHand(self._ctx, stream, tail)
        return hand
