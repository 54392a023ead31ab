"""Seeded stories: clients get, put, delete and compare-and-swap few keys while servers, managers and nodes are killed,
stopped and cut off, and while the key space is split, merged and moved. The history is linearizable for each key (T48),
what was acknowledged is found in the end (T49), and the region map is whole at every revision (T52).

A failing seed is told by the test's name; the same seed takes the same steps.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random

import pytest

from neve.proto.errors import NeveError
from tests.history.history import Recorder
from tests.history.linearizable import assert_linearizable
from tests.history.workload import Journal, read_all, run_clients
from tests.sim.partition_processes import SimProcess
from tests.sim.partitions import KV_OPTIONS, PartitionCluster, partitioned

SEEDS = range(1, 4)
STORY_S = 40.0
KEYS = [b"apple", b"cherry", b"grape", b"kiwi", b"melon", b"pear", b"quince", b"tomato"]
OPTIONS = dataclasses.replace(KV_OPTIONS, operation_timeout_s=15.0)

pytestmark = pytest.mark.slow


class Trouble:
    """What goes wrong, and what operators do meanwhile."""

    def __init__(self, cluster: PartitionCluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.done: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, end_s: float) -> None:
        loop = asyncio.get_running_loop()
        steps = (self.kill, self.pause, self.cut, self.move, self.move, self.split, self.split, self.merge, self.stop)
        while loop.time() < end_s:
            await asyncio.sleep(self.rng.expovariate(0.4))
            step = self.rng.choice(steps)
            self._tasks.append(asyncio.ensure_future(self._one(step)))
        await asyncio.gather(*self._tasks)

    async def _one(self, step: object) -> None:
        try:
            if await step():  # type: ignore[operator]
                name = step.__name__  # type: ignore[attr-defined]
                self.done[name] = self.done.get(name, 0) + 1
        except NeveError:
            return  # in trouble, operators hear no

    def _process(self) -> SimProcess | None:
        """One that runs; of each kind one is left alone."""
        servers = [server for server in self.cluster.servers.values() if self._is_up(server)]
        managers = [manager for manager in self.cluster.managers.values() if self._is_up(manager)]
        choices: list[SimProcess] = [*(servers if len(servers) > 1 else ()), *(managers if len(managers) > 1 else ())]
        return self.rng.choice(choices) if choices else None

    @staticmethod
    def _is_up(process: SimProcess) -> bool:
        return process.process is not None and not process.process.paused

    async def kill(self) -> bool:
        process = self._process()
        if process is None:
            return False
        process.kill()
        await asyncio.sleep(self.rng.uniform(0.2, 8.0))
        await process.start()
        return True

    async def stop(self) -> bool:
        servers = [server for server in self.cluster.servers.values() if self._is_up(server)]
        if len(servers) < 2:
            return False
        server = self.rng.choice(servers)
        await server.stop()
        await asyncio.sleep(self.rng.uniform(0.2, 4.0))
        await server.start()
        return True

    async def pause(self) -> bool:
        process = self._process()
        if process is None:
            return False
        paused = process.process
        process.pause(buffered=self.rng.random() < 0.5)
        await asyncio.sleep(self.rng.uniform(0.2, 9.0))
        if process.process is paused:
            process.resume()
        return True

    async def cut(self) -> bool:
        hosts = [*(s.host for s in self.cluster.servers.values()), *(m.host for m in self.cluster.managers.values())]
        others = [*hosts, *(n.host for n in self.cluster.sim.nodes.values()), "manager1", "kv1", "kv2"]
        one, other = self.rng.choice(hosts), self.rng.choice(others)
        if one == other:
            return False
        self.cluster.sim.network.partition(one, other)
        await asyncio.sleep(self.rng.uniform(0.1, 4.0))
        self.cluster.sim.network.heal(one, other)
        return True

    async def move(self) -> bool:
        region = self.rng.choice(self.cluster.map.regions)
        await self.cluster.move(region.partition_id, self.rng.choice(list(self.cluster.servers)))
        return True

    async def split(self) -> bool:
        key = self.rng.choice([b"b", b"d", b"h", b"l", b"n", b"p", b"r"])
        region = self.cluster.region(key)
        if region.start == key:
            return False
        await self.cluster.split(region.partition_id, key)
        return True

    async def merge(self) -> bool:
        regions = self.cluster.map.regions
        if len(regions) < 2:
            return False
        number = self.rng.randrange(len(regions) - 1)
        await self.cluster.merge(regions[number].partition_id, regions[number + 1].partition_id)
        return True


@pytest.mark.parametrize("seed", SEEDS)
@partitioned(servers=3, managers=2)
async def test_histories_are_linearizable_whatever_happens(cluster: PartitionCluster, seed: int) -> None:
    rng = random.Random(f"partitions {seed}")
    await cluster.bootstrap(b"h")
    clients = [await cluster.kv("kv1", options=OPTIONS), await cluster.kv("kv2", options=OPTIONS)]
    recorder = Recorder()
    loop = asyncio.get_running_loop()
    end_s = loop.time() + STORY_S
    trouble = Trouble(cluster, rng)
    troubling = asyncio.ensure_future(trouble.run(end_s))
    await run_clients(
        clients,
        recorder,
        rng=rng,
        keys=KEYS,
        operations_each=10**6,
        pause_s_mean=0.3,
        stop=lambda: loop.time() >= end_s,
    )
    await troubling
    await cluster.heal()
    last = await cluster.kv("last")
    await read_all(last, recorder, KEYS)
    assert_linearizable(recorder.history)
    found = {info.key async for info in last.scan()}
    assert found <= set(KEYS)
    assert sum(trouble.done.values()) > 5, trouble.done


@pytest.mark.parametrize("seed", SEEDS)
@partitioned(servers=3, managers=2)
async def test_t49_t52_every_put_is_found_and_the_map_whole_whatever_happens(
    cluster: PartitionCluster, seed: int
) -> None:
    rng = random.Random(f"journal {seed}")
    await cluster.bootstrap(b"h")
    kv = await cluster.kv("kv1", options=OPTIONS)
    journal = Journal()
    loop = asyncio.get_running_loop()
    end_s = loop.time() + STORY_S

    async def work(worker: int) -> None:
        number = 0
        while loop.time() < end_s:
            number += 1
            key = b"%c/%d/%d" % (97 + (7 * number + worker) % 26, worker, number)
            await journal.put(kv, key, key * rng.choice((1, 10, 60)))
            await asyncio.sleep(0.05)

    troubling = asyncio.ensure_future(Trouble(cluster, rng).run(end_s))
    await asyncio.gather(*(work(worker) for worker in range(4)))
    await troubling
    await cluster.heal()
    await journal.check(await cluster.kv("last"))
    assert len(journal.acknowledged) > 100
    assert len(cluster.watcher.maps) > 2  # every revision was looked at: a gap or an overlap would have ended it (T52)
