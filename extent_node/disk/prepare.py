"""Prepares a node's folders before it starts: finds its disks and journal, its id, and what may be formatted.

Invariants: folders are formatted automatically only for a node without any sign of earlier use: all folders are empty,
            no disk's uuid is configured, and neither is its id, unless the operator sets `format_empty_disks`.
            Otherwise an empty folder may be a disk that was wiped or is not mounted: it is refused by name, and becomes
            a new disk only with `--format-disk` (scenario T32). The same holds for the journal (`--format-journal`): a
            new journal in place of one that is not mounted would lose its records;
            a folder whose disk's uuid is configured is never formatted: the node starts without it and reports it;
            the next start continues an interrupted first start: as long as no process has started on the journal, and
            every disk present was made for that journal, nothing was stored that could be missing.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from neve.extent_node.disk import disk as disks
from neve.extent_node.disk.disk import DiskRefused, format_disk, read_disk_label
from neve.extent_node.disk.file_system import FileSystem
from neve.extent_node.journal import folder as journals
from neve.extent_node.journal.folder import format_journal, read_journal_label


@dataclass(frozen=True, slots=True)
class FoldersFound:
    """The present state of the configured folders."""

    labelled: dict[str, int]  # disk folder → the node id in its label
    unlabelled: list[str]  # disk folders without a label
    journal_node_id: int | None  # None: the journal's folder has no label
    unreadable: dict[str, str] = field(default_factory=dict)  # disk folders whose label cannot be read, and why
    # No process has started on the journal, and all disks present name it: they are of an interrupted first start.
    begun: bool = False

    @property
    def is_unused(self) -> bool:
        """Whether nothing here shows that this node has ever served."""
        return not self.unreadable and (self.begun or not (self.labelled or self.journal_node_id is not None))


def inspect_folders(fs: FileSystem, disk_folders: Sequence[str], journal_folder: str) -> FoldersFound:
    labelled: dict[str, int] = {}
    journals_named: set[str] = set()
    unlabelled: list[str] = []
    unreadable: dict[str, str] = {}
    for folder in disk_folders:
        try:
            if fs.stat(os.path.join(folder, disks.LABEL)) is None:
                unlabelled.append(folder)
            else:
                label = read_disk_label(fs, folder)
                labelled[folder] = label.node_id
                journals_named.add(label.journal_uuid)
        except (OSError, DiskRefused) as error:  # one bad disk does not stop the node: the store refuses it by name
            unreadable[folder] = str(error)
    journal_node_id, begun = None, False
    if fs.stat(os.path.join(journal_folder, journals.LABEL)) is not None:
        journal = read_journal_label(fs, journal_folder)
        journal_node_id = journal.node_id
        begun = journal.never_used and journals_named <= {journal.uuid}
    if unreadable and not labelled and journal_node_id is None:
        raise DiskRefused("; ".join(unreadable.values()))  # no label gives the node's id
    return FoldersFound(labelled, unlabelled, journal_node_id, unreadable, begun)


def agreed_node_id(folders: FoldersFound, configured: int) -> int:
    """The id that labels and configuration agree on; 0 if there is none yet; DiskRefused if they disagree."""
    claims = {f"disk {folder}": node_id for folder, node_id in folders.labelled.items()}
    if folders.journal_node_id is not None:
        claims["the journal"] = folders.journal_node_id
    if configured:
        claims["the configuration"] = configured
    if len(set(claims.values())) > 1:
        said = ", ".join(f"{source} says {node_id}" for source, node_id in claims.items())
        raise DiskRefused(f"which node is this? {said}: mount the disks of one node, or correct node_id")
    return next(iter(claims.values()), 0)


def disks_to_format(
    folders: FoldersFound, *, automatic: bool, by_operator: Sequence[str], expected: Mapping[str, str]
) -> list[str]:
    """The folders to format; DiskRefused names one that has no label and may not be formatted.

    `expected`: folder → uuid of its disk. Such a folder without a label is left to the store, which starts without it.
    """
    for folder in by_operator:
        if folder in folders.labelled:
            if folders.begun:
                continue  # the interrupted start formatted it at the same order
            raise DiskRefused(f"{folder} is a disk already: it is not formatted again")
        if folder in folders.unreadable:
            raise DiskRefused(f"{folder} seems to be a disk that cannot be read: {folders.unreadable[folder]}")
        if folder not in folders.unlabelled:
            raise DiskRefused(f"{folder} is not one of the configured disks")
        if expected.get(folder):
            raise DiskRefused(
                f"disk {expected[folder]} is configured for {folder}: a new one has another uuid. Remove the uuid from "
                "the configuration first; what is lost with the old disk is recovered elsewhere"
            )
    unknown = [folder for folder in folders.unlabelled if not expected.get(folder)]
    brand_new = folders.is_unused and not any(expected.values())
    if automatic and brand_new:
        return unknown
    for folder in unknown:
        if folder not in by_operator:
            why = "this node has been used before" if not brand_new else "nothing says that this node is a new one"
            raise DiskRefused(
                f"{folder} has no {disks.LABEL}, and {why}: the disk was wiped or is not mounted. Mount it; or, to use "
                f"the folder as a new disk, start once with --format-disk {folder}"
            )
    return [folder for folder in by_operator if folder not in folders.labelled]


async def prepare(
    fs: FileSystem,
    *,
    cluster: str,
    disk_folders: Sequence[str],
    journal_folder: str,
    configured_node_id: int,
    automatic: bool,
    by_operator: Sequence[str],
    format_missing_journal: bool,
    journal_segment_bytes: int,
    fetch_node_id: Callable[[], Awaitable[int]],
    rng: random.Random,
    expected_uuids: Mapping[str, str] | None = None,
) -> int:
    """Make the folders ready and return the node's id. Requests one from the manager if no label or setting has it."""
    expected = expected_uuids or {}
    folders = inspect_folders(fs, disk_folders, journal_folder)
    to_format = disks_to_format(folders, automatic=automatic, by_operator=by_operator, expected=expected)
    node_id = agreed_node_id(folders, configured_node_id)
    if not node_id and any(expected.values()):
        raise DiskRefused(
            "which node is this? No disk and no journal gives its id, and the configuration names disks of a node "
            "that was used before: mount them, or set node_id"
        )
    node_id = node_id or await fetch_node_id()
    if folders.journal_node_id is None:
        if not (
            format_missing_journal
            or (automatic and not folders.labelled and not folders.unreadable and not any(expected.values()))
        ):
            raise DiskRefused(
                f"{journal_folder} has no {journals.LABEL}, and this node may have disks that depend on a journal: "
                "mount its folder; or, if it is lost or this node is a new one, start once with --format-journal, and "
                "replicas that may have depended on it will be doubtful"
            )
        journal_uuid = format_journal(
            fs,
            journal_folder,
            cluster=cluster,
            node_id=node_id,
            journal_uuid=_uuid(rng),
            segment_bytes=journal_segment_bytes,
            # A journal for used disks: if this start fails and the next finds no disks, this is still no new node.
            in_use=bool(folders.labelled or folders.unreadable or any(expected.values())),
        )
    else:
        journal_uuid = read_journal_label(fs, journal_folder).uuid
    for folder in to_format:
        format_disk(fs, folder, cluster=cluster, node_id=node_id, disk_uuid=_uuid(rng), journal_uuid=journal_uuid)
    return node_id


def _uuid(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)
