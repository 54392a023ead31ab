"""Many calls after one and the same delay, by one timer.

A timer of the loop for each would be sorted among all the others: with some hundred writers that each wait for some
milliseconds again and again, this took a fifth of the client's time.

Invariants: calls come in the order in which they were asked for, none before the delay is over, but for what a loop's
            timers may be early: else a timer that rings too soon would be set again and again, without any sleep;
            nothing is called after `close`.
Neighbours: node_sender.py has one for all writers of a client; writer_tail.py asks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

EARLY_S_MAX = 0.001  # uvloop's clock counts milliseconds


class Later:
    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._early_s = min(EARLY_S_MAX, delay_s / 4)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def call(self, callback: Callable[[], None]) -> None:
        """It must not raise: the others would wait for the next one's turn."""
        if self._closed:
            return
        due_s = self._loop.time() + self._delay_s
        self._waiting.append((due_s, callback))
        if self._timer is None:
            self._timer = self._loop.call_at(due_s, self._run)

    def _run(self) -> None:
        self._timer = None
        waiting = self._waiting
        now_s = self._loop.time() + self._early_s
        for _ in range(len(waiting)):  # what is asked for meanwhile has time, with no delay, too
            if waiting[0][0] > now_s:
                break
            waiting.popleft()[1]()
        if waiting and not self._closed and self._timer is None:
            self._timer = self._loop.call_at(waiting[0][0], self._run)

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
