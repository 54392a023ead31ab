"""What may befall nodes and their disks in a story, any of them.

Invariants: what the guarantees allow, and no more: here nobody loses what was synced; without sync one node alone (the
            victim) loses power.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from contextlib import suppress

from neve.extent_node.journal.folder import JournalRefused
from neve.extent_node.store.start import NoUsableDisk
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError
from tests.sim.disks.nodes import PowerCutMode
from tests.sim.processes.client import Killed
from tests.sim.processes.node import SimNode
from tests.sim.troubles.troubles import SKEWS_MS, Kind, Scene

POWER_CUT_MODES: tuple[PowerCutMode, ...] = ("lose_all", "random", "attributes")
FORGETTING = (
    "node killed",
    "power cut",
    "power cut, and killed again",
    "power cut everywhere",
    "disk remounted",
    "disks wiped",
    "one disk wiped",
    "owner dies, replica loses power",
)
SOON_S = (0.01, 0.1, 0.4)  # before a writer gives a node up
NODES_MAX = 6
FULL = "disk full"
FULL_S = (0.5, 2.0, 5.0, 12.0)  # until something is written there
LEFT_BYTES = (0, 0, 500, 5_000)  # on a full disk: without a byte not even a name or an attribute is taken


async def start_node(scene: Scene, node: SimNode) -> None:
    """An error is a bug, unless something is known to be wrong with its disks: then it is tried again later."""
    if node.running or node.gone:
        return
    scene.say(f"{node.host} starts")
    try:
        await node.start()
    except (NoUsableDisk, JournalRefused, OSError) as error:
        if not node.repairs or (isinstance(error, OSError) and error.errno != errno.EIO):
            raise
        scene.say(f"{node.host} refuses to start: {error}")
    except Killed:
        scene.say(f"{node.host} is killed while it starts")
    else:
        scene.on_started(node)


def drain_node(scene: Scene, node_id: int) -> None:
    """For a while; if nobody leads then, for longer."""

    async def set_mode(mode: sm.NodeMode) -> None:
        operator = await scene.new_client("operator")
        if operator is not None:
            try:
                await operator.run(operator.neve.admin.set_node_mode(node_id, mode))
            except (NeveError, Killed) as error:
                scene.told(operator.name, error)
            operator.kill()

    scene.drained.add(node_id)
    scene.spawn(set_mode(sm.NODE_MODE_DRAINING))
    length_s = scene.for_a_while(lambda: scene.spawn(set_mode(sm.NODE_MODE_NORMAL)))
    scene.say(f"node {node_id} is drained for {length_s:.2f} s")


def running_nodes(scene: Scene) -> list[SimNode]:
    return [node for node in scene.cluster.nodes.values() if node.process is not None and not node.process.paused]


def go_down(scene: Scene, node: SimNode, how: str) -> None:
    """It does not run, and is started again after a while."""

    async def restart() -> None:
        await start_node(scene, node)

    scene.say(f"{node.host}: {how} for {scene.for_a_while(restart):.2f} s")


def used_folders(scene: Scene, node: SimNode) -> list[str]:
    """The disks on which it has replicas that are written now, as far as anybody knows."""
    extents = scene.cluster.stored_state().extents.values()
    tails = [extent.extent_id for extent in extents if extent.seal is None and node.node_id in extent.node_ids]
    return [
        f"/disk{number}"
        for number in range(node.disks)
        if any(node.fs.stat(node.extent_path(extent_id, number)) is not None for extent_id in tails)
    ]


class NodeTroubles:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._joined = 0

    def kinds(self) -> Sequence[Kind]:
        shape = self._scene.shape
        kinds = [
            Kind("node killed", self._kill, sharp=True),
            Kind("node stopped", self._pause, sharp=True),
            Kind("power cut", self._cut_power, sharp=True),
            Kind("power cut, and killed again", self._restart_twice, sharp=True),
            Kind("disk remounted", self._remount, sharp=True),
            Kind("slow disk", self._slow_disk),
            Kind(FULL, self._fill, sharp=True, armed=True),
            Kind("disks swapped", self._swap),
            Kind("node's clock skewed", self._skew),
            Kind("node drained", self._drain),
            Kind("node joins", self._join),
        ]
        if shape.sync:
            kinds.append(Kind("power cut everywhere", self._cut_all_power, sharp=True))
        return kinds

    # --- processes and power ---------------------------------------------------------------------------------

    def _running(self) -> list[SimNode]:
        return running_nodes(self._scene)

    def _one(self, *, may_lose_cache: bool = False) -> SimNode | None:
        running = [node for node in self._running() if not may_lose_cache or self._may_lose_cache(node)]
        return self._scene.pick(running, lambda node: node.host) if running else None

    def _down(self, node: SimNode, how: str) -> None:
        go_down(self._scene, node, how)

    async def _start(self, node: SimNode) -> None:
        await start_node(self._scene, node)

    def _may_lose_cache(self, node: SimNode) -> bool:
        return self._scene.shape.sync or node.node_id == self._scene.victim

    def _kill(self) -> bool:
        if (node := self._one()) is None:
            return False
        node.kill()
        self._down(node, "killed")
        return True

    def _pause(self) -> bool:
        if (node := self._one()) is None:
            return False
        process = node.process
        assert process is not None
        node.pause()

        def resume() -> None:
            if node.process is process and process.paused:
                self._scene.say(f"{node.host} goes on")
                node.resume()

        self._scene.say(f"{node.host} stopped for {self._scene.for_a_while(resume):.2f} s")
        return True

    def _cut_power(self) -> bool:
        node = self._one(may_lose_cache=True)
        if node is None:
            return False
        mode = self._scene.rng.choice(POWER_CUT_MODES)
        node.power_cut(mode)
        self._down(node, f"no power, {mode}")
        return True

    def _restart_twice(self) -> bool:
        """A node that has just come back without its page cache is killed: what it then knew must be on its disk."""
        node = self._one(may_lose_cache=True)
        if node is None:
            return False
        rng = self._scene.rng
        mode = rng.choice(POWER_CUT_MODES)
        node.power_cut(mode)

        async def start_twice() -> None:
            await self._start(node)
            process = node.process
            await asyncio.sleep(rng.choice(SOON_S))
            if process is not None and node.process is process:
                node.kill()
                self._scene.say(f"{node.host} killed again")
                await asyncio.sleep(rng.choice(SOON_S))
                await self._start(node)

        length_s = self._scene.for_a_while(start_twice, lengths_s=SOON_S)
        self._scene.say(f"{node.host}: no power, {mode} for {length_s:.2f} s, and killed soon after")
        return True

    def _cut_all_power(self) -> bool:
        if not (running := self._running()):
            return False
        for node in running:
            mode = self._scene.rng.choice(POWER_CUT_MODES)
            node.power_cut(mode)
            self._down(node, f"no power anywhere, {mode}")
        return True

    def _skew(self) -> bool:
        node = self._scene.rng.choice(list(self._scene.cluster.nodes.values()))
        node.skew_ms = self._scene.rng.choice(SKEWS_MS)

        def end() -> None:
            node.skew_ms = 0

        length_s = self._scene.for_a_while(end)
        self._scene.say(f"{node.host}'s clock is wrong by {node.skew_ms / 1000:g} s for {length_s:.2f} s")
        return True

    # --- disks -----------------------------------------------------------------------------------------------

    def _folder(self, node: SimNode) -> str:
        return self._scene.rng.choice([f"/disk{number}" for number in range(node.disks)])

    def _remount(self) -> bool:
        """The device went and came back in the same boot, and its node was killed over it."""
        node = self._one(may_lose_cache=True)
        if node is None:
            return False
        node.kill()
        folder = self._folder(node)
        node.note_cache_lost(folder)
        node.fs.remount(folder, self._scene.rng.choice(POWER_CUT_MODES))
        self._down(node, f"{folder} went and came back")
        return True

    def _slow_disk(self) -> bool:
        if (node := self._one()) is None:
            return False
        process = node.process
        assert process is not None
        process.slow_factor = self._scene.rng.choice((30.0, 1000.0))

        def end() -> None:
            process.slow_factor = 1.0

        self._scene.say(f"{node.host} has slow disks for {self._scene.for_a_while(end):.2f} s")
        return True

    def _fill(self) -> bool:
        """A disk that is written to. Not the journal: its segments and its label have their blocks, and nothing that a
        story does makes it grow."""
        if (node := self._one()) is None:
            return False
        used = used_folders(self._scene, node) or [self._folder(node)]
        folder = self._scene.rng.choice(used)
        fs = node.fs
        fs.fill(folder, leave_bytes=self._scene.rng.choice(LEFT_BYTES), to_the_last_block=True)
        fs.on_full = lambda path: self._scene.hit(FULL)
        length_s = self._scene.for_a_while(lambda: fs.unfill(folder), lengths_s=FULL_S)
        self._scene.say(f"{folder} of {node.host} is full for {length_s:.2f} s")
        return True

    def _swap(self) -> bool:
        """Two nodes get each other's disk: both must refuse it."""
        nodes = [node for node in self._running() if not node.repairs]
        if len(nodes) < 2:
            return False
        one, other = self._scene.rng.sample(nodes, 2)
        one.kill()
        other.kill()
        folder = self._folder(one)
        one.fs.swap_disk(other.fs, folder)
        self._scene.cluster.wire.without_disk.update((one.host, other.host))

        async def put_back() -> None:
            if put_back not in (*one.repairs, *other.repairs):
                return  # both may be repaired in any order: once is enough
            for node in (one, other):
                node.kill()
                if put_back in node.repairs:
                    node.repairs.remove(put_back)
            one.fs.swap_disk(other.fs, folder)
            self._scene.say(f"{folder} of {one.host} and {other.host} are where they belong")
            for node in (one, other):
                await self._start(node)

        async def try_to_start() -> None:
            for node in (one, other):
                await self._start(node)

        one.repairs.append(put_back)
        other.repairs.append(put_back)
        self._scene.spawn(try_to_start())
        length_s = self._scene.for_a_while(put_back)
        self._scene.say(f"{folder} of {one.host} and {other.host} are swapped for {length_s:.2f} s")
        return True

    # --- membership ------------------------------------------------------------------------------------------

    def _join(self) -> bool:
        cluster = self._scene.cluster
        if len(cluster.nodes) >= NODES_MAX:
            return False
        node = cluster.add_node(max(cluster.nodes) + 1)

        async def join() -> None:
            with suppress(Killed):
                if not node.running:
                    await node.start()

        self._scene.spawn(join())
        self._scene.say(f"{node.host} joins")
        return True

    def _drain(self) -> bool:
        node_id = self._scene.rng.choice(list(self._scene.cluster.nodes))
        if node_id not in self._scene.cluster.stored_state().nodes:
            return False  # it has joined, and nobody has heard it yet
        drain_node(self._scene, node_id)
        return True
