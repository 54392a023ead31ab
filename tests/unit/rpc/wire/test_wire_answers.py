"""Handlers marked `answers`: plain functions whose reply comes later, and which no task waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

import pytest

from neve.proto import errors
from neve.rpc.limits import Limits
from neve.rpc.service import Answer, Call, Encoded, Service, answers
from neve.rpc.wire.client import WireChannel
from neve.rpc.wire.server import WireServer
from tests.proto import methods
from tests.proto import testing_pb2 as pb

OnDone = Callable[[Any, BaseException | None], None]


class Later(Answer[pb.DoReply]):
    def __init__(self) -> None:
        self._on_done: OnDone | None = None
        self.known: tuple[Any, BaseException | None] | None = None

    def then(self, on_done: OnDone) -> None:
        if self.known is not None:
            on_done(*self.known)
        self._on_done = on_done

    def give(self, reply: Any, error: BaseException | None = None) -> None:
        self.known = (reply, error)
        if self._on_done is not None:
            self._on_done(reply, error)

    def __await__(self) -> Generator[Any, Any, pb.DoReply]:
        done: asyncio.Future[pb.DoReply] = asyncio.get_running_loop().create_future()
        self.then(lambda reply, error: done.set_result(reply))
        return (yield from done)


class Servicer:
    def __init__(self) -> None:
        self.story: list[str] = []
        self.given: dict[str, Later] = {}

    @answers
    def do(self, request: pb.DoRequest, call: Call) -> Answer[pb.DoReply]:
        self.story.append(request.text)
        if request.HasField("fail_with"):
            raise errors.from_message(request.fail_with)
        later = self.given[request.text] = Later()
        if not request.delay_ms:
            later.give(Encoded(pb.DoReply, pb.DoReply(text=request.text).SerializeToString()))
        return later

    async def hang(self, request: pb.HangRequest, call: Call) -> pb.HangReply:
        self.story.append("hang")
        return pb.HangReply()

    async def has(self, text: str) -> Later:
        while text not in self.given:
            await asyncio.sleep(0.001)
        return self.given[text]


@contextlib.asynccontextmanager
async def answering(limits: Limits | None = None) -> AsyncIterator[tuple[WireServer, WireChannel, Servicer]]:
    servicer = Servicer()
    service = Service([methods.CONFORMANCE_DO, methods.CONFORMANCE_HANG], servicer)
    server = WireServer([service], cluster="c", limits=limits or Limits())
    channel = WireChannel(await server.start("127.0.0.1", 0), cluster="c")
    try:
        yield server, channel, servicer
    finally:
        await channel.close()
        await server.stop(0.0)


async def do(channel: WireChannel, *, timeout_s: float = 30, **fields: object) -> str:
    request = pb.DoRequest(**fields)  # type: ignore[arg-type]
    return (await channel.call(methods.CONFORMANCE_DO, request, timeout_s=timeout_s)).message.text


def nothing_is_held(server: WireServer) -> bool:
    (connection,) = server.connections
    return (connection.calls, server.request_bytes, server.tasks) == ({}, 0, set())


async def test_it_is_answered_at_once_or_later_and_by_no_task() -> None:
    async with answering() as (server, channel, servicer):
        assert await do(channel, text="at once") == "at once"
        asking = asyncio.ensure_future(do(channel, text="later", delay_ms=1))
        later = await servicer.has("later")
        assert not server.tasks
        later.give(pb.DoReply(text="as a message"))
        assert await asking == "as a message"
        assert nothing_is_held(server)


async def test_what_it_raises_or_answers_wrongly_arrives_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async with answering() as (server, channel, servicer):
        with pytest.raises(errors.Gap):
            await do(channel, fail_with=errors.to_message(errors.Gap(extent_id=1, offset=2, length=3)))
        for text, reply, error in (
            ("a bug", None, ZeroDivisionError("a bug")),
            ("another message", Encoded(pb.HangReply, b""), None),
            ("none", None, None),
        ):
            asking = asyncio.ensure_future(do(channel, text=text, delay_ms=1))
            (await servicer.has(text)).give(reply, error)
            with pytest.raises(errors.Internal):
                await asking
        assert nothing_is_held(server)
    assert any("handler_failed" in record.getMessage() for record in caplog.records)


async def test_when_its_caller_gives_up_or_runs_out_of_time_the_answer_goes_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with answering() as (server, channel, servicer):
        caller = asyncio.ensure_future(do(channel, text="caller", delay_ms=1))
        given_up = await servicer.has("caller")
        caller.cancel()
        with pytest.raises(errors.DeadlineExceeded):
            await do(channel, text="deadline", delay_ms=1, timeout_s=0.05)
        while not nothing_is_held(server):
            await asyncio.sleep(0.001)
        given_up.give(pb.DoReply(text="too late"))
        (await servicer.has("deadline")).give(None, ZeroDivisionError("a bug"))
        assert await do(channel, text="fine") == "fine"
        await asyncio.gather(caller, return_exceptions=True)
    assert any("handler_failed" in record.getMessage() for record in caplog.records)  # nobody else hears of that bug


async def test_it_does_not_overtake_one_that_came_before() -> None:
    async with answering() as (_, channel, servicer):
        await do(channel, text="connected")
        servicer.story.clear()
        hang = asyncio.ensure_future(channel.call(methods.CONFORMANCE_HANG, pb.HangRequest(), timeout_s=30))
        asking = asyncio.ensure_future(do(channel, text="first", delay_ms=1))
        (await servicer.has("first")).give(pb.DoReply(text="first"))
        assert await asking == "first"
        await hang
        assert servicer.story == ["hang", "first"]


async def test_a_server_that_stops_does_not_wait_for_it_for_ever() -> None:
    async with answering() as (server, channel, servicer):
        asking = asyncio.ensure_future(do(channel, text="never", delay_ms=1))
        await servicer.has("never")
        async with asyncio.timeout(30):
            await server.stop(0.0)
        with pytest.raises(errors.NeveError):
            await asking


def test_a_handler_must_be_one_or_the_other() -> None:
    class Plain:
        def do(self, request: pb.DoRequest, call: Call) -> pb.DoReply:
            return pb.DoReply()

    with pytest.raises(TypeError, match="async def"):
        Service([methods.CONFORMANCE_DO], Plain())
