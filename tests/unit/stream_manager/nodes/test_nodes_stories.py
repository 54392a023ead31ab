"""Many things at once, by seed: nodes die, return, lose power or their disks, drain; managers change. At the end every
acknowledged byte is there, on exactly as many nodes as it should be.

Each story keeps at least one good replica of each extent: it waits for the cluster to heal before the next node is lost
for good. What it must never do is heal wrongly. A failure prints its seed, which replays it.
"""

from __future__ import annotations

import random

import pytest

from neve.proto import stream_manager_pb2 as sm
from neve.stream_manager.config import Collecting
from tests.sim.processes import processes
from tests.unit.extent_node.store.rig import block_of
from tests.unit.stream_manager.nodes_rig import REAL_LIMIT_S, Rig, mutation

STEPS = 12
SCRUB_S = 60.0
SEEDS = range(6)


class Story:
    """Who is where, and what was acknowledged: the bytes that all three replicas have."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self.rig = rig
        self.rng = rng
        self.acknowledged: dict[int, bytes] = {}  # by extent id
        self.streams: list[int] = []
        self.next_node = 6

    def running(self) -> list[int]:
        return [node_id for node_id, node in self.rig.nodes.items() if node.running]

    async def write(self) -> None:
        blocks = [block_of(f"s{self.rng.random()}", self.rng.randrange(20, 200)) for _ in range(self.rng.randrange(4))]
        stream_id = await self.rig.make_stream(blocks=blocks)
        tail = self.rig.tail(stream_id)
        self.acknowledged[tail.extent_id] = b"".join(blocks)
        if self.rng.random() < 0.5:  # and some that not all replicas get
            more = [block_of("unacknowledged", self.rng.randrange(20, 200))]
            nodes = tuple(self.rng.sample(tail.node_ids, self.rng.randrange(1, 3)))
            await self.rig.append(tail, len(self.acknowledged[tail.extent_id]), more, nodes=nodes)
        self.streams.append(stream_id)

    async def seal(self) -> None:
        opened = [stream_id for stream_id in self.streams if self.rig.tail(stream_id).seal is None]
        if opened:
            await self.rig.seal(self.rng.choice(opened))

    async def restart(self) -> None:
        node = self.rig.nodes[self.rng.choice(self.running())]
        node.kill()
        await self.rig.wait(self.rng.uniform(0.5, 25.0))
        await node.start()

    async def power_cut(self) -> None:
        node = self.rig.nodes[self.rng.choice(self.running())]
        node.power_cut()
        await self.rig.wait(self.rng.uniform(0.5, 5.0))
        await node.start()

    async def pause(self) -> None:
        node = self.rig.nodes[self.rng.choice(self.running())]
        node.pause()
        await self.rig.wait(self.rng.uniform(0.5, 25.0))
        node.resume()

    async def wipe(self) -> None:
        await self.healed()
        node = self.rig.nodes[self.rng.choice(self.running())]
        node.kill()
        node.wipe()
        await node.start()
        await self.healed()

    async def lose(self) -> None:
        await self.healed()
        if len(self.running()) > 4:
            node_id = self.rng.choice(self.running())
            self.rig.nodes[node_id].kill()
            del self.rig.nodes[node_id]
            await self.healed()

    async def add(self) -> None:
        if len(self.running()) < 6:
            await self.rig.start_nodes(self.next_node, scrub_interval_s=SCRUB_S)
            self.next_node += 1

    async def flip(self) -> None:
        """A bit of one sealed replica; its scrubber is going to find it."""
        await self.healed()
        sealed = [extent for extent in self.rig.ctx.state.extents.values() if extent.seal and extent.seal.length]
        if sealed:
            extent = self.rng.choice(sealed)
            node = self.rig.nodes[self.rng.choice(extent.node_ids)]
            assert extent.seal is not None
            node.fs.flip(node.extent_path(extent.extent_id), self.rng.randrange(extent.seal.length), 3)

    async def drain(self) -> None:
        await self.healed()
        if len(self.running()) > 4:
            node_id = self.rng.choice(self.running())
            request = sm.SetNodeModeRequest(node_id=node_id, mode=sm.NODE_MODE_DECOMMISSIONED)
            await self.rig.part.set_node_mode(request, mutation())
            await self.rig.until(lambda: self.rig.ctx.state.nodes[node_id].mode == sm.NODE_MODE_DECOMMISSIONED)
            self.rig.nodes[node_id].kill()
            del self.rig.nodes[node_id]

    async def change_manager(self) -> None:
        await self.rig.depose()
        await self.rig.wait(self.rng.uniform(0.0, 5.0))
        await self.rig.lead()

    async def healed(self) -> None:
        """Everything that is sealed is whole, where metadata says, on nodes that live."""
        await self.rig.until(self.is_healed, limit_s=1500)

    def is_healed(self) -> bool:
        state = self.rig.ctx.state
        if state.tasks or state.unconfirmed_extents:
            return False
        for extent in state.extents.values():
            if not set(extent.node_ids) <= set(self.running()):
                return False
            for node_id in extent.node_ids:
                info = self.rig.on_node(node_id, extent.extent_id)
                listed = extent.replica_on(node_id)
                if info is None or listed is None or info.replica.incarnation != listed.incarnation:
                    return False
            if extent.seal is not None:  # and no replica has a flipped bit any more
                found = {self.rig.bytes_on(node_id, extent.extent_id) for node_id in extent.node_ids}
                if len(found) > 1:
                    return False
        return True

    def check(self) -> None:
        self.rig.ctx.state.validate()
        for extent_id, acknowledged in self.acknowledged.items():
            extent = self.rig.extent(extent_id)
            assert len(extent.replicas) == 3
            if extent.seal is not None:
                assert extent.seal.length >= len(acknowledged), extent

    async def end(self) -> None:
        """All is sealed, healed and scrubbed, and what is left over is gone."""
        for stream_id in self.streams:
            if self.rig.tail(stream_id).seal is None:
                await self.rig.seal(stream_id)
        await self.healed()
        await self.rig.until(lambda: self.is_healed() and self.exact(), limit_s=1500)
        for extent_id, acknowledged in self.acknowledged.items():
            self.rig.check_equal(extent_id)
            for node_id in self.rig.extent(extent_id).node_ids:
                assert self.rig.bytes_on(node_id, extent_id)[: len(acknowledged)] == acknowledged

    def exact(self) -> bool:
        """Replicas are where metadata says, and nowhere else."""
        extents = map(self.rig.extent, self.acknowledged)
        return all(sorted(self.rig.holders(extent.extent_id)) == sorted(extent.node_ids) for extent in extents)


async def tell(seed: int) -> None:
    rng = random.Random(seed)
    collecting = Collecting(grace_s=60.0, extra_replica_grace_s=30.0, interval_s=5.0)
    async with Rig(seed=seed, collecting=collecting) as rig:
        await rig.start_nodes(1, 2, 3, 4, 5, scrub_interval_s=SCRUB_S)
        story = Story(rig, rng)
        for _ in range(4):
            await story.write()
        steps = [
            *(story.write, story.seal, story.seal, story.restart, story.power_cut, story.pause),
            *(story.wipe, story.lose, story.add, story.flip, story.drain, story.change_manager),
        ]
        for _ in range(STEPS):
            step = rng.choice(steps)
            try:
                await step()
            except Exception as error:
                raise AssertionError(f"seed {seed}: {step.__name__}") from error
            story.check()
        await story.end()


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_to_nodes_and_managers_every_extent_ends_whole_and_exactly_where_it_should(seed: int) -> None:
    processes.run(tell(seed), seed=seed, real_limit_s=REAL_LIMIT_S)
