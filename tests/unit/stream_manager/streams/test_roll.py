"""Rolls: what they store is what the manager knows, and what a failing one leaves behind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from neve.meta.core_retry import Retry
from neve.meta.txn import KeyRange
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed, NotOwner
from neve.stream_manager.metadata.state import State
from tests.sim.processes import processes
from tests.unit.stream_manager.manager_rig import REAL_LIMIT_S, ROOT, Cluster, error_of, simulated

STEPS = 25


async def silent_about_seals(what: str, extent_id: int, node_id: int) -> None:
    if what == "seal" and node_id == 2:
        raise ConnectFailed(address="node2")


class Story:
    """A random series of rolls, and of what may come between them."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
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
            cluster.nodes.trouble = None
            cluster.term.state.validate()
            listing = await cluster.store.range_all(KeyRange.prefix(ROOT))
            stored = State(ROOT)
            stored.load(listing.kvs, listing.revision)
            stored.validate()
            assert stored.streams == cluster.term.state.streams
            assert stored.extents == cluster.term.state.extents

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
        assert reply.sealed.extent_id == tail.extent_id
        assert reply.sealed.seal.length == length
        assert reply.stream.extent_ids[-2:] == [tail.extent_id, reply.tail.extent_id]
        self.rolls += 1
        writer[1] = reply.tail

    async def _wait(self, cluster: Cluster, writer: list[Any]) -> None:
        """Long enough for confirmations to be recorded."""
        await asyncio.sleep(1.0)

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
def test_another_leader_would_load_what_this_one_knows(seed: int) -> None:
    story = Story(seed)
    processes.run(story.tell(), seed=0, real_limit_s=REAL_LIMIT_S)
    assert story.rolls


@simulated
async def test_after_a_known_conflict_not_all_took_part() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.term.ctx.conflicts[tail.extent_id] = Retry()
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        assert not reply.all_took_part
        assert cluster.term.state.extents[tail.extent_id].conflict


@simulated
async def test_a_roll_waits_for_a_holder_of_the_tail() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        first = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        async with cluster.term.ctx.locks.hold(extents=[first.tail.extent_id]):
            rolling = asyncio.ensure_future(cluster.alloc(stream.stream_id, first.tail.extent_id, owner, 0))
            await asyncio.sleep(0.05)
            assert not rolling.done()
        await rolling
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
        assert (ctx.linking, ctx.locks.waiters) == ({}, {})
        assert cluster.term.state.streams[stream.stream_id].tail_id == first.tail.extent_id
