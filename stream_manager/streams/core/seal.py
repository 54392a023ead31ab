"""Chooses the length at which an extent is sealed, from its replicas' replies to Fence (protocol rule 18). No I/O.

    all trustworthy                         the minimum; all took part
    else, with E                            E, if any replica holds E valid bytes
    else                                    the minimum of two trustworthy answers, or of one if all others are dead
    all answered, all doubtful              the longest valid prefix
    else                                    SealUnavailable: it names the replicas that are missing or doubtful

E is the end that the writer has acknowledged.

Invariants: an error, a missing file or no reply is never length 0 (scenario T1, guarantee G8);
            the length is never below E, nor below any replica's `committed`: such bytes are known to be acknowledged;
            some replica holds all bytes up to the chosen length;
            the reply of a dead node counts like any other: being dead only excuses a missing reply;
            where no length can be chosen, an operator can only accept a length that some replica reported.
Not here:   waiting, and which nodes are dead (nodes/core/health.py).

A replica that is sealed already has the seal of an earlier decision, which etcd had before any node got it (protocol
rule 19). If this manager's metadata does not have that seal, either the manager is deposed and its transaction will
fail, or etcd was restored from a backup. The earlier decision stands in both cases: its length is chosen, and
`sealed_before` lets the caller raise an alarm.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Mapping
from dataclasses import dataclass

from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import InvalidArgument, SealUnavailable

Kind = pb.LengthAnswer.Kind


class Counted(enum.Enum):
    """What one replica's reply is worth. The value is for people."""

    TRUSTWORTHY = "trustworthy"
    SHORT = "shorter than what is known to be acknowledged"
    DOUBTFUL = "doubtful: a power cut may have taken bytes"
    DAMAGED = "damaged"
    NEVER_EXISTED = "missing: the node has no such replica"
    DELETED = "deleted"
    SILENT = "silent"
    DEAD = "dead"


# A newer node may reply with a kind that this version does not know. It counts as no reply, because it proves
# nothing.
_BY_KIND = {
    Kind.LENGTH: Counted.TRUSTWORTHY,
    Kind.DOUBTFUL: Counted.DOUBTFUL,
    Kind.DAMAGED: Counted.DAMAGED,
    Kind.NEVER_EXISTED: Counted.NEVER_EXISTED,
    Kind.DELETED: Counted.DELETED,
}


@dataclass(frozen=True, slots=True)
class SealDecision:
    length: int
    all_took_part: bool  # every replica holds [0, length) on stable storage: protocol rule 16 acknowledges at once
    by_node: dict[int, Counted]
    sealed_before: tuple[int, ...] = ()  # nodes whose replica had this seal already (see the module's last paragraph)


def choose_length(
    answers: Mapping[int, pb.LengthAnswer | None],
    *,
    acknowledged_end: int | None,
    dead: Container[int] = (),
    extent_id: int = 0,
) -> SealDecision:
    """Choose the length. `answers` has every replica of the extent by node id, None for an error or no reply."""
    known = {node_id: answer for node_id, answer in answers.items() if answer is not None and answer.kind in _BY_KIND}
    floor = max([acknowledged_end or 0, *(answer.committed for answer in known.values())])
    sealed = {node_id: answer.seal.length for node_id, answer in known.items() if answer.HasField("seal")}
    if sealed:
        floor = _earlier_seal(sealed, floor, extent_id)
    by_node = {node_id: _count(known.get(node_id), floor, dead=node_id in dead) for node_id in answers}
    trusted = [known[node_id].length for node_id, counted in by_node.items() if counted is Counted.TRUSTWORTHY]
    valid = {node_id: valid_bytes(answer) for node_id, answer in known.items()}
    longest = max((length for length in valid.values() if length is not None), default=None)
    all_took_part = len(trusted) == len(answers) > 0

    def decided(length: int) -> SealDecision:
        assert length >= floor, (length, floor)
        return SealDecision(length, all_took_part, by_node, tuple(sealed))

    if sealed:
        return decided(floor)
    if all_took_part:
        return decided(min(trusted))
    if acknowledged_end is not None:
        # `floor` is E, or a replica's larger `committed`, which only that same writer can have sent.
        if longest is not None and longest >= floor:
            return decided(floor)
        raise _unavailable(extent_id, answers, by_node, f"no replica holds the {floor} bytes that are acknowledged")
    others_dead = all(counted in (Counted.TRUSTWORTHY, Counted.DEAD) for counted in by_node.values())
    if len(trusted) >= 2 or (len(trusted) == 1 and others_dead):
        return decided(min(trusted))
    if by_node and all(counted is Counted.DOUBTFUL for counted in by_node.values()):
        assert longest is not None
        if longest >= floor:
            return decided(longest)
        raise _unavailable(extent_id, answers, by_node, f"no replica holds the {floor} bytes that are acknowledged")
    raise _unavailable(extent_id, answers, by_node, f"{len(trusted)} of {len(answers)} replicas can be trusted")


