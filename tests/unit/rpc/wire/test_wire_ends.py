"""How calls, connections and servers end on the wire: nothing is lost, leaked, answered twice or left hanging.

Most of these were found by a reviewer who tried to break the transport; each is named for what must hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neve.proto import errors
from neve.rpc.limits import KIB, MIB, Limits
from neve.rpc.service import Call, Service, eager
from neve.rpc.tls import TlsFiles
from neve.rpc.wire.budget import ByteBudget
from neve.rpc.wire.buffers import CHUNK_STEP_BYTES, ChunkPool
from neve.rpc.wire.client import WireChannel
from neve.rpc.wire.deadlines import BUCKETS_SWEEP_MIN, Deadlines
from neve.rpc.wire.frame import Kind, encode
from neve.rpc.wire.server import WireServer
from tests.proto import methods
from tests.proto import testing_pb2 as pb
from tests.unit.rpc.certs import Authority
from tests.unit.rpc.wire.wire_peers import (
    CLUSTER,
    calling,
    hello_frame,
    raw_client,
    raw_server,
    read_frame,
    request_frame,
    serving,
    welcome_frame,
)

DO, HANG = methods.CONFORMANCE_DO, methods.CONFORMANCE_HANG


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


class Odd:
    """Handlers that misbehave, as told by `text`."""

    def __init__(self) -> None:
        self.story: list[str] = []

    @eager
    async def do(self, request: pb.DoRequest, call: Call) -> Any:
        return await self._odd(request, call)

    async def hang(self, request: pb.HangRequest, call: Call) -> pb.HangReply:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.story.append("cancelled")
            await asyncio.sleep(0.2)  # clean-up that takes its time
            self.story.append("cleaned up")
            raise
        return pb.HangReply()

    async def _odd(self, request: pb.DoRequest, call: Call) -> Any:
        if request.delay_ms:
            await asyncio.sleep(request.delay_ms / 1000)
        if request.reply_bytes:
            try:
                await call.reserve_reply(request.reply_bytes)
                self.story.append("reserved")
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.story.append("cancelled")
                raise
        match request.text:
            case "none":
                return None
            case "class":
                return pb.HangReply()
            case "text":
                call.attach("not bytes")  # type: ignore[arg-type]
            case "stride":
                call.attach(memoryview(bytes(range(200)))[::2])
            case "int64":
                call.attach(memoryview(bytes(range(128))).cast("q"))
        return pb.DoReply(text=request.text)


@contextlib.asynccontextmanager
async def odd_server(limits: Limits) -> AsyncIterator[tuple[WireServer, str, Odd]]:
    odd = Odd()
    server = WireServer([Service([DO, HANG], odd)], cluster=CLUSTER, limits=limits)
    address = await server.start("127.0.0.1", 0)
    try:
        yield server, address, odd
    finally:
        await server.stop(0.0)


@pytest.mark.parametrize("delay_ms", [0, 1], ids=["at once", "later"])
@pytest.mark.parametrize("text", ["none", "class", "text", "stride"])
async def test_what_a_handler_must_not_answer_is_internal_for_that_call_alone(text: str, delay_ms: int) -> None:
    async with odd_server(Limits()) as (server, address, _), calling(address, Limits()) as channel:
        other = asyncio.ensure_future(channel.call(DO, pb.DoRequest(text="other", delay_ms=50), timeout_s=30))
        with pytest.raises(errors.Internal):
            await channel.call(DO, pb.DoRequest(text=text, delay_ms=delay_ms), timeout_s=30)
        assert (await other).message.text == "other"
        assert (await channel.call(DO, pb.DoRequest(text="on"), timeout_s=30)).message.text == "on"
        assert server.request_bytes == 0


async def test_a_view_of_other_items_than_bytes_is_sent_as_its_bytes() -> None:
    content = bytes(range(128))
    async with odd_server(Limits()) as (_, address, _), calling(address, Limits()) as channel:
        reply = await channel.call(DO, pb.DoRequest(text="int64"), timeout_s=30)
        assert bytes(reply.attachment) == content
        for view in (memoryview(content).cast("q"), memoryview(content).cast("B", (2, 64))):
            await channel.call(DO, pb.DoRequest(), timeout_s=30, attachment=[view])
        with pytest.raises(TypeError, match=r"contiguous|cast"):
            await channel.call(DO, pb.DoRequest(), timeout_s=30, attachment=[memoryview(content)[::2]])
        assert (await channel.call(DO, pb.DoRequest(text="on"), timeout_s=30)).message.text == "on"


async def test_a_connection_that_ends_gives_back_what_its_calls_had_reserved() -> None:
    limits = Limits(server_bytes_max=4 * MIB)
    async with odd_server(limits) as (server, address, odd):
        for round_number in range(8):  # more than the server's bound in all
            async with raw_client(address) as (_, writer):
                writer.write(hello_frame() + request_frame(pb.DoRequest(reply_bytes=MIB)))
                await until(lambda number=round_number: odd.story.count("reserved") > number)
            await until(lambda: not server.connections)
        await until(lambda: not server.tasks)
        assert server.reply_budget.held_bytes == 0


async def test_an_eager_handler_cancelled_after_its_first_step_is_cancelled_and_gives_back_all() -> None:
    """REQUEST and CANCEL in one read, with the handler waiting for room in its first step."""
    limits = Limits(connection_bytes_max=4 * MIB)
    async with odd_server(limits) as (server, address, odd), raw_client(address) as (_, writer):
        first = request_frame(pb.DoRequest(reply_bytes=4 * MIB), call_id=1)
        second = request_frame(pb.DoRequest(reply_bytes=MIB), call_id=2) + encode(Kind.CANCEL, call_id=2)
        writer.write(hello_frame() + first)
        await until(lambda: "reserved" in odd.story)
        writer.write(second)
        await until(lambda: "cancelled" in odd.story)
        (connection,) = server.connections
        await until(lambda: len(connection.calls) == 1)
        writer.write(encode(Kind.CANCEL, call_id=1))
        await until(lambda: not connection.calls)
        await until(lambda: connection.reply_budget.held_bytes == 0)
        gc.collect()
        writer.write(request_frame(pb.DoRequest(reply_bytes=MIB), call_id=3))
        await until(lambda: odd.story.count("reserved") == 2)


async def test_a_handler_is_cancelled_once_and_stop_waits_for_its_clean_up() -> None:
    async with odd_server(Limits()) as (server, address, odd):
        async with calling(address, Limits()) as channel:
            with pytest.raises(errors.DeadlineExceeded):
                await channel.call(HANG, pb.HangRequest(), timeout_s=0.05)
            await until(lambda: odd.story == ["cancelled", "cleaned up"])
            odd.story.clear()
            hanging = asyncio.ensure_future(channel.call(HANG, pb.HangRequest(), timeout_s=60))
            await until(lambda: bool(server.tasks))
            await asyncio.sleep(0.05)
        await asyncio.gather(hanging, return_exceptions=True)
        await server.stop(0.0)  # its connection has ended, its handler has not
        assert odd.story == ["cancelled", "cleaned up"]


async def test_a_cancellation_is_read_while_the_server_is_full_and_newcomers_are_welcomed() -> None:
    limits = Limits(server_bytes_max=MIB)
    async with serving(limits) as (server, address, servicer), calling(address, limits) as channel:
        hang = asyncio.ensure_future(channel.call(HANG, pb.HangRequest(), timeout_s=60, attachment=[bytes(MIB)]))
        await until(lambda: servicer.running == 1)
        async with raw_client(address) as (reader, writer):
            writer.write(hello_frame())
            assert (await read_frame(reader))[0].kind == Kind.WELCOME
        hang.cancel()
        await until(lambda: servicer.running == 0)
        assert server.request_bytes == 0


async def test_a_call_given_up_at_the_head_of_the_queue_lets_those_behind_it_go() -> None:
    limits = Limits(connection_bytes_max=64 * KIB)
    async with serving(limits) as (_, address, servicer), calling(address, limits) as channel:
        hang = asyncio.ensure_future(channel.call(HANG, pb.HangRequest(), timeout_s=60))
        await until(lambda: servicer.running == 1)
        large = asyncio.ensure_future(channel.call(DO, pb.DoRequest(), timeout_s=60, attachment=[bytes(64 * KIB)]))
        await asyncio.sleep(0)
        small = asyncio.ensure_future(channel.call(DO, pb.DoRequest(text="small"), timeout_s=60))
        await asyncio.sleep(0.05)
        assert not small.done()
        large.cancel()
        assert (await small).message.text == "small"
        hang.cancel()
        await asyncio.gather(hang, large, return_exceptions=True)


async def test_a_cancelled_call_makes_room_for_the_next() -> None:
    limits = Limits(connection_calls_max=1)
    async with serving(limits) as (_, address, servicer), calling(address, limits) as channel:
        hang = asyncio.ensure_future(channel.call(HANG, pb.HangRequest(), timeout_s=60))
        await until(lambda: servicer.running == 1)
        waiting = asyncio.ensure_future(channel.call(DO, pb.DoRequest(text="next"), timeout_s=60))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        hang.cancel()
        assert (await waiting).message.text == "next"
        await asyncio.gather(hang, return_exceptions=True)


@pytest.mark.own_clock
async def test_a_busy_connection_is_not_taken_for_a_slow_one() -> None:
    """Reads that never end on a frame's boundary for longer than a frame may take."""
    limits = Limits(frame_timeout_s=0.3, keepalive_s=0.1, dead_peer_s=30.0)
    frame = request_frame(pb.DoRequest(text="x" * 3000))
    async with serving(limits) as (server, address, servicer), raw_client(address) as (_, writer):
        writer.write(hello_frame())
        stream = b"".join(request_frame(pb.DoRequest(text="x" * 3000), call_id=i) for i in range(1, 400))
        cut = len(frame) // 2
        writer.write(stream[:cut])
        for start in range(cut, len(stream) - len(frame), len(frame)):
            writer.write(stream[start : start + len(frame)])
            await asyncio.sleep(0.004)
        assert servicer.started > 300
        assert len(server.connections) == 1


