"""Which errors in the log a story's own troubles explain: any other one is a bug, whatever else went well.

An ERROR asks a person to look. In a story somebody has flipped bits, swapped disks or cut the power, and should be told
so; but a handler that failed, or a disk that is offline in a story in which no disk failed, is nobody's doing.

Invariants: an event that is not listed here is never explained;
            what happens to the victim's disks alone explains nothing that another node says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

ERRORS = frozenset({"disk errors"})
IN_TAIL = frozenset({"bits flipped in a tail"})
IN_JOURNAL = frozenset({"bits flipped in a journal"})
IN_LABEL = frozenset({"bits flipped in a label"})
FLIPS = IN_TAIL | {"bits flipped"}
DAMAGE = FLIPS | IN_JOURNAL | IN_LABEL  # nodes lose power by it, too
FULL = frozenset({"disk full"})
SWAPS = frozenset({"disks swapped"})
WIPES = frozenset({"disks wiped", "one disk wiped"})
POWER = frozenset(
    {
        "disk remounted",
        "owner dies, replica loses power",
        "power cut",
        "power cut everywhere",
        "power cut, and killed again",
    }
)
LEADING = frozenset(
    {
        "clock runs fast or slow",
        "manager killed",
        "manager resigns",
        "manager stopped",
        "metadata compacted",
        "metadata maybe applied",
        "metadata refuses",
        "metadata slow",
        "metadata stalls",
        "metadata unavailable",
        "watches interrupted",
    }
)
VICTIMS = ERRORS | DAMAGE | WIPES  # what befalls one node of a story at most
ANY: frozenset[str] = frozenset()  # one of whatever kind, and not none

EXPLAINED: Mapping[str, frozenset[str]] = {
    "bad_replica_found": ERRORS | DAMAGE | WIPES | SWAPS | POWER,
    "boot_label_damaged": IN_LABEL,
    "boot_label_not_written": ERRORS | FULL,
    "copy_failed": ANY,  # whatever keeps its sources from being read
    "disk_gone": ERRORS | IN_LABEL | WIPES | SWAPS,
    "disk_offline": ERRORS,
    "disk_refused": ERRORS | IN_LABEL | WIPES | SWAPS,
    "housekeeping_failed": ERRORS | FULL,
    "journal_changed": IN_LABEL,
    "journal_failed": ERRORS | FULL,
    "journal_hole": ERRORS | IN_JOURNAL,
    "journal_label_not_written": ERRORS | FULL,
    "journal_record_damaged": ERRORS | IN_JOURNAL,
    "journal_records_kept": ERRORS | IN_LABEL | SWAPS | WIPES,
    "journal_slot_bad": ERRORS,
    "journal_unreadable": ERRORS,
    "load_failed": LEADING,
    "node_dead": ANY,  # whatever keeps a node from being heard
    "replay_refused": IN_JOURNAL | IN_TAIL,
    "replay_stalled": ERRORS | FULL,
    "replica_damaged": ERRORS | DAMAGE | POWER,  # bytes that were not synced, and what stands in their place
    "replica_doubt_not_stored": ERRORS | FULL,
    "replica_file_gone": ERRORS | WIPES | SWAPS,
    "replica_not_moved": ERRORS | FULL,
    "replica_quarantined": ERRORS | FLIPS,
    "replica_sync_failed": ERRORS,
    "replica_twice": ERRORS | IN_LABEL | SWAPS,  # made anew on another disk while its own was away
    "replica_unreadable": ERRORS | IN_TAIL,
    "scrub_not_quarantined": ERRORS | FULL,
}


def is_explained(event: str, host: str, *, troubles: Collection[str], victim: str) -> bool:
    """`event`: the first word of the line; `host` logged it; `troubles`: the kinds that the story has had so far."""
    causes = EXPLAINED.get(event)
    if causes is None:
        return False
    if not troubles or (causes and causes.isdisjoint(troubles)):
        return False
    if host.startswith("node") and host != victim:
        causes -= VICTIMS
        return not EXPLAINED[event] or not causes.isdisjoint(troubles)
    return True
