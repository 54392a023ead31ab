"""May a new owner go on with the tail, and from where? Decided from the answers to RaiseToken (rule 15). No I/O.

Invariants: only if every replica answered a durable length, all lengths are equal, and none is fenced, sealed, doubtful
            or damaged, nor has met an append with other bytes (7): then no append of an older owner can still be
            accepted anywhere, and none is half done;
            None means: seal the tail, do not guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neve.proto import extent_node_pb2 as pb


def decide_open(
    answers: Mapping[int, pb.LengthAnswer | None], replica_node_ids: Sequence[int], *, token: int = 0
) -> int | None:
    """Where the new owner goes on, or None. `token`: what every replica must have seen by now; 0: not checked."""
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
