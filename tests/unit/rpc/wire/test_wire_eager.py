"""Handlers marked `eager`, which run without a task, and those marked `answers` that reply at once or leave a request
to a coroutine. All else is as for any handler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from neve.proto import errors
from neve.rpc.limits import KIB, Limits
from neve.rpc.service import Call, Service, answers, eager
from neve.rpc.wire.client import WireChannel
from neve.rpc.wire.server import WireServer
from tests.proto import methods
from tests.proto import testing_pb2 as pb


class Servicer:
    """`do` is eager, `hang` is not; both note when they start and how they end."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.release = asyncio.Event()

    @eager
    async def do(self, request: pb.DoRequest, call: Call) -> pb.DoReply:
        self.story.append(f"start {request.text}")
        try:
            if request.crash:
                raise ZeroDivisionError("a bug")
            if request.HasField("fail_with"):
                raise errors.from_message(request.fail_with)
            if request.delay_ms:
                await asyncio.sleep(0)
                await asyncio.sleep(request.delay_ms / 1000)
            call.attach(bytes(request.reply_bytes))
            return pb.DoReply(text=request.text)
        except asyncio.CancelledError:
            self.story.append(f"cancelled {request.text}")
            raise

    async def hang(self, request: pb.HangRequest, call: Call) -> pb.HangReply:
        self.story.append("start hang")
        await self.release.wait()
        return pb.HangReply()


@contextlib.asynccontextmanager
async def eager_server(
    limits: Limits, servicer: Servicer | None = None
) -> AsyncIterator[tuple[WireServer, WireChannel, Servicer]]:
    servicer = servicer or Servicer()
    server = WireServer(
        [Service([methods.CONFORMANCE_DO, methods.CONFORMANCE_HANG], servicer)], cluster="c", limits=limits
    )
    channel = WireChannel(await server.start("127.0.0.1", 0), cluster="c")
    try:
        yield server, channel, servicer
    finally:
        await channel.close()
        await server.stop(0.0)


async def do(channel: WireChannel, *, timeout_s: float = 30, **fields: object) -> str:
    request = pb.DoRequest(**fields)  # type: ignore[arg-type]
    return (await channel.call(methods.CONFORMANCE_DO, request, timeout_s=timeout_s)).message.text


async def test_an_eager_handler_answers_at_once_or_after_waiting() -> None:
    async with eager_server(Limits()) as (server, channel, _):
        texts = [f"{i}" for i in range(50)]
        calls = [do(channel, text=text, delay_ms=i % 3) for i, text in enumerate(texts)]
        assert await asyncio.gather(*calls) == texts
        (connection,) = server.connections
        assert (connection.calls, server.request_bytes, connection._unstarted) == ({}, 0, 0)


async def test_errors_of_an_eager_handler_arrive_and_harm_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with eager_server(Limits(attachment_bytes_max=1000)) as (server, channel, _):
        with pytest.raises(errors.Gap) as gap:
            await do(channel, fail_with=errors.to_message(errors.Gap(extent_id=1, offset=2, length=3)))
        assert gap.value.facts() == errors.Gap(extent_id=1, offset=2, length=3).facts()
        with pytest.raises(errors.Internal, match="ZeroDivisionError: a bug"):
            await do(channel, crash=True)
        with pytest.raises(errors.TooLarge):
            await do(channel, reply_bytes=1001)
        assert await do(channel, text="fine") == "fine"
        assert server.request_bytes == 0
    assert any("handler_failed" in record.getMessage() for record in caplog.records)


async def test_an_eager_handler_that_waits_is_cancelled_by_its_caller_and_by_its_deadline() -> None:
    async with eager_server(Limits()) as (server, channel, servicer):
        caller = asyncio.ensure_future(do(channel, text="caller", delay_ms=60_000))
        while "start caller" not in servicer.story:
            await asyncio.sleep(0.001)
        caller.cancel()
        with pytest.raises(errors.DeadlineExceeded):
            await do(channel, text="deadline", delay_ms=60_000, timeout_s=0.05)
        while len([line for line in servicer.story if line.startswith("cancelled")]) < 2:
            await asyncio.sleep(0.001)
        await asyncio.gather(caller, return_exceptions=True)
        (connection,) = server.connections
        while connection.calls:
            await asyncio.sleep(0.001)
        assert server.request_bytes == 0


