"""What may befall the one node of a story whose disks cannot be relied on, the victim: disks that fail, are lost, and a
node that is gone for good.

Invariants: what the guarantees allow, and no more: bytes are lost on one node at most, and not while others may need
            them; a disk that fails comes back, or is replaced by an empty one.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from tests.sim.disks.disk import SYNCS
from tests.sim.processes.node import SimNode
from tests.sim.troubles.nodes import POWER_CUT_MODES, go_down, running_nodes, start_node, used_folders
from tests.sim.troubles.troubles import Kind, Scene

DISK_ERRORS = "disk errors"
EXTENT = ".ext"
OFTEN_S = (0.5, 2.0, 8.0)  # how long disks fail,
RARELY_S = (4.0, 10.0)  # and if it is some calls alone: until one is made
READS = frozenset({"pread", "map"})
WRITES = frozenset({"pwrite"})
DATA_SYNCS = frozenset({"fdatasync"})  # those of appends
# Of a folder, or of its extents alone; syncs of those most of all: what is not durable after them is found out by the
# next power cut (T23).
FAILING = (
    (READS, ""),
    (WRITES, ""),
    (SYNCS, ""),
    (SYNCS, EXTENT),
    *((DATA_SYNCS, EXTENT),) * 6,
    (READS | WRITES | SYNCS, ""),
)


def victim_of(scene: Scene) -> SimNode:
    return scene.cluster.nodes[scene.victim]


def is_needed(scene: Scene) -> bool:
    """Whether others may need what the victim has: when it alone answered, a seal may keep what only it holds."""
    return any(
        extent.seal is not None and not extent.all_confirmed and scene.victim in extent.node_ids
        for extent in scene.cluster.stored_state().extents.values()
    )


class VictimTroubles:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._lost = False  # its disks were wiped, one of them or all, or it is gone

    def kinds(self) -> Sequence[Kind]:
        shape = self._scene.shape
        if shape.loses == "wipe":
            several = [Kind("one disk wiped", self._wipe_one, sharp=True)] if shape.disks > 1 else []
            return [Kind("disks wiped", self._wipe, sharp=True), *several]
        if shape.loses == "vanish":
            return [Kind("node vanishes", self._vanish)]
        if shape.loses == "errors":
            return [Kind(DISK_ERRORS, self._fail_disk, sharp=True, armed=True)]
        return []

    def _folder(self, node: SimNode) -> str:
        return self._scene.rng.choice([f"/disk{number}" for number in range(node.disks)])

    # --- loss ------------------------------------------------------------------------------------------------

    def _may_lose(self) -> bool:
        node = victim_of(self._scene)
        return not (self._lost or node.repairs or node not in running_nodes(self._scene) or is_needed(self._scene))

    def _wipe(self) -> bool:
        if not self._may_lose():
            return False
        node = victim_of(self._scene)
        self._lost = True
        self._scene.cluster.unreliable.add(node.node_id)
        node.kill()
        node.wipe()
        go_down(self._scene, node, "lost its disks")
        return True

    def _wipe_one(self) -> bool:
        """One of several disks is lost, with what the journal has for it. The node may go on without it for a while,
        and refuses the empty folder; then there is a new disk in its place, by another name, and the old one is given
        up."""
        scene = self._scene
        if not self._may_lose():
            return False
        node = victim_of(scene)
        self._lost = True
        scene.cluster.unreliable.add(node.node_id)
        used = used_folders(self._scene, node)
        number = int((scene.rng.choice(used) if used else self._folder(node)).removeprefix("/disk"))
        node.kill()
        node.fs.wipe(f"/disk{number}")

        async def replace() -> None:
            if replace in node.repairs:
                node.repairs.remove(replace)
            node.kill()
            node.replace_disk(number)
            scene.say(f"{node.host} has a new disk {number}")
            await start_node(scene, node)

        node.repairs.append(replace)
        if scene.rng.random() < 0.5:
            scene.spawn(start_node(scene, node))
        scene.say(f"{node.host} lost its disk {number}, for {scene.for_a_while(replace):.2f} s there is none")
        return True

    def _vanish(self) -> bool:
        if not self._may_lose():
            return False
        node = victim_of(self._scene)
        self._lost = True
        node.kill()
        node.gone = True
        self._scene.say(f"{node.host} is gone for ever")
        return True

    # --- errors ----------------------------------------------------------------------------------------------

    def _fail_disk(self) -> bool:
        """EIO from a folder of the victim: its reads, its writes or its syncs, some of them or all for a while."""
        node = self._scene.cluster.nodes[self._scene.victim]
        if node.repairs or node not in running_nodes(self._scene) or is_needed(self._scene):
            return False
        calls, files = self._scene.rng.choice(FAILING)
        used = used_folders(self._scene, node) if files else [self._folder(node), "/journal"]
        if not used:
            return False
        folder = self._scene.rng.choice(used)
        times = self._scene.rng.choice((1, 3, None))
        cold = self._scene.rng.random() < 0.5
        process, wire = node.process, self._scene.cluster.wire

        def fails(call: str, path: str) -> bool:
            if call not in calls or not path.startswith(folder + "/") or not path.endswith(files):
                return False
            if call in SYNCS and path.endswith(EXTENT):  # opened under its own name, or when it was made aside
                extent_id = int(path.rpartition("/")[2].removesuffix(EXTENT).partition("-")[0], 16)
                wire.sync_failed(node.host, extent_id, lives=lambda: node.process is process)
            self._scene.cluster.unreliable.add(node.node_id)
            self._scene.hit(DISK_ERRORS)
            return True

        fault = node.fs.fail(errno.EIO, match=fails, times=times)

        async def replug() -> None:
            """A disk that failed is used again after a restart only, of the process or of the machine."""
            if replug in node.repairs:
                node.repairs.remove(replug)
            fault.clear()
            if cold:
                node.power_cut(self._scene.rng.choice(POWER_CUT_MODES))
            else:
                node.kill()
            await start_node(self._scene, node)

        node.repairs.append(replug)
        length_s = self._scene.for_a_while(replug, lengths_s=RARELY_S if files else OFTEN_S)
        what = "/".join(sorted(calls))
        where = f"{folder}{'/*' + files if files else ''} of {node.host}"
        self._scene.say(f"{where} fails {what}, {times or 'all'} times, for {length_s:.2f} s")
        return True
