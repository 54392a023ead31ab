"""Calls that begin without a coroutine: each ends once, by a callback, whatever becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from neve.proto import errors
from neve.proto.crc import crc32c
from neve.rpc.limits import KIB, MIB, Limits
from neve.rpc.service import Reply
from tests.proto import methods, testing_pb2
from tests.unit.rpc.conformance import FOREVER_S, PATIENCE_S, Servicer, Transport, pattern
from tests.unit.rpc.wire.wire_peers import calling, serving

DO, HANG = methods.CONFORMANCE_DO, methods.CONFORMANCE_HANG


class Ends:
    """What a call ended with, each time that it did."""

    def __init__(self) -> None:
        self.seen: list[tuple[Reply[Any] | None, BaseException | None]] = []
        self._first = asyncio.Event()

    def __call__(self, reply: Reply[Any] | None, error: BaseException | None) -> None:
        self.seen.append((reply, error))
        self._first.set()

    async def reply(self) -> Reply[Any]:
        async with asyncio.timeout(PATIENCE_S):
            await self._first.wait()
        ((reply, error),) = self.seen
        assert error is None
        assert reply is not None
        return reply

    async def error(self) -> BaseException:
        async with asyncio.timeout(PATIENCE_S):
            await self._first.wait()
        ((reply, error),) = self.seen
        assert reply is None
        assert error is not None
        return error


@pytest.mark.parametrize("encoded", [False, True], ids=["message", "bytes"])
async def test_a_call_that_is_begun_is_answered_by_the_callback(transport: Transport, encoded: bool) -> None:
    request = testing_pb2.DoRequest(text="hello", echo_attachment=True)
    sent = pattern(100 * KIB)
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        ends = Ends()
        channel.begin(
            DO,
            request.SerializeToString() if encoded else request,
            ends,
            timeout_s=PATIENCE_S,
            attachment=[sent[:10], sent[10:]],
            attachment_crc32c=crc32c(sent),
            reply_bytes_max=MIB,
        )
        reply = await ends.reply()
        assert reply.message.text == "hello"
        assert reply.attachment == sent


async def test_calls_arrive_in_the_order_in_which_they_were_begun(transport: Transport) -> None:
    servicer = Servicer()
    async with transport:
        channel = transport.channel(await transport.serve(servicer))
        all_ends = []
        for number in range(20):
            ends = Ends()
            channel.begin(DO, testing_pb2.DoRequest(text=str(number)), ends, timeout_s=PATIENCE_S)
            all_ends.append(ends)
        sequences = [(await ends.reply()).message.sequence for ends in all_ends]
        assert (sequences if transport.keeps_order else sorted(sequences)) == [*range(1, 21)]


async def test_an_error_of_the_handler_comes_to_the_callback(transport: Transport) -> None:
    failure = errors.to_message(errors.Gap(extent_id=7, offset=5, length=3))
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        ends = Ends()
        channel.begin(DO, testing_pb2.DoRequest(fail_with=failure), ends, timeout_s=PATIENCE_S)
        error = await ends.error()
        assert isinstance(error, errors.Gap)
        assert error.length == 3


async def test_a_cancelled_call_ends_once_and_its_handler_hears_of_it(transport: Transport) -> None:
    servicer = Servicer()
    async with transport:
        channel = transport.channel(await transport.serve(servicer))
        ends = Ends()
        begun = channel.begin(HANG, testing_pb2.HangRequest(), ends, timeout_s=FOREVER_S)
        while not servicer.hanging:
            servicer.changed.clear()
            await servicer.changed.wait()
        begun.cancel()
        begun.cancel()
        assert isinstance(await ends.error(), asyncio.CancelledError)
        while not servicer.hangs_cancelled:
            servicer.changed.clear()
            await servicer.changed.wait()


async def test_a_call_that_cannot_be_sent_says_so_to_the_callback(transport: Transport) -> None:
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        for timeout_s, wanted in ((0.0, errors.DeadlineExceeded), (PATIENCE_S, errors.TooLarge)):
            ends = Ends()
            too_large = [bytes(70 * MIB)] if wanted is errors.TooLarge else []
            channel.begin(DO, testing_pb2.DoRequest(), ends, timeout_s=timeout_s, attachment=too_large)
            assert isinstance(await ends.error(), wanted)


# --- of the wire alone ---------------------------------------------------------------------------------------


async def test_a_callback_that_fails_harms_no_other_call_of_the_connection() -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    limits = Limits()
    async with serving(limits) as (_, address, _), calling(address, limits) as channel:

        def fail(reply: object, error: object) -> None:
            raise RuntimeError("a bug of the caller's")

        ends = Ends()
        channel.begin(DO, testing_pb2.DoRequest(text="first"), fail, timeout_s=PATIENCE_S)
        channel.begin(DO, testing_pb2.DoRequest(text="second"), ends, timeout_s=PATIENCE_S)
        assert (await ends.reply()).message.text == "second"
        assert [str(context["exception"]) for context in unhandled] == ["a bug of the caller's"]


async def test_a_call_begun_by_the_callback_of_a_lost_one_gets_a_connection_of_its_own() -> None:
    limits = Limits(reconnect_delay_s_min=0.001)
    async with serving(limits) as (server, address, _), calling(address, limits) as channel:
        ends = Ends()
        lost: list[BaseException | None] = []

        def again(_: object, error: BaseException | None) -> None:
            lost.append(error)
            channel.begin(DO, testing_pb2.DoRequest(text="again"), ends, timeout_s=PATIENCE_S)

        await channel.call(DO, testing_pb2.DoRequest(), timeout_s=PATIENCE_S)
        channel.begin(HANG, testing_pb2.HangRequest(), again, timeout_s=FOREVER_S)
        await channel.call(DO, testing_pb2.DoRequest(), timeout_s=PATIENCE_S)  # behind it: so it has arrived
        for connection in list(server.connections):
            connection.end(errors.ConnectionLost(address=address, detail="told to"))
        assert (await ends.reply()).message.text == "again"
        assert [type(error) for error in lost] == [errors.ConnectionLost]


async def test_a_wrong_checksum_of_the_attachment_is_refused_by_the_server() -> None:
    limits = Limits()
    async with serving(limits) as (_, address, _), calling(address, limits) as channel:
        ends = Ends()
        channel.begin(
            DO, testing_pb2.DoRequest(), ends, timeout_s=PATIENCE_S, attachment=[b"some bytes"], attachment_crc32c=1
        )
        assert isinstance(await ends.error(), errors.ConnectionLost)


async def test_the_head_of_a_large_answer_is_told_once_and_before_the_answer() -> None:
    limits = Limits()
    story: list[str] = []
    async with serving(limits) as (_, address, _), calling(address, limits) as channel:
        done = asyncio.Event()

        def on_done(reply: Reply[Any] | None, error: BaseException | None) -> None:
            assert error is None
            assert reply is not None
            story.append(f"done {reply.message.text} {len(reply.attachment)}")
            done.set()

        channel.begin(
            DO,
            testing_pb2.DoRequest(text="large", reply_bytes=32 * MIB),
            on_done,
            timeout_s=PATIENCE_S,
            reply_bytes_max=33 * MIB,
            on_head=lambda message: story.append(f"head {message.text}"),
        )
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()
    assert story == ["head large", f"done large {32 * MIB}"]


async def test_a_head_that_its_caller_fails_over_harms_neither_the_call_nor_others() -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    limits = Limits()
    async with serving(limits) as (_, address, _), calling(address, limits) as channel:

        def fail(message: object) -> None:
            raise RuntimeError("a bug of the caller's")

        ends = Ends()
        request = testing_pb2.DoRequest(text="large", reply_bytes=8 * MIB)
        channel.begin(DO, request, ends, timeout_s=PATIENCE_S, reply_bytes_max=9 * MIB, on_head=fail)
        assert len((await ends.reply()).attachment) == 8 * MIB
        assert [str(context["exception"]) for context in unhandled] == ["a bug of the caller's"]
