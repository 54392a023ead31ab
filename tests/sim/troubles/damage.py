"""Bits that flip on the disks of the one node of a story whose disks cannot be relied on: in sealed replicas and their
indexes, in open ones, in attributes, in the journal and in labels.

Invariants: within what the guarantees allow: one node's bytes, and not what others may need; one bit of the journal
            between two starts: two in one record pass for a torn write (docs/formats/journal.md);
            a label by which a node refuses its disk or its journal is put right by somebody after a while: restored,
            or, of a journal, by a new one.
"""

from __future__ import annotations

from collections.abc import Sequence

from neve.extent_node.disk import attributes
from neve.extent_node.disk.disk import BOOT, LABEL, index_path
from neve.extent_node.journal.folder import LABEL as JOURNAL_LABEL
from neve.extent_node.journal.folder import read_journal_label, slot_path
from neve.extent_node.journal.format import Record, crc_seed, find_records
from neve.stream_manager.metadata.records import Extent
from tests.sim.processes.node import JOURNAL, SimNode
from tests.sim.troubles.nodes import POWER_CUT_MODES, go_down, running_nodes, start_node, used_folders
from tests.sim.troubles.troubles import Kind, Scene
from tests.sim.troubles.victim import victim_of

IN_SEALED, IN_TAIL = "bits flipped", "bits flipped in a tail"
IN_JOURNAL, IN_LABEL = "bits flipped in a journal", "bits flipped in a label"
HEADER_BYTES = 48  # of a segment
LAST_RECORDS = 3  # of a journal: nobody needs most of those before


