"""A journal's folder: its label, its segment files, and how a new journal is made.

Invariants: the label is written last when a journal is made, and first when segments change their meaning;
            a folder that is not a journal of this node is refused by name.
"""

from __future__ import annotations

import logging
import os
import uuid
from dataclasses import dataclass
from typing import Any

from neve.extent_node.disk.file_system import FileSystem
from neve.extent_node.disk.labels import LabelDamaged, make_folder, read_label, write_all, write_label
from neve.extent_node.journal.format import FORMAT_VERSION, SEGMENT_BYTES_MIN
from neve.extent_node.journal.segment_reader import MEDIUM_ERRORS

log = logging.getLogger(__name__)

LABEL = "journal.json"
LOCK = "lock"

SEGMENT_BYTES_DEFAULT = 64 << 20
# The most segments in the ring. Bounds the disk space, and the bytes that a restart replays.
SEGMENTS_MAX_DEFAULT = 8
FIRST_NUMBER = 1  # of a journal's segments
# Files are prewritten in pieces of this size, so that making a segment does not need a segment of memory.
_PREWRITE_BYTES = 1 << 20


class JournalRefused(Exception):
    """This folder cannot be used as the node's journal; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A segment that some disks still need.

    It is not used again before those disks have its records, or the operator gives them up.
    """

    number: int
    slot: int
    end_position: int  # behind its last record: if the unbroken run ends before, records are lost
    disks: tuple[int, ...]  # short ids

    def fields(self) -> dict[str, Any]:
        disks = [f"{disk:016x}" for disk in self.disks]
        return {"number": self.number, "slot": self.slot, "end": self.end_position, "disks": disks}


def _kept(fields: dict[str, Any]) -> Kept:
    return Kept(fields["number"], fields["slot"], fields["end"], tuple(int(disk, 16) for disk in fields["disks"]))


@dataclass(frozen=True, slots=True)
class JournalLabel:
    """The content of `journal.json`."""

    uuid: str
    cluster: str
    node_id: int
    segment_bytes: int
    slots: int  # segment files that exist; a missing one is a hole
    fresh_from: int  # segments with lower numbers were replayed and are not needed
    in_use: bool = False  # False after a clean stop: no extent depends on any record
    # Disks that failed during use, or whose records were given up. Page cache and journal prove nothing about their
    # open replicas, which become doubtful when the disk returns.
    distrusted_disks: tuple[int, ...] = ()  # short ids
    kept: tuple[Kept, ...] = ()  # independent of `fresh_from` and `in_use`
    # Slots whose files could not be read or written. They are neither read nor used again, except for kept segments.
    bad_slots: tuple[int, ...] = ()

    @property
    def never_used(self) -> bool:
        """The journal was made, and no process has started on it since: nothing stored depends on it."""
        return not self.in_use and self.fresh_from == FIRST_NUMBER and not (self.kept or self.bad_slots)

    @property
    def slots_usable(self) -> list[int]:
        """The slots that the ring may use."""
        taken = {*self.bad_slots, *(kept.slot for kept in self.kept)}
        return [slot for slot in range(self.slots) if slot not in taken]

    def fields(self) -> dict[str, Any]:
        return {
            "format": FORMAT_VERSION,
            "uuid": self.uuid,
            "cluster": self.cluster,
            "node_id": self.node_id,
            "segment_bytes": self.segment_bytes,
            "slots": self.slots,
            "fresh_from": self.fresh_from,
            "in_use": self.in_use,
            "distrusted_disks": [f"{disk:016x}" for disk in self.distrusted_disks],
            "kept": [kept.fields() for kept in self.kept],
            "bad_slots": list(self.bad_slots),
        }


def slot_path(folder: str, slot: int) -> str:
    return os.path.join(folder, f"{slot:04d}.seg")


