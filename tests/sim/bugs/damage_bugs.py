"""Deliberate bugs about bytes that are there and wrong, and about disks that are not there: what rules 12 and 13 say of
damage, undone.

Invariants: as in bugs.py: nothing outside of a bug's context is changed.
"""

from __future__ import annotations

from typing import Any

from neve.extent_node import core
from neve.extent_node.disk.disk import BOOT, Boot, Disk
from neve.extent_node.disk.labels import LabelDamaged, read_label
from neve.extent_node.journal import replay as journal_replay
from neve.extent_node.journal.format import scan_segment
from neve.extent_node.store.replay import Replay
from tests.sim.bugs.bugs import bug
from tests.sim.troubles.swarm import Shape


def _damages(shape: Shape) -> bool:
    return shape.loses == "damage"


@bug("damage in a tail is a torn write", origin="rule 13", suits=_damages, needs=("bits flipped in a tail",))
def _cuts_damage(change: Any) -> None:
    """Whatever is wrong in an open replica is cut on start, and nothing is in doubt."""

    def wrong(*, problem: Any, known_durable_end: int) -> Any:
        return core.KeepTail() if problem is None else core.CutTail(problem.offset)

    change(core, "decide_tail", wrong)


@bug(
    "damage in the journal is a torn write",
    origin="rule 13",
    suits=lambda shape: _damages(shape) and shape.sync and shape.eager_journal,
    needs=("bits flipped in a journal",),
)
def _ends_at_damage(change: Any) -> None:
    """The journal ends at its first record that cannot be read, whatever comes behind it, or is promised there."""

    def wrong(data: Any, journal_uuid: bytes) -> Any:
        found = scan_segment(data, journal_uuid)
        found.durable_through = 0
        return found

    change(journal_replay, "scan_segment", wrong)
    change(journal_replay, "find_damage", lambda *place: iter(()))


@bug(
    "a damaged boot label is one of this boot",
    origin="rule 12",
    suits=lambda shape: _damages(shape) and not shape.sync,
    needs=("bits flipped in a label",),
)
def _believes_boot(change: Any) -> None:
    """A label that cannot be read counts as one that says that all is well."""
    last_boot = Disk.last_boot

    def wrong(self: Any) -> Boot | None:
        try:
            read_label(self.fs, self.folder, BOOT)
        except LabelDamaged:
            return Boot(self.fs.boot_id(), clean=False, mount_id=self.fs.mount_id(self.folder))
        return last_boot(self)

    change(Disk, "last_boot", wrong)


@bug(
    "a disk that is away loses its journal",
    origin="T25, rule 11",
    suits=lambda shape: _damages(shape) and shape.sync and shape.eager_journal and shape.disks > 1,
    needs=("bits flipped in a label",),
)
def _forgets_absent(change: Any) -> None:
    """What the journal has of a disk that is not here is not kept for it."""
    change(Replay, "keep", lambda self, record: None)
