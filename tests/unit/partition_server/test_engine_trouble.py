"""A partition while nodes die, frames get lost and its server is killed or stopped: nothing that was answered is lost.

Method: each caller has its own keys and counts up in them, repeating a call with the same number until it is answered,
as a client does. A read must never show less than was answered before it, nor anything that was not put. Whoever serves
the partition is replaced when it fails.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from neve.partition_server.engine.engine import Partition
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import ConditionFailed, InvalidArgument, NeveError, NotFound, RequestError
from tests.sim.cluster import SimCluster, run_story
from tests.sim.processes.client import Killed
from tests.unit.partition_server.rig import PartitionRig, call

STORY_S = 15.0
CALLERS = 6
KEYS_EACH = 5
SIZES = (5, 100, 300, 2500)


@dataclass
class Served:
    """The partition as its callers find it: somebody serves it, or nobody for the moment."""

    rig: PartitionRig
    region: pm.RegionRecord
    partition: Partition | None = None
    loads: int = 0

    async def serve(self, end_s: float) -> None:
        """Load it, again and again, until the end."""
        loop = asyncio.get_running_loop()
        while loop.time() < end_s:
            try:
                self.partition = await self.rig.load(self.region)
                self.loads += 1
            except (NeveError, Killed):
                await asyncio.sleep(0.5)
                continue
            client = self.rig.loaded[self.region.partition_id].client
            failed = asyncio.ensure_future(asyncio.wait([self.partition.failed], timeout=end_s - loop.time()))
            while not failed.done() and client.running:
                await asyncio.sleep(0.1)
            failed.cancel()
            self.partition = None
            if client.running and loop.time() < end_s:
                self.rig.crash(self.region)

    async def ask(self, work: str, *arguments: Any, **how: Any) -> Any:
        """As the process that serves; whatever fails may have happened."""
        partition = self.partition
        if partition is None:
            raise Killed("nobody serves")
        loaded = self.rig.loaded.get(self.region.partition_id)
        if loaded is None or not loaded.client.running:
            raise Killed("nobody serves")
        async with asyncio.timeout(8):
            return await loaded.client.run(getattr(partition, work)(*arguments, **how))


@dataclass
class Counter:
    """One caller: what it has put, and what of it was answered."""

    number: int
    served: Served
    rng: random.Random
    calls: int = 0
    answered: dict[bytes, int] = field(default_factory=dict)
    attempted: dict[bytes, int] = field(default_factory=dict)

    async def run(self, end_s: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < end_s:
            key = b"%d/%d" % (self.number, self.rng.randrange(KEYS_EACH))
            if self.rng.random() < 0.6:
                await self.put(key, end_s)
            else:
                await self.read(key)
            await asyncio.sleep(self.rng.choice((0.0, 0.01, 0.1)))

    def value(self, key: bytes, count: int) -> bytes:
        size_bytes = SIZES[(count + self.number) % len(SIZES)]
        return b"%d," % count + b"." * size_bytes

    async def put(self, key: bytes, end_s: float) -> None:
        count = self.attempted.get(key, 0) + 1
        self.attempted[key] = count
        self.calls += 1
        caller = call(self.number + 1, self.calls, self.calls)
        while asyncio.get_running_loop().time() < end_s:
            try:
                await self.served.ask("put", key, self.value(key, count), call=caller)
            except (InvalidArgument, ConditionFailed):
                raise
            except (NeveError, Killed, TimeoutError, asyncio.CancelledError):
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                await asyncio.sleep(0.3)
                continue
            self.answered[key] = count
            return

    async def read(self, key: bytes) -> None:
        least = self.answered.get(key, 0)
        try:
            _, pieces = await self.served.ask("get", key)
        except NotFound as error:
            if error.kind == "object" and least:
                raise AssertionError(f"{key!r} is not there, {least} was answered") from error
            return
        except RequestError:
            raise
        except (NeveError, Killed, TimeoutError):
            return
        self.check(key, b"".join(pieces), least)

    def check(self, key: bytes, value: bytes, least: int) -> None:
        count = int(value.partition(b",")[0])
        assert least <= count <= self.attempted[key], (key, count, least, self.attempted[key])
        assert value == self.value(key, count)


async def trouble(rig: PartitionRig, served: Served, rng: random.Random, end_s: float) -> None:
    loop = asyncio.get_running_loop()
    cluster = rig.cluster
    down: dict[int, float] = {}
    while loop.time() < end_s:
        await asyncio.sleep(rng.expovariate(0.5))
        for node_id, until_s in list(down.items()):
            if loop.time() >= until_s:
                del down[node_id]
                await cluster.nodes[node_id].start()
        loaded = rig.loaded.get(served.region.partition_id)
        kind = rng.choice(("kill node", "kill node", "cut", "slow", "kill server", "stop server"))
        node_id = rng.choice(list(cluster.nodes))
        node = cluster.nodes[node_id]
        if kind == "kill node" and node.running and not down:
            node.kill()
            down[node_id] = loop.time() + rng.uniform(1, 15)
        elif loaded is None or not loaded.client.running:
            continue
        elif kind == "cut":
            cluster.network.cut(loaded.client.name, node.host)
        elif kind == "slow":
            cluster.network.slow(loaded.client.name, node.host, factor=rng.choice((1.0, 10.0, 300.0)))
        elif kind == "kill server":
            loaded.client.kill()
        elif kind == "stop server":
            loaded.client.pause()
            await asyncio.sleep(rng.uniform(0.5, 8))
            if loaded.client.running:
                loaded.client.resume()
    for node_id in down:
        await cluster.nodes[node_id].start()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_every_answered_put_is_there_whatever_happens(seed: int) -> None:
    async def story(cluster: SimCluster) -> None:
        cluster.expected_errors = ("node_dead",)
        rig = PartitionRig(cluster)
        rng = random.Random(f"trouble {seed}")
        served = Served(rig, await rig.create())
        loop = asyncio.get_running_loop()
        end_s = loop.time() + STORY_S
        counters = [Counter(n, served, random.Random(f"{seed} {n}")) for n in range(CALLERS)]
        serving = asyncio.ensure_future(served.serve(end_s))
        await asyncio.gather(trouble(rig, served, rng, end_s), *(counter.run(end_s) for counter in counters))
        await serving
        await cluster.heal()
        if served.region.partition_id in rig.loaded and rig.loaded[served.region.partition_id].client.running:
            rig.crash(served.region)
        async with asyncio.timeout(300):
            while True:
                try:
                    partition = await rig.load(served.region)
                    break
                except NeveError:
                    await asyncio.sleep(1)
        answered = 0
        for counter in counters:
            for key, count in counter.answered.items():
                _, pieces = await partition.get(key)
                counter.check(key, b"".join(pieces), count)
                answered += count
        assert answered > 20, answered
        assert served.loads > 1

    run_story(story, seed=seed, managers=1)
