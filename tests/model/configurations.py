"""Small worlds, each exhausted in seconds, which together have everything that may go wrong.

    CONFIGURATIONS["owners"].model()              # all rules
    CONFIGURATIONS["owners"].model("4-token")     # one of them switched off

`witnesses` are situations that a configuration must come to: one that never seals shows nothing about seals.
`LARGE` takes minutes and gigabytes; `python -m tests.model --large` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.model.collect import CollectBounds, CollectModel
from tests.model.explore import Model
from tests.model.node import NONE, SERVING, Node, NodeBounds, NodeModel
from tests.model.protocol import Bounds, ProtocolModel
from tests.model.protocol_state import BEHIND, IN_X, OPEN, State

Situation = Callable[[Any], bool]


def _second_writer_acknowledged(state: State) -> bool:
    return any(block > 20 for _, _, block in state.acks)


def _both_wrote_x(state: State) -> bool:
    return {block // 10 for where, _, block in state.acks if where == IN_X} == {1, 2}


def _all_confirmed(state: State) -> bool:
    return state.length > 0 and all(column.bit for column in state.columns)


def _sealed_by_some(state: State) -> bool:
    return state.length > 0 and not state.took


def _acknowledged_by_the_seal(state: State) -> bool:
    return any(each.sealing != NONE and each.acked > each.sealing for each in state.sessions)


def _acknowledged_late(state: State) -> bool:
    return not state.took and any(each.sealing != NONE and each.acked > each.sealing for each in state.sessions)


def _deposed_and_busy(state: State) -> bool:
    return any(0 < each.term < state.term and each.task for each in state.managers)


def _read_to_the_end(state: State) -> bool:
    return _all_confirmed(state) and len(state.seen) == state.length


def _doubtful(state: State) -> bool:
    return any(column.replica.doubtful for column in state.columns)


def _all_doubtful(state: State) -> bool:
    return all(column.replica.doubtful for column in state.columns)


def _lost_bytes(state: State) -> bool:
    lengths = [len(column.replica.data) for column in state.columns if column.replica.exists]
    return bool(state.acks) and any(where == IN_X and at >= min(lengths, default=0) for where, at, _ in state.acks)


def _disk_lost_and_filled(state: State) -> bool:
    return state.losses == 0 and _all_confirmed(state) and all(column.replica.exists for column in state.columns)


def _put_out_and_unaware(state: State) -> bool:
    return bool(state.opened == 1 and state.sessions[0].status == OPEN)


def _moved_on(state: State) -> bool:
    return any(where == BEHIND for where, _, _ in state.acks)


def _unsure_and_sealed(state: State) -> bool:
    return state.length != NONE and any(each.task == 5 for each in state.managers)


def _doubtful_and_serving(node: Node) -> bool:
    return bool(node.phase == SERVING and node.doubtful)


def _replayed(node: Node) -> bool:
    return bool(node.phase == SERVING and not node.cuts and node.journal and node.promised == len(node.cache) > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    what: str
    bounds: Bounds | NodeBounds | CollectBounds
    witnesses: Mapping[str, Situation]

    def model(self, without: str = "") -> Model[Any]:
        if isinstance(self.bounds, Bounds):
            return ProtocolModel(self.bounds, without=without)
        if isinstance(self.bounds, NodeBounds):
            return NodeModel(self.bounds, without=without)
        return CollectModel(self.bounds, without=without)


CONFIGURATIONS: dict[str, Configuration] = {
    "owners": Configuration(
        what="two writers, one after the other by their leases; two managers, one of them deposed unawares",
        bounds=Bounds(blocks=(1, 1), leases=True, terms=2),
        witnesses={
            "both owners have written X": _both_wrote_x,
            "a deposed manager is at work": _deposed_and_busy,
            "X is sealed without a replica": _sealed_by_some,
        },
    ),
    "rolls": Configuration(
        what="two writers that request the next extent",
        bounds=Bounds(blocks=(2, 1), leases=True, seals=True),
        witnesses={
            "the second owner has acknowledged": _second_writer_acknowledged,
            "a seal has acknowledged": _acknowledged_by_the_seal,
            "confirmations have acknowledged": _acknowledged_late,
            "written behind X": _moved_on,
        },
    ),
    "managers": Configuration(
        what="two managers that seal X, for its writer and by themselves",
        bounds=Bounds(blocks=(2,), seals=True, own_seals=True, terms=2),
        witnesses={"a deposed manager is at work": _deposed_and_busy, "all have confirmed": _all_confirmed},
    ),
    "takeovers": Configuration(
        what="a second writer takes the lock over; the first one still has its lease and learns of it late",
        bounds=Bounds(blocks=(1, 1), takeovers=True, seals=True),
        witnesses={
            "the second has opened, and the first does not know": _put_out_and_unaware,
            "the second owner has acknowledged": _second_writer_acknowledged,
        },
    ),
    "reopening": Configuration(
        what="one process opens the stream twice",
        bounds=Bounds(blocks=(1, 1), same_process=True, leases=True),
        witnesses={"the second session has acknowledged": _second_writer_acknowledged},
    ),
    "lost disk": Configuration(
        what="two writers, the next extent, and a disk that is lost",
        bounds=Bounds(blocks=(1, 1), losses=1, leases=True, seals=True),
        witnesses={"lost and filled": _disk_lost_and_filled, "X is sealed without a replica": _sealed_by_some},
    ),
    "lost disk, two blocks": Configuration(
        what="one writer, the next extent, and a disk that is lost",
        bounds=Bounds(blocks=(2,), losses=1, seals=True),
        witnesses={"lost and filled": _disk_lost_and_filled},
    ),
    "lost disk, readers": Configuration(
        what="readers, managers that seal by themselves, and a disk that is lost",
        bounds=Bounds(blocks=(2,), losses=1, readers=True, own_seals=True, seals=True),
        witnesses={"read to the end": _read_to_the_end},
    ),
    "dead nodes": Configuration(
        what="up to two nodes are declared dead, some of them alive",
        bounds=Bounds(blocks=(2,), own_seals=True, deaths=2, terms=2),
        witnesses={"X is sealed without a replica": _sealed_by_some},
    ),
    "dead nodes, owners": Configuration(
        what="up to two nodes are declared dead while the owner changes",
        bounds=Bounds(blocks=(1, 1), deaths=2, leases=True, own_seals=True),
        witnesses={"the second owner has acknowledged": _second_writer_acknowledged},
    ),
    "three owners": Configuration(
        what="three writers by their leases",
        bounds=Bounds(blocks=(1, 1, 1), leases=True),
        witnesses={"the second owner has acknowledged": _second_writer_acknowledged},
    ),
    "readers": Configuration(
        what="readers of open and sealed replicas, and a node whose process restarts",
        bounds=Bounds(blocks=(2,), readers=True, own_seals=True, seals=True, restarts=1),
        witnesses={"read to the end": _read_to_the_end},
    ),
    "readers, owners": Configuration(
        what="readers while the owner changes",
        bounds=Bounds(blocks=(1, 1), readers=True, leases=True),
        witnesses={"read to the end": _read_to_the_end},
    ),
    "page cache": Configuration(
        what="appends without sync, and a node that loses power",
        bounds=Bounds(blocks=(2,), sync=False, cuts=1, own_seals=True, seals=True),
        witnesses={"a doubtful replica": _doubtful, "acknowledged bytes are gone somewhere": _lost_bytes},
    ),
    "page cache, owners": Configuration(
        what="appends without sync, a change of owner, and a node that loses power",
        bounds=Bounds(blocks=(1, 1), sync=False, cuts=1, leases=True),
        witnesses={"a doubtful replica": _doubtful, "both owners have written X": _both_wrote_x},
    ),
    "doubts": Configuration(
        what="appends without sync, and power cuts everywhere, one of which takes nothing",
        bounds=Bounds(blocks=(2,), sync=False, cuts=3, keep_one=True, seals=True, own_seals=True),
        witnesses={"all are doubtful": _all_doubtful, "acknowledged bytes are gone somewhere": _lost_bytes},
    ),
    "power": Configuration(
        what="appends with sync, a change of owner, and all nodes lose power at once",
        bounds=Bounds(blocks=(1, 1), cuts=1, cut_together=True, leases=True),
        witnesses={"the second owner has acknowledged": _second_writer_acknowledged},
    ),
    "power, rolls": Configuration(
        what="appends with sync, and two power cuts while X is sealed",
        bounds=Bounds(blocks=(2,), cuts=2, seals=True, own_seals=True),
        witnesses={"all have confirmed": _all_confirmed, "confirmations have acknowledged": _acknowledged_late},
    ),
    "unknown outcomes": Configuration(
        what="managers that do not learn whether their transaction was applied",
        bounds=Bounds(blocks=(1, 1), unknown=True, seals=True, leases=True),
        witnesses={"unsure, and it was": _unsure_and_sealed},
    ),
    "node": Configuration(
        what="one node: appends of all kinds, fence, seal, two power cuts, a kill",
        bounds=NodeBounds(blocks=3, cuts=2, kills=1),
        witnesses={"doubtful": _doubtful_and_serving, "replayed": _replayed},
    ),
    "node, remount": Configuration(
        what="one node whose disk goes and comes back within a boot",
        bounds=NodeBounds(blocks=2, cuts=1, remounts=1, kills=1),
        witnesses={"doubtful": _doubtful_and_serving},
    ),
    "node, damage": Configuration(
        what="one node, and a flipped bit",
        bounds=NodeBounds(blocks=2, cuts=1, flips=1, kills=1),
        witnesses={"doubtful": _doubtful_and_serving},
    ),
    "node, lost journal": Configuration(
        what="one node whose journal is lost",
        bounds=NodeBounds(blocks=2, cuts=1, journal_losses=1, kills=1),
        witnesses={"doubtful": _doubtful_and_serving},
    ),
    "node, incarnations": Configuration(
        what="one node, a replica that is deleted and made anew",
        bounds=NodeBounds(blocks=2, cuts=1, kills=1, incarnations=2),
        witnesses={"replayed": _replayed},
    ),
    "collection": Configuration(
        what="an extent that is made, linked or not, moved away and back; delete orders that come late",
        bounds=CollectBounds(),
        witnesses={"moved away and back": lambda place: place.holder and place.linked and not place.moves},
    ),
}

LARGE: dict[str, Configuration] = {
    "owners, rolls": Configuration(
        what="two writers that request the next extent, two managers",
        bounds=Bounds(blocks=(1, 1), leases=True, seals=True, terms=2),
        witnesses={"confirmations have acknowledged": _acknowledged_late, "both owners have written X": _both_wrote_x},
    ),
    "owners, power, two managers": Configuration(
        what="two writers, two managers, a power cut at one node",
        bounds=Bounds(blocks=(1, 1), leases=True, terms=2, cuts=1),
        witnesses={"both owners have written X": _both_wrote_x},
    ),
    "owners, lost disk, two managers": Configuration(
        what="two writers, two managers, a lost disk",
        bounds=Bounds(blocks=(1, 1), leases=True, terms=2, losses=1),
        witnesses={"X is sealed without a replica": _sealed_by_some},
    ),
    "fine steps": Configuration(
        what="a replica seals and is confirmed in two steps, while readers read and the power fails",
        bounds=Bounds(blocks=(2,), cuts=1, readers=True, seals=True, own_seals=True, fine=True),
        witnesses={"read to the end": _read_to_the_end},
    ),
}
