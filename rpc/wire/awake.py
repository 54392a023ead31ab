"""A server that stays awake for the next request of who sends one at a time.

The other half of `spin.py`. A processor that has nothing to do halts, and to wake it up costs whoever sends the next
request some microseconds, and the request 20 and more, in a virtual machine. So while requests come one by one, each
soon after the last one was answered, the server looks at its sockets again instead of sleeping. Measured on two cores,
p50 of one append of 1 KiB at a time to three nodes, in turns: 127 µs asleep, 94 awake (132 and 95 in another run).

Three nodes on two cores that all stay awake are in each other's way: nothing is gained by that (155 µs beside 128). So
only some processes of a machine do, each by a slot; and each turn first offers the processor to who else wants it.

Invariants: a loop stays awake for at most `awake_s` after an answer, and only after RUN_MIN small requests in a row
            that came alone and within that time: who sends many at once, or seldom, or waits for a disk, costs nothing;
            at most half of a machine's processors are kept awake, by all servers on it together;
            a slot is given back soon after such requests have ceased, and by the kernel when its process ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

RUN_MIN = 32  # requests one by one, before it is worth it
REQUEST_BYTES_MAX = 16 << 10  # what is larger keeps its sender busy for longer than it takes to wake up
HOLD_S = 1.0  # how long a slot is kept without need, and how often another one's is asked for


class Slot(Protocol):
    """The right to stay awake."""

    @property
    def held(self) -> bool: ...

    def take(self) -> bool:
        """Whether it could be had."""

    def give_back(self) -> None: ...


class MachineSlot:
    """One of the machine's, which has one for every second processor that this process may use.

    A slot is a name in Linux's abstract socket namespace: nothing of it is on a disk, and it goes with its owner.
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
            except OSError:  # no descriptor is left, or no such sockets here: it sleeps, as ever
                return False
            try:
                sock.bind(f"\0{self._prefix}.{number}")
            except OSError:  # somebody has it
                sock.close()
            else:
                self._socket = sock
                return True
        return False

    def give_back(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Awake:
    """Keeps one server's loop awake while it is worth it. `now_s`: a loop's own clock stands still during a turn."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slot: Slot,
        *,
        awake_s: float,
        now_s: Callable[[], float] = perf_counter,
        offer_processor: Callable[[], None] = os.sched_yield,
    ) -> None:
        self._loop = loop
        self._slot = slot
        self._awake_s = awake_s
        self._now_s = now_s
        self._offer_processor = offer_processor
        self._run = 0  # requests one by one
        self._answered_s = 0.0
        self._until_s = 0.0
        self._turning = False
        self._ask_again_s = 0.0
        self._holding: asyncio.TimerHandle | None = None

    def answered(self, *, alone: bool) -> None:
        """A small request was answered at once; `alone`: and no other one that had come with it."""
        now_s = self._now_s()
        quick = now_s - self._answered_s < self._awake_s
        self._answered_s = now_s
        if not alone or not quick:
            self._run = 0
            return
        self._run += 1
        if self._run < RUN_MIN or not (self._slot.held or self._take(now_s)):
            return
        self._until_s = now_s + self._awake_s
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def close(self) -> None:
        self._until_s = 0.0
        self._ask_again_s = float("inf")
        self._slot.give_back()
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None

    def _turn(self) -> None:
        if self._now_s() < self._until_s:
            self._offer_processor()
            self._loop.call_soon(self._turn)
        else:
            self._turning = False

    def _take(self, now_s: float) -> bool:
        if now_s < self._ask_again_s:
            return False
        self._ask_again_s = now_s + HOLD_S
        if not self._slot.take():
            return False
        self._holding = self._loop.call_later(HOLD_S, self._give_back_if_idle)
        return True

    def _give_back_if_idle(self) -> None:
        self._holding = None
        if self._now_s() < self._until_s + HOLD_S:
            self._holding = self._loop.call_later(HOLD_S, self._give_back_if_idle)
        else:
            self._slot.give_back()
