"""What looks at the larger world has teeth: each thing that must not be is made so, by hand, and is noticed.

The world is a story's, used for some seconds without any trouble; then one thing is put wrong.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from neve.extent_node.disk.disk import TMP
from neve.meta import keys
from neve.meta.lock import lock_key
from neve.meta.txn import Put, create_revision_is
from neve.proto import extent_node_pb2 as en
from neve.proto import methods
from neve.proto.errors import Overloaded
from neve.stream_manager.nodes.cluster_nodes import ClusterNodes
from tests.history.history import Kind, Outcome
from tests.sim import stories
from tests.sim.checks import checkers
from tests.sim.checks.coverage import Coverage
from tests.sim.cluster import ROOT, SimCluster, run_story
from tests.sim.partition_world import PartitionWorld, Setup
from tests.sim.processes.partitions import SimPartitionServer
from tests.sim.uses.objects import HOT_KEYS, TWINS


def _suits(setup: Setup) -> bool:
    return not setup.restarted and not setup.balanced and not setup.operators and setup.regions > 1


SEED = next(seed for seed in itertools.count(1) if _suits(Setup.of(seed)))
USED_S = 3.0
GONE_ID = 1_000_000
LEFT_S = 40.0  # far more than it takes when there was no trouble

Spoil = Callable[[PartitionWorld], Awaitable[None]]
SPOILS: dict[str, tuple[Spoil, str]] = {}  # by name: what is done, and what the checkers say


def spoils(told: str) -> Callable[[Spoil], Spoil]:
    def register(spoil: Spoil) -> Spoil:
        SPOILS[spoil.__name__] = (spoil, told)
        return spoil

    return register


def a_server(world: PartitionWorld) -> SimPartitionServer:
    return next(server for server in world.partitions.servers.values() if server.serving())


# --- objects --------------------------------------------------------------------------------------------------


@spoils("has no order that explains it")
async def an_acknowledged_put_is_gone(world: PartitionWorld) -> None:
    recorder = world.users.recorder
    put = recorder.begin("somebody", Kind.PUT, b"apple", value=b"lost")
    recorder.end(put, Outcome.DONE, seen_version=1 << 40)


@spoils("left out 1 keys that were there")
async def a_key_that_was_put_once_is_gone(world: PartitionWorld) -> None:
    world.users.journal.tried[b"c/once/lost"] = b"value"
    world.users.journal.acknowledged.add(b"c/once/lost")


@spoils("under b'zebra', where None was put")
async def a_value_that_nobody_put(world: PartitionWorld) -> None:
    await (await world.partitions.kv()).put(b"zebra", b"from nowhere")


@spoils("a batch was done by half")
async def half_of_a_batch(world: PartitionWorld) -> None:
    await (await world.partitions.kv()).put(TWINS[0], b"alone")


@spoils(r"the last get of b'.*' failed: Overloaded")
async def a_key_that_cannot_be_got(world: PartitionWorld) -> None:
    connected = world.users.connected

    async def refused(key: bytes, **_: Any) -> Any:
        raise Overloaded(what=f"gets of {key!r}")

    async def connect(role: str, **how: Any) -> Any:
        client = await connected(role, **how)
        if client is not None and role == "last":
            get = client.kv.get
            client.kv.get = lambda key, **how: (refused if key in HOT_KEYS else get)(key, **how)  # type: ignore[method-assign]
        return client

    world.users.connected = connect  # type: ignore[method-assign]


# --- the map --------------------------------------------------------------------------------------------------


async def _move_start(world: PartitionWorld, start: bytes) -> None:
    """Of the last region, in the metadata store, as if the leader did it."""
    region = world.partitions.map.regions[-1]
    key = keys.region_key(ROOT, region.partition_id)
    region = type(region).FromString(region.SerializeToString())
    region.start = start
    leader = world.scene.cluster.etcd.regions_leader()
    assert leader is not None
    guard = create_revision_is(leader.key, leader.create_revision)
    assert (await a_server(world).store.txn([guard], [Put(key, region.SerializeToString())])).succeeded


@spoils("do not cover all keys once.*zz")
async def a_gap_in_the_map(world: PartitionWorld) -> None:
    await _move_start(world, b"zz")


@spoils(r"do not cover all keys once")
async def an_overlap_in_the_map(world: PartitionWorld) -> None:
    await _move_start(world, b"a")


@spoils("ids of partitions that are gone are used again")
async def an_id_that_comes_back(world: PartitionWorld) -> None:
    watcher, last = world.partitions.watcher, world.partitions.map
    watcher.partition_ids.add(GONE_ID)
    region = type(last.regions[0]).FromString(last.regions[0].SerializeToString())
    region.partition_id = GONE_ID
    watcher._look_at_ids(dataclasses.replace(last, regions=(region, *last.regions[1:])))


# --- what is left over ----------------------------------------------------------------------------------------


@spoils("1 pins, 0 pending")
async def a_pin(world: PartitionWorld) -> None:
    hosted = next(iter(a_server(world).host_.hosted.values()))
    hosted.partition._store.pins.add([1])  # type: ignore[union-attr]


@spoils("has stopped, and has tasks")
async def a_task(world: PartitionWorld) -> None:
    process = a_server(world).process
    assert process is not None
    process.spawn(asyncio.sleep(1e9))


@spoils("exception was never retrieved: RuntimeError")
async def an_error_that_a_server_has_not_looked_at_when_it_has_stopped(world: PartitionWorld) -> None:
    server, loop = a_server(world), asyncio.get_running_loop()
    process = server.process
    assert process is not None
    unseen = process.enter(loop.create_future)
    unseen.set_exception(RuntimeError("nobody looks"))

    def keep(unseen: asyncio.Future[None]) -> None:
        if server.running:
            loop.call_later(0.1, keep, unseen)

    keep(unseen)


@spoils("partitions share its memory")
async def a_share_of_memory(world: PartitionWorld) -> None:
    a_server(world).around.memory.share()


@spoils("there are locks")
async def a_lock(world: PartitionWorld) -> None:
    await world.partitions.managers[1].store.put(lock_key(ROOT, "partition/7"), b"")


@spoils("no region has these streams")
async def a_stream(world: PartitionWorld) -> None:
    operator = await world.scene.cluster.client("careless")
    await operator.run(operator.neve.create_stream())
    await operator.close()


@spoils("not within .* virtual seconds: nothing is left over")
async def a_file(world: PartitionWorld) -> None:
    node = world.scene.cluster.nodes[1]
    node.fs.close(node.fs.open(f"/disk0/{TMP}/copy", create=True))


@spoils("node1 holds 1 StoreState.creating")
async def an_entry_in_a_nodes_memory(world: PartitionWorld) -> None:
    node = world.scene.cluster.nodes[1]
    node.store.state.creating[7] = asyncio.get_running_loop().create_future()


@spoils("manager. holds 1 Problems._texts")
async def an_entry_in_the_leaders_memory(world: PartitionWorld) -> None:
    part = world.scene.cluster.term.cluster_nodes
    assert isinstance(part, ClusterNodes)
    part.problems.note(7, "that nobody solves", 1e12)


@spoils("holds 1 Registration.forgotten")
async def an_entry_in_a_servers_memory(world: PartitionWorld) -> None:
    a_server(world).registration.forgotten = [1]  # type: ignore[attr-defined]


@spoils("not within .* nothing is left over.*1 connections from careless")
async def a_connection(world: PartitionWorld) -> None:
    cluster = world.scene.cluster
    client = await cluster.client("careless")
    network = cluster.network
    client.kill()
    await network.channel("careless", cluster.nodes[1].address, cluster="test").call(
        methods.EXTENT_NODE_NODE_INFO, en.NodeInfoRequest(), timeout_s=5.0
    )


@pytest.mark.parametrize("name", SPOILS)
def test_what_must_not_be_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, told = SPOILS[name]
    monkeypatch.setattr(checkers, "LEFT_S", LEFT_S)

    async def tell(cluster: SimCluster) -> None:
        shape = PartitionWorld.shape(SEED, short=True)
        story = stories.Story(
            cluster, SEED, shape, lambda _: None, Coverage(), events_max=0, world=stories.WORLDS["partitions"]
        )
        world = story.world
        assert isinstance(world, PartitionWorld)
        try:
            await world.begin()
            await asyncio.sleep(USED_S)
            world.end()
            await cluster.until(lambda: all(task.done() for task in story._work), "users end")
            await spoil(world)
            story.check()
            await world.finish()
            await cluster.settle()
        finally:
            world.stop()

    with pytest.raises(AssertionError, match=told):
        run_story(tell, seed=SEED, collecting=stories.COLLECTING, **PartitionWorld.cluster_options(SEED))