async def test_an_eager_handler_does_not_overtake_one_that_came_before() -> None:
    async with eager_server(Limits()) as (_, channel, servicer):
        await do(channel, text="connected")
        servicer.story.clear()
        hang = asyncio.ensure_future(channel.call(methods.CONFORMANCE_HANG, pb.HangRequest(), timeout_s=30))
        first = asyncio.ensure_future(do(channel, text="first"))
        second = asyncio.ensure_future(do(channel, text="second"))
        await asyncio.gather(first, second)
        assert servicer.story == ["start hang", "start first", "start second"]
        servicer.release.set()
        await hang


class NowServicer(Servicer):
    """Texts that begin with "now" are answered at once; a coroutine answers the others."""

    @answers
    def do(  # type: ignore[override]
        self, request: pb.DoRequest, call: Call
    ) -> pb.DoReply | Coroutine[Any, Any, pb.DoReply]:
        if request.crash:
            raise ZeroDivisionError("a bug")
        if not request.text.startswith("now"):
            return super().do(request, call)
        self.story.append(f"now {request.text} {bytes(call.attachment).decode()}")
        return pb.DoReply(text=request.text)


async def test_a_plain_function_answers_now_or_leaves_a_request_to_a_coroutine() -> None:
    async with eager_server(Limits(), NowServicer()) as (server, channel, servicer):
        texts = [f"{'now' if i % 2 else 'later'} {i}" for i in range(20)]
        assert await asyncio.gather(*(do(channel, text=text) for text in texts)) == texts
        told = [line.split()[:2] for line in servicer.story]
        assert told == [["now", "now"] if i % 2 else ["start", "later"] for i in range(20)]
        request = pb.DoRequest(text="now")
        await channel.call(methods.CONFORMANCE_DO, request, timeout_s=30, attachment=[b"with ", b"bytes"])
        assert servicer.story[-1] == "now now with bytes"
        (connection,) = server.connections
        assert (connection.calls, server.request_bytes, connection.request_bytes) == ({}, 0, 0)


async def test_a_bug_in_what_answers_now_is_told_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with eager_server(Limits(), NowServicer()) as (server, channel, _):
        with pytest.raises(errors.Internal, match="ZeroDivisionError: a bug"):
            await do(channel, text="now", crash=True)
        assert await do(channel, text="now fine") == "now fine"
        (connection,) = server.connections
        assert (connection.calls, server.request_bytes) == ({}, 0)
    assert any("handler_failed" in record.getMessage() for record in caplog.records)


async def test_what_is_answered_now_does_not_overtake_one_that_came_before() -> None:
    async with eager_server(Limits(), NowServicer()) as (_, channel, servicer):

        def hang() -> asyncio.Future[object]:
            return asyncio.ensure_future(channel.call(methods.CONFORMANCE_HANG, pb.HangRequest(), timeout_s=30))

        hanging = [hang()]
        while not servicer.story:
            await asyncio.sleep(0.001)
        hanging.append(hang())  # not the only call in flight: it leaves together with the next ones
        await asyncio.gather(do(channel, text="now 1"), do(channel, text="now 2"))
        assert servicer.story == ["start hang", "start hang", "now now 1 ", "now now 2 "]
        servicer.release.set()
        await asyncio.gather(*hanging)


async def test_many_connections_that_wait_for_room_are_let_in_one_after_the_other() -> None:
    """Each is answered at once, and gives its room to the next one: that must not go deeper with every connection."""
    limits = Limits(server_bytes_max=64 * KIB)
    async with eager_server(limits) as (server, channel, servicer):
        large = asyncio.ensure_future(
            channel.call(methods.CONFORMANCE_HANG, pb.HangRequest(), timeout_s=30, attachment=[bytes(64 * KIB - 100)])
        )
        others = [WireChannel(channel.address, cluster="c") for _ in range(200)]
        request = pb.DoRequest(text="x" * 200)
        while not server.request_bytes:
            await asyncio.sleep(0.01)
        calls = [asyncio.ensure_future(each.call(methods.CONFORMANCE_DO, request, timeout_s=30)) for each in others]
        while len(server.held) < len(others):
            await asyncio.sleep(0.01)
        servicer.release.set()
        await asyncio.gather(*calls, large)
        assert not server.held
        assert not server.request_bytes
        await asyncio.gather(*(each.close() for each in others))
