"""The way of a call: once, however often it is sent, and never half done because its caller gave up."""

from __future__ import annotations

import asyncio
import functools
import gc
from typing import Any

from google.protobuf.message import Message

from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, NeveError, NotLeader, Overloaded, PermissionDenied
from neve.rpc.service import Call
from neve.stream_manager.config import Limits
from neve.stream_manager.metadata.changes import Changes
from neve.stream_manager.streams.streams import create_stream
from neve.stream_manager.term.context import Mutation
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
async def test_an_answered_call_leaves_nothing_in_a_ring() -> None:
    """The call on the wire knows its execution, so that must not know the call any more: else every mutation is left to
    the garbage collector."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        term = cluster.term
        call = Call(CREATE, deadline_s=float("inf"), principal="", peer="test")
        flow = functools.partial(create_stream, term.ctx)
        told: list[object] = []

        def tell(who: str, reply: Any, error: BaseException | None) -> None:
            told.append((who, type(reply), error))

        request = sm.CreateStreamRequest(call=cluster.call_id())
        execution = term.pipeline.begin(request, call, flow, eager=True)
        waiting = [functools.partial(tell, who) for who in ("first", "second", "third")]
        for one in waiting:
            execution.then(one)
        while not execution.done:
            await asyncio.sleep(0.01)
        assert told == [(who, type(execution.reply), None) for who in ("first", "second", "third")]
        assert not any(one in gc.get_referents(execution) for one in waiting)
        assert not any(isinstance(found, list) for found in gc.get_referents(execution))


@simulated
async def test_who_may_not_is_refused_before_anything_is_done() -> None:
    class NobodyCreates:
        def authorise(self, principal: str, method: str, request: Message) -> None:
            if method == "CreateStream":
                raise PermissionDenied(principal=principal, action="create streams")

    async with Cluster(authoriser=NobodyCreates()) as cluster:
        await cluster.start_managers(1)
        await error_of(cluster.create(name="events"), PermissionDenied)
        assert not cluster.nodes.calls
        assert not cluster.term.state.streams


@simulated
async def test_at_whatever_moment_a_call_is_repeated_it_is_executed_once_in_a_term() -> None:
    """What is remembered of a call is put without a compare (`Changes.put_replay`): that rests on this."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        slow_creation(cluster, 0.02)
        term, leader = cluster.term, await cluster.leader()
        executions: list[bool] = []
        execute = term.pipeline._execute

        def counted(request: Any, method: str, peer: str, mutation: Mutation, flow: Any, execution: Any) -> Any:
            executions.append(mutation.replayed is None)
            return execute(request, method, peer, mutation, flow, execution)

        term.pipeline._execute = counted  # type: ignore[method-assign]
        request = sm.CreateStreamRequest(call=cluster.call_id())
        call = Call(CREATE, deadline_s=float("inf"), principal="", peer="test")
        flow = functools.partial(create_stream, term.ctx)
        asked: list[asyncio.Task[sm.CreateStreamReply]] = []
        steps = 0
        while not any(task.done() for task in asked):  # once in every step of the loop, the last one included
            asked.append(leader.process.spawn(term.pipeline.mutate(request, call, flow)))
            await asyncio.sleep(0)
            steps += 1
            if steps % 10 == 0:
                await asyncio.sleep(0.001)
        assert steps > 20
        for _ in range(3):
            asked.append(leader.process.spawn(term.pipeline.mutate(request, call, flow)))
            await asyncio.sleep(0)
        replies = await asyncio.gather(*asked)
        assert len({reply.stream.stream_id for reply in replies}) == 1
        assert executions.count(True) == 1
        assert executions.count(False) >= 1  # the loop went on past the end of the first
        assert len(cluster.term.state.streams) == 1


@simulated
async def test_a_repetition_joins_a_commit_whose_outcome_is_unknown() -> None:
    """The first caller has given up, and etcd has not said whether it has it: the second one waits for the first."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        leader = await cluster.leader()
        request = sm.CreateStreamRequest(call=cluster.call_id())
        commit, let_go = cluster.term.ctx.commit, asyncio.Event()
        commits = 0

        async def slow_commit(changes: Changes) -> int:
            nonlocal commits
            commits += 1
            await let_go.wait()
            return await commit(changes)

        cluster.term.ctx.commit = slow_commit
        error = await error_of(cluster.ask(leader, CREATE, request, timeout_s=1.0), NeveError)
        assert error.outcome_unknown
        again = asyncio.ensure_future(cluster.ask(leader, CREATE, request))
        await asyncio.sleep(0.5)
        assert not again.done()
        assert commits == 1
        let_go.set()
        assert (await again).stream.stream_id in cluster.term.state.streams
        assert (commits, len(cluster.term.state.streams)) == (1, 1)


@simulated
async def test_a_call_id_that_runs_is_of_one_method_only() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, _, _ = await cluster.opened()
        request = sm.SealStreamRequest(call=cluster.call_id(), stream_id=stream.stream_id)
        other = sm.DeleteStreamRequest(call=request.call, stream_id=stream.stream_id)
        assert request.SerializeToString() == other.SerializeToString()
        leader = await cluster.leader()

        async def trouble(what: str, extent_id: int, node_id: int) -> None:
            await asyncio.sleep(2.0 if what == "fence" else 0.0)

        cluster.nodes.trouble = trouble
        first = asyncio.ensure_future(cluster.ask(leader, methods.STREAM_MANAGER_SEAL_STREAM, request))
        await asyncio.sleep(0.5)
        await error_of(cluster.ask(leader, methods.STREAM_MANAGER_DELETE_STREAM, other), InvalidArgument)
        assert (await first).stream.sealed


@simulated
async def test_executions_are_bounded_also_when_their_callers_have_given_up() -> None:
    async with Cluster(limits=Limits(requests_in_flight_max=4)) as cluster:
        await cluster.start_managers(1)
        slow_creation(cluster, 60.0)
        leader = await cluster.leader()
        requests = [sm.CreateStreamRequest(call=cluster.call_id()) for _ in range(6)]
        errors = [
            await error_of(cluster.ask(leader, CREATE, request, timeout_s=0.5), NeveError) for request in requests
        ]
        assert [isinstance(error, Overloaded) for error in errors] == [False] * 4 + [True] * 2
        assert cluster.term.pipeline.in_flight == 4
        await asyncio.sleep(60.0)
        assert cluster.term.pipeline.in_flight == 0
        assert len(cluster.term.state.streams) == 4


@simulated
async def test_a_call_whose_term_ends_before_its_first_step_is_answered() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        term, leader = cluster.term, await cluster.leader()
        call = Call(CREATE, deadline_s=float("inf"), principal="", peer="test")
        flow = functools.partial(create_stream, term.ctx)

        async def ask(*, eager: bool) -> Any:
            return await term.pipeline.begin(sm.CreateStreamRequest(call=cluster.call_id()), call, flow, eager=eager)

        asked = [leader.process.spawn(ask(eager=eager)) for eager in (False, True)]
        await asyncio.sleep(0)  # both calls are taken: one execution is a task that has not begun, the other one waits
        term.end("as the story wants it")
        for answer in asked:
            async with asyncio.timeout(1):
                await error_of(answer, NotLeader)
        assert term.pipeline.in_flight == 0