@pytest.mark.own_clock
async def test_a_peer_that_reads_slowly_but_steadily_is_not_cut() -> None:
    limits = Limits(frame_timeout_s=0.4, keepalive_s=0.1, dead_peer_s=30.0)
    async with serving(limits) as (server, address, _), raw_client(address) as (reader, writer):
        writer.write(hello_frame())
        for call_id in range(1, 33):
            writer.write(request_frame(pb.DoRequest(reply_bytes=MIB), call_id=call_id))
        left_bytes = 32 * MIB
        while left_bytes > 0:  # about two seconds for what may stand still for 0.4
            data = await reader.read(256 * KIB)
            assert data, "the server has hung up on a reader that reads"
            left_bytes -= len(data)
            await asyncio.sleep(0.01)
        assert len(server.connections) == 1


async def test_a_drain_waits_until_the_replies_are_sent() -> None:
    limits = Limits(write_buffer_bytes=64 * KIB)
    async with serving(limits) as (server, address, servicer), raw_client(address) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        requests = [request_frame(pb.DoRequest(reply_bytes=MIB), call_id=i) for i in range(1, 13)]
        writer.write(hello_frame() + b"".join(requests))
        await until(lambda: servicer.started == 12)
        stopping = asyncio.ensure_future(server.stop(30.0))
        await asyncio.sleep(0.1)
        assert not stopping.done()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        answered = []
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                prelude, _ = await read_frame(reader)
                if prelude.kind == Kind.REPLY:
                    answered.append(prelude.call_id)
        await stopping
        assert sorted(answered) == list(range(1, 13))


