"""The way of a call: once, however often it is sent, and never half done because its caller gave up."""

from __future__ import annotations

import asyncio

from google.protobuf.message import Message

from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, NeveError, Overloaded, PermissionDenied
from neve.stream_manager.config import Limits
from tests.unit.stream_manager.manager_rig import Cluster, error_of, simulated

CREATE = methods.STREAM_MANAGER_CREATE_STREAM


def slow_creation(cluster: Cluster, for_s: float) -> None:
    async def trouble(what: str, extent_id: int, node_id: int) -> None:
        if what == "create":
            await asyncio.sleep(for_s)

    cluster.nodes.trouble = trouble


@simulated
async def test_a_call_is_finished_also_if_its_caller_gives_up() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        slow_creation(cluster, 3.0)
        request = sm.CreateStreamRequest(call=cluster.call_id(), name="events")
        leader = await cluster.leader()
        error = await error_of(cluster.ask(leader, CREATE, request, timeout_s=1.0), NeveError)
        assert error.outcome_unknown
        assert not cluster.term.state.streams
        await asyncio.sleep(3)
        assert len(cluster.term.state.streams) == 1
        reply = await cluster.call(CREATE, request)
        assert reply.stream.stream_id in cluster.term.state.streams
        assert len(cluster.term.state.streams) == 1


@simulated
async def test_a_repetition_joins_the_execution_that_is_under_way() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        slow_creation(cluster, 2.0)
        request = sm.CreateStreamRequest(call=cluster.call_id(), labels={"a": "1", "b": "2"})
        leader = await cluster.leader()
        first = asyncio.ensure_future(cluster.ask(leader, CREATE, request))
        await asyncio.sleep(0.5)
        same = sm.CreateStreamRequest(call=request.call, labels={"b": "2", "a": "1"})
        second = asyncio.ensure_future(cluster.ask(leader, CREATE, same))
        await asyncio.sleep(0.1)
        other = sm.CreateStreamRequest(call=request.call, name="other")
        await error_of(cluster.ask(leader, CREATE, other), InvalidArgument)
        assert (await first).stream.stream_id == (await second).stream.stream_id
        assert len([call for call in cluster.nodes.calls if call[0] == "create"]) == 3


@simulated
async def test_a_failed_call_is_executed_again_when_it_is_repeated() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, nodes=(1, 2))
        request = sm.CreateStreamRequest(call=cluster.call_id())
        await error_of(cluster.call(CREATE, request), NeveError)
        node = sm.RegisterNodeRequest(node_id=3, wire_address="node3:1", cluster="test")
        await cluster.call(methods.STREAM_MANAGER_REGISTER_NODE, node)
        assert len((await cluster.call(CREATE, request)).tail.replicas) == 3


@simulated
async def test_calls_without_an_id_are_not_taken_for_each_other() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        leader = await cluster.leader()
        request = sm.CreateStreamRequest(call=common_pb2.CallId())
        replies = await asyncio.gather(*(cluster.ask(leader, CREATE, request) for _ in range(3)))
        assert len({reply.stream.stream_id for reply in replies}) == 3


@simulated
async def test_requests_in_flight_are_bounded() -> None:
    async with Cluster(limits=Limits(requests_in_flight_max=4)) as cluster:
        await cluster.start_managers(1)
        slow_creation(cluster, 2.0)
        leader = await cluster.leader()
        works = [cluster.ask(leader, CREATE, sm.CreateStreamRequest(call=cluster.call_id())) for _ in range(6)]
        results = await asyncio.gather(*works, return_exceptions=True)
        assert sum(isinstance(result, Overloaded) for result in results) == 2
        assert len(cluster.term.state.streams) == 4


@simulated
async def test_who_may_not_is_refused_before_anything_is_done() -> None:
    class NobodyCreates:
        def authorise(self, principal: str, method: str, request: Message) -> None:
            if method == "CreateStream":
                raise PermissionDenied(principal=principal, action="create streams")

    async with Cluster() as cluster:
        await cluster.start_managers(1)
        cluster.term.pipeline._authoriser = NobodyCreates()
        await error_of(cluster.create(name="events"), PermissionDenied)
        assert not cluster.nodes.calls
        assert not cluster.term.state.streams