class DamageTroubles:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def kinds(self) -> Sequence[Kind]:
        if self._scene.shape.loses != "damage":
            return ()
        return (
            Kind(IN_SEALED, self._flip_sealed),
            Kind(IN_TAIL, self._flip_tail, sharp=True, armed=True),
            Kind(IN_JOURNAL, self._flip_journal, sharp=True, armed=True),
            Kind(IN_LABEL, self._flip_label, sharp=True),
        )

    def _begin(self) -> SimNode | None:
        """The victim, if it may be hit: with another node's disk in it, that one would be."""
        node = victim_of(self._scene)
        return None if node.repairs else node

    def _mark(self, node: SimNode) -> None:
        self._scene.cluster.unreliable.add(node.node_id)
        self._scene.cluster.wire.damaged.add(node.host)

    def _flip(self, node: SimNode, path: str, *, start: int = 0, end: int | None = None) -> tuple[int, int]:
        """One bit of these bytes of a file; which one."""
        rng = self._scene.rng
        byte = rng.randrange(start, len(node.fs.content(path)) if end is None else end)
        bit = rng.randrange(8)
        node.fs.flip(path, byte, bit)
        return byte, bit

    def _held(self, node: SimNode, *, sealed: bool) -> list[tuple[Extent, str]]:
        """What the victim has of extents that are confirmed everywhere, or of open ones, with the paths."""
        extents = self._scene.cluster.stored_state().extents.values()
        wanted = [each for each in extents if (each.all_confirmed if sealed else each.seal is None)]
        paths = [
            (extent, node.extent_path(extent.extent_id, number))
            for extent in wanted
            for number in range(node.disks)
            if node.node_id in extent.node_ids
        ]
        return [(extent, path) for extent, path in paths if node.fs.peek(path, 0, 1)]

    # --- extents ---------------------------------------------------------------------------------------------

    def _flip_sealed(self) -> bool:
        """In the bytes, or in the index beside them."""
        node, rng = self._begin(), self._scene.rng
        if node is None or not (held := self._held(node, sealed=True)):
            return False
        self._mark(node)
        extent, path = rng.choice(held)
        index = index_path(path.split("/extents/")[0], extent.extent_id)
        what = "extent"
        if rng.random() < 0.2 and node.fs.peek(index, 0, 1):
            path, what = index, "the index of extent"
        byte, _ = self._flip(node, path)
        self._scene.say(f"a bit flips in {what} {extent.extent_id} on {node.host}, at {byte}")
        return True

    def _flip_tail(self) -> bool:
        """In the bytes of an open replica, or in its attributes. Its node runs on, and knows nothing of it until a
        restart or the seal; or it is found by the start that follows."""
        node, scene = self._begin(), self._scene
        if node is None or not (held := self._held(node, sealed=False)):
            return False
        extent, path = scene.rng.choice(held)
        how = scene.rng.choice(("runs on", "is killed", "loses power"))
        runs = node in running_nodes(scene)
        if runs and how != "runs on":
            node.kill() if how == "is killed" else node.power_cut(scene.rng.choice(POWER_CUT_MODES))
        self._mark(node)
        if (not runs or how != "runs on") and scene.rng.random() < 0.3:
            where = node.fs.flip_xattr(path, scene.rng.choice(attributes.ALL), scene.rng)
        elif node.fs.peek(path, 0, 1):
            where = f"byte {self._flip(node, path)[0]}"
        else:
            where = ""  # its bytes were never synced, and went with the power
        if where:
            scene.hit(IN_TAIL)
        told = f"a bit flips in the open extent {extent.extent_id} on {node.host}, {where or 'nowhere'}"
        if runs and how != "runs on":
            go_down(scene, node, f"{told}; it {how},")
        else:
            scene.say(told)
        return True

    # --- the journal -----------------------------------------------------------------------------------------

    def _flip_journal(self) -> bool:
        """In one of its last records, or in a segment's header, while the node is down: found by the next start."""
        node, scene = self._begin(), self._scene
        if node is None or node not in running_nodes(scene):
            return False
        if not self._journaled(node):
            return False
        mode = scene.rng.choice((None, *POWER_CUT_MODES, *POWER_CUT_MODES))  # with a page cache nobody needs it
        node.kill() if mode is None else node.power_cut(mode)
        if records := self._journaled(node):
            scene.hit(IN_JOURNAL)
            self._mark(node)
            record, path = scene.rng.choice(records)
            start, end = (record.position, record.end_position) if scene.rng.random() < 0.9 else (0, HEADER_BYTES)
            byte, _ = self._flip(node, path, start=start, end=end)
            told = f"a bit flips in the journal, {path} at {byte}, {_what(record) if start else 'the header'};"
        else:
            told = "nothing is left in the journal;"
        go_down(scene, node, f"{told} {'killed' if mode is None else f'no power, {mode}'}")
        return True

    def _journaled(self, node: SimNode) -> list[tuple[Record, str]]:
        """Its last records, and the paths of their segments."""
        seed = crc_seed(node.journal_uuid.bytes)
        label = read_journal_label(node.fs, JOURNAL)
        paths = [slot_path(JOURNAL, slot) for slot in range(label.slots)]
        found = [(record, path) for path in paths for record in find_records(node.fs.content(path), 0, seed)]
        return sorted(found, key=lambda each: each[0].lsn)[-LAST_RECORDS:]

    # --- labels ----------------------------------------------------------------------------------------------

    def _flip_label(self) -> bool:
        """No byte of an extent is lost by it: what the node has answered for is still there when it is put right."""
        node, scene = self._begin(), self._scene
        if node is None or node not in running_nodes(scene):
            return False
        disk = scene.rng.choice(used_folders(scene, node) or [f"/disk{number}" for number in range(node.disks)])
        node.kill() if scene.rng.random() < 0.3 else node.power_cut(scene.rng.choice(POWER_CUT_MODES))
        path = scene.rng.choice((f"{disk}/{LABEL}", f"{disk}/{BOOT}", f"{JOURNAL}/{JOURNAL_LABEL}"))
        byte, bit = self._flip(node, path)
        if path.endswith(BOOT):  # believed by nobody: another boot, and an unclean stop
            go_down(scene, node, f"a bit flips in {path}; down")
            return True
        scene.cluster.wire.without_disk.add(node.host)
        renewed = path.startswith(JOURNAL) and scene.rng.random() < 0.5

        async def put_right() -> None:
            if put_right in node.repairs:
                node.repairs.remove(put_right)
            node.kill()
            if renewed:
                self._mark(node)  # what was in the old one is lost
                node.renew_journal()
            else:
                node.fs.flip(path, byte, bit)
            scene.say(f"{path} of {node.host} is {'made anew' if renewed else 'restored'}")
            await start_node(scene, node)

        node.repairs.append(put_right)
        scene.spawn(start_node(scene, node))
        scene.say(
            f"a bit flips in {path} of {node.host}, and nobody puts it right for {scene.for_a_while(put_right):.2f} s"
        )
        return True


def _what(record: Record) -> str:
    return "an end" if record.is_end else f"extent {record.extent_id} from {record.offset} on"