async def test_tls_connections_are_counted_and_drained(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    cert, key = authority.issue("server")
    server_tls, client_tls = TlsFiles(cert=cert, key=key), TlsFiles(ca=authority.ca)
    limits = Limits(connections_max=2)
    async with serving(limits, tls=server_tls) as (server, address, servicer), contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(calling(address, Limits(), tls=client_tls)) for _ in range(3)]
        content = bytes(range(256)) * 20_000  # 5 MB, both ways
        for channel in channels[:2]:
            request = pb.DoRequest(echo_attachment=True)
            reply = await channel.call(DO, request, timeout_s=30, attachment=[content], reply_bytes_max=len(content))
            assert bytes(reply.attachment) == content
        with pytest.raises(errors.ConnectFailed):
            await channels[2].call(DO, pb.DoRequest(), timeout_s=30)
        assert len(server.connections) == 2
        slow = asyncio.ensure_future(channels[0].call(DO, pb.DoRequest(text="slow", delay_ms=300), timeout_s=30))
        await until(lambda: servicer.running == 1)
        await server.stop(30.0)
        assert (await slow).message.text == "slow"
        assert server.connections == {}


async def test_a_stop_does_not_wait_for_a_peer_that_never_begins_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    cert, key = authority.issue("server")
    limits = Limits(handshake_timeout_s=3600.0)
    async with serving(limits, tls=TlsFiles(cert=cert, key=key)) as (server, address, _):
        async with raw_client(address):
            await until(lambda: bool(server._admitting))
            await server.stop(0.1)  # ends long before the handshake would
        assert server._admitting == set()


