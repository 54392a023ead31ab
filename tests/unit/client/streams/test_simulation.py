"""Seeded stories: writers append while connections are cut, frames are lost, nodes are killed, stopped and restarted,
and owners change. At the end every acknowledged record is in the stream once, in order, and nothing is there twice.

A failing seed is told by the test's name; the same seed takes the same steps.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from neve.client import AppendOutcomeUnknown, Client, NeveError, Overloaded, Position
from tests.sim.processes.node import SimNode
from tests.unit.client.streams.rig import Rig, read_all, run

SEEDS = range(12)
STORY_S = 12.0
CALM_S = 60.0


class Ledger:
    """What the writers were told. Outcomes: acknowledged with a position, or unknown."""

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        self.acknowledged: dict[bytes, Position] = {}

    def next_payload(self, rng: random.Random) -> bytes:
        payload = b"%06d:" % len(self.appended) + b"." * rng.choice((0, 5, 50, 300, 900, 2500))
        self.appended.append(payload)
        return payload


async def write(rig: Rig, ledger: Ledger, rng: random.Random, stream_id: int, end_s: float) -> None:
    """One owner after the other: each writes until it ends, by trouble or by its own will."""
    loop = asyncio.get_running_loop()
    owner = 0
    while loop.time() < end_s:
        owner += 1
        client = rig.make_client("client", roll_timeout_s=10.0, call_timeout_s=10.0)
        try:
            await client.open()
            async with client.writer(stream_id, takeover=rng.random() < 0.5, lock_timeout_s=8.0) as writer:
                stop_s = loop.time() + rng.uniform(1, 8)
                pending: list[tuple[list[bytes], asyncio.Future[Any]]] = []
                while loop.time() < min(stop_s, end_s) and writer.error is None:
                    if rng.random() < 0.2:
                        many = [ledger.next_payload(rng) for _ in range(rng.randrange(1, 12))]
                        pending.append((many, asyncio.ensure_future(writer.append_many(many))))
                        await asyncio.sleep(0)
                    else:
                        payload = ledger.next_payload(rng)
                        try:
                            pending.append(([payload], writer.submit(payload)))
                        except Overloaded:
                            pending.append(([payload], asyncio.ensure_future(writer.append(payload))))
                            await asyncio.sleep(0)  # an append has its place in the order from its first step on
                    if rng.random() < 0.3:
                        await asyncio.sleep(rng.choice((0.0, 0.001, 0.02, 0.2)))
                    pending = [each for each in pending if not settle(ledger, *each)]
                if rng.random() < 0.3:
                    await writer.abort()
            for payloads, future in pending:
                await asyncio.wait([future])
                settle(ledger, payloads, future)
        except NeveError:
            await asyncio.sleep(0.2)
        finally:
            await client.close()


def settle(ledger: Ledger, payloads: list[bytes], future: asyncio.Future[Any]) -> bool:
    if not future.done():
        return False
    if future.exception() is not None:
        assert isinstance(future.exception(), NeveError), future.exception()
        return True
    found = future.result()
    positions = [found] if isinstance(found, Position) else list(found)
    assert len(positions) == len(payloads)
    for payload, position in zip(payloads, positions, strict=True):
        assert payload not in ledger.acknowledged
        ledger.acknowledged[payload] = position
    return True


async def trouble(rig: Rig, rng: random.Random, end_s: float) -> None:
    loop = asyncio.get_running_loop()
    down: dict[SimNode, float] = {}
    hosts = ["client", "reader", "manager1"]
    while loop.time() < end_s:
        await asyncio.sleep(rng.expovariate(1.5))
        for node, until_s in list(down.items()):
            if loop.time() >= until_s:
                del down[node]
                await node.start()
        node = rng.choice(rig.nodes)
        kind = rng.choice(("cut", "cut", "drop", "slow", "partition", "pause", "kill", "power"))
        if kind == "cut":
            rig.network.cut(rng.choice(hosts), node.host)
        elif kind == "drop":
            rig.network.drop_next(*rng.sample([rng.choice(hosts), node.host], 2))
        elif kind == "slow":
            rig.network.slow(rng.choice(hosts), node.host, factor=rng.choice((1.0, 10.0, 1000.0)))
        elif kind == "partition":
            rig.network.partition(rng.choice(hosts), node.host)
            loop.call_later(rng.uniform(0.2, 3), rig.network.heal_all)
        elif kind == "pause" and node.running:
            rig.network.pause(node.host)
            loop.call_later(rng.uniform(0.2, 4), rig.network.resume, node.host)
        elif kind in ("kill", "power") and node.running and len(down) < 2:
            node.kill() if kind == "kill" else node.power_cut("random")
            down[node] = loop.time() + rng.uniform(0.2, 4)
    for node in down:
        await node.start()


async def follow(client: Client, stream_id: int, seen: list[bytes]) -> None:
    async for record in client.read(stream_id, follow=True):
        seen.append(bytes(record.payload))  # noqa: PERF401 - it is looked at after this was cancelled


@pytest.mark.parametrize("seed", SEEDS)
def test_every_acknowledged_record_is_there_once_and_in_order(seed: int) -> None:
    async def story(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        rng = random.Random(seed)
        ledger = Ledger()
        setup = rig.make_client("reader")
        await setup.open()
        stream = await setup.create_stream(replicas=3, sync=True)
        seen: list[bytes] = []
        following = asyncio.ensure_future(follow(setup, stream.id, seen))
        end_s = loop.time() + STORY_S
        troubling = asyncio.ensure_future(trouble(rig, rng, end_s))
        await write(rig, ledger, rng, stream.id, end_s)
        await troubling
        rig.network.heal_all()
        for node in rig.nodes:
            rig.network.resume(node.host)
        await asyncio.sleep(CALM_S)
        async with rig.client("last") as last:
            await last.seal(stream.id)
            records = await read_all(last, stream.id)
        async with asyncio.timeout(CALM_S):
            await following
        await setup.close()

        payloads = [bytes(record.payload) for record in records]
        positions = {bytes(record.payload): record.position for record in records}
        assert len(positions) == len(payloads), "a record is there twice"
        assert payloads == sorted(payloads), "records are not in the order of their appends"
        assert set(payloads) <= set(ledger.appended), "a record that nobody has written"
        for payload, position in ledger.acknowledged.items():
            assert positions.get(payload) == position, f"acknowledged at {position}, found at {positions.get(payload)}"
        assert seen == payloads, "a follower saw something else"
        assert len(ledger.acknowledged) > 50

    run(story, seed=seed, nodes=5, extent_bytes_max=20_000)


def test_unknown_is_an_error_of_the_append_alone() -> None:
    """What the ledger above relies on: every append that is not acknowledged says so."""
    assert issubclass(AppendOutcomeUnknown, NeveError)
    assert AppendOutcomeUnknown.outcome_unknown
