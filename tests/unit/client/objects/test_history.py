"""T48, T49: histories through the client, over partitions in a dict that move, split, hang and die meanwhile."""

from __future__ import annotations

import asyncio
import random

import pytest

from neve.proto import errors
from tests.history.history import Outcome, Recorder
from tests.history.linearizable import NotLinearizable, assert_linearizable
from tests.history.workload import Journal, read_all, run_clients
from tests.unit.client.objects.rig import Rig, run

KEYS = [b"%02d" % n for n in range(12)]


async def trouble(rig: Rig, rng: random.Random, stop: asyncio.Event) -> None:
    cluster = rig.cluster
    while not stop.is_set():
        await asyncio.sleep(rng.uniform(0.05, 0.3))
        key = rng.choice(KEYS)
        what = rng.randrange(6)
        if what == 0:
            cluster.move(cluster.partition(key), rng.randrange(1, 4))
        elif what == 1 and cluster.partition(key).start != key and len(cluster.partitions) < 6:
            cluster.split(key)
        elif what == 2 and len(cluster.partitions) > 1:
            cluster.merge(cluster.partitions[1].start)
        elif what == 3:
            server = rng.choice(list(cluster.servers.values()))
            server.fail_after = [rng.choice([errors.AppendOutcomeUnknown(), errors.Cancelled()])]
        elif what == 4:
            host = f"ps{rng.randrange(1, 4)}"
            rig.network.pause(host)
            await asyncio.sleep(rng.uniform(0.1, 3.0))
            rig.network.resume(host)
        else:
            rig.network.cut("c1", f"ps{rng.randrange(1, 4)}")


@pytest.mark.parametrize("seed", range(6))
def test_t48_histories_are_linearizable_whatever_the_partitions_do(seed: int) -> None:
    async def story(rig: Rig) -> None:
        recorder = Recorder()
        stop = asyncio.Event()
        async with rig.client("c1") as one, rig.client("c2") as two:
            shaking = asyncio.ensure_future(trouble(rig, random.Random(seed), stop))
            await run_clients(
                [one, two],
                recorder,
                rng=random.Random(seed),
                keys=KEYS,
                operations_each=120,
                pause_s_mean=0.02,
                timeout_s=4.0,
            )
            stop.set()
            await shaking
            await read_all(one, recorder, KEYS)
        assert_linearizable(recorder.history)
        assert len(rig.cluster.executed) == len(set(rig.cluster.executed))
        done = sum(operation.outcome is Outcome.DONE for operation in recorder.history)
        assert done > 200

    run(story, seed=seed, servers=3, split_keys=(b"04", b"08"))


def test_a_store_that_forgets_whose_call_it_has_executed_is_found() -> None:
    """The same without the sessions: the checker has to see a write that is executed twice."""

    async def story(rig: Rig) -> None:
        rng = random.Random(5)
        recorder = Recorder()
        stop = asyncio.Event()

        async def forget() -> None:
            while not stop.is_set():
                await asyncio.sleep(0.001)
                for partition in rig.cluster.partitions:
                    partition.sessions.clear()
                for server in rig.cluster.servers.values():
                    server.fail_after = [errors.AppendOutcomeUnknown()] if rng.random() < 0.5 else []

        async with rig.client("c1") as one, rig.client("c2") as two:
            forgetting = asyncio.ensure_future(forget())
            await run_clients([one, two], recorder, rng=rng, keys=KEYS[:2], operations_each=150, pause_s_mean=0.003)
            stop.set()
            await forgetting
        with pytest.raises(NotLinearizable):
            assert_linearizable(recorder.history)

    run(story, servers=2)


def test_t49_acknowledged_puts_are_found_and_lost_or_made_up_ones_are_seen() -> None:
    async def story(rig: Rig) -> None:
        journal = Journal()
        async with rig.client("c1") as kv:
            await asyncio.gather(*(journal.put(kv, b"s%03d" % n, b"v%d" % n) for n in range(200)))
            await journal.check(kv, prefix=b"s")
            await kv.delete(b"s050")
            with pytest.raises(AssertionError, match="1 acknowledged objects are gone, b's050'"):
                await journal.check(kv, prefix=b"s")
            await kv.put(b"s050", b"made up")
            with pytest.raises(AssertionError, match="1 objects have a value that nobody put, b's050'"):
                await journal.check(kv, prefix=b"s")

    run(story, split_keys=(b"s100",))
