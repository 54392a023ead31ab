"""Busy polling in servers: the loop does not sleep before a sequential client's next request.

A client that waits for each reply before its next request leaves the server idle in between. On a virtual machine an
idle processor halts, and waking it delays the request by 20 µs or more. So after a run of such requests the loop polls
its sockets for a moment instead of sleeping. The p50 of one 1 KiB append at a time to 3 nodes on 2 idle cores fell from
127, 132 and 131 to 94, 95 and 101 µs (three runs, in turns).

Invariants: a loop polls for at most `poll_s` after a reply, and only after RUN_MIN small requests in a row, each
            answered at once, alone, and within `poll_s` of the last such reply: a client that sends many at once, or
            seldom, or waits for a disk, costs nothing;
            it polls only while its server holds a PollPermit;
            a permit is given back soon after such requests have ceased, and by the kernel when its process ends.
Not here:   the client, which polls while it waits for a reply (client_busy_poll.py).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

RUN_MIN = 32  # sequential requests before polling begins
REQUEST_BYTES_MAX = 16 << 10  # sending a larger one takes its client longer than waking a processor
HOLD_S = 1.0  # how long a permit is kept without need, and how often a server without one asks again


class Permit(Protocol):
    """Permission to poll."""

    @property
    def held(self) -> bool: ...

    def take(self) -> bool:
        """Try to get it; whether it is held now."""

    def give_back(self) -> None: ...


class PollPermit:
    """Permission to poll: there is one for every two processors that this process may use.

    Polling servers compete: with all 3 nodes polling on 2 cores, the p50 of one append at a time rose from 128 to 155
    µs. A permit is a name in Linux's abstract socket namespace, so the kernel releases it when its process ends.
    Containers with their own network namespace do not share permits.
    """

    def __init__(self, count: int | None = None, prefix: str = "neve.awake") -> None:
        self._count = len(os.sched_getaffinity(0)) // 2 if count is None else count
        self._prefix = prefix
        self._socket: socket.socket | None = None

    @property
    def held(self) -> bool:
        return self._socket is not None

    def take(self) -> bool:
        for number in range(self._count):
            try:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            except OSError:  # no descriptor is left, or this system has no such sockets: the server sleeps as usual
                return False
            try:
                sock.bind(f"\0{self._prefix}.{number}")
            except OSError:  # another process holds this one
                sock.close()
            else:
                self._socket = sock
                return True
        return False

    def give_back(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class BusyPoller:
    """Keeps one server's loop polling while its clients are sequential.

    `now_s` is not the loop's clock, which stands still during a turn.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        permit: Permit,
        *,
        poll_s: float,
        now_s: Callable[[], float] = perf_counter,
        yield_processor: Callable[[], None] = os.sched_yield,
    ) -> None:
        self._loop = loop
        self._permit = permit
        self._poll_s = poll_s
        self._now_s = now_s
        self._yield_processor = yield_processor
        self._run = 0  # sequential requests so far
        self._replied_s = 0.0
        self._poll_until_s = 0.0
        self._polling = False
        self._ask_again_s = 0.0
        self._holding: asyncio.TimerHandle | None = None

    def on_reply(self, *, alone: bool) -> None:
        """A small request was answered at once. `alone`: no other reply of its connection waits."""
        now_s = self._now_s()
        quick = now_s - self._replied_s < self._poll_s
        self._replied_s = now_s
        if not alone or not quick:
            self._run = 0
            return
        self._run += 1
        if self._run < RUN_MIN or not (self._permit.held or self._take(now_s)):
            return
        self._poll_until_s = now_s + self._poll_s
        if not self._polling:
            self._polling = True
            self._loop.call_soon(self._poll)

    def close(self) -> None:
        """Stop polling for good."""
        self._poll_until_s = 0.0
        self._ask_again_s = float("inf")
        self._permit.give_back()
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None

    def _poll(self) -> None:
        if self._now_s() < self._poll_until_s:
            self._yield_processor()  # the client may need this processor to send
            self._loop.call_soon(self._poll)  # a callback that is due keeps the loop from sleeping
        else:
            self._polling = False

    def _take(self, now_s: float) -> bool:
        if now_s < self._ask_again_s:
            return False
        self._ask_again_s = now_s + HOLD_S
        if not self._permit.take():
            return False
        self._holding = self._loop.call_later(HOLD_S, self._give_back_if_idle)
        return True

    def _give_back_if_idle(self) -> None:
        self._holding = None
        if self._now_s() < self._poll_until_s + HOLD_S:
            self._holding = self._loop.call_later(HOLD_S, self._give_back_if_idle)
        else:
            self._permit.give_back()
