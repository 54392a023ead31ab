"""Which files a node may have when nobody asks for anything: all others are leaks, and take room for ever.

    leaked_files(node, extents)      every file below its disks and in its journal's folder that no rule lets stay

Of a disk (extent_node/disk/disk.py has the folders):

    disk.json, boot.json     its labels, and what is beside them for the next writing; `lock`
    extents/ab/<id>.ext      if a record gives this node the extent, and its store serves it from this very disk
    extents/ab/<id>.idx      if that extent is beside it, and sealed: an index is of a sealed extent
    quarantine/              if its store knows that something of this extent is in quarantine: it stays for a person
    tombstones/              if its store knows a tombstone of the extent, of this order or a later one
    tmp/, trash/             nothing: copies are over, and the trash's delay is a few seconds in a story

Of the journal's folder (extent_node/journal/folder.py): its label, and what is beside it; `lock`; segments that the
label counts, and one behind them: it is what a growing left that did not reach the label, and the next one takes its
place.

Invariants: it looks at all files; whatever no rule names is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from neve.extent_node.disk import disk as disks
from neve.extent_node.disk.disk import Disk
from neve.extent_node.disk.labels import ASIDE_SUFFIX
from neve.extent_node.journal import folder as journal_label
from neve.extent_node.store.state import StoreState
from neve.stream_manager.metadata.records import Extent
from tests.sim.processes.node import JOURNAL, SimNode

DISK_FILES = frozenset(
    {disks.LABEL, disks.LABEL + ASIDE_SUFFIX, disks.BOOT, disks.BOOT + ASIDE_SUFFIX, disks.LOCK},
)
JOURNAL_FILES = frozenset({journal_label.LABEL, journal_label.LABEL + ASIDE_SUFFIX, journal_label.LOCK})

Allows = Callable[[str], bool]  # of a name in a folder


def leaked_files(node: SimNode, extents: Mapping[int, Extent]) -> list[str]:
    """`extents`: all that metadata has. The node runs."""
    store = node.store.state
    used = {disk.folder: disk for disk in store.disks.values()}
    found = []
    for number in range(node.disks):
        folder = f"/disk{number}"
        disk = used.get(folder)  # one that was refused is not the node's to tidy up
        if disk is not None:
            given = {each for each, extent in extents.items() if node.node_id in extent.node_ids}
            found += [path for path in node.fs.files_below(folder) if not _belongs_on_disk(path, disk, store, given)]
    slots = store.journal.label.slots
    segments = {journal_label.slot_path(JOURNAL, slot) for slot in range(slots + 1)}
    labels = {f"{JOURNAL}/{name}" for name in JOURNAL_FILES}
    found += [path for path in node.fs.files_below(JOURNAL) if path not in segments and path not in labels]
    return [f"{path} on {node.host}" for path in found]


def _belongs_on_disk(path: str, disk: Disk, store: StoreState, given: set[int]) -> bool:
    """`given`: the extents that records give this node."""
    folder, _, name = path.removeprefix(disk.folder + "/").rpartition("/")
    if not folder:
        return name in DISK_FILES
    if folder == disks.QUARANTINE:
        return _extent_id(name.partition("-")[0]) in store.quarantined
    if folder == disks.TOMBSTONES:
        parsed = disks._parse_tombstone_name(name)
        known = store.tombstones.get(parsed[0]) if parsed is not None else None
        return parsed is not None and known is not None and known.eversion >= parsed[1]
    if not folder.startswith(disks.EXTENTS + "/"):
        return False  # tmp, trash, and whatever else somebody may have made
    extent_id = _extent_id(name.partition(".")[0])
    served = store.replicas.get(extent_id)
    if served is None or served.disk is not disk or extent_id not in given:
        return False
    if path == disk.index_path(extent_id):
        return served.state.seal is not None
    return path == disk.extent_path(extent_id)


def _extent_id(digits: str) -> int:
    """0, which is nobody's, if it is none."""
    try:
        return int(digits, 16)
    except ValueError:
        return 0
