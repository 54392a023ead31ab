"""Chooses a sealed extent's digest from its replicas' confirmations (protocol rules 7 and 20). No I/O.

Invariants: the digest of most replicas is chosen; of equally many, the one that arrived first;
            after a conflict, when an append met different bytes on a replica, a digest is chosen only if more than half
            of all replicas have it, or if every replica that can have one has confirmed. A replica cannot have one if
            its node is dead, or says that it has no whole replica. Until then readers use none of them.

Acknowledged bytes are the same on all replicas: only bytes that were never acknowledged can differ.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from neve.stream_manager.metadata.records import Extent


def compares_first(extent: Extent) -> bool:
    """Whether no single confirmation counts yet."""
    return extent.conflict and extent.seal is not None and not extent.seal.digest


def choose_digest(
    confirmed: Mapping[int, bytes], node_ids: Sequence[int], *, without_digest: Container[int], conflict: bool
) -> bytes | None:
    """Choose the digest; None if that is not possible yet.

    `confirmed`: digests by node id, in the order of arrival, not empty. `without_digest`: nodes that cannot have one.
    """
    digests = list(confirmed.values())
    chosen = max(dict.fromkeys(digests), key=digests.count)
    if not conflict or 2 * digests.count(chosen) > len(node_ids):
        return chosen
    missing = [node_id for node_id in node_ids if node_id not in confirmed and node_id not in without_digest]
    return None if missing else chosen