def format_journal(
    fs: FileSystem,
    folder: str,
    *,
    cluster: str,
    node_id: int,
    journal_uuid: uuid.UUID,
    segment_bytes: int = SEGMENT_BYTES_DEFAULT,
    slots: int = 2,
    in_use: bool = False,
) -> str:
    """Make a new journal in an empty folder; returns the uuid, which the node's disks then name.

    `in_use`: the journal replaces an earlier one, so it is not `never_used` at first.
    """
    if segment_bytes < SEGMENT_BYTES_MIN:
        raise ValueError(f"a journal segment of {segment_bytes} bytes is below the minimum of {SEGMENT_BYTES_MIN}")
    make_folder(fs, folder)
    strangers = [name for name in fs.list_dir(folder) if not (name.endswith((".seg", ".new")) or name == "lost+found")]
    if strangers:
        raise JournalRefused(
            f"{folder} is not empty (it has {strangers[0]!r}): a journal is made in an empty folder only"
        )
    for slot in range(slots):
        make_segment(fs, folder, slot, segment_bytes)
    label = JournalLabel(str(journal_uuid), cluster, node_id, segment_bytes, slots, FIRST_NUMBER, in_use)
    write_label(fs, folder, LABEL, label.fields())  # last: without it there is no journal
    log.info("journal_formatted folder=%s uuid=%s segment_bytes=%d", folder, label.uuid, segment_bytes)
    return label.uuid


def make_segment(fs: FileSystem, folder: str, slot: int, segment_bytes: int) -> None:
    """Make a segment file whose blocks are all written, so that later writes allocate nothing."""
    path = slot_path(folder, slot)
    if fs.stat(path) is not None:
        fs.unlink(path)  # left from an earlier attempt that did not reach the label
    fd = fs.open(path, create=True, exclusive=True)
    try:
        zeros = bytes(min(_PREWRITE_BYTES, segment_bytes))
        for offset in range(0, segment_bytes, len(zeros)):
            write_all(fs, fd, zeros[: segment_bytes - offset], offset)
        fs.fsync(fd)
    except OSError:
        fs.unlink(path)  # otherwise it would fill the disk, and the label could not be written any more
        raise
    finally:
        fs.close(fd)
    fs.fsync_dir(folder)


def remove_beyond(fs: FileSystem, folder: str, slots: int) -> None:
    """Remove segment files that the label does not count: they are of an interrupted growth."""
    known = {os.path.basename(slot_path(folder, slot)) for slot in range(slots)}
    for name in fs.list_dir(folder):
        if name.endswith(".seg") and name not in known:
            fs.unlink(os.path.join(folder, name))


def read_journal_label(fs: FileSystem, folder: str) -> JournalLabel:
    """The folder's label; JournalRefused if it is not a journal of this format."""
    try:
        fields = read_label(fs, folder, LABEL)
    except OSError as error:
        if error.errno not in MEDIUM_ERRORS:
            raise
        raise JournalRefused(
            f"{folder} has a {LABEL} that cannot be read ({error}): copy the folder to another disk; if the journal is "
            "lost, move the folder away and format a new one"
        ) from error
    except LabelDamaged as error:
        raise JournalRefused(f"{error}: if the journal is lost, move the folder away and format a new one") from error
    if fields is None:
        raise JournalRefused(
            f"{folder} has no {LABEL}: mount the journal's folder; if it is lost, format a new one, and replicas that "
            "may have depended on it will be doubtful"
        )
    if fields.get("format") != FORMAT_VERSION:
        raise JournalRefused(
            f"{folder} has journal format {fields.get('format')}, this build knows {FORMAT_VERSION}: use a newer build"
        )
    return JournalLabel(
        uuid=fields["uuid"],
        cluster=fields["cluster"],
        node_id=fields["node_id"],
        segment_bytes=fields["segment_bytes"],
        slots=fields["slots"],
        fresh_from=fields["fresh_from"],
        in_use=fields["in_use"],
        distrusted_disks=tuple(int(disk, 16) for disk in fields["distrusted_disks"]),
        kept=tuple(_kept(entry) for entry in fields.get("kept", ())),
        bad_slots=tuple(fields.get("bad_slots", ())),
    )
