"""The simulated network: the faults of TCP, each of them on purpose, and the same ones for the same seed."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from neve.proto import errors
from neve.rpc.limits import Limits
from neve.rpc.service import Call, Service
from neve.rpc.wire.client import WireChannel
from neve.rpc.wire.receiver import FrameReceiver
from tests.proto import methods, testing_pb2
from tests.sim import loop as sim_loop
from tests.sim.network.channel import SimChannel
from tests.sim.network.link import DELAY_S_MAX, exponential_delay, fixed_delay
from tests.sim.network.network import SimNetwork, SimServer
from tests.sim.processes import processes
from tests.sim.processes.processes import Process
from tests.unit.rpc.conformance import CLUSTER, FOREVER_S, Servicer, do, hang

SERVER = "server:7000"
DEAD_PEER_S = 30.0
LIMITS = Limits(dead_peer_s=DEAD_PEER_S)


class Recorder(Servicer):
    """Notes the requests in the order in which it began to execute them, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.executed: list[str] = []
        self.executed_s: list[float] = []

    async def do(self, request: testing_pb2.DoRequest, call: Call) -> testing_pb2.DoReply:
        self.executed.append(request.text)
        self.executed_s.append(asyncio.get_running_loop().time())
        return await super().do(request, call)


class World:
    """A server on `server`, and what the clients of a test need."""

    def __init__(self, *, trace: Callable[[str], None] | None = None, **options: Any) -> None:
        self.loop = sim_loop.current()
        self.network = SimNetwork(self.loop.rng, trace=trace, **options)
        self.servicer = Recorder()
        self.server = self.serve()

    def serve(self) -> SimServer:
        return self.network.serve(SERVER, [self.servicer.service()], cluster=CLUSTER)

    def channel(self, host: str = "client") -> SimChannel:
        return self.network.channel(host, SERVER, cluster=CLUSTER, limits=LIMITS)


