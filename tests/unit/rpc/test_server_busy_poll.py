"""Servers that busy-poll for sequential clients: when, for how long, and how many of them on a machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

import pytest

from neve.rpc.limits import Limits
from neve.rpc.service import Call, Service, answers
from neve.rpc.wire import server as wire_server
from neve.rpc.wire.client import WireChannel
from neve.rpc.wire.server import WireServer
from neve.rpc.wire.server_busy_poll import HOLD_S, REQUEST_BYTES_MAX, RUN_MIN, BusyPoller, PollPermit
from tests.proto import methods
from tests.proto.testing_pb2 import DoReply, DoRequest

POLL_S = 0.0003


class Timer:
    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualLoop:
    """Runs what was asked for, one turn at a time."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.soon: list[Callable[[], None]] = []
        self.timers: list[Timer] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, callback))
        return self.timers[-1]

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()

    def sleep(self, time_s: float) -> None:
        """Time passes, and what is due in it is done."""
        end_s = self.now_s + time_s
        while due := [timer for timer in self.timers if timer.due_s <= end_s and not timer.cancelled]:
            timer = min(due, key=lambda timer: timer.due_s)
            self.timers.remove(timer)
            self.now_s = max(self.now_s, timer.due_s)
            timer.callback()
        self.now_s = end_s
        self.turn()
        self.turn()

    def polls(self) -> bool:
        return bool(self.soon)


class FakePermit:
    def __init__(self) -> None:
        self.free = True
        self.held = False
        self.asked = 0

    def take(self) -> bool:
        self.asked += 1
        self.held = self.free
        return self.held

    def give_back(self) -> None:
        self.held = False


class Rig:
    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.permit = FakePermit()
        self.yields = 0
        self.poller = BusyPoller(
            cast(Any, self.loop),
            self.permit,
            poll_s=POLL_S,
            now_s=lambda: self.loop.now_s,
            yield_processor=self._yield,
        )

    def _yield(self) -> None:
        self.yields += 1

    def requests(self, count: int, *, every_s: float = POLL_S / 3, alone: bool = True) -> None:
        for _ in range(count):
            self.loop.now_s += every_s
            self.loop.turn()
            self.poller.on_reply(alone=alone)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_after_a_run_of_lone_requests_it_polls_and_yields_the_processor_in_each_turn(rig: Rig) -> None:
    rig.requests(RUN_MIN)
    assert not rig.loop.polls()  # the first one had none before it
    rig.requests(1)
    assert rig.permit.held
    for turn in range(5):
        assert rig.loop.polls()
        assert rig.yields == turn
        rig.loop.turn()


def test_it_sleeps_when_no_request_has_come_for_so_long(rig: Rig) -> None:
    rig.requests(RUN_MIN + 1)
    rig.loop.now_s += POLL_S * 0.99
    rig.loop.turn()
    assert rig.loop.polls()
    rig.loop.now_s += POLL_S * 0.02
    rig.loop.turn()
    assert not rig.loop.polls()


def test_one_turn_at_a_time_however_many_requests(rig: Rig) -> None:
    rig.requests(2 * RUN_MIN)
    assert len(rig.loop.soon) == 1


@pytest.mark.parametrize("how", [{"every_s": POLL_S * 1.01}, {"alone": False}])
def test_requests_that_come_seldom_or_together_begin_no_polling(rig: Rig, how: dict[str, Any]) -> None:
    rig.requests(10 * RUN_MIN, **how)
    assert not rig.loop.polls()
    assert not rig.permit.asked
    rig.requests(RUN_MIN - 1)
    rig.requests(1, **how)  # and end a run
    rig.requests(RUN_MIN - 1)
    assert not rig.loop.polls()
    rig.requests(1)
    assert rig.loop.polls()


def test_without_a_permit_it_sleeps_and_asks_for_one_now_and_then(rig: Rig) -> None:
    rig.permit.free = False
    rig.requests(RUN_MIN * 10)
    assert not rig.loop.polls()
    assert rig.permit.asked == 1
    rig.loop.now_s += HOLD_S
    rig.permit.free = True
    rig.requests(RUN_MIN + 1)
    assert rig.permit.asked == 2
    assert rig.loop.polls()


def test_a_permit_is_given_back_when_such_requests_have_ceased_and_not_before(rig: Rig) -> None:
    for _ in range(3):
        rig.requests(RUN_MIN + 1)
        rig.loop.sleep(HOLD_S * 0.9)
        assert rig.permit.held
    rig.loop.sleep(HOLD_S * 2)
    assert not rig.permit.held
    assert not rig.loop.timers
    rig.requests(RUN_MIN + 1)
    assert rig.permit.held


