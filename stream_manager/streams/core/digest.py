"""Which digest a sealed extent gets, from what its replicas have confirmed (rules 7 and 20). No I/O.

Invariants: what most say counts, and of as many on both sides what came first;
            after a conflict, when an append met other bytes on a replica, a digest is chosen only if it is told by more
            than half of all replicas, or if every one has told but those that cannot, because their nodes are dead or
            say that they have no whole replica: whoever can still be asked may tell otherwise, and until then nobody
            reads any of them.

What was acknowledged is the same on all replicas: only bytes that no writer ever called durable can differ.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from neve.stream_manager.metadata.records import Extent


def compares_first(extent: Extent) -> bool:
    """Whether no single answer counts yet."""
    return extent.conflict and extent.seal is not None and not extent.seal.digest


def choose_digest(
    told: Mapping[int, bytes], node_ids: Sequence[int], *, silent: Container[int], conflict: bool
) -> bytes | None:
    """`told` by node id, in the order in which it came, and not empty; `silent`: nodes that have nothing to tell.

    None: not to be decided yet.
    """
    digests = list(told.values())
    chosen = max(dict.fromkeys(digests), key=digests.count)
    if not conflict or 2 * digests.count(chosen) > len(node_ids):
        return chosen
    missing = [node_id for node_id in node_ids if node_id not in told and node_id not in silent]
    return None if missing else chosen