def start(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(coroutine)


async def failure(task: asyncio.Task[Any]) -> errors.NeveError:
    with pytest.raises(errors.NeveError) as caught:
        await task
    return caught.value


# --- order and delay -----------------------------------------------------------------------------------------


@pytest.mark.sim(seed=11)
async def test_a_connection_keeps_order_and_two_connections_do_not() -> None:
    world = World(delay=exponential_delay(min_s=0.001, mean_s=1.0))
    one, other = world.channel(), world.channel()
    calls = [
        start(do(channel, text=f"{name}{number:03}", timeout_s=FOREVER_S))
        for number in range(100)
        for name, channel in (("a", one), ("b", other))
    ]
    await asyncio.gather(*calls)
    executed = world.servicer.executed
    for name in "ab":
        assert [text for text in executed if text[0] == name] == [f"{name}{number:03}" for number in range(100)]
    assert executed != sorted(executed, key=lambda text: text[1:]), "delays of two connections are independent"


@pytest.mark.sim(seed=1)
async def test_a_slow_link_is_slow_one_way() -> None:
    world = World(delay=fixed_delay(1.0))
    channel = world.channel()
    await do(channel)
    world.network.slow("client", "server", factor=5)
    started_s = world.loop.time()
    await do(channel)
    assert world.servicer.executed_s[-1] - started_s == pytest.approx(5)
    assert world.loop.time() - started_s == pytest.approx(6)
    world.network.slow("client", "server", factor=1)
    world.network.set_link("server", "client", delay=fixed_delay(0.25))
    await asyncio.sleep(10)  # beats that were sent on the slow link arrive before anything else
    started_s = world.loop.time()
    await do(channel)
    assert world.loop.time() - started_s == pytest.approx(1.25)


@pytest.mark.sim(seed=1)
async def test_the_sides_share_no_memory() -> None:
    world = World(delay=fixed_delay(1.0))
    channel = world.channel()
    buffer = bytearray(b"as it was")
    request = testing_pb2.DoRequest(text="before", echo_attachment=True)
    call = start(channel.call(methods.CONFORMANCE_DO, request, timeout_s=FOREVER_S, attachment=[buffer]))
    await asyncio.sleep(0.5)
    request.text = "after"
    reply = await call
    assert reply.message.text == "before"
    assert reply.attachment == b"as it was"
    assert reply.attachment.obj is not buffer


@pytest.mark.sim(seed=1)
async def test_a_buffer_that_changes_during_its_call_is_a_bug_that_shows() -> None:
    """On the wire the change might be sent, or not."""
    world = World()
    buffer = bytearray(b"as it was")
    call = start(do(world.channel(), attachment=[buffer]))
    await asyncio.sleep(0)
    buffer[:] = b"different"
    with pytest.raises(AssertionError, match="the attachment changed"):
        await call


@pytest.mark.sim(seed=1)
async def test_mistakes_that_only_grpc_would_notice_fail_here_too() -> None:
    class Mistaken(Servicer):
        async def hang(self, request: testing_pb2.HangRequest, call: Call) -> testing_pb2.HangReply:
            call.attach(b"nowhere to go")
            return testing_pb2.HangReply()

    mistakes: list[str] = []
    loop = sim_loop.current()
    loop.set_exception_handler(lambda _, context: mistakes.append(context["message"]))
    network = SimNetwork(loop.rng)
    network.serve(SERVER, [Mistaken().service()], cluster=CLUSTER)
    channel = network.channel("client", SERVER, cluster=CLUSTER)
    await hang(channel)
    await channel.call(methods.CONFORMANCE_HANG, testing_pb2.HangRequest(), timeout_s=1, attachment=[b"x"])
    with pytest.raises(errors.Internal):  # the servicer asserts that it never sees it
        await do(channel, payload=b"x")
    reply, request, twice = "HangReply: it has no field `payload`", "HangRequest: it has no field", "DoRequest: bulk"
    for mistake, expected in zip(mistakes, (reply, request, reply, twice), strict=True):
        assert mistake.startswith(expected)


@pytest.mark.sim(seed=1)
async def test_a_welcome_that_comes_as_the_handshake_is_given_up_violates_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The timeout has cancelled the wait, and the task that ends the connection runs on the next turn."""
    world = World(delay=fixed_delay(1.0))
    limits = Limits(handshake_timeout_s=2.0)  # as long as HELLO and WELCOME take
    channel = world.network.channel("client", SERVER, cluster=CLUSTER, limits=limits)
    assert isinstance(await failure(start(do(channel, text="never"))), errors.ConnectFailed)
    await asyncio.sleep(10)
    assert not [record.message for record in caplog.records if "connection_violated" in record.message]
    assert world.servicer.executed == []


# --- cuts ----------------------------------------------------------------------------------------------------


async def _cut_story() -> tuple[list[str], bool]:
    """Ten calls on the way when the connection is cut: what was executed, and was any of it after the cut?"""
    world = World(delay=exponential_delay(min_s=0.01, mean_s=0.2))
    channel = world.channel()
    await do(channel, text="first")
    world.servicer.executed.clear()
    calls = [start(do(channel, text=str(number), timeout_s=FOREVER_S)) for number in range(10)]
    await asyncio.sleep(0.15)
    cut_s = world.loop.time()
    world.network.cut("client", "server")
    for call in calls:
        if not call.done():
            assert isinstance(await failure(call), errors.ConnectionLost)
    assert world.loop.time() == cut_s, "callers know at once"
    await asyncio.sleep(60)
    return world.servicer.executed, world.servicer.executed_s[-1] > cut_s


def test_after_a_cut_a_part_of_what_was_on_the_way_is_executed_later() -> None:
    stories = [sim_loop.run(_cut_story(), seed=seed) for seed in range(30)]
    for executed, _ in stories:
        assert executed == [str(number) for number in range(len(executed))], "a prefix, as of any byte stream"
    counts = {len(executed) for executed, _ in stories}
    assert min(counts) == 0
    assert max(counts) == 10
    assert {late for _, late in stories} == {True, False}


async def _repeat_story() -> int:
    """A caller that repeats its call after a cut: how often is it executed?"""
    world = World()
    world.network.set_link("client", "server", delay=fixed_delay(0.1))
    channel = world.channel()
    await do(channel, text="first")
    call = start(do(channel, text="put"))
    await asyncio.sleep(0.05)
    world.network.cut("client", "server")
    await failure(call)
    await do(channel, text="put")
    await asyncio.sleep(60)
    return world.servicer.executed.count("put")


def test_a_call_repeated_after_a_cut_is_sometimes_executed_twice() -> None:
    assert {sim_loop.run(_repeat_story(), seed=seed) for seed in range(20)} == {1, 2}


@pytest.mark.sim(seed=1)
async def test_a_cut_reaches_the_server_later_and_cancels_its_handlers() -> None:
    world = World(late_s_mean=1.0)
    call = start(hang(world.channel(), timeout_s=FOREVER_S))
    await world.servicer.until(lambda: world.servicer.hanging == 1)
    world.network.cut("client", "server")
    assert isinstance(await failure(call), errors.ConnectionLost)
    assert world.servicer.hangs_cancelled == 0
    await world.servicer.until(lambda: world.servicer.hangs_cancelled == 1)


# --- partitions ----------------------------------------------------------------------------------------------


@pytest.mark.sim(seed=1)
async def test_a_partition_towards_the_server_delays_requests_until_it_heals() -> None:
    world = World()
    channel = world.channel()
    await do(channel, text="before")
    world.network.partition_one_way("client", "server")
    assert isinstance(await failure(start(do(channel, text="late", timeout_s=5))), errors.DeadlineExceeded)
    assert world.servicer.executed == ["before"]
    world.network.heal("client", "server")
    assert (await do(channel, text="after")).message.text == "after"
    assert world.servicer.executed == ["before", "late", "after"], "the caller had given up, the network had not"


@pytest.mark.sim(seed=1)
async def test_a_partition_towards_the_client_hides_what_was_executed() -> None:
    world = World()
    channel = world.channel()
    await do(channel, text="before")
    world.network.partition_one_way("server", "client")
    call = start(do(channel, text="once", timeout_s=FOREVER_S))
    await asyncio.sleep(5)
    assert world.servicer.executed == ["before", "once"]
    assert not call.done()
    world.network.heal("client", "server")
    assert (await call).message.text == "once"


@pytest.mark.sim(seed=1)
async def test_a_long_partition_ends_the_connection_and_nothing_arrives_afterwards() -> None:
    world = World()
    channel = world.channel()
    await do(channel, text="before")
    started_s = world.loop.time()
    world.network.partition("client", "server")
    assert isinstance(await failure(start(do(channel, text="never", timeout_s=FOREVER_S))), errors.ConnectionLost)
    assert DEAD_PEER_S <= world.loop.time() - started_s + 0.01 <= DEAD_PEER_S + LIMITS.keepalive_s
    assert isinstance(await failure(start(do(channel, text="nor this"))), errors.ConnectFailed)
    world.network.heal_all()
    await asyncio.sleep(60)
    assert (await do(channel, text="after")).message.text == "after"
    assert world.servicer.executed == ["before", "after"]


@pytest.mark.sim(seed=1)
async def test_other_hosts_do_not_notice_a_partition() -> None:
    world = World()
    world.network.partition("client", "server")
    assert (await do(world.channel("elsewhere"), text="x")).message.text == "x"


# --- losses --------------------------------------------------------------------------------------------------


@pytest.mark.sim(seed=1)
async def test_a_lost_frame_holds_up_all_that_follow_until_the_connection_ends() -> None:
    world = World()
    channel = world.channel()
    await do(channel, text="before")
    started_s = world.loop.time()
    world.network.drop_next("client", "server")
    lost = start(do(channel, text="lost", timeout_s=5))
    behind = start(do(channel, text="behind", timeout_s=FOREVER_S))
    assert isinstance(await failure(lost), errors.DeadlineExceeded)
    assert isinstance(await failure(behind), errors.ConnectionLost)
    assert DEAD_PEER_S <= world.loop.time() - started_s + 0.01 <= DEAD_PEER_S + LIMITS.keepalive_s
    assert (await do(channel, text="after")).message.text == "after"
    assert world.servicer.executed == ["before", "after"]


@pytest.mark.sim(seed=1)
async def test_a_lost_reply_leaves_the_outcome_unknown() -> None:
    world = World()
    channel = world.channel()
    await do(channel, text="before")
    world.network.drop_next("server", "client")
    error = await failure(start(do(channel, text="done", timeout_s=FOREVER_S)))
    assert isinstance(error, errors.ConnectionLost)
    assert error.outcome_unknown
    assert world.servicer.executed == ["before", "done"]


@pytest.mark.sim(seed=5)
async def test_a_lossy_link_loses_some_connections_and_callers_get_through_in_the_end() -> None:
    world = World()
    world.network.set_link("client", "server", drop_probability=0.2)
    channel = world.channel()
    failures = 0
    answered = 0
    for _ in range(50):
        try:
            await do(channel, timeout_s=5)
            answered += 1
        except errors.TransportError:
            failures += 1
            await asyncio.sleep(5)
    assert failures > 3
    assert answered > 3


@pytest.mark.sim(seed=5)
async def test_another_delay_of_a_lossy_link_leaves_its_losses_and_whoever_counts_them() -> None:
    world = World()
    lost: list[None] = []
    world.network.set_link("client", "server", drop_probability=1.0, on_lost=lambda: lost.append(None))
    world.network.set_link("client", "server", delay=fixed_delay(0.001))
    assert isinstance(await failure(start(do(world.channel(), timeout_s=5))), errors.TransportError)
    assert lost
    counted = len(lost)
    world.network.set_link("client", "server", drop_probability=0.0)
    await asyncio.sleep(DEAD_PEER_S)
    await do(world.channel(), text="after", timeout_s=5)
    assert len(lost) == counted


@pytest.mark.sim(seed=1)
async def test_a_process_that_is_gone_makes_no_connections_and_nothing_of_it_waits_for_ever() -> None:
    world = World()
    channel = world.channel()
    await do(channel, text="before")
    call = start(do(channel, text="unheard", timeout_s=1.0))
    await asyncio.sleep(0)
    world.network.crash("client", gone=True)
    assert isinstance(await failure(call), errors.ConnectionLost)
    other = WireChannel(channel.address, cluster=CLUSTER, network=channel.network)
    assert isinstance(await failure(start(do(other, text="a last word", timeout_s=1.0))), errors.ConnectFailed)
    assert "a last word" not in world.servicer.executed
    await asyncio.sleep(DEAD_PEER_S)  # for what was on its way
    assert not world.network.connected()
    await do(world.channel(), text="another process", timeout_s=1.0)
    assert world.servicer.executed[-1] == "another process"


# --- bounds --------------------------------------------------------------------------------------------------


@pytest.mark.sim(seed=1)
async def test_a_writer_waits_while_the_other_side_does_not_read() -> None:
    world = World(window_bytes=2000, write_buffer_bytes_max=1000)
    channel = world.channel()
    await do(channel, text="before")
    world.server.pause()
    calls: list[asyncio.Task[Any]] = []
    for number in range(20):
        calls.append(start(do(channel, text=str(number), attachment=[bytes(500)], timeout_s=FOREVER_S)))
        await asyncio.sleep(0.01)
    assert channel._connection is not None
    assert channel._connection.write_paused
    assert 10 < len(channel.queue) < 20, "the channel keeps what the transport does not take"
    world.server.resume()
    await asyncio.gather(*calls)
    assert world.servicer.executed == ["before", *map(str, range(20))]
    assert not channel._connection.write_paused


@pytest.mark.sim(seed=1)
async def test_reads_of_a_ragged_network_end_in_the_middle_of_frames() -> None:
    world = World(ragged=True)
    channel = world.channel()
    parts: list[int] = []
    received = FrameReceiver.received

    def count(receiver: FrameReceiver, size_bytes: int) -> None:
        received(receiver, size_bytes)
        parts.append(receiver.partial_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrameReceiver, "received", count)
        for number in range(50):
            reply = await do(channel, text=str(number), attachment=[bytes(1000)], echo_attachment=True)
            assert len(reply.attachment) == 1000
    assert any(parts)
    assert not all(parts)


# --- pauses and crashes --------------------------------------------------------------------------------------


@pytest.mark.sim(seed=1)
async def test_a_paused_server_gets_everything_in_order_when_it_resumes() -> None:
    world = World()
    channel = world.channel()
    await do(channel, text="before")
    world.server.pause()
    calls = [start(do(channel, text=str(number), timeout_s=FOREVER_S)) for number in range(20)]
    await asyncio.sleep(DEAD_PEER_S / 2)
    assert world.servicer.executed == ["before"]
    world.server.resume()
    await asyncio.gather(*calls)
    assert world.servicer.executed == ["before", *map(str, range(20))]


@pytest.mark.sim(seed=1)
async def test_what_waited_on_a_slow_link_arrives_within_what_a_network_may_take() -> None:
    world = World(delay=fixed_delay(0.1))
    channel = world.channel()
    await do(channel, text="before")
    world.network.slow("client", "server", factor=10)
    world.server.pause()
    calls = [start(do(channel, text=str(number), timeout_s=FOREVER_S)) for number in range(200)]
    await asyncio.sleep(DEAD_PEER_S / 2)
    world.server.resume()
    resumed_s = world.loop.time()
    await asyncio.gather(*calls)
    assert world.servicer.executed == ["before", *map(str, range(200))]
    assert world.loop.time() - resumed_s <= DELAY_S_MAX + 1


def test_a_server_paused_for_long_executes_what_its_callers_have_given_up() -> None:
    """The requests were in its receive buffer; only behind them does it find that the connection has ended."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, sim_loop.SimLoop)
        network, servicer, process = SimNetwork(loop.rng), Recorder(), Process("server")
        process.enter(lambda: network.serve(SERVER, [servicer.service()], cluster=CLUSTER))
        channel = network.channel("client", SERVER, cluster=CLUSTER, limits=LIMITS)
        await do(channel, text="before")
        network.pause("server", buffered=True)
        process.pause()
        calls = [start(do(channel, text=str(number), timeout_s=FOREVER_S)) for number in range(3)]
        for call in calls:
            assert isinstance(await failure(call), errors.ConnectionLost)
        await asyncio.sleep(1000)
        network.resume("server")  # what has come is read before timers run that are late
        process.resume()
        await asyncio.sleep(1)
        assert servicer.executed == ["before", "0", "1", "2"]
        assert (await do(channel, text="after")).message.text == "after"

    processes.run(main())


@pytest.mark.sim(seed=1)
async def test_replies_of_a_paused_server_leave_when_it_resumes() -> None:
    world = World()
    channel = world.channel()
    call = start(do(channel, text="hold", timeout_s=FOREVER_S))
    await world.servicer.until(lambda: world.servicer.sequence == 1)
    world.server.pause()
    world.servicer.release.set()
    await asyncio.sleep(10)
    assert not call.done()
    world.server.resume()
    assert (await call).message.text == "hold"


@pytest.mark.sim(seed=1)
async def test_a_paused_client_finds_its_replies_when_it_resumes() -> None:
    world = World()
    channel = world.channel()
    await do(channel)
    call = start(do(channel, text="x", delay_ms=100, timeout_s=FOREVER_S))
    await asyncio.sleep(0.05)
    world.network.pause("client")
    await asyncio.sleep(10)
    assert world.servicer.executed[-1] == "x"
    assert not call.done()
    world.network.resume("client")
    assert (await call).message.text == "x"


@pytest.mark.sim(seed=1)
async def test_a_crash_cancels_handlers_ends_connections_and_frees_the_address() -> None:
    world = World()
    channel = world.channel()
    held = start(do(channel, text="hold", timeout_s=FOREVER_S))
    hung = start(hang(channel, timeout_s=FOREVER_S))
    await world.servicer.until(lambda: world.servicer.hanging == 1)
    world.server.crash()
    for call in (held, hung):
        assert isinstance(await failure(call), errors.ConnectionLost)
    assert world.servicer.hangs_cancelled == 1
    assert isinstance(await failure(start(do(channel))), errors.ConnectFailed)
    world.servicer = Recorder()
    world.serve()
    await asyncio.sleep(LIMITS.reconnect_delay_s_max)
    assert (await do(channel, text="after")).message.text == "after"


@pytest.mark.sim(seed=1)
async def test_requests_on_the_way_to_a_crashed_server_do_not_reach_its_successor() -> None:
    world = World(delay=fixed_delay(1.0))
    channel = world.channel()
    await do(channel)
    call = start(do(channel, text="lost", timeout_s=FOREVER_S))
    await asyncio.sleep(0.5)
    world.server.crash()
    world.servicer = Recorder()
    world.serve()
    assert isinstance(await failure(call), errors.ConnectionLost)
    await asyncio.sleep(60)
    assert world.servicer.executed == []


@pytest.mark.sim(seed=1)
async def test_a_host_that_crashes_loses_its_servers_and_its_own_connections() -> None:
    world = World()
    servicer = Recorder()
    world.network.serve("other:7000", [servicer.service()], cluster=CLUSTER)
    outgoing = world.network.channel("server", "other:7000", cluster=CLUSTER)
    call = start(hang(outgoing, timeout_s=FOREVER_S))
    incoming = start(hang(world.channel(), timeout_s=FOREVER_S))
    await servicer.until(lambda: servicer.hanging == 1)
    await world.servicer.until(lambda: world.servicer.hanging == 1)
    world.network.crash("server")
    assert isinstance(await failure(call), errors.ConnectionLost)
    assert isinstance(await failure(incoming), errors.ConnectionLost)
    await servicer.until(lambda: servicer.hangs_cancelled == 1)


@pytest.mark.sim(seed=1)
async def test_an_address_is_served_once() -> None:
    world = World()
    with pytest.raises(OSError, match="in use"):
        world.serve()
    with pytest.raises(ValueError, match="host:port"):
        world.network.channel("client", "no-port", cluster=CLUSTER)


@pytest.mark.sim(seed=1)
async def test_connections_that_are_over_are_forgotten() -> None:
    world = World()
    for trouble in ("close", "cut", "crash", "partition", "drop", "pause"):
        channel = world.channel()
        await do(channel)
        call = start(do(channel, delay_ms=10, timeout_s=FOREVER_S))
        await asyncio.sleep(0.005)
        if trouble == "cut":
            world.network.cut("client", "server")
        elif trouble == "crash":
            world.server.crash()
            world.server = world.serve()
        elif trouble == "partition":
            world.network.partition("client", "server")
        elif trouble == "drop":
            world.network.drop_next("server", "client")
        elif trouble == "pause":
            world.network.pause("server")
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.sleep(100)
        world.network.heal_all()
        world.network.resume("server")
        await channel.close()
        await asyncio.sleep(100)
        assert not world.network._connections, trouble


# --- the same seed, the same story ---------------------------------------------------------------------------


async def _story() -> str:
    """Clients that call and repeat, while a gremlin uses every fault there is; returns the trace's fingerprint."""
    loop = sim_loop.current()
    mishaps: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: mishaps.append(context))
    network = SimNetwork(loop.rng, trace=loop.note)
    hosts = ["a", "b", "c"]
    servicers = {host: Recorder() for host in hosts}

    def serve(host: str) -> None:
        network.serve(f"{host}:1", [Service(methods.CONFORMANCE[:2], servicers[host])], cluster=CLUSTER)

    async def client(host: str) -> None:
        channels = [network.channel(host, f"{target}:1", cluster=CLUSTER, limits=LIMITS) for target in hosts]
        for number in range(40):
            channel = loop.rng.choice(channels)
            size_bytes = loop.rng.randrange(5000)
            try:
                await do(channel, text=f"{host}{number}", attachment=[bytes(size_bytes)], timeout_s=3)
            except errors.TransportError as error:
                loop.note(f"{host}{number} {error!r}")
                await asyncio.sleep(loop.rng.uniform(0, 2))

    async def gremlin() -> None:
        while True:
            await asyncio.sleep(loop.rng.uniform(0, 3))
            one, other = loop.rng.sample([*hosts, "x", "y"], 2)
            match loop.rng.randrange(8):
                case 0:
                    network.cut(one, other)
                case 1:
                    network.partition(one, other)
                case 2:
                    network.partition_one_way(one, other)
                case 3:
                    network.pause(one)
                case 4:
                    network.resume(one)
                case 5:
                    network.drop_next(one, other)
                case 6 if one in hosts:
                    network.crash(one)
                    serve(one)
                case _:
                    network.heal_all()
                    for host in hosts:
                        network.resume(host)

    for host in hosts:
        serve(host)
    trouble = loop.create_task(gremlin())
    async with asyncio.TaskGroup() as group:
        for host in ("x", "y", *hosts):
            group.create_task(client(host))
    trouble.cancel()
    assert not mishaps
    for host, servicer in servicers.items():
        loop.note(f"{host} executed {servicer.executed}")
    return loop.trace_hash()


def test_a_seed_gives_the_same_trace_and_another_seed_another() -> None:
    seed = random.randrange(10**6)
    first, again, other = (sim_loop.run(_story(), seed=number) for number in (seed, seed, seed + 1))
    assert first == again, f"seed {seed}"
    assert first != other, f"seed {seed}"


def test_a_seed_gives_the_same_trace_in_processes_that_hash_differently() -> None:
    code = "from tests.unit import test_sim_network as t; print(t.sim_loop.run(t._story(), seed=7))"
    hashes = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
        hashes.add(run.stdout.strip())
    assert hashes == {sim_loop.run(_story(), seed=7)}
