"""The commands of `neve` against a manager that answers from a table: what is asked, what is shown, what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NotEnoughNodes, NotFound, NotLeader
from neve.rpc.auth import TokenFile
from neve.rpc.service import Call, Service
from neve.rpc.wire.server import WireServer
from neve.tools import main, orders, views
from tests.unit.tools.test_views import cluster, node

KNOWN = [
    methods.STREAM_MANAGER_DESCRIBE_CLUSTER,
    methods.STREAM_MANAGER_CLUSTER_STATUS,
    methods.STREAM_MANAGER_LIST_NODES,
    methods.STREAM_MANAGER_LIST_STREAMS,
    methods.STREAM_MANAGER_DESCRIBE_STREAMS,
    methods.STREAM_MANAGER_LIST_EXTENTS,
    methods.STREAM_MANAGER_DESCRIBE_EXTENTS,
    methods.STREAM_MANAGER_LIST_TASKS,
    methods.STREAM_MANAGER_LIST_QUOTAS,
    methods.STREAM_MANAGER_SET_NODE_MODE,
    methods.STREAM_MANAGER_SET_PLACEMENT,
    methods.STREAM_MANAGER_SEAL_STREAM,
    methods.STREAM_MANAGER_ACCEPT_LENGTH,
    methods.STREAM_MANAGER_SET_QUOTA,
]


STREAM_EXTENTS = [*range(6000, 11_002), 9, 3]  # more than a manager describes at a time


class Manager:
    """Remembers the orders that it got."""

    def __init__(self) -> None:
        self.address = ""
        self.leader = ""
        self.orders: list[Any] = []
        self.labels: dict[str, str] = {}  # of stream s1
        self.node = node(4)
        self.polls = 0

    async def describe_cluster(self, request: sm.DescribeClusterRequest, call: Call) -> sm.DescribeClusterReply:
        return sm.DescribeClusterReply(
            cluster="main",
            leader=common_pb2.Leader(address=self.leader or self.address),
            managers=[self.address],
            defaults=sm.StreamPolicy(replicas=3),
        )

    async def cluster_status(self, request: sm.ClusterStatusRequest, call: Call) -> sm.ClusterStatusReply:
        return cluster()

    async def list_nodes(self, request: sm.ListNodesRequest, call: Call) -> sm.ListNodesReply:
        if not request.node_ids:
            return sm.ListNodesReply(nodes=cluster().nodes)
        self.polls += 1
        if self.polls >= 2:  # a drain that ends
            del self.node.hold_ups[:]
            self.node.disks[0].extents = 0
        return sm.ListNodesReply(nodes=[self.node] if self.node.node_id in request.node_ids else [])

    async def list_streams(self, request: sm.ListStreamsRequest, call: Call) -> sm.ListStreamsReply:
        """Pages of one, of one revision."""
        first = request.after_stream_id + 1
        assert request.revision == (77 if first > 1 else 0)
        wanted = request.labels.get("team", "")
        stream = sm.StreamInfo(stream_id=first, name=f"s{first}", labels={"team": wanted or "x"})
        return sm.ListStreamsReply(streams=[stream], more=first < 3, revision=77)

    async def describe_streams(self, request: sm.DescribeStreamsRequest, call: Call) -> sm.DescribeStreamsReply:
        if "s1" not in request.names and 1 not in request.stream_ids:
            return sm.DescribeStreamsReply()
        stream = sm.StreamInfo(stream_id=1, name="s1", extent_ids=STREAM_EXTENTS, labels=self.labels)
        return sm.DescribeStreamsReply(streams=[stream])

    async def describe_extents(self, request: sm.DescribeExtentsRequest, call: Call) -> sm.DescribeExtentsReply:
        assert len(request.extent_ids) <= 5000, "more than a manager describes at a time"
        assert request.with_streams
        replicas = [sm.ExtentReplica(replica=common_pb2.Replica(node_id=4))]
        seal = common_pb2.Seal(length=5)
        return sm.DescribeExtentsReply(
            extents=[
                sm.ExtentInfo(
                    extent_id=extent_id, replicas=replicas, stream_ids=[1], seal=None if extent_id == 3 else seal
                )
                for extent_id in request.extent_ids
            ]
        )

    async def list_extents(self, request: sm.ListExtentsRequest, call: Call) -> sm.ListExtentsReply:
        self.orders.append(request)
        return sm.ListExtentsReply(extents=[sm.ExtentInfo(extent_id=9)])

    async def list_tasks(self, request: sm.ListTasksRequest, call: Call) -> sm.ListTasksReply:
        return sm.ListTasksReply(tasks=[sm.RecoveryTask(extent_id=9, kind=sm.RecoveryTask.SEAL)])

    async def list_quotas(self, request: sm.ListQuotasRequest, call: Call) -> sm.ListQuotasReply:
        return sm.ListQuotasReply(quotas=[sm.QuotaUsage(quota=sm.Quota(prefix="team=x", streams_max=9), streams=1)])

    async def set_node_mode(self, request: sm.SetNodeModeRequest, call: Call) -> sm.SetNodeModeReply:
        if request.node_id != 4:
            raise NotFound(kind="node", name=str(request.node_id))
        self.orders.append(request)
        self.node.mode = request.mode
        if request.mode == sm.NODE_MODE_DRAINING:
            self.node.hold_ups.append("extent 9: no other node has room")
        return sm.SetNodeModeReply(node=self.node)

    async def set_placement(self, request: sm.SetPlacementRequest, call: Call) -> sm.SetPlacementReply:
        self.orders.append(request)
        return sm.SetPlacementReply()

    async def seal_stream(self, request: sm.SealStreamRequest, call: Call) -> sm.SealStreamReply:
        self.orders.append(request)
        return sm.SealStreamReply(stream=sm.StreamInfo(stream_id=request.stream_id, sealed=True))

    async def accept_length(self, request: sm.AcceptLengthRequest, call: Call) -> sm.AcceptLengthReply:
        self.orders.append(request)
        raise NotEnoughNodes(wanted=3, available=1)

    async def set_quota(self, request: sm.SetQuotaRequest, call: Call) -> sm.SetQuotaReply:
        self.orders.append(request)
        return sm.SetQuotaReply(usage=sm.QuotaUsage(quota=request.quota))


class Follower(Manager):
    async def cluster_status(self, request: sm.ClusterStatusRequest, call: Call) -> sm.ClusterStatusReply:
        raise NotLeader(leader=self.leader)


class Rig:
    def __init__(self, manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
        self.manager = manager
        self._capsys = capsys

    async def neve(self, *words: str, code: int = 0) -> tuple[str, str]:
        """Run a command as a user does, beside the server; what it wrote to stdout and stderr."""
        arguments = [*words, "--managers", self.manager.address, "--timeout", "5"]
        got = await asyncio.to_thread(main.main, arguments)
        out, err = self._capsys.readouterr()
        assert got == code, (out, err)
        assert "Traceback" not in err
        return out, err


@asynccontextmanager
async def serving(
    manager: Manager, capsys: pytest.CaptureFixture[str], token_file: Path | None = None
) -> AsyncIterator[Rig]:
    authenticator = TokenFile(token_file) if token_file else None
    options = {"authenticator": authenticator} if authenticator else {}
    server = WireServer([Service(KNOWN, manager)], cluster="main", **options)  # type: ignore[arg-type]
    manager.address = await server.start("127.0.0.1", 0)
    try:
        yield Rig(manager, capsys)
    finally:
        await server.stop(1.0)


async def test_status_on_one_screen_as_json_and_as_a_check(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Manager(), capsys) as rig:
        out, _ = await rig.neve("status", "--check")
        assert "127.0.0.1:3402" in out
        assert "in danger if one more node stops?" in out
        assert "no: every extent would keep a readable replica" in out
        out, _ = await rig.neve("status", "--json")
        assert json.loads(out)["one_loss_from_danger"] == 0


async def test_a_problem_fails_the_check_and_only_the_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def in_trouble(self: Manager, request: sm.ClusterStatusRequest, call: Call) -> sm.ClusterStatusReply:
        return cluster(one_loss_from_danger=1)

    monkeypatch.setattr(Manager, "cluster_status", in_trouble)
    async with serving(Manager(), capsys) as rig:
        assert "YES: 1 extents" in (await rig.neve("status"))[0]
        await rig.neve("status", "--check", code=1)


async def test_the_leader_is_asked_also_when_only_a_follower_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Manager(), capsys) as leading, serving(Follower(), capsys) as following:
        following.manager.leader = leading.manager.address
        out, _ = await following.neve("status", "--json")
        assert json.loads(out)["streams"] == 3


async def test_lists_follow_pages_and_filters(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Manager(), capsys) as rig:
        out, _ = await rig.neve("streams", "--json", "--label", "team=search")
        assert [stream["name"] for stream in json.loads(out)] == ["s1", "s2", "s3"]
        assert json.loads(out)[0]["labels"] == {"team": "search"}
        out, _ = await rig.neve("streams", "--limit", "2")
        assert [line.split()[1] for line in out.splitlines()] == ["name", "s1", "s2"]
        out, _ = await rig.neve("nodes")
        assert out.splitlines()[1].split()[:4] == ["1", "alive", "normal", "10.0.0.1:3501"]
        await rig.neve("extents", "--node", "4", "--under-replicated", "--open")
        asked = rig.manager.orders[-1]
        assert (asked.node_id, asked.under_replicated, asked.open_only, asked.with_streams) == (4, True, True, True)
        out, _ = await rig.neve("extents", "--stream", "s1", "--limit", "9999", "--json")
        assert [extent["extent_id"] for extent in json.loads(out)] == STREAM_EXTENTS
        assert json.loads(out)[0]["stream_ids"] == [1]
        out, _ = await rig.neve("extents", "--stream", "s1", "--under-replicated", "--json")
        assert [extent["extent_id"] for extent in json.loads(out)] == [9]
        out, _ = await rig.neve("extents", "--stream", "s1", "--node", "5", "--json")
        assert json.loads(out) == []
        out, _ = await rig.neve("extents", "--stream", "1", "--open", "--json")
        assert [extent["extent_id"] for extent in json.loads(out)] == [3]
        assert "seal" in (await rig.neve("tasks"))[0]


async def test_a_drain_waits_and_says_what_holds_it_up(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Manager(), capsys) as rig:
        out, err = await rig.neve("drain", "4", "--wait", "--json")
        assert "7 extents left; held up: extent 9: no other node has room" in err
        assert json.loads(out)["mode"] == "draining"
        assert rig.manager.orders[0].call.call_id > 0


class Draining(Manager):
    """Answers each poll with the next of `answers`: mode, extents left, what holds them up. The last one stays."""

    def __init__(self, *answers: tuple[sm.NodeMode, int, list[str]]) -> None:
        super().__init__()
        self.answers = list(answers)

    async def list_nodes(self, request: sm.ListNodesRequest, call: Call) -> sm.ListNodesReply:
        mode, extents, hold_ups = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.node.mode = mode
        self.node.disks[0].extents = extents
        self.node.hold_ups[:] = hold_ups
        return sm.ListNodesReply(nodes=[self.node])


async def test_a_waiting_drain_says_each_new_reason_and_count_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "POLL_S", 0.01)
    waits, alone, drains = ["extent 9 waits for its copy"], ["extent 9: too few nodes"], sm.NODE_MODE_DRAINING
    polls = [(drains, 7, waits), (drains, 7, waits), (drains, 7, alone), (drains, 7, alone), (drains, 1, alone)]
    async with serving(Draining(*polls, (drains, 0, [])), capsys) as rig:
        _, err = await rig.neve("drain", "4", "--wait")
    assert err.splitlines() == [
        "node 4: 7 extents left; held up: extent 9: no other node has room",
        "node 4: 7 extents left; held up: extent 9 waits for its copy",
        "node 4: 7 extents left; held up: extent 9: too few nodes",
        "node 4: 1 extents left; held up: extent 9: too few nodes",
    ]


@pytest.mark.parametrize(
    ("words", "ordered", "instead"),
    [
        (("drain", "4"), "draining", sm.NODE_MODE_NORMAL),
        (("drain", "4"), "draining", sm.NODE_MODE_DECOMMISSIONED),
        (("decommission", "4", "--yes"), "decommissioned", sm.NODE_MODE_NORMAL),
    ],
)
async def test_a_wait_ends_when_the_node_gets_another_order(
    words: tuple[str, ...],
    ordered: str,
    instead: sm.NodeMode,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orders, "POLL_S", 0.01)
    before = (sm.NODE_MODE_DRAINING, 7, ["extent 9 waits for its copy"])
    async with serving(Draining(before, before, (instead, 0, [])), capsys) as rig, asyncio.timeout(20):
        out, err = await rig.neve(*words, "--wait", code=1)
    now = views.mode_name(instead)
    assert out == ""
    assert err.splitlines()[-1] == f"neve: node 4 is {now} now, not {ordered} as ordered: somebody changed its mode"


async def test_a_decommission_waits_through_its_drain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "POLL_S", 0.01)
    drains, gone = sm.NODE_MODE_DRAINING, sm.NODE_MODE_DECOMMISSIONED
    async with serving(Draining((drains, 7, ["x"]), (drains, 0, []), (gone, 0, [])), capsys) as rig:
        out, _ = await rig.neve("decommission", "4", "--yes", "--wait", "--json")
    assert json.loads(out)["mode"] == "decommissioned"


async def test_modes_of_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Manager(), capsys) as rig:
        await rig.neve("maintenance", "4", "--for", "2m")
        await rig.neve("read-only", "4")
        await rig.neve("resume", "4")
        await rig.neve("decommission", "4", "--yes")
        await rig.neve("region", "eu", "stop")
        modes = [(order.mode, order.maintenance_s) for order in rig.manager.orders[:4]]
        assert modes == [
            (sm.NODE_MODE_MAINTENANCE, 120),
            (sm.NODE_MODE_READ_ONLY, 0),
            (sm.NODE_MODE_NORMAL, 0),
            (sm.NODE_MODE_DECOMMISSIONED, 0),
        ]
        assert (rig.manager.orders[4].region, rig.manager.orders[4].stopped) == ("eu", True)
        _, err = await rig.neve("drain", "5", code=1)
        assert err == "neve: no such node: 5\n"


@pytest.mark.parametrize(
    "words", [("decommission", "4"), ("seal", "s1"), ("accept-length", "9", "100", "--reason", "x")]
)
async def test_what_cannot_be_taken_back_needs_yes(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(Manager(), capsys) as rig:
        _, err = await rig.neve(*words, code=2)
        assert "needs --yes" in err
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("sys.stdin.readline", lambda: "y\n", raising=False)
        _, err = await rig.neve(*words, code=1)
        assert "nothing was changed" in err
        assert rig.manager.orders == []
        monkeypatch.setattr("sys.stdin.readline", lambda: "yes\n", raising=False)
        await rig.neve(*words, code=1 if words[0] == "accept-length" else 0)
        assert len(rig.manager.orders) == 1


async def test_a_stream_of_the_key_value_store_is_sealed_by_force_only(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Manager(), capsys) as rig:
        rig.manager.labels = {"neve.kind": "partition"}
        _, err = await rig.neve("seal", "s1", "--yes", code=2)
        assert "key-value store" in err
        assert rig.manager.orders == []
        await rig.neve("seal", "s1", "--yes", "--force")
        assert len(rig.manager.orders) == 1


async def test_quotas_are_listed_set_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(Manager(), capsys) as rig:
        assert "1 of 9" in (await rig.neve("quota"))[0]
        await rig.neve("quota", "team=x", "--streams", "5", "--bytes", "1GiB")
        quota = rig.manager.orders[-1].quota
        assert (quota.prefix, quota.streams_max, quota.extents_max, quota.bytes_max) == ("team=x", 5, 0, 1 << 30)
        await rig.neve("quota", "team=x", "--remove")
        assert rig.manager.orders[-1].quota == sm.Quota(prefix="team=x")
        assert "no quota for other" in (await rig.neve("quota", "other", code=1))[1]
        assert "which quota" in (await rig.neve("quota", "--remove", code=2))[1]
        assert "takes no limits" in (await rig.neve("quota", "x", "--remove", "--streams", "1", code=2))[1]


async def test_errors_are_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async with serving(Manager(), capsys) as rig:
        _, err = await rig.neve("extents", "--stream", "nobody", code=1)
        assert err == "neve: no such stream: nobody\n"
        _, err = await rig.neve("accept-length", "9", "5", "--reason", "x", "--yes", code=1)
        assert err == "neve: too few nodes: 3 are needed, 1 can take an extent\n"
        _, err = await rig.neve("status", "--cluster", "other", code=1)
        assert "serve cluster 'main', not 'other'" in err
        assert err.count("\n") == 1
    tokens = tmp_path / "tokens"
    tokens.write_text("ann secret\n")
    async with serving(Manager(), capsys, tokens) as rig:
        _, err = await rig.neve("status", "--token", "wrong", code=1)
        assert "does not accept the token" in err
        await rig.neve("status", "--token", "secret")


async def test_watch_shows_again_and_survives_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def sometimes(self: Manager, request: sm.ClusterStatusRequest, call: Call) -> sm.ClusterStatusReply:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise NotFound(kind="leader", name="any")
        return cluster()

    monkeypatch.setattr(Manager, "cluster_status", sometimes)
    async with serving(Manager(), capsys) as rig:
        out, _ = await rig.neve("watch", "--count", "3", "--interval", "10ms", "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        assert ["error" in line for line in lines] == [False, True, False]


def test_wrong_usage_is_told_and_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["drain"], ["drain", "x"], ["maintenance", "4", "--for", "soon"], ["nonsense"], []):
        with pytest.raises(SystemExit) as ended:
            main.main(words)
        assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_dead_manager_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["status", "--managers", "127.0.0.1:9", "--timeout", "300ms"]) == 1
    _, err = capsys.readouterr()
    assert "no stream manager can be reached at 127.0.0.1:9" in err
    assert err.count("\n") == 1
