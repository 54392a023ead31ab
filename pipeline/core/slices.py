"""Cuts extents into slices and packs slices into tasks. Pure.

A slice is the blocks of one extent that *begin* in [start, end): so a cut may fall anywhere, and every block is in
exactly one slice.

Invariants: the slices of an extent follow each other from 0 to its end, and no other byte is in any of them;
            a task has at most `slice_bytes`, unless it is a single slice that cannot be cut: an open extent has no
            index that would tell where a block begins;
            the same input gives the same slices: a task that is run twice reads the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from neve.pipeline.core.filters import Filters
from neve.proto import stream_manager_pb2 as sm


@dataclass(frozen=True, slots=True)
class ScanExtent:
    """An extent as the scan sees it: of one metadata revision, with the end that was fixed when it was planned."""

    extent_id: int
    stream_id: int
    end: int  # the seal's length, or how far readers may go
    sealed: bool
    info: bytes  # an encoded sm.ExtentInfo, for tasks on other machines

    def message(self) -> sm.ExtentInfo:
        return sm.ExtentInfo.FromString(self.info)


@dataclass(frozen=True, slots=True)
class Slice:
    """The blocks of `extent` that begin in [start, end). `node_id`: from that node's replica alone; 0: from any."""

    extent: ScanExtent
    start: int
    end: int
    node_id: int = 0


def cut(extent: ScanExtent, *, slice_bytes: int, filters: Filters, node_id: int = 0, start: int = 0) -> Iterator[Slice]:
    """The slices of what the filters admit of an extent, from `start` on."""
    assert slice_bytes > 0, slice_bytes
    if not filters.admits("extent_id", extent.extent_id):
        return
    first, last = filters.offsets()
    first, last = max(first, start), min(last, extent.end)
    if first >= last:
        return
    if not extent.sealed:
        yield Slice(extent, start, last, node_id)  # from where a block is known to begin
        return
    for at in range(first, last, slice_bytes):
        yield Slice(extent, at, min(at + slice_bytes, last), node_id)


def pack(slices: Iterable[Slice], *, slice_bytes: int) -> list[tuple[Slice, ...]]:
    """Small slices share a task: thousands of small extents would otherwise be thousands of tasks."""
    packs: list[tuple[Slice, ...]] = []
    waiting: list[Slice] = []
    waiting_bytes = 0
    for each in slices:
        size_bytes = each.end - each.start
        if waiting and waiting_bytes + size_bytes > slice_bytes:
            packs.append(tuple(waiting))
            waiting, waiting_bytes = [], 0
        waiting.append(each)
        waiting_bytes += size_bytes
    if waiting:
        packs.append(tuple(waiting))
    return packs
