"""Decides whether a new owner can continue the tail, and from where, from the replies to RaiseToken. No I/O.

Invariants: the tail is continued only if every replica reports a durable length, all lengths are equal, and no replica
            is fenced, sealed, doubtful or damaged, or has met an append with different bytes (protocol rules 7 and
            15): then no node can still accept an older owner's append, and none is half done;
            None means: seal the tail, do not guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neve.proto import extent_node_pb2 as pb


def decide_open(
    answers: Mapping[int, pb.LengthAnswer | None], replica_node_ids: Sequence[int], *, token: int = 0
) -> int | None:
    """The length at which the new owner continues, or None.

    `token`: every replica must have seen it; 0: not checked.
    """
    lengths: list[int] = []
    for node_id in replica_node_ids:
        answer = answers.get(node_id)
        if answer is None or answer.kind != pb.LengthAnswer.LENGTH:
            return None
        if answer.fenced or answer.HasField("seal") or answer.conflict or answer.token < token:
            return None
        lengths.append(answer.length)
    if not lengths or min(lengths) != max(lengths):
        return None
    return lengths[0]
