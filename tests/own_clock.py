"""An event loop with real sockets and a clock of its own, for tests of timeouts whose peers live in the same process.

The clock moves a microsecond with each turn of the loop, and to the next timer when no socket has anything to read or
write. So a busy machine, or one that stops the process for a while, never makes a timer fire before what was sent has
arrived, and an idle minute takes no time. Threads and other processes do not hold the clock: do without them.
"""

from __future__ import annotations

import asyncio
import selectors

TURN_S = 1e-6
# The kernel hands over what was sent on loopback at once; this is for the case that it is late.
DELIVERY_S = 0.005


class _Selector(selectors.EpollSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += TURN_S
        if timeout is None:  # no timer is set
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            ready = super().select(DELIVERY_S)
            if not ready:
                self.now_s += timeout
        return ready


class OwnClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._own_selector = _Selector()
        super().__init__(self._own_selector)

    def time(self) -> float:
        return self._own_selector.now_s
