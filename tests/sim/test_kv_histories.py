"""T48, T49, T51 on the whole simulated cluster: what key-value clients were told, while servers die, hang and move and
partitions split and merge, has an order that explains it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from neve.client.objects.client import KeyValueClient
from neve.proto.errors import NeveError
from tests.history.history import Outcome, Recorder
from tests.history.linearizable import assert_linearizable
from tests.history.workload import Journal, read_all, run_clients
from tests.sim.partitions import PartitionCluster, partitioned

KEYS = [b"%c%d" % (97 + 2 * n, n) for n in range(12)]  # a0 … w11
TROUBLE_S = 25.0


class Trouble:
    """Random trouble of one kind after the other, each of which ends. What happened is counted."""

    def __init__(self, cluster: PartitionCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.happened: dict[str, int] = {}

    async def run(self, for_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + for_s
        kinds = (self.kill, self.pause, self.move, self.split, self.merge, self.cut)
        while loop.time() < end_s:
            await asyncio.sleep(self._rng.uniform(0.2, 1.5))
            kind = self._rng.choice(kinds)
            try:
                await kind()
            except NeveError:
                continue  # an order that came at a bad moment: nothing may be wrong because of it
            self.happened[kind.__name__] = self.happened.get(kind.__name__, 0) + 1

    async def kill(self) -> None:
        server = self._rng.choice(list(self._cluster.servers.values()))
        server.kill()
        await asyncio.sleep(self._rng.choice([0.1, 2.0, 12.0]))  # before, or long after its lease has ended
        await server.start()

    async def pause(self) -> None:
        server = self._rng.choice(list(self._cluster.servers.values()))
        server.pause(buffered=self._rng.random() < 0.5)
        await asyncio.sleep(self._rng.choice([0.5, 4.0, 12.0]))
        server.resume()

    async def move(self) -> None:
        region = self._cluster.region(self._rng.choice(KEYS))
        await self._cluster.move(region.partition_id, self._rng.choice(list(self._cluster.servers)))

    async def split(self) -> None:
        key = self._rng.choice(KEYS)
        region = self._cluster.region(key)
        if region.start != key and len(self._cluster.map.regions) < 6:
            await self._cluster.split(region.partition_id, key)

    async def merge(self) -> None:
        regions = self._cluster.map.regions
        if len(regions) > 1:
            number = self._rng.randrange(len(regions) - 1)
            await self._cluster.merge(regions[number].partition_id, regions[number + 1].partition_id)

    async def cut(self) -> None:
        self._cluster.sim.network.cut("c1", self._rng.choice(list(self._cluster.servers.values())).host)


@pytest.mark.parametrize("seed", range(4))
@partitioned(servers=3)
async def test_t48_histories_are_linearizable(cluster: PartitionCluster, seed: int) -> None:
    await cluster.bootstrap(b"h", b"p")
    clients = [await cluster.kv("c1"), await cluster.kv("c2")]
    recorder = Recorder()
    trouble = Trouble(cluster, random.Random(seed))
    troubling = asyncio.ensure_future(trouble.run(TROUBLE_S))
    await run_clients(
        clients,
        recorder,
        rng=random.Random(seed),
        keys=KEYS,
        operations_each=100_000,
        pause_s_mean=0.2,
        timeout_s=6.0,
        stop=troubling.done,
    )
    await troubling
    await cluster.heal()
    await read_all(clients[0], recorder, KEYS)
    assert_linearizable(recorder.history)
    done = sum(operation.outcome is Outcome.DONE for operation in recorder.history)
    assert done > 100, f"{done} of {len(recorder.history)}, {trouble.happened}"
    assert sum(trouble.happened.values()) > 3, trouble.happened


@pytest.mark.parametrize("seed", range(2))
@partitioned(servers=2)
async def test_t49_t51_scans_are_complete_while_partitions_split_and_move(cluster: PartitionCluster, seed: int) -> None:
    await cluster.bootstrap(b"m")
    kv = await cluster.kv("c1")
    old = Journal()
    keys = sorted(b"%c%02d" % (97 + n % 26, n) for n in range(78))
    await asyncio.gather(*(old.put(kv, key, key * 5) for key in keys))
    assert len(old.acknowledged) == len(keys)
    rng = random.Random(seed)
    trouble = Trouble(cluster, rng)
    stop = asyncio.Event()

    async def reshape() -> None:
        while not stop.is_set():
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            try:
                await rng.choice([trouble.move, trouble.split, trouble.merge])()
            except NeveError:
                continue

    reshaping = asyncio.ensure_future(reshape())
    for _ in range(6):
        assert [key async for key in slow_keys(kv)] == keys
    stop.set()
    await reshaping
    await cluster.until_served()
    await old.check(kv)
    assert cluster.map.version > 6, "the map did change meanwhile"


async def slow_keys(kv: KeyValueClient) -> AsyncIterator[bytes]:
    """A reader that takes its time: the map changes between pages."""
    async for info in kv.scan():
        await asyncio.sleep(0.02)
        yield info.key
