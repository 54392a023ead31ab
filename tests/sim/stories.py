"""Stories by chance: writers, readers and take-overs, while nodes, managers, networks and the metadata store misbehave.

    python -m tests.sim.stories 17            # one story, with its events
    python -m tests.sim.stories 1000 1999     # many

Invariants: a seed is a story: replaying it takes the same steps (`trace_hash`);
            the trouble is such that the guarantees must hold: the disks of one node are lost or damaged at most,
            whatever else goes on; of streams without sync, one node at most loses power;
            at the end all trouble is over, the cluster has repaired itself, and all checkers agree.
Neighbours: cluster.py has the cluster, checkers.py what must hold; test_random.py runs some of these in every build.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError
from tests.sim.client import Killed, SimClient, SimWriter
from tests.sim.cluster import SimCluster, run_story
from tests.sim.disk_nodes import PowerCutMode
from tests.sim.loop import current

EVENTS_MIN, EVENTS_MAX = 8, 24
PAUSE_S_MEAN = 1.2
SCRUB_INTERVAL_S = 10.0
POWER_CUT_MODES: tuple[PowerCutMode, ...] = ("lose_all", "random", "attributes")
TROUBLE_S = (0.05, 0.5, 2.0, 5.0, 12.0, 20.0)  # about as long as a retry, a call, a lease, a death


@dataclass(frozen=True, slots=True)
class Shape:
    """What a story is like, by its seed."""

    managers: int
    nodes: int
    streams: int
    writers: int  # a stream's
    readers: int
    sync: bool
    wipes: bool
    damage: bool
    drains: bool
    events: int
    extent_bytes: int

    @classmethod
    def of(cls, seed: int) -> Shape:
        rng = random.Random(f"shape {seed}")
        sync = rng.random() < 0.8
        trouble = rng.choice(("", "wipes", "damage"))
        return cls(
            managers=rng.choice((2, 2, 3)),
            nodes=rng.choice((4, 4, 5)),
            streams=rng.choice((1, 1, 2)),
            writers=rng.choice((1, 2, 3)),
            readers=rng.choice((1, 1, 2)),
            sync=sync,
            wipes=sync and trouble == "wipes",
            damage=trouble == "damage",
            drains=rng.random() < 0.3,
            events=rng.randint(EVENTS_MIN, EVENTS_MAX),
            extent_bytes=rng.choice((4_000, 12_000, 50_000)),
        )


class Story:
    def __init__(self, cluster: SimCluster, seed: int, say: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.shape = Shape.of(seed)
        self.rng = random.Random(f"story {seed}")
        self.over = False
        self._say = say
        self._begun_s = asyncio.get_running_loop().time()
        self._work: list[asyncio.Task[None]] = []
        self._undoing: list[asyncio.Task[None]] = []
        self._wiped = False
        self._victim = self.rng.choice(list(cluster.nodes))  # the one whose disks cannot be relied on
        self._names = 0

    def say(self, line: str) -> None:
        current().note(line)
        self._say(f"{asyncio.get_running_loop().time() - self._begun_s:8.3f} {line}")

    async def run(self) -> None:
        self.say(str(self.shape))
        loop = asyncio.get_running_loop()
        for _ in range(self.shape.streams):
            stream = await self.cluster.create_stream(
                replicas=3, sync=self.shape.sync, extent_bytes_max=self.shape.extent_bytes
            )
            for _ in range(self.shape.writers):
                self._work.append(loop.create_task(self._write(stream.id)))
            for _ in range(self.shape.readers):
                self._work.append(loop.create_task(self._read(stream.id)))
        for _ in range(self.shape.events):
            await asyncio.sleep(self.rng.expovariate(1 / PAUSE_S_MEAN))
            self._trouble()
            self.cluster.check_no_bugs()
        await asyncio.sleep(self.rng.uniform(0.0, 5.0))
        self.say("all trouble ends")
        for task in self._undoing:
            task.cancel()
        await asyncio.gather(*self._undoing, return_exceptions=True)
        await self.cluster.heal()
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        self.over = True
        await self.cluster.until(lambda: all(task.done() for task in self._work), "writers and readers end")
        for task in self._work:
            task.result()
        acknowledged = len(self.cluster.ledger.acknowledged())
        self.say(f"{acknowledged} records acknowledged in {len(self.cluster.ledger.sessions)} sessions")
        await self.cluster.settle()
        self.say("all is well")

    # --- use -------------------------------------------------------------------------------------------------

    async def _client(self, role: str) -> SimClient | None:
        """A new process of that kind; None if it could not connect."""
        self._names += 1
        name = f"{role}{self._names}"
        try:
            return await self.cluster.client(name)
        except (NeveError, Killed) as error:
            self.say(f"{name} did not connect: {error}")
            self.cluster.clients[name].kill()
            return None

    async def _write(self, stream_id: int) -> None:
        while not self.over:
            client = await self._client("writer")
            if client is not None:
                try:
                    await self._write_as(client, stream_id)
                except (NeveError, Killed) as error:
                    self.say(f"{client.name} ends: {type(error).__name__} {error}")
                if client.running and self.rng.random() < 0.7:  # others stay, and do not know that they are over
                    client.kill()
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))

    async def _write_as(self, client: SimClient, stream_id: int) -> None:
        takeover = self.rng.random() < 0.4
        writer = await client.writer(stream_id, takeover=takeover, lock_timeout_s=self.rng.choice((1.0, 10.0)))
        self.say(f"{client.name} has opened stream {stream_id} token={writer.session.token}")
        for _ in range(self.rng.choice((5, 20, 40))):
            if self.over:
                break
            await self._append(writer)
            await asyncio.sleep(self.rng.choice((0.0, 0.02, 0.1, 0.5)))
        if self.rng.random() < 0.7:
            await writer.close()

    async def _append(self, writer: SimWriter) -> None:
        size_bytes = self.rng.choice((0, 60, 300, 900, 2500))
        if self.rng.random() < 0.5:
            await writer.append(size_bytes)
            return
        for _ in range(self.rng.randint(1, 8)):
            if writer.client.process.paused or not writer.client.running:
                break
            writer.submit(size_bytes)
        if self.rng.random() < 0.5:
            await writer.flush()

    async def _read(self, stream_id: int) -> None:
        while not self.over:
            client = await self._client("reader")
            if client is None:
                await asyncio.sleep(1.0)
                continue
            try:
                if self.rng.random() < 0.5:
                    await client.read(stream_id)
                else:
                    _, task = client.follow(stream_id)
                    await asyncio.wait([task], timeout=self.rng.uniform(0.5, 8.0))
                    task.cancel()
                    await asyncio.wait([task], timeout=30.0)
                    if task.done() and not task.cancelled():
                        task.result()
            except (NeveError, Killed) as error:
                self.say(f"{client.name} ends: {type(error).__name__} {error}")
            client.kill()
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))

    # --- trouble ---------------------------------------------------------------------------------------------

    def _trouble(self) -> None:
        kinds: list[tuple[int, Callable[[], None]]] = [
            (5, self._kill_node),
            (4, self._pause_node),
            (4, self._cut_power),
            (2 if self.shape.sync else 0, self._cut_all_power),
            (4 if self.shape.wipes else 0, self._wipe_node),
            (6 if self.shape.damage else 0, self._damage_replica),
            (3 if self.shape.drains else 0, self._drain_node),
            (4, self._kill_manager),
            (4, self._pause_manager),
            (6, self._partition),
            (2, self._cut_connections),
            (3, self._lose_frames),
            (2, self._slow_link),
            (4, self._stall_meta),
            (4, self._unknown_outcomes),
            (1, self._cut_meta),
            (2, self._compact_meta),
            (4, self._pause_client),
            (3, self._kill_client),
        ]
        weights = [weight for weight, _ in kinds]
        self.rng.choices([kind for _, kind in kinds], weights)[0]()

    def _for_a_while(self, undo: Callable[[], Coroutine[Any, Any, None] | None]) -> float:
        """How long this trouble lasts, and its end."""
        length_s = self.rng.choice(TROUBLE_S) * self.rng.uniform(0.5, 1.0)

        async def later() -> None:
            await asyncio.sleep(length_s)
            work = undo()
            if work is not None:
                await work

        self._undoing.append(asyncio.get_running_loop().create_task(later()))
        return length_s

    def _running_nodes(self) -> list[int]:
        return [n for n, node in self.cluster.nodes.items() if node.process is not None and not node.process.paused]

    def _down(self, node_id: int, how: str) -> None:
        node = self.cluster.nodes[node_id]

        async def restart() -> None:
            if not node.running:
                self.say(f"node {node_id} starts")
                await node.start()

        length_s = self._for_a_while(restart)
        self.say(f"node {node_id}: {how} for {length_s:.2f} s")

    def _kill_node(self) -> None:
        if running := self._running_nodes():
            node_id = self.rng.choice(running)
            self.cluster.nodes[node_id].kill()
            self._down(node_id, "killed")

    def _cut_power(self) -> None:
        if running := self._running_nodes():
            node_id = self.rng.choice(running)
            if not self.shape.sync and node_id != self._victim:
                return
            mode = self.rng.choice(POWER_CUT_MODES)
            self.cluster.nodes[node_id].power_cut(mode)
            self._down(node_id, f"no power, {mode}")

    def _cut_all_power(self) -> None:
        for node_id in self._running_nodes():
            mode = self.rng.choice(POWER_CUT_MODES)
            self.cluster.nodes[node_id].power_cut(mode)
            self._down(node_id, f"no power anywhere, {mode}")

    def _wipe_node(self) -> None:
        if self._wiped or self._victim not in self._running_nodes() or self._sole_holder():
            return
        self._wiped = True
        self.cluster.nodes[self._victim].kill()
        self.cluster.nodes[self._victim].wipe()
        self._down(self._victim, "lost its disks")

    def _sole_holder(self) -> bool:
        """Whether others may need what the victim has: when it alone answered, a seal may keep what only it holds."""
        return any(
            extent.seal is not None and not extent.all_confirmed and self._victim in extent.node_ids
            for extent in self.cluster.stored_state().extents.values()
        )

    def _damage_replica(self) -> None:
        node = self.cluster.nodes[self._victim]
        extents = self.cluster.stored_state().extents
        held = [e for e in extents.values() if e.all_confirmed and self.cluster.bytes_on(self._victim, e.extent_id)]
        if held:
            extent_id = self.rng.choice(held).extent_id
            size_bytes = len(self.cluster.bytes_on(self._victim, extent_id) or b"")
            node.fs.flip(node.extent_path(extent_id), self.rng.randrange(size_bytes), self.rng.randrange(8))
            self.say(f"a bit flips in extent {extent_id} on {node.host}")

    def _drain_node(self) -> None:
        """For a while; if nobody leads then, for longer."""
        node_id = self.rng.choice(list(self.cluster.nodes))

        async def set_mode(mode: sm.NodeMode) -> None:
            operator = await self._client("operator")
            if operator is not None:
                try:
                    await operator.run(operator.neve.admin.set_node_mode(node_id, mode))
                except (NeveError, Killed) as error:
                    self.say(f"node {node_id} keeps its mode: {error}")
                operator.kill()

        self._work.append(asyncio.get_running_loop().create_task(set_mode(sm.NODE_MODE_DRAINING)))

        def end() -> None:
            self._work.append(asyncio.get_running_loop().create_task(set_mode(sm.NODE_MODE_NORMAL)))

        self.say(f"node {node_id} is drained for {self._for_a_while(end):.2f} s")

    def _pause_node(self) -> None:
        if running := self._running_nodes():
            node = self.cluster.nodes[self.rng.choice(running)]
            process = node.process
            assert process is not None
            node.pause()

            def resume() -> None:
                if node.process is process and process.paused:
                    self.say(f"{node.host} goes on")
                    node.resume()

            self.say(f"{node.host} stopped for {self._for_a_while(resume):.2f} s")

    def _kill_manager(self) -> None:
        manager = self.rng.choice(list(self.cluster.managers.values()))
        if manager.running:
            leads = manager.term is not None
            manager.kill()

            def restart() -> None:
                if not manager.running:
                    manager.start()

            self.say(f"{manager.host} (leads: {leads}) killed for {self._for_a_while(restart):.2f} s")

    def _pause_manager(self) -> None:
        manager = self.rng.choice(list(self.cluster.managers.values()))
        process = manager.process
        if process is not None and not process.paused:
            leads = manager.term is not None
            manager.pause()

            def resume() -> None:
                if manager.process is process and process.paused:
                    self.say(f"{manager.host} goes on")
                    manager.resume()

            self.say(f"{manager.host} (leads: {leads}) stopped for {self._for_a_while(resume):.2f} s")

    def _hosts(self) -> list[str]:
        hosts = [node.host for node in self.cluster.nodes.values()]
        hosts += [manager.host for manager in self.cluster.managers.values()]
        return hosts + [client.name for client in self._running_clients()]

    def _running_clients(self) -> list[SimClient]:
        return [c for c in self.cluster.clients.values() if c.running and not c.process.paused]

    def _partition(self) -> None:
        network = self.cluster.network
        one, other = self.rng.sample(self._hosts(), 2)
        if self.rng.random() < 0.3:
            network.partition_one_way(one, other)
            arrow = ">"
        else:
            network.partition(one, other)
            arrow = "="
        length_s = self._for_a_while(lambda: network.heal(one, other))
        self.say(f"partition {one} {arrow} {other} for {length_s:.2f} s")

    def _cut_connections(self) -> None:
        one, other = self.rng.sample(self._hosts(), 2)
        self.cluster.network.cut(one, other)
        self.say(f"connections between {one} and {other} cut")

    def _lose_frames(self) -> None:
        one, other = self.rng.sample(self._hosts(), 2)
        self.cluster.network.drop_next(one, other, count=self.rng.randint(1, 3))
        self.say(f"frames lost {one} > {other}")

    def _slow_link(self) -> None:
        network = self.cluster.network
        one, other = self.rng.sample(self._hosts(), 2)
        network.slow(one, other, factor=self.rng.choice((30, 1000, 10_000)))
        length_s = self._for_a_while(lambda: network.slow(one, other, factor=1.0))
        self.say(f"slow {one} > {other} for {length_s:.2f} s")

    def _meta_users(self) -> list[Any]:
        users: list[Any] = [(m.host, m.store) for m in self.cluster.managers.values() if m.running]
        return users + [(c.name, c.meta) for c in self._running_clients()]

    def _stall_meta(self) -> None:
        if users := self._meta_users():
            name, store = self.rng.choice(users)
            store.stall()
            self.say(f"metadata stalls for {name} for {self._for_a_while(store.resume):.2f} s")

    def _cut_meta(self) -> None:
        if users := self._meta_users():
            name, store = self.rng.choice(users)
            store.disconnect()

            def reconnect() -> None:
                alive = any(store is other for _, other in self._meta_users())
                if alive:  # a killed process must not come back
                    store.reconnect()

            self.say(f"metadata refuses {name} for {self._for_a_while(reconnect):.2f} s")

    def _unknown_outcomes(self) -> None:
        if users := self._meta_users():
            name, store = self.rng.choice(users)
            plan = store.plan
            plan.lost_after_apply_share = self.rng.choice((0.1, 0.5, 0.9))
            plan.lost_before_apply_share = self.rng.choice((0.0, 0.1))

            def end() -> None:
                plan.lost_after_apply_share = plan.lost_before_apply_share = 0.0

            self.say(f"unknown outcomes for {name} for {self._for_a_while(end):.2f} s")

    def _compact_meta(self) -> None:
        key_space = self.cluster.etcd.key_space
        if key_space.revision > key_space.compact_revision + 1:
            self.cluster.etcd.compact(key_space.revision)
            self.say(f"metadata compacted at {key_space.revision}")

    def _pause_client(self) -> None:
        if clients := self._running_clients():
            client = self.rng.choice(clients)
            client.pause(buffered=self.rng.random() < 0.5)

            def resume() -> None:
                if client.running and client.process.paused:
                    client.resume()

            self.say(f"{client.name} stopped for {self._for_a_while(resume):.2f} s")

    def _kill_client(self) -> None:
        if clients := self._running_clients():
            client = self.rng.choice(clients)
            client.kill()
            self.say(f"{client.name} killed")


def play(seed: int, say: Callable[[str], None] = lambda _: None) -> str:
    """Run the story of a seed; returns its fingerprint."""

    async def story(cluster: SimCluster) -> None:
        await Story(cluster, seed, say).run()

    shape = Shape.of(seed)
    options = {"scrub_interval_s": SCRUB_INTERVAL_S} if shape.damage else {}
    return run_story(story, seed=seed, managers=shape.managers, nodes=shape.nodes, node_options=options)


def main(arguments: list[str]) -> int:
    if len(arguments) == 1:
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="         %(name)s %(message)s")
        print(play(int(arguments[0]), print))
        return 0
    failed = 0
    for seed in range(int(arguments[0]), int(arguments[1]) + 1):
        begun_s = time.perf_counter()
        try:
            play(seed)
        except Exception as error:  # noqa: BLE001 - each seed is judged for itself
            failed += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"seed {seed}: {type(error).__name__} {error!s:.600} ({where.filename}:{where.lineno})", flush=True)
        else:
            print(f"seed {seed}: ok ({time.perf_counter() - begun_s:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
