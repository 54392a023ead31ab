"""The link to the managers: who is asked, what is repeated, and with which call id."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from neve.client.manager_link import ManagerLink
from neve.client.streams.options import ClientOptions
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.coroutine_driver import CoroutineDriver
from neve.proto.errors import (
    ConnectFailed,
    InvalidArgument,
    MetaUnavailable,
    NeveError,
    NotEnoughNodes,
    NotFound,
    NotLeader,
)
from neve.proto.method import Method
from neve.rpc.limits import Limits
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Call, Service
from tests.sim import loop as sim_loop
from tests.sim.network.network import SimNetwork

OPTIONS = ClientOptions(
    call_timeout_s=10.0,
    attempt_timeout_s=1.0,
    limits=Limits(dead_peer_s=6.0, keepalive_s=2.0, connect_timeout_s=0.5, handshake_timeout_s=0.5),
)


METHODS: list[Method[Any, Any]] = [
    methods.STREAM_MANAGER_CREATE_STREAM,
    methods.STREAM_MANAGER_DESCRIBE_CLUSTER,
]


class Manager:
    def __init__(self) -> None:
        self.answers: list[NeveError | None] = []  # one a call; None and none left: it answers
        self.always: NeveError | None = None
        self.calls: list[int] = []
        self.reads = 0
        self.leader = ""  # as it has heard

    async def create_stream(self, request: sm.CreateStreamRequest, call: Call) -> sm.CreateStreamReply:
        self.calls.append(request.call.call_id)
        error = self.answers.pop(0) if self.answers else self.always
        if error is not None:
            raise error
        return sm.CreateStreamReply()

    async def describe_cluster(self, request: sm.DescribeClusterRequest, call: Call) -> sm.DescribeClusterReply:
        self.reads += 1
        reply = sm.DescribeClusterReply(cluster="test")
        reply.leader.address = self.leader
        return reply


class Managers:
    def __init__(self) -> None:
        self.network = SimNetwork(random.Random(1))
        self.managers = [Manager() for _ in range(3)]
        for number, manager in enumerate(self.managers):
            self.network.serve(f"m{number}:1", [Service(METHODS, manager)], cluster="test")

    def link(self, *addresses: str, **changes: Any) -> ManagerLink:
        options = dataclasses.replace(OPTIONS, **changes)
        pool = ChannelPool(lambda a: self.network.channel("client", a, cluster="test", limits=options.limits))
        return ManagerLink(pool, addresses or ["m0:1", "m1:1", "m2:1"], options=options, rng=random.Random(2))


def run(story: Callable[[Managers], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await story(Managers())

    sim_loop.run(main(), real_limit_s=60.0)


async def create(link: ManagerLink, **how: Any) -> None:
    await link.order(methods.STREAM_MANAGER_CREATE_STREAM, sm.CreateStreamRequest(name="x"), **how)


def test_not_leader_leads_to_the_leader_who_is_asked_first_from_then_on() -> None:
    async def story(cluster: Managers) -> None:
        zero, one, two = cluster.managers
        zero.always = one.always = NotLeader(leader="m2:1")
        link = cluster.link()
        await create(link)
        await create(link)
        assert [len(each.calls) for each in (zero, one, two)] == [1, 0, 2]

    run(story)


def test_a_mutation_keeps_its_call_id_over_all_attempts_and_the_next_one_has_another() -> None:
    async def story(cluster: Managers) -> None:
        zero, one, _ = cluster.managers
        zero.answers = [MetaUnavailable(), None]
        one.answers = [NotLeader()]
        link = cluster.link("m0:1", "m1:1")
        await create(link)
        first = {*zero.calls, *one.calls}
        assert len(first) == 1
        assert len(zero.calls) + len(one.calls) == 3
        await create(link)
        assert {*zero.calls, *one.calls} - first

    run(story)


def test_a_follower_that_answers_a_read_for_the_leader_is_not_taken_for_it() -> None:
    async def story(cluster: Managers) -> None:
        zero = cluster.managers[0]
        link = cluster.link()

        async def read() -> list[int]:
            before = [each.reads for each in cluster.managers]
            await link.ask_leader(methods.STREAM_MANAGER_DESCRIBE_CLUSTER, sm.DescribeClusterRequest())
            return [each.reads - was for each, was in zip(cluster.managers, before, strict=True)]

        zero.leader = "m2:1"
        assert await read() == [1, 0, 1]
        cluster.network.pause("m2")
        assert await read() == [1, 0, 0], "there is none, as yet"
        zero.leader = "m1:1"
        assert await read() == [1, 1, 0]

    run(story)


@pytest.mark.parametrize("error", [NotFound(kind="x", name="y"), NotEnoughNodes(wanted=3, available=1)])
def test_what_another_attempt_cannot_heal_is_raised_at_once(error: NeveError) -> None:
    async def story(cluster: Managers) -> None:
        cluster.managers[0].always = error
        with pytest.raises(type(error)):
            await create(cluster.link())
        assert [len(each.calls) for each in cluster.managers] == [1, 0, 0]

    run(story)


def test_dead_and_hung_managers_are_passed_over() -> None:
    async def story(cluster: Managers) -> None:
        cluster.network.crash("m0")
        cluster.network.pause("m1")
        await create(cluster.link())
        assert len(cluster.managers[2].calls) == 1

    run(story)


def test_a_cluster_without_a_manager_is_one_clear_error_within_the_deadline() -> None:
    async def story(cluster: Managers) -> None:
        for number in range(3):
            cluster.network.crash(f"m{number}")
        begun_s = asyncio.get_running_loop().time()
        with pytest.raises(ConnectFailed, match="no stream manager answers"):
            await create(cluster.link(), timeout_s=5.0)
        assert asyncio.get_running_loop().time() - begun_s <= 5.0

    run(story)


def test_nobody_leads_for_a_while_and_then_somebody_does() -> None:
    async def story(cluster: Managers) -> None:
        for manager in cluster.managers:
            manager.always = NotLeader()
        asyncio.get_running_loop().call_later(3.0, lambda: setattr(cluster.managers[1], "always", None))
        await create(cluster.link())
        asked = [len(each.calls) for each in cluster.managers]
        assert sum(asked) < 60  # with pauses, not in a loop

    run(story)


def test_reads_stay_with_who_answers_and_do_not_change_who_is_taken_for_the_leader() -> None:
    async def story(cluster: Managers) -> None:
        cluster.managers[0].always = NotLeader(leader="m1:1")
        link = cluster.link()
        for _ in range(3):
            await link.ask(methods.STREAM_MANAGER_DESCRIBE_CLUSTER, sm.DescribeClusterRequest())
            await create(link)
        assert [manager.reads for manager in cluster.managers] == [3, 0, 0]
        assert [len(each.calls) for each in cluster.managers] == [1, 3, 0]

    run(story)


def test_a_link_without_an_address_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="managers"):
        ManagerLink(ChannelPool(lambda _: None), [], options=OPTIONS, rng=random.Random(1))  # type: ignore[arg-type, return-value]


# --- started coroutines --------------------------------------------------------------------------------------


async def test_a_started_coroutine_runs_at_once_and_calls_back_with_its_outcome() -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    steps: list[object] = []

    async def work() -> int:
        steps.append("begun")
        await asyncio.sleep(0)
        return await future + 1

    CoroutineDriver(work()).then(lambda result, error: steps.append((result, error)))
    assert steps == ["begun"]
    await asyncio.sleep(0)
    future.set_result(41)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert steps == ["begun", (42, None)]


async def test_a_started_coroutine_that_fails_or_is_cancelled_says_so_once() -> None:
    loop = asyncio.get_running_loop()
    outcomes: list[BaseException | None] = []
    cleaned: list[str] = []

    async def fail() -> None:
        raise ConnectFailed(address="x")

    async def wait() -> None:
        try:
            await loop.create_future()
        finally:
            cleaned.append("up")

    CoroutineDriver(fail()).then(lambda _, error: outcomes.append(error))
    waiting = CoroutineDriver(wait())
    waiting.then(lambda _, error: outcomes.append(error))
    waiting.cancel()
    waiting.cancel()
    assert [type(outcome) for outcome in outcomes] == [ConnectFailed, asyncio.CancelledError]
    assert cleaned == ["up"]
