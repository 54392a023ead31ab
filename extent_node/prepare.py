"""Before a node starts: which folders are its disks and its journal, what its id is, and what may be formatted.

Invariants: folders are formatted by themselves only for a node that has nothing at all yet. An empty folder beside
            disks or a journal that exist may be a disk that was wiped, or one that is not mounted: it is refused by
            name, and becomes a new disk only by the operator's word (`--format-disk`) (T32). The same holds for the
            journal (`--format-journal`): a new one in place of one that is not mounted would cost what is in it.
Neighbours: `disk.py` and `journal_label.py` format; `server.py` calls this first.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from neve.extent_node import disk as disks
from neve.extent_node import journal_label as journals
from neve.extent_node.disk import DiskRefused, format_disk, read_disk_label
from neve.extent_node.fs import FileSystem
from neve.extent_node.journal_label import format_journal, read_journal_label


@dataclass(frozen=True, slots=True)
class Found:
    """What the configured folders are now."""

    labelled: dict[str, int]  # disk folder → the node id that its label says
    unlabelled: list[str]  # disk folders without a label
    journal_node_id: int | None  # None: the journal's folder has no label


def look(fs: FileSystem, disk_folders: Sequence[str], journal_folder: str) -> Found:
    labelled: dict[str, int] = {}
    unlabelled: list[str] = []
    for folder in disk_folders:
        if fs.stat(os.path.join(folder, disks.LABEL)) is None:
            unlabelled.append(folder)
        else:
            labelled[folder] = read_disk_label(fs, folder).node_id
    journal_node_id = None
    if fs.stat(os.path.join(journal_folder, journals.LABEL)) is not None:
        journal_node_id = read_journal_label(fs, journal_folder).node_id
    return Found(labelled, unlabelled, journal_node_id)


def settled_node_id(found: Found, configured: int) -> int:
    """The id that labels and configuration agree on; 0 if there is none yet; DiskRefused if they disagree."""
    claims = {f"disk {folder}": node_id for folder, node_id in found.labelled.items()}
    if found.journal_node_id is not None:
        claims["the journal"] = found.journal_node_id
    if configured:
        claims["the configuration"] = configured
    if len(set(claims.values())) > 1:
        said = ", ".join(f"{who} says {node_id}" for who, node_id in claims.items())
        raise DiskRefused(f"which node is this? {said}: mount the disks of one node, or correct node_id")
    return next(iter(claims.values()), 0)


def disks_to_format(found: Found, *, automatic: bool, by_word: Sequence[str]) -> list[str]:
    """Folders that may be formatted; DiskRefused names one that may not be and has no label."""
    for folder in by_word:
        if folder in found.labelled:
            raise DiskRefused(f"{folder} is a disk already: it is not formatted again")
        if folder not in found.unlabelled:
            raise DiskRefused(f"{folder} is not one of the configured disks")
    brand_new = not found.labelled and found.journal_node_id is None
    if automatic and brand_new:
        return list(found.unlabelled)
    for folder in found.unlabelled:
        if folder not in by_word:
            raise DiskRefused(
                f"{folder} has no {disks.LABEL}, and this node has been used before: the disk was wiped or is not "
                f"mounted. Mount it; or, to use the folder as a new disk, start once with --format-disk {folder}"
            )
    return list(by_word)


async def prepare(
    fs: FileSystem,
    *,
    cluster: str,
    disk_folders: Sequence[str],
    journal_folder: str,
    configured_node_id: int,
    automatic: bool,
    by_word: Sequence[str],
    format_journal_by_word: bool,
    journal_segment_bytes: int,
    ask_for_id: Callable[[], Awaitable[int]],
    rng: random.Random,
) -> int:
    """Make the folders ready and return the node's id; asks the manager for one if nobody knows it yet."""
    found = look(fs, disk_folders, journal_folder)
    to_format = disks_to_format(found, automatic=automatic, by_word=by_word)
    node_id = settled_node_id(found, configured_node_id) or await ask_for_id()
    if found.journal_node_id is None:
        if not (format_journal_by_word or (automatic and not found.labelled)):
            raise DiskRefused(
                f"{journal_folder} has no {journals.LABEL}, and this node has disks that depend on a journal: mount "
                "its folder; or, if it is lost, start once with --format-journal, and replicas that may have depended "
                "on it will be doubtful"
            )
        journal_uuid = format_journal(
            fs,
            journal_folder,
            cluster=cluster,
            node_id=node_id,
            journal_uuid=_uuid(rng),
            segment_bytes=journal_segment_bytes,
        )
    else:
        journal_uuid = read_journal_label(fs, journal_folder).uuid
    for folder in to_format:
        format_disk(fs, folder, cluster=cluster, node_id=node_id, disk_uuid=_uuid(rng), journal_uuid=journal_uuid)
    return node_id


def _uuid(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)
