"""What a scan is planned to read: everything that was asked for, or a sentence that says what there is not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from neve.meta.regions import RegionsState
from neve.pipeline import scrub
from neve.pipeline.core.filters import Filters
from neve.pipeline.core.scrub import OK, UNREAD, ReplicaVerdict, Summary
from neve.pipeline.scan import options, planning, snapshot
from neve.pipeline.scan.columns import SCHEMAS
from neve.pipeline.scan.snapshot import Snapshot
from neve.pipeline.scan.tasks import ScanTask
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NotFound
from neve.stream_manager.metadata.records import Extent, ExtentSeal, NodeEntry, ReplicaAt
from neve.stream_manager.metadata.state import State

REPLICAS = tuple(ReplicaAt(node_id, f"disk-{node_id}", 10 + node_id) for node_id in (1, 2, 3))
SEALED = Extent(5, 2, REPLICAS, 1000, 7, 1, ExtentSeal(100, 2, b"d"), (1, 2, 3))
OPEN = Extent(7, 1, REPLICAS, 1000, 7, 1)


class SilentLink:
    """To a cluster in which no node says how far an open extent may be read."""

    async def committed(self, info: sm.ExtentInfo) -> int | None:
        return None


def plan(monkeypatch: pytest.MonkeyPatch, *extents: Extent, **said: str) -> list[ScanTask]:
    state = State(b"/x/")
    state.revision = 40
    state.nodes |= {node_id: NodeEntry(node_id, f"h:{node_id}", rack=f"r{node_id}") for node_id in (1, 2, 3)}
    state.extents |= {extent.extent_id: extent for extent in extents}

    async def take(link: Any, asked: Any) -> Snapshot:
        return Snapshot("c", state, RegionsState(b"/x/"))

    monkeypatch.setattr(snapshot, "take", take)
    parsed = options.parse(said, {})
    link: Any = SilentLink()
    return asyncio.run(planning.plan_tasks(link, parsed, tuple(SCHEMAS[parsed.rows]), Filters()))


def test_a_scrub_does_not_pass_over_an_open_extent_of_which_nobody_tells_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = plan(monkeypatch, SEALED, OPEN, rows="replicas", verify="true")
    assert [(check.extent.extent_id, check.node_id) for task in tasks for check in task.checks] == [
        (5, 1),
        (5, 2),
        (5, 3),
    ]
    rows = [row for task in tasks for row in task.rows]
    assert [(row["extent_id"], row["node_id"], row["rack"], row["verdict"], row["length"]) for row in rows] == [
        (7, 1, "r1", UNREAD, None),
        (7, 2, "r2", UNREAD, None),
        (7, 3, "r3", UNREAD, None),
    ]
    assert all("open" in row["problem"] for row in rows)
    assert all(set(row) == set(SCHEMAS["replicas"]) for row in rows)
    [only] = plan(monkeypatch, OPEN, rows="replicas", replica="2")
    assert [(row["node_id"], row["verdict"]) for row in only.rows] == [(2, None)]
    assert plan(monkeypatch, OPEN, rows="replicas", openExtents="false") == []


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"rows": "entries", "partition": "9"}, "partition"),
        ({"rows": "files", "node": "9"}, "node"),
        ({"rows": "blocks", "replica": "9"}, "node"),
        ({"rows": "replicas", "node": "9"}, "node"),
        ({"rows": "extents", "extents": "9"}, "extent"),
        ({"rows": "blocks", "stream": "nothing"}, "stream"),
    ],
)
def test_what_there_is_not_is_said_and_gives_no_empty_answer(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], word: str
) -> None:
    with pytest.raises(NotFound) as raised:
        plan(monkeypatch, SEALED, **said)
    assert raised.value.kind == word


def test_a_scrub_names_sealed_extents_that_no_replica_has_confirmed() -> None:
    def info(extent_id: int, confirmed: bool) -> sm.ExtentInfo:
        return sm.ExtentInfo(extent_id=extent_id, replicas=[sm.ExtentReplica(confirmed=confirmed) for _ in range(2)])

    known = {6: info(6, False), 8: info(8, True)}  # 8 was sealed a moment ago, 9 was deleted meanwhile

    async def describe_extents(extent_ids: list[int]) -> list[sm.ExtentInfo]:
        return [known[extent_id] for extent_id in extent_ids if extent_id in known]

    link: Any = SimpleNamespace(admin=SimpleNamespace(describe_extents=describe_extents))
    sound = ReplicaVerdict(1, 1, 11, sealed=True, verdict=OK, problem="its index was wrong")
    summary = asyncio.run(scrub.judge(link, Summary(), [sound], [6, 8, 9]))
    assert summary.unconfirmed == [6]
    assert summary.endangered == []
