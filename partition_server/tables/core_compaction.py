"""Chooses which tables to merge: size-tiered, newest first.

Tables are runs in order of age. A merge takes neighbours, so that newer entries always hide older ones. The tables are
tiered, not levelled, because every byte written is sent to three replicas and synced: a key is rewritten about once for
each power of `tables_max` in the number of flushes, while levels would rewrite it about ten times for each level. The
price is more tables to search, which bloom filters mostly avoid, and wasted space, which `space_waste_max` bounds.

Invariants: only neighbours are merged; a merge of all tables drops deletes and expired objects;
            a table with another partition's keys is rewritten eventually: otherwise neither twin could drop it;
            deletes and expired objects are dropped eventually, even without further writes. A merge for their sake
            includes the oldest table, so it certainly drops them and is not chosen for them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The properties of a table that the choice depends on. Tables are ordered by age, newest first."""

    size_bytes: int
    entries: int
    deletes: int = 0
    is_clipped: bool = False
    expires_ms_min: int = 0  # 0: nothing expires


@dataclass(frozen=True, slots=True)
class Choice:
    """Merge tables [first, last)."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Policy:
    tables_max: int
    size_ratio: float
    space_waste_max: float
    deletes_max: float = 0.5  # of a lone table's entries, and of all objects of all tables
    expired_ms_max: int = 3_600_000  # how long an object may stay after expiry; tables are not rewritten more often


def choose(tables: Sequence[TableFacts], policy: Policy, *, now_ms: int = 0) -> Choice | None:
    """Return what to merge now, if anything."""
    count = len(tables)
    if not count:
        return None
    tier = _tier(tables, policy)
    if count > 1:
        oldest = tables[-1].size_bytes
        newer = sum(table.size_bytes for table in tables[:-1])
        if count >= policy.tables_max and newer > oldest * policy.space_waste_max:
            return Choice(0, count, "space")
    if tier is not None:
        return tier
    for number, table in enumerate(tables):
        if table.is_clipped:
            return Choice(number, number + 1, "clipped")
    oldest_table = tables[-1]
    if oldest_table.entries and oldest_table.deletes > oldest_table.entries * policy.deletes_max:
        return Choice(count - 1, count, "deletes")
    deletes = sum(table.deletes for table in tables)
    if deletes > sum(table.entries - table.deletes for table in tables) * policy.deletes_max:
        return Choice(next(number for number, table in enumerate(tables) if table.deletes), count, "deletes")
    for number, table in enumerate(tables):
        if table.expires_ms_min and table.expires_ms_min + policy.expired_ms_max <= now_ms:
            return Choice(number, count, "expired")
    return None


def _tier(tables: Sequence[TableFacts], policy: Policy) -> Choice | None:
    """Return the newest run of at least `tables_max` neighbours of similar size."""
    count = len(tables)
    for first in range(count):
        together = tables[first].size_bytes
        last = first + 1
        while last < count and tables[last].size_bytes <= together * policy.size_ratio:
            together += tables[last].size_bytes
            last += 1
        if last - first >= policy.tables_max:
            return Choice(first, last, "tier")
    # No tier is full, but there are too many: merge the smallest neighbours.
    if count >= 2 * policy.tables_max:
        return Choice(0, policy.tables_max, "count")
    return None
