"""Nodes' reports of their replicas, in rounds of pages: compared with metadata when a round is complete.

    unknown extent                          perhaps an orphan: collect.py
    known, but not listed there             an extra replica: collect.py (scenario T33)
    listed there, but not in the round      perhaps missing: bad_replicas.py asks the node
    listed, confirmed, but not whole        the same
    listed, sealed, not confirmed           reconcile.py asks anyway
    listed, open, not readable to its end   unread_tails.py asks whether that is so on all nodes

Invariants: nothing is concluded from an incomplete round: a page must continue the one before it, so the end of a round
            whose beginning went to another manager is no round (scenario T36); another round, or another process of the
            node, starts again; a conclusion is a reason to look, and never deletes by itself (protocol rule 24);
            a round keeps one id in memory for each replica, and the unlisted replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument
from neve.stream_manager.metadata.records import ReplicaAt, replica_at
from neve.stream_manager.metadata.state import State
from neve.stream_manager.nodes.bad_replicas import wrong_with
from neve.stream_manager.term.context import LeaderContext

log = logging.getLogger(__name__)

REPLICAS_MAX = 5_000_000  # per round
ODD_MAX = 100_000  # orphans and extra replicas per round; the others come with the next
MISSING_MAX = 1_000


class Found(NamedTuple):
    """A replica on a node that metadata does not list."""

    extent_id: int
    replica: ReplicaAt
    eversion: int
    created_ms: int


@dataclass(slots=True)
class Round:
    process_id: int
    number: int
    revision: int  # of the state when the round began: extents that were linked later may be missing in it
    last_id: int = 0
    held: dict[int, None] = field(default_factory=dict)  # replicas that are listed there and were reported
    odd: list[Found] = field(default_factory=list)
    wrong: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """A complete round."""

    node_id: int
    odd: tuple[Found, ...]


class ReplicaReports:
    def __init__(
        self,
        ctx: LeaderContext,
        *,
        on_report: Callable[[Report], None],
        on_suspect: Callable[[int, int, str], None],
        on_open: Callable[[en.ReplicaInfo], None],
    ) -> None:
        """`on_suspect` gets extent id, node id and reason; `on_open` gets the description of a replica of an open
        extent."""
        self._ctx = ctx
        self._on_report = on_report
        self._on_suspect = on_suspect
        self._on_open = on_open
        self._rounds: dict[int, Round] = {}  # by node id

    def page(self, request: sm.ReportReplicasRequest) -> None:
        node = self._ctx.state.nodes.get(request.node_id)
        if node is None or node.process_id != request.process_id:
            raise InvalidArgument(what="process_id", detail=f"node {request.node_id} is not registered by this process")
        now = self._rounds.get(request.node_id)
        known = now is not None and (now.process_id, now.number) == (request.process_id, request.round)
        if request.after_extent_id > (now.last_id if now is not None and known else 0):
            log.info("report_page_without_its_round node_id=%d round=%d", request.node_id, request.round)
            return
        if now is None or not known:
            now = Round(request.process_id, request.round, self._ctx.state.revision)
            self._rounds[request.node_id] = now
        for info in request.replicas:
            self._take(now, request.node_id, info)
        if request.last:
            del self._rounds[request.node_id]
            self._conclude(request.node_id, now)

    def _take(self, now: Round, node_id: int, info: en.ReplicaInfo) -> None:
        if info.extent_id <= now.last_id:
            return  # a page that was sent again
        now.last_id = info.extent_id
        extent = self._ctx.state.extents.get(info.extent_id)
        replica = replica_at(info.replica)
        listed = extent.replica_on(node_id) if extent is not None else None
        if extent is None or listed is None:
            if len(now.odd) < ODD_MAX:
                now.odd.append(Found(info.extent_id, replica, info.eversion, info.created_ms))
            return
        if len(now.held) < REPLICAS_MAX:
            now.held[info.extent_id] = None
        wrong = wrong_with(extent, info) if replica == listed else "another file is in its place"
        if wrong and len(now.wrong) < MISSING_MAX:
            now.wrong[info.extent_id] = wrong
        if extent.seal is None and not wrong:
            self._on_open(info)

    def _conclude(self, node_id: int, now: Round) -> None:
        state = self._ctx.state
        for extent_id in state.extents_on(node_id):
            if len(now.wrong) >= MISSING_MAX:
                break
            # An extent that was linked, or copied here, during the round may rightly be missing in it.
            if extent_id not in now.held and _changed_at(state, extent_id) <= now.revision:
                now.wrong[extent_id] = "the node does not report it"
        for extent_id, reason in now.wrong.items():
            self._on_suspect(extent_id, node_id, reason)
        log.debug("replicas_reported node_id=%d held=%d odd=%d", node_id, len(now.held), len(now.odd))
        self._on_report(Report(node_id, tuple(now.odd)))


def _changed_at(state: State, extent_id: int) -> int:
    """The revision of the record that has the extent: for a young extent that is its stream's."""
    extent = state.extents[extent_id]
    if not extent.young:
        return extent.mod_revision
    stream = state.streams.get(extent.stream_id)
    return stream.mod_revision if stream is not None else 0
