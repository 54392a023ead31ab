"""What a servicer and a caller may rely on, whichever transport is between them."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from neve.proto import errors
from neve.proto.crc import crc32c
from neve.rpc.auth import TokenFile
from neve.rpc.limits import KIB, MIB, Limits
from tests.proto import methods, testing_pb2
from tests.unit.rpc.conformance import (
    CLUSTER,
    FOREVER_S,
    Servicer,
    Transport,
    do,
    do_until_answered,
    hang,
    pattern,
)

# --- messages and attachments --------------------------------------------------------------------------------


async def test_a_message_without_an_attachment_is_answered(transport: Transport) -> None:
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        reply = await do(channel, text="hé — 雪")
        assert reply.message.text == "hé — 雪"
        assert bytes(reply.attachment) == b""


@pytest.mark.parametrize("size_bytes", [0, 1, 127, 128, 64 * KIB, MIB])
async def test_an_attachment_comes_back_bit_for_bit(transport: Transport, size_bytes: int) -> None:
    sent = pattern(size_bytes)
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        reply = await do(channel, attachment=[sent], echo_attachment=True, reply_bytes_max=size_bytes)
        assert reply.attachment == sent
        assert reply.message.attachment_crc32c == crc32c(sent)
        assert not reply.message.payload, "a caller never sees the payload"


@pytest.mark.parametrize("size_bytes", [1, 4096, 300 * KIB])
async def test_an_attachment_with_checksums_of_its_own_arrives_as_any_other(
    transport: Transport, size_bytes: int
) -> None:
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        reply = await do(channel, text="own checksums", reply_bytes=size_bytes, reply_bytes_max=size_bytes)
        assert reply.message.text == "own checksums"
        assert reply.attachment == pattern(size_bytes)


async def test_buffers_of_any_kind_are_joined_in_order(transport: Transport) -> None:
    whole = pattern(100 * KIB)
    view = memoryview(whole)
    buffers = [whole[:10], bytearray(whole[10:5000]), view[5000:5000], view[5000:90_000], bytearray(whole[90_000:])]
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        reply = await do(channel, attachment=buffers, echo_attachment=True, reply_bytes_max=len(whole))
        assert reply.attachment == whole


async def test_a_reply_may_have_an_attachment_where_the_request_had_none(transport: Transport) -> None:
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        reply = await do(channel, text="x", reply_bytes=300 * KIB, reply_bytes_max=300 * KIB)
        assert reply.attachment == pattern(300 * KIB)
        assert reply.message.text == "x"


async def test_a_reply_s_attachment_outlives_the_call(transport: Transport) -> None:
    """A receive buffer that were used again too early would show here."""
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        kept = [
            await do(channel, attachment=[bytes([n]) * 5000], echo_attachment=True, reply_bytes_max=5000)
            for n in range(50)
        ]
        assert [bytes(reply.attachment) for reply in kept] == [bytes([n]) * 5000 for n in range(50)]


async def test_many_concurrent_calls_of_mixed_sizes_are_all_answered_right(transport: Transport) -> None:
    rng = random.Random(5)
    sizes = [rng.choice((0, 1, 100, 5_000, 70_000, 400_000)) for _ in range(150)]

    async def one(number: int, size_bytes: int) -> None:
        sent = pattern(size_bytes + number)[number:]
        reply = await do(
            channel,
            text=str(number),
            delay_ms=number % 7,
            attachment=[sent],
            echo_attachment=True,
            reply_bytes_max=size_bytes,
        )
        assert reply.message.text == str(number)
        assert reply.message.attachment_crc32c == crc32c(sent)
        assert crc32c(reply.attachment) == crc32c(sent)

    async with transport:
        # The budget is a fraction of the sum: calls have to wait for each other.
        limits = Limits(connection_bytes_max=3 * MIB)
        channel = transport.channel(await transport.serve(Servicer(), limits=limits), limits=limits)
        async with asyncio.TaskGroup() as group:
            for number, size_bytes in enumerate(sizes):
                group.create_task(one(number, size_bytes))


# --- order ---------------------------------------------------------------------------------------------------


async def test_handlers_start_in_the_order_of_the_calls(transport: Transport) -> None:
    """gRPC starts each call on an HTTP/2 stream of its own and promises no order: there, only none may be lost."""
    rng = random.Random(3)
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        replies = await asyncio.gather(
            *(do(channel, text=str(number), attachment=[bytes(rng.randrange(3000))]) for number in range(200))
        )
        sequences = [reply.message.sequence for reply in replies]
        assert [reply.message.text for reply in replies] == [str(number) for number in range(200)]
        assert (sequences if transport.keeps_order else sorted(sequences)) == [*range(1, 201)]


async def test_calls_awaited_one_by_one_are_in_order_everywhere(transport: Transport) -> None:
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        assert [(await do(channel)).message.sequence for _ in range(20)] == [*range(1, 21)]


# --- errors --------------------------------------------------------------------------------------------------

FACTS: dict[str, dict[str, Any]] = {
    "ordinary": {"int": 7, "str": "some words", "bytes": b"\x00\xff", "bool": True},
    "empty": {"int": 0, "str": "", "bytes": b"", "bool": False},
    "high": {"int": 2**63 - 1, "str": "névé 雪 \U0001f9ca\n\0" * 100, "bytes": bytes(range(256)), "bool": True},
    "low": {"int": -(2**63), "str": "\x7f%41%", "bytes": b"\0", "bool": False},
}


@pytest.mark.parametrize("kind", FACTS)
async def test_every_error_arrives_as_the_same_class_with_the_same_fields(transport: Transport, kind: str) -> None:
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        for cls in errors.all_errors().values():
            sent = cls(**{field.name: FACTS[kind][str(field.type)] for field in dataclasses.fields(cls)})
            with pytest.raises(errors.NeveError) as caught:
                await do(channel, fail_with=errors.to_message(sent))
            assert type(caught.value) is cls
            assert caught.value.facts() == sent.facts()
        assert (await do(channel, text="alive")).message.text == "alive"


async def test_an_exception_of_no_taxonomy_arrives_as_internal_and_the_server_lives_on(transport: Transport) -> None:
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        with pytest.raises(errors.Internal, match="RuntimeError: told to crash"):
            await do(channel, crash=True)
        assert (await do(channel, text="alive")).message.text == "alive"


async def test_an_error_of_a_newer_peer_arrives_as_unknown_error(transport: Transport) -> None:
    class FromTheFuture(errors.NeveError):
        code = 9_999

    del errors._BY_CODE[9_999]  # the peer knows the class, we do not
    async with transport:
        servicer = Servicer()
        servicer.error = FromTheFuture(detail="later")
        channel = transport.channel(await transport.serve(servicer))
        with pytest.raises(errors.UnknownError) as caught:
            await do(channel)
        assert caught.value.peer_code == 9_999
        assert "later" in caught.value.detail


async def test_a_method_without_servicer_is_unimplemented(transport: Transport) -> None:
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        with pytest.raises(errors.Unimplemented) as caught:
            await channel.call(methods.CONFORMANCE_NOBODY, testing_pb2.HangRequest(), timeout_s=FOREVER_S)
        assert caught.value.method
        assert (await do(channel, text="alive")).message.text == "alive"


# --- deadlines and cancellation ------------------------------------------------------------------------------


async def test_a_deadline_ends_the_call_and_cancels_the_handler(transport: Transport) -> None:
    async with transport:
        servicer = Servicer()
        channel = transport.channel(await transport.serve(servicer))
        await do(channel)  # connected: the deadline below is for the handler alone
        with pytest.raises(errors.DeadlineExceeded) as caught:
            await hang(channel, timeout_s=0.25)
        assert caught.value.facts() == {"method": "/neve.testing.Conformance/Hang", "timeout_ms": 250, "detail": ""}
        await servicer.until(lambda: servicer.hangs_cancelled == 1)
        assert (await do(channel, text="alive")).message.text == "alive"


async def test_a_caller_that_is_cancelled_cancels_the_handler(transport: Transport) -> None:
    async with transport:
        servicer = Servicer()
        channel = transport.channel(await transport.serve(servicer))
        caller = asyncio.create_task(hang(channel))
        await servicer.until(lambda: servicer.hanging == 1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await servicer.until(lambda: servicer.hangs_cancelled == 1)
        assert (await do(channel, text="alive")).message.text == "alive"


async def test_calls_that_are_cancelled_at_once_hold_nothing_afterwards(transport: Transport) -> None:
    """Request and cancellation may arrive together, before the handler has taken its first step."""
    limits = Limits(connection_calls_max=8)
    async with transport:
        channel = transport.channel(await transport.serve(Servicer(), limits=limits), limits=limits)
        await do(channel)
        for _ in range(5):
            callers = [asyncio.create_task(hang(channel)) for _ in range(8)]
            await asyncio.sleep(0)
            for caller in callers:
                caller.cancel()
            results = await asyncio.gather(*callers, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert (await do(channel, text="alive", timeout_s=10)).message.text == "alive"


async def test_the_handler_sees_how_much_time_is_left(transport: Transport) -> None:
    async with transport:
        channel = transport.channel(await transport.serve(Servicer()))
        short = (await do(channel, timeout_s=100)).message.remaining_ms
        long = (await do(channel, timeout_s=10_000)).message.remaining_ms
        # gRPC writes a deadline with few digits, rounded up by at most 2 %.
        assert 0 < short <= 102_000 < 1_000_000 < long <= 10_200_000


async def test_a_call_that_waits_for_room_in_vain_ends_at_its_deadline(transport: Transport) -> None:
    limits = Limits(connection_calls_max=1)
    async with transport:
        servicer = Servicer()
        channel = transport.channel(await transport.serve(servicer), limits=limits)
        holder = asyncio.create_task(do(channel, text="hold"))
        await servicer.until(lambda: servicer.sequence == 1)
        with pytest.raises(errors.DeadlineExceeded):
            await do(channel, timeout_s=0.1)
        servicer.release.set()
        await holder
        assert (await do(channel, text="alive")).message.sequence == 2, "the second call was never sent"


# --- limits --------------------------------------------------------------------------------------------------

SMALL = Limits(message_bytes_max=64 * KIB, attachment_bytes_max=MIB)


@pytest.mark.parametrize("knows_before", [True, False], ids=["second call", "first call"])
@pytest.mark.parametrize("who", ["both", "server"])
async def test_what_is_too_large_is_refused_and_harms_no_other_call(
    transport: Transport, who: str, knows_before: bool
) -> None:
    async with transport:
        servicer = Servicer()
        server = await transport.serve(servicer, limits=SMALL)
        channel = transport.channel(server, limits=SMALL if who == "both" else Limits())
        if knows_before:
            await do(channel)
        executed = servicer.sequence
        with pytest.raises(errors.TooLarge) as caught:
            await do(channel, text="x" * 65 * KIB)
        assert caught.value.limit_bytes == SMALL.message_bytes_max
        assert caught.value.size_bytes > SMALL.message_bytes_max
        assert servicer.sequence == executed
        assert (await do(channel, text="alive")).message.text == "alive"
        with pytest.raises(errors.TooLarge) as caught:
            await do(channel, attachment=[bytes(MIB), b"x"])
        assert (caught.value.size_bytes, caught.value.limit_bytes) == (MIB + 1, MIB)
        reply = await do(channel, attachment=[bytes(MIB)], text="just fits")
        assert reply.message.text == "just fits"


async def test_a_reply_that_is_too_large_is_an_error_of_that_call_alone(transport: Transport) -> None:
    async with transport:
        channel = transport.channel(await transport.serve(Servicer(), limits=SMALL))
        with pytest.raises(errors.TooLarge) as caught:
            await do(channel, reply_bytes=MIB + 1)
        assert (caught.value.size_bytes, caught.value.limit_bytes) == (MIB + 1, MIB)
        assert (await do(channel, text="alive")).message.text == "alive"


async def test_a_call_larger_than_the_whole_budget_passes_alone(transport: Transport) -> None:
    limits = Limits(connection_bytes_max=100 * KIB)
    async with transport:
        channel = transport.channel(await transport.serve(Servicer(), limits=limits), limits=limits)
        replies = await asyncio.gather(*(do(channel, attachment=[bytes(300 * KIB)]) for _ in range(4)))
        assert {reply.message.attachment_crc32c for reply in replies} == {crc32c(bytes(300 * KIB))}


# --- who is calling ------------------------------------------------------------------------------------------


async def test_the_token_decides_who_is_calling(transport: Transport, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# people\nalice secret-a\nbob secret-b\n")
    async with transport:
        server = await transport.serve(Servicer(), authenticator=TokenFile(tokens))
        assert (await do(transport.channel(server, token="secret-a"))).message.principal == "alice"
        assert (await do(transport.channel(server, token="secret-b"))).message.principal == "bob"
        with pytest.raises(errors.Unauthenticated, match="not known"):
            await do(transport.channel(server, token="secret-c"))
        with pytest.raises(errors.Unauthenticated, match="no token"):
            await do(transport.channel(server))
        with pytest.raises(errors.Unauthenticated, match="no token"):  # refused before its bytes are read
            await do(transport.channel(server), attachment=[bytes(8 * MIB)])
        # A stranger does not learn which methods there are.
        with pytest.raises(errors.Unauthenticated):
            await transport.channel(server).call(
                methods.CONFORMANCE_NOBODY, testing_pb2.HangRequest(), timeout_s=FOREVER_S
            )


async def test_without_an_authenticator_everybody_is_anonymous(transport: Transport) -> None:
    async with transport:
        server = await transport.serve(Servicer())
        assert (await do(transport.channel(server, token="whatever"))).message.principal == "anonymous"


async def test_a_caller_for_another_cluster_is_refused(transport: Transport) -> None:
    async with transport:
        server = await transport.serve(Servicer())
        with pytest.raises(errors.WrongCluster) as caught:
            await do(transport.channel(server, cluster="another"))
        assert (caught.value.expected, caught.value.got) == (CLUSTER, "another")
        assert (await do(transport.channel(server), text="alive")).message.text == "alive"


# --- servers that come and go --------------------------------------------------------------------------------


async def test_a_stopping_server_finishes_what_it_has_begun_and_refuses_the_rest(transport: Transport) -> None:
    async with transport:
        servicer = Servicer()
        server = await transport.serve(servicer)
        channel = transport.channel(server)
        begun = asyncio.create_task(do(channel, text="hold"))
        await servicer.until(lambda: servicer.sequence == 1)
        stopping = asyncio.create_task(_stop(server.stop))
        refusal: errors.NeveError | None = None
        while refusal is None:  # the stop may take a moment to begin
            try:
                await do(channel, text="new")
            except errors.NeveError as error:
                refusal = error
        assert isinstance(refusal, errors.TransportError)
        assert refusal.retriable
        servicer.release.set()
        assert (await begun).message.text == "hold"
        await stopping


async def _stop(stop: Any) -> None:
    await stop(FOREVER_S)


async def test_a_server_that_stops_cancels_what_outlasts_the_grace(transport: Transport) -> None:
    async with transport:
        servicer = Servicer()
        server = await transport.serve(servicer)
        caller = asyncio.create_task(hang(transport.channel(server)))
        await servicer.until(lambda: servicer.hanging == 1)
        await server.stop(0.05)
        with pytest.raises(errors.TransportError) as caught:
            await caller
        assert caught.value.outcome_unknown, "the handler had begun"
        await servicer.until(lambda: servicer.hangs_cancelled == 1)


async def test_after_the_server_is_gone_calls_fail_as_connection_errors(transport: Transport) -> None:
    async with transport:
        server = await transport.serve(Servicer())
        used, fresh = transport.channel(server), transport.channel(server)
        await do(used)
        await server.stop(0.0)
        for channel in (used, fresh):
            with pytest.raises((errors.ConnectFailed, errors.ConnectionLost)) as caught:
                await do(channel)
            assert caught.value.facts()["address"] == server.address
        with pytest.raises(errors.ConnectFailed):  # by now it is known that nobody listens
            await do(fresh)


async def test_a_channel_finds_a_server_that_was_restarted(transport: Transport) -> None:
    async with transport:
        server = await transport.serve(Servicer())
        channel = transport.channel(server)
        await do(channel)
        for _ in range(2):
            await server.stop(0.0)
            with pytest.raises(errors.TransportError):
                await do(channel)
            server = await transport.serve(Servicer(), address=server.address)
            assert (await do_until_answered(channel)).message.sequence == 1


async def test_closing_a_channel_ends_its_calls(transport: Transport) -> None:
    async with transport:
        servicer = Servicer()
        server = await transport.serve(servicer)
        channel = transport.channel(server)
        caller = asyncio.create_task(hang(channel))
        await servicer.until(lambda: servicer.hanging == 1)
        await channel.close()
        with pytest.raises(errors.ConnectionLost):
            await caller
        with pytest.raises(errors.ConnectFailed):
            await do(channel)
        await servicer.until(lambda: servicer.hangs_cancelled == 1)
        assert (await do(transport.channel(server), text="alive")).message.text == "alive"
