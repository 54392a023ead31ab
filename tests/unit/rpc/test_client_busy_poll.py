"""Clients that busy-poll for a quick reply: for how long a loop polls, and when it sleeps."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest

from neve.proto import methods
from neve.proto.diagnostics_pb2 import EchoRequest
from neve.rpc.diagnostics import diagnostics_service
from neve.rpc.wire import client_busy_poll
from neve.rpc.wire.client import WireChannel
from neve.rpc.wire.client_busy_poll import POLL_S, LoneCall, ReplyPoller
from neve.rpc.wire.server import WireServer


class ManualLoop:
    """Runs what was asked for, one turn at a time."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def turn(self) -> None:
        due, self._soon = self._soon, []
        for callback in due:
            callback()

    @property
    def polls(self) -> bool:
        return bool(self._soon)


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


@pytest.fixture
def lone(loop: ManualLoop, monkeypatch: pytest.MonkeyPatch) -> LoneCall:
    poller = ReplyPoller(cast(Any, loop), now_s=lambda: loop.now_s)
    monkeypatch.setattr(client_busy_poll, "poller_of", lambda loop: poller)
    return LoneCall(cast(Any, loop))


def call(loop: ManualLoop, lone: LoneCall, took_s: float) -> None:
    lone.on_sent()
    loop.now_s += took_s
    lone.on_ended()
    loop.turn()


def test_the_first_call_sleeps(loop: ManualLoop, lone: LoneCall) -> None:
    lone.on_sent()
    assert not loop.polls


def test_after_a_quick_answer_the_loop_polls_during_the_next_call(loop: ManualLoop, lone: LoneCall) -> None:
    call(loop, lone, POLL_S / 2)
    lone.on_sent()
    for _ in range(5):
        assert loop.polls
        loop.turn()
    lone.on_ended()
    loop.turn()
    assert not loop.polls


def test_no_call_is_polled_for_longer_than_the_bound(loop: ManualLoop, lone: LoneCall) -> None:
    call(loop, lone, POLL_S / 2)
    lone.on_sent()
    loop.turn()
    assert loop.polls
    loop.now_s += POLL_S
    loop.turn()
    assert not loop.polls


def test_after_a_slow_answer_the_next_call_sleeps(loop: ManualLoop, lone: LoneCall) -> None:
    call(loop, lone, POLL_S / 2)
    call(loop, lone, POLL_S * 2)
    lone.on_sent()
    assert not loop.polls


def test_one_turn_at_a_time_however_many_calls(loop: ManualLoop, lone: LoneCall) -> None:
    call(loop, lone, POLL_S / 2)
    for _ in range(3):
        lone.on_sent()
        lone.on_ended()
    lone.on_sent()
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1

    loop.call_soon(count)
    loop.turn()
    lone.on_ended()
    loop.turn()
    assert turns == 1
    assert not loop.polls


def test_a_loop_that_is_over_is_not_kept() -> None:
    loop = asyncio.new_event_loop()
    client_busy_poll.poller_of(loop)
    kept = weakref.ref(loop)
    loop.close()
    del loop
    gc.collect()
    assert kept() is None


async def test_a_connection_that_ends_leaves_nothing_polling() -> None:
    server = WireServer([diagnostics_service(kind="test", cluster="c")], cluster="c")
    address = await server.start("127.0.0.1", 0)
    channel = WireChannel(address, cluster="c")
    try:
        for _ in range(3):
            await channel.call(methods.DIAGNOSTICS_ECHO, EchoRequest(text="x"), timeout_s=10)
        given_up = asyncio.ensure_future(channel.call(methods.DIAGNOSTICS_ECHO, EchoRequest(text="y"), timeout_s=10))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        lost = asyncio.ensure_future(channel.call(methods.DIAGNOSTICS_ECHO, EchoRequest(text="z"), timeout_s=10))
        await asyncio.sleep(0)
    finally:
        await channel.close()
        await server.stop(grace_s=0)
    await asyncio.gather(lost, return_exceptions=True)
    assert client_busy_poll.poller_of(asyncio.get_running_loop())._waiting == 0
