"""The short way of a usual roll: it writes and answers what the long way does, and leaves the unusual to it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from neve.meta.txn import KeyRange, KeyValue
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed, NotOwner
from neve.stream_manager.heard import KEPT_S
from neve.stream_manager.roll import Rolls
from tests.sim import processes
from tests.unit.stream_manager.manager_rig import REAL_LIMIT_S, ROOT, Cluster, error_of, simulated

STEPS = 25


def no_short_way(self: Rolls, *about: Any, **how: Any) -> None:
    return None


async def silent_about_seals(what: str, extent_id: int, node_id: int) -> None:
    if what == "seal" and node_id == 2:
        raise ConnectFailed(address="node2")


class Story:
    """What a random series of rolls and of what may come between them leaves behind."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.replies: list[bytes] = []
        self.stored: tuple[KeyValue, ...] = ()
        self.rolls = 0

    async def tell(self) -> None:
        rng = self._rng
        async with Cluster() as cluster:
            await cluster.start_managers(1)
            named = await cluster.opened(name="events", labels={"tenant": "acme"})
            self._writers = [list(writer) for writer in (named, await cluster.opened())]
            for _ in range(STEPS):
                writer = rng.choice(self._writers)
                step = rng.choice([self._roll] * 6 + [self._wait, self._truncate, self._trouble, self._move_node])
                await step(cluster, writer)
            self.rolls = cluster.term.allocator.rolls.count
            cluster.nodes.trouble = None
            cluster.term.state.validate()
            self.stored = (await cluster.store.range_all(KeyRange.prefix(ROOT))).kvs

    async def _roll(self, cluster: Cluster, writer: list[Any]) -> None:
        stream, tail, owner = writer
        length = self._rng.choice([0, 1, 200, 70_000])
        fields: dict[str, Any] = {}
        if self._rng.random() < 0.2:
            request = sm.PrepareExtentRequest(stream_id=stream.stream_id, owner=owner)
            prepared = await cluster.call(methods.STREAM_MANAGER_PREPARE_EXTENT, request)
            fields["prepared_extent_id"] = prepared.extent.extent_id
        cluster.nodes.append(tail, length, token=owner.token)
        end = None if self._rng.random() < 0.1 else length
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, end, **fields)
        self.replies.append(reply.SerializeToString(deterministic=True))
        writer[1] = reply.tail

    async def _wait(self, cluster: Cluster, writer: list[Any]) -> None:
        """Long enough for confirmations to be recorded by themselves."""
        await asyncio.sleep(3 * KEPT_S)

    async def _truncate(self, cluster: Cluster, writer: list[Any]) -> None:
        stream, tail, owner = writer
        request = sm.TruncateStreamRequest(stream_id=stream.stream_id, owner=owner, before_extent_id=tail.extent_id)
        await cluster.call(methods.STREAM_MANAGER_TRUNCATE_STREAM, request)

    async def _trouble(self, cluster: Cluster, writer: list[Any]) -> None:
        """A node's confirmations do not come, or come again."""
        cluster.nodes.trouble = None if cluster.nodes.trouble is not None else silent_about_seals

    async def _move_node(self, cluster: Cluster, writer: list[Any]) -> None:
        request = sm.RegisterNodeRequest(node_id=3, wire_address=f"node3:{self._rng.randrange(1, 9999)}")
        request.cluster = cluster.config.cluster
        await cluster.call(methods.STREAM_MANAGER_REGISTER_NODE, request)


@pytest.mark.parametrize("seed", range(8))
def test_it_writes_and_answers_what_the_long_way_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = Story(seed), Story(seed)
    processes.run(short.tell(), seed=0, real_limit_s=REAL_LIMIT_S)
    monkeypatch.setattr(Rolls, "begin", no_short_way)
    processes.run(long.tell(), seed=0, real_limit_s=REAL_LIMIT_S)
    assert short.rolls
    assert not long.rolls
    assert short.replies == long.replies
    assert short.stored == long.stored


@simulated
async def test_the_second_roll_of_a_stream_takes_the_short_way_as_well_as_the_first() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        for rolls in range(1, 20):
            tail = (await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)).tail
            assert cluster.term.allocator.rolls.count == rolls


@simulated
async def test_a_conflict_that_is_known_is_the_long_way_s() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.term.ctx.conflicts[tail.extent_id] = (0, 0.0)
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        assert not reply.all_took_part
        assert cluster.term.state.extents[tail.extent_id].conflict
        assert not cluster.term.allocator.rolls.count


@simulated
async def test_who_holds_an_extent_of_it_is_waited_for() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        first = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        async with cluster.term.ctx.locks.hold(extents=[tail.extent_id]):
            rolling = asyncio.ensure_future(cluster.alloc(stream.stream_id, first.tail.extent_id, owner, 0))
            await asyncio.sleep(0.05)
            assert not rolling.done()
        await rolling
        assert cluster.term.allocator.rolls.count == 1
        assert not cluster.term.ctx.locks.waiters


@simulated
async def test_a_deposed_owner_leaves_no_lock_and_no_link_behind() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        first = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await cluster.own(stream, takeover=True)
        await error_of(cluster.alloc(stream.stream_id, first.tail.extent_id, owner, 0), NotOwner)
        ctx = cluster.term.ctx
        assert (cluster.term.allocator.rolls.count, ctx.linking, ctx.locks.waiters) == (1, {}, {})
        assert cluster.term.state.streams[stream.stream_id].tail_id == first.tail.extent_id