def test_one_that_is_closed_sleeps_gives_its_permit_back_and_takes_none(rig: Rig) -> None:
    rig.requests(RUN_MIN + 1)
    (timer,) = rig.loop.timers
    rig.poller.close()
    rig.poller.close()
    assert not rig.permit.held
    assert timer.cancelled
    rig.loop.turn()
    assert not rig.loop.polls()
    rig.loop.now_s += 100 * HOLD_S
    rig.requests(2 * RUN_MIN)
    assert not rig.loop.polls()
    assert not rig.permit.held


# --- permits of a machine ------------------------------------------------------------------------------------


def test_a_machine_has_so_many_permits_and_each_one_owner() -> None:
    prefix = f"test.{uuid.uuid4()}"
    permits = [PollPermit(2, prefix) for _ in range(4)]
    assert [permit.take() for permit in permits] == [True, True, False, False]
    assert [permit.held for permit in permits] == [True, True, False, False]
    permits[0].give_back()
    permits[0].give_back()
    assert permits[2].take()
    assert not permits[3].take()
    for permit in permits:
        permit.give_back()


def test_without_a_descriptor_there_is_no_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    permit = PollPermit(1, f"test.{uuid.uuid4()}")
    with monkeypatch.context() as patch:
        patch.setattr("neve.rpc.wire.server_busy_poll.socket.socket", refuse)
        assert not permit.take()
        assert not permit.held
    assert permit.take()
    permit.give_back()


def test_a_machine_of_one_processor_has_none_and_others_one_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors, count in ((1, 0), (2, 1), (3, 1), (8, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, processors=processors: set(range(processors)))
        prefix = f"test.{uuid.uuid4()}"
        permits = [PollPermit(prefix=prefix) for _ in range(5)]
        assert sum(permit.take() for permit in permits) == count
        for permit in permits:
            permit.give_back()


# --- in a server ---------------------------------------------------------------------------------------------


class NowServicer:
    @answers
    def do(self, request: DoRequest, call: Call) -> DoReply | Coroutine[Any, Any, DoReply]:
        return DoReply(text="now") if request.text else self._later()

    async def _later(self) -> DoReply:
        await asyncio.sleep(0)
        return DoReply(text="later")


async def ask(channel: WireChannel, text: str = "x", attachment: bytes = b"") -> None:
    request = DoRequest(text=text)
    await channel.call(methods.CONFORMANCE_DO, request, timeout_s=30, attachment=[attachment] if attachment else [])


@pytest.fixture
def permits(monkeypatch: pytest.MonkeyPatch) -> list[FakePermit]:
    """Of the servers that are started; a real one may be another test's."""
    made: list[FakePermit] = []

    def make() -> FakePermit:
        made.append(FakePermit())
        return made[-1]

    monkeypatch.setattr(wire_server, "PollPermit", make)
    return made


@contextlib.asynccontextmanager
async def serving(permits: list[FakePermit]) -> AsyncIterator[WireChannel]:
    server = WireServer([Service([methods.CONFORMANCE_DO], NowServicer())], cluster="c", limits=Limits(awake_s=0.9))
    channel = WireChannel(await server.start("127.0.0.1", 0), cluster="c")
    try:
        yield channel
    finally:
        await channel.close()
        await server.stop(0.0)
    assert not any(permit.held for permit in permits)


async def test_a_server_polls_for_a_sequential_client_until_it_stops(permits: list[FakePermit]) -> None:
    async with serving(permits) as channel:
        for _ in range(RUN_MIN + 1):
            await ask(channel)
        assert [permit.held for permit in permits] == [True]


@pytest.mark.parametrize("kind", ["together", "large", "answered later"])
async def test_a_server_sleeps_as_ever_for_all_others(permits: list[FakePermit], kind: str) -> None:
    async with serving(permits) as channel:
        for _ in range(2 * RUN_MIN):
            if kind == "together":
                await asyncio.gather(*(ask(channel) for _ in range(3)))
            elif kind == "large":
                await ask(channel, attachment=bytes(REQUEST_BYTES_MAX))
            else:
                await ask(channel, "")
        assert [permit.asked for permit in permits] == [0]


async def test_a_server_whose_polling_is_off_does_not_poll(permits: list[FakePermit]) -> None:
    server = WireServer([Service([methods.CONFORMANCE_DO], NowServicer())], cluster="c", limits=Limits(awake_s=0))
    channel = WireChannel(await server.start("127.0.0.1", 0), cluster="c")
    for _ in range(2 * RUN_MIN):
        await ask(channel)
    await channel.close()
    await server.stop(0.0)
    assert server.busy_poller is None
    assert not permits


@pytest.mark.parametrize("awake_s", [-0.001, 1.0, float("nan")])
def test_a_time_that_cannot_be_is_refused(awake_s: float) -> None:
    with pytest.raises(ValueError, match=r"limits\.awake_s must be 0 or more"):
        Limits(awake_s=awake_s)
