"""Busy polling in clients: the loop does not sleep while it waits for a reply that is due at once.

Sleeping until a quick reply arrives costs more than the reply itself: the processor halts, and the server's send pays
for waking it. So while a lone call is in flight, and the last one on its connection was answered within POLL_S, the
loop polls its sockets instead of sleeping. One 1 KiB append at a time to one node took 2.0 times a ping-pong of C
instead of 3.0 (2 idle cores, measured before servers polled).

Invariants: a loop polls for at most POLL_S after a call was sent, and only if the call before it was answered within
            POLL_S: a slow server, an idle client and a busy one cost nothing;
            whatever else becomes ready meanwhile is served as usual.
Not here:   the server, which polls between the requests of a sequential client (server_busy_poll.py).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from time import perf_counter

# Three nodes on two cores answer within this time if they need not sync. If they must sync, a polling client takes the
# processor from them: with twice this time, a synced append to three such nodes took 0.97 ms instead of 0.78.
POLL_S = 0.00025


class ReplyPoller:
    """Keeps one client's loop polling. `now_s` is not the loop's clock, which stands still during a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float] = perf_counter) -> None:
        self._loop = weakref.ref(loop)  # weak, as in `_pollers`: a closed loop must not be kept by its poller
        self.now_s = now_s
        self._waiting = 0  # lone calls in flight, of all connections
        self._poll_until_s = 0.0
        self._polling = False

    def on_sent(self, now_s: float) -> None:
        self._waiting += 1
        self._poll_until_s = now_s + POLL_S
        if not self._polling:
            self._polling = True
            self._poll_soon()

    def on_ended(self) -> None:
        self._waiting -= 1

    def _poll(self) -> None:
        if self._waiting and self.now_s() < self._poll_until_s:
            self._poll_soon()
        else:
            self._polling = False

    def _poll_soon(self) -> None:
        loop = self._loop()
        assert loop is not None, "its own loop calls it"
        loop.call_soon(self._poll)  # a callback that is due keeps the loop from sleeping


class LoneCall:
    """A connection's call while it is the only one in flight: when it was sent, and whether the last one was quick."""

    __slots__ = ("_polled", "_poller", "_polls", "_quick", "_sent_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, polls: bool = True) -> None:
        self._poller = poller_of(loop)
        self._polls = polls
        self._sent_s = 0.0  # 0: no lone call is in flight
        self._polled = False  # the poller counts it
        self._quick = False  # the last lone call was answered within POLL_S

    def on_sent(self) -> None:
        if self._sent_s:
            self.on_ended()
        self._sent_s = now_s = self._poller.now_s()
        if self._quick:
            self._polled = True
            self._poller.on_sent(now_s)

    def on_ended(self) -> None:
        """The lone call was answered, given up or lost. Does nothing if there was none."""
        if self._sent_s:
            self._quick = self._polls and self._poller.now_s() - self._sent_s < POLL_S
            self._sent_s = 0.0
            if self._polled:
                self._polled = False
                self._poller.on_ended()


_pollers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ReplyPoller] = weakref.WeakKeyDictionary()


def poller_of(loop: asyncio.AbstractEventLoop) -> ReplyPoller:
    poller = _pollers.get(loop)
    if poller is None:
        poller = _pollers[loop] = ReplyPoller(loop)
    return poller