def check_accepted(
    answers: Mapping[int, pb.LengthAnswer | None], length: int, *, dead: Container[int] = (), extent_id: int = 0
) -> None:
    """Check that an operator may have the extent sealed at this length; `InvalidArgument` says why not.

    That is only so if `choose_length` finds none, never below a reported `committed`, and only at a length that some
    replica reported as its own. The manager knows no other block boundaries, and no replica could confirm a length
    within a block. 0 is accepted as well if no replica has a byte and every node has replied or is declared dead.
    """
    try:
        decision = choose_length(answers, acknowledged_end=None, dead=dead, extent_id=extent_id)
    except SealUnavailable:
        pass
    else:
        detail = f"the replicas agree on {decision.length}: there is nothing to accept; opening the stream seals it"
        raise InvalidArgument(what="length", detail=detail)
    known = {node_id: answer for node_id, answer in answers.items() if answer is not None and answer.kind in _BY_KIND}
    committed = max((answer.committed for answer in known.values()), default=0)
    if length < committed:
        detail = f"{length}, but {committed} bytes are known to be acknowledged"
        raise InvalidArgument(what="length", detail=detail)
    held = {node_id: n for node_id, answer in known.items() if (n := valid_bytes(answer)) is not None}
    if length in held.values():
        return
    silent = [str(node_id) for node_id in answers if node_id not in known and node_id not in dead]
    if length == 0 and not any(held.values()) and not silent:
        return
    replies = "; ".join(f"node {node_id} has {n} valid bytes" for node_id, n in held.items()) or "no replica has any"
    if silent:
        replies += f"; node {', '.join(silent)} does not answer and is not declared dead"
    raise InvalidArgument(what="length", detail=f"{length} is not the length of any replica that answers ({replies})")


def valid_bytes(answer: pb.LengthAnswer) -> int | None:
    """How many valid bytes the replica holds; None if there is no replica. Not 0, which is a length (scenario T6)."""
    if answer.kind == Kind.LENGTH:
        return answer.length
    if answer.kind in (Kind.DOUBTFUL, Kind.DAMAGED):
        return answer.valid_length
    return None


def _count(answer: pb.LengthAnswer | None, floor: int, *, dead: bool) -> Counted:
    if answer is None:
        return Counted.DEAD if dead else Counted.SILENT
    counted = _BY_KIND[answer.kind]
    if counted is Counted.TRUSTWORTHY and answer.length < floor:
        return Counted.SHORT
    return counted


def _earlier_seal(sealed: Mapping[int, int], floor: int, extent_id: int) -> int:
    """The length of the seal that some replicas have. They must agree, and must not contradict what is acknowledged."""
    lengths = list(dict.fromkeys(sealed.values()))
    replies = ", ".join(f"node {node_id} at {length}" for node_id, length in sealed.items())
    if len(lengths) > 1:
        detail = f"replicas are sealed at different lengths ({replies}): compare them, then accept a length by name"
        raise SealUnavailable(extent_id=extent_id, detail=detail)
    if lengths[0] < floor:
        detail = f"sealed before ({replies}), yet {floor} bytes are acknowledged: a person must look at its replicas"
        raise SealUnavailable(extent_id=extent_id, detail=detail)
    return lengths[0]


def _unavailable(
    extent_id: int,
    answers: Mapping[int, pb.LengthAnswer | None],
    by_node: Mapping[int, Counted],
    problem: str,
) -> SealUnavailable:
    replies = "; ".join(
        f"node {node_id} {_describe(answers[node_id], counted)}" for node_id, counted in by_node.items()
    )
    wait_for = [str(node_id) for node_id, counted in by_node.items() if counted in (Counted.SILENT, Counted.DEAD)]
    returns = f"bring back node {' or '.join(wait_for)}, or " if wait_for else ""
    detail = f"extent {extent_id}: {problem} ({replies}); {returns}let an operator accept a length by name"
    return SealUnavailable(extent_id=extent_id, detail=detail)


def _describe(answer: pb.LengthAnswer | None, counted: Counted) -> str:
    if counted is Counted.SILENT:
        return "does not answer and is not declared dead"
    if counted is Counted.DEAD:
        return "is dead"
    length = None if answer is None else valid_bytes(answer)
    return f"is {counted.value}" if length is None else f"is {counted.value}, {length} valid bytes"