async def test_a_server_that_welcomes_and_hangs_up_is_not_stormed() -> None:
    attempts = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        await read_frame(reader)
        writer.write(
            welcome_frame() + encode(Kind.ERROR, message=errors.to_message(errors.ShuttingDown()).SerializeToString())
        )
        writer.close()

    limits = Limits(reconnect_delay_s_min=60.0, reconnect_delay_s_max=60.0)
    async with raw_server(hang_up) as address, calling(address, limits) as channel:
        for _ in range(50):
            with pytest.raises(errors.TransportError):
                await channel.call(DO, pb.DoRequest(), timeout_s=10)
        assert attempts <= 2


async def test_a_goaway_right_behind_the_welcome_is_heard() -> None:
    requests = 0

    async def go_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_frame(reader)
        writer.write(welcome_frame() + encode(Kind.GOAWAY))
        while True:
            if (await read_frame(reader))[0].kind == Kind.REQUEST:
                requests += 1

    async with raw_server(go_away) as address, calling(address, Limits()) as channel:
        with pytest.raises(errors.ConnectFailed, match="going away"):
            await channel.call(DO, pb.DoRequest(), timeout_s=10)
        assert requests == 0


async def test_an_unparsable_error_ends_its_call_at_once() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(welcome_frame())
        prelude, _ = await read_frame(reader)
        writer.write(encode(Kind.ERROR, call_id=prelude.call_id, message=b"\xff\xff\xff"))
        await reader.read(-1)

    async with raw_server(answer) as address, calling(address, Limits()) as channel:
        with pytest.raises(errors.ProtocolViolation, match="not a Error"):
            await channel.call(DO, pb.DoRequest(), timeout_s=60)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
async def test_no_time_at_all_is_an_exceeded_deadline(timeout_s: float) -> None:
    async with serving(Limits()) as (_, address, servicer), calling(address, Limits()) as channel:
        with pytest.raises(errors.DeadlineExceeded):
            await channel.call(DO, pb.DoRequest(), timeout_s=timeout_s)
        assert servicer.started == 0
        for long_s in (1e12, float("inf")):
            assert (await channel.call(DO, pb.DoRequest(text="x"), timeout_s=long_s)).message.text == "x"


async def test_closing_twice_and_while_connecting_is_harmless() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with raw_server(silent) as address:
        channel = WireChannel(address, cluster=CLUSTER)
        call = asyncio.ensure_future(channel.call(DO, pb.DoRequest(), timeout_s=60))
        await asyncio.sleep(0.05)
        await channel.close()
        await channel.close()
        with pytest.raises(errors.ConnectFailed, match="closed"):
            await call
        with pytest.raises(errors.ConnectFailed, match="closed"):
            await channel.call(DO, pb.DoRequest(), timeout_s=1)


async def test_a_budget_granted_and_cancelled_in_one_turn_is_given_back() -> None:
    budget = ByteBudget(10)
    await budget.acquire(10)
    waiter = asyncio.ensure_future(budget.acquire(5))
    await asyncio.sleep(0)
    budget.release(10)  # grants
    waiter.cancel()  # before the waiter ran
    await asyncio.gather(waiter, return_exceptions=True)
    assert budget.held_bytes == 0


def test_a_pool_whose_size_class_was_emptied_can_still_evict() -> None:
    pool = ChunkPool(bytes_max=4 * CHUNK_STEP_BYTES)
    pool.give(bytearray(CHUNK_STEP_BYTES))
    held = pool.take(CHUNK_STEP_BYTES)
    for _ in range(10):
        pool.give(bytearray(2 * CHUNK_STEP_BYTES))
    assert len(held) == CHUNK_STEP_BYTES
    assert pool._bytes <= 4 * CHUNK_STEP_BYTES


async def test_deadlines_far_away_leave_no_timers_behind() -> None:
    expired: list[int] = []
    deadlines: Deadlines[int] = Deadlines(asyncio.get_running_loop(), expired.append)
    now_s = asyncio.get_running_loop().time()
    for number in range(20 * BUCKETS_SWEEP_MIN):
        deadlines.remove(number, deadlines.add(number, now_s + 1000 + number))
    assert len(deadlines._timers) <= 2 * BUCKETS_SWEEP_MIN
    deadlines.add(-1, now_s)
    await asyncio.sleep(0.1)
    assert expired == [-1]
    deadlines.close()
