"""The end of the next micro-batch of a followed stream. Pure.

Invariants: no end goes back; an extent is begun only when all before it are read to their seal;
            a bound on bytes is kept to the extent: at least one extent is gone on with, so that a stream of large
            extents does not stand still, and an end is always one that was told, where a block ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def advance(
    extents: Sequence[tuple[int, int, bool]],
    done: Mapping[int, int],
    bytes_max: int | None,
    target: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """The ends to read to. `extents`: (id, readable end, sealed) in the stream's order; `done`: ends read so far.

    `target` bounds it to what there was at some moment.
    """
    ends: dict[int, int] = {}
    taken = 0
    going = True
    for extent_id, end, sealed in extents:
        before = done.get(extent_id, 0)
        until = max(before, min(end, target.get(extent_id, 0)) if target is not None else end)
        fresh = until - before
        if fresh and (not going or (bytes_max is not None and taken and taken + fresh > bytes_max)):
            going = False
            until, fresh = before, 0
        taken += fresh
        ends[extent_id] = until
        if not sealed or until < end:
            going = False
    return ends
