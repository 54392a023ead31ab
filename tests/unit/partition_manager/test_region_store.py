"""The region map in the metadata store: whose changes count, and what becomes of one whose outcome is not known."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from neve.meta import keys
from neve.meta.election import Election
from neve.meta.follower import Follower
from neve.meta.memory.client import MemoryClient, MemoryStore
from neve.meta.memory.link import FaultPlan
from neve.meta.regions import RegionsState, decode_region
from neve.partition_manager import core_regions as core
from neve.partition_manager.core_regions import Cause, Change, PartitionStreamIds
from neve.partition_manager.region_store import RegionStore, Snapshot
from neve.proto import common_pb2
from neve.proto.errors import NeveError, NotFound, NotLeader
from tests.sim.processes import processes

ROOT = keys.root_of("test")


def cause(number: int) -> Cause:
    return Cause(common_pb2.CallId(client_id=9, call_id=number), 1)


def first(snapshot: Snapshot) -> Change | None:
    if snapshot.map is not None:
        return None
    return core.bootstrap([core.new_region(1, b"", b"", PartitionStreamIds(1, 2, 3))], cause(1))


def move_to(server_id: int) -> Callable[[Snapshot], Change | None]:
    return lambda snapshot: core.move(snapshot.made, {1: server_id}, cause(100 + server_id))


class Rig:
    def __init__(self, etcd: MemoryStore, store: MemoryClient) -> None:
        self.etcd = etcd
        self.store = store
        self.deposed: list[str] = []
        self.follower: Follower[RegionsState] = Follower(
            store,
            lambda: RegionsState(ROOT),
            ranges=keys.region_ranges(ROOT),
            watched=keys.region_span(ROOT),
        )
        self.regions = RegionStore(store, ROOT, self.follower)

    async def lead(self) -> bytes:
        lease = await self.store.grant_lease(5)
        leadership = await Election(self.store, ROOT + keys.PARTITION_MANAGERS).campaign(b"me", lease)
        self.regions.lead(leadership, on_deposed=self.deposed.append)
        return leadership.key


@asynccontextmanager
async def rigged(**faults: Any) -> AsyncIterator[Rig]:
    etcd = MemoryStore()
    plan = FaultPlan(rng=random.Random(3), delay_s_min=0.001, delay_s_max=0.002, **faults)
    rig = Rig(etcd, etcd.client(plan=plan, call_timeout_s=1.0))
    rig.follower.start()
    await rig.follower.at(0, deadline_s=asyncio.get_running_loop().time() + 30)
    yield rig
    await rig.follower.stop()
    await rig.store.close()


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    processes.run(story(), seed=1, real_limit_s=60.0)


def test_a_manager_that_does_not_lead_changes_nothing() -> None:
    async def story() -> None:
        async with rigged() as rig:
            with pytest.raises(NotFound):
                _ = rig.regions.snapshot().made
            with pytest.raises(NotLeader):
                await rig.regions.commit(first)
            await rig.lead()
            assert (await rig.regions.commit(first)).made.version == 1

    run(story)


def test_a_manager_that_was_deposed_without_knowing_it_changes_nothing() -> None:
    """Its lease lives, and it has heard nothing: only the store knows that its election key is gone (G7)."""

    async def story() -> None:
        async with rigged() as rig:
            key = await rig.lead()
            await rig.regions.commit(first)
            other = rig.etcd.client()
            await other.delete(key)
            with pytest.raises(NotLeader):
                await rig.regions.commit(move_to(4))
            kv = await other.get(keys.region_key(ROOT, 1))
            assert kv is not None
            assert decode_region(kv.value).server_id == 0

    run(story)


def test_a_change_that_was_decided_on_an_old_map_is_decided_again() -> None:
    async def story() -> None:
        async with rigged() as rig:
            await rig.lead()
            await rig.regions.commit(first)
            decided: list[int] = []

            def decide(snapshot: Snapshot) -> Change | None:
                decided.append(snapshot.made.version)
                return core.move(snapshot.made, {1: 8}, cause(8))

            # A split by the stream manager changes the map behind this manager's back.
            other = rig.etcd.client()
            before = rig.regions.snapshot()
            split = core.split(
                before.made,
                1,
                middle_key=b"m",
                right_id=2,
                right_streams=PartitionStreamIds(4, 5, 6),
                cause=cause(2),
            )
            for write in rig.regions.writes(before, split):
                await other.put(write.key, write.value)
            assert rig.regions.snapshot().made.version == 1, "it has not heard of it yet"
            snapshot = await rig.regions.commit(decide)
            assert decided == [1, 2]
            assert (snapshot.made.get(1).server_id, snapshot.made.get(1).end) == (8, b"m")
            assert not rig.deposed

    run(story)


@pytest.mark.parametrize("share", [0.15, 0.3])
def test_changes_whose_answers_are_lost_are_made_once_and_told(share: float) -> None:
    async def story() -> None:
        async with rigged() as rig:
            await rig.lead()
            await rig.regions.commit(first)
            rig.store.plan.lost_after_apply_share = share
            rig.store.plan.lost_before_apply_share = share / 3
            told = 0
            for server_id in range(1, 25):
                try:
                    snapshot = await rig.regions.commit(move_to(server_id))
                except NeveError:
                    continue
                told += 1
                assert snapshot.made.get(1).server_id == server_id
                made = [each.call.call_id for each in snapshot.made.replayed]
                assert len(made) == len(set(made)), "one of them was made twice"
            assert told > 10

    run(story)


def test_a_change_that_was_applied_although_its_answer_was_lost_is_not_decided_again() -> None:
    async def story() -> None:
        async with rigged() as rig:
            await rig.lead()
            decided: list[int] = []

            def decide(snapshot: Snapshot) -> Change | None:
                decided.append(snapshot.revision)
                return first(snapshot)

            rig.store.plan.lost_after_apply_share = 1.0
            committing = asyncio.ensure_future(rig.regions.commit(decide))
            await asyncio.sleep(1.5)
            assert not committing.done()
            rig.store.plan.lost_after_apply_share = 0.0
            assert (await committing).made.version == 1
            assert len(decided) == 1

    run(story)
