"""A latch: an event that happens once, is visible at once, and is never undone.

Invariants: once set it stays set, with the first reason;
            callbacks run inside `set`, before any other code of the loop, so that a server stops serving immediately.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Latch:
    """Like `asyncio.Event` without `clear`, plus a reason and callbacks that do not wait for the loop."""

    def __init__(self) -> None:
        self.reason = ""
        self.reached = False  # equals `is_set()`; hot code reads it to save the call
        self._event = asyncio.Event()
        self._callbacks: list[Callable[[str], None]] = []

    def is_set(self) -> bool:
        return self.reached

    def set(self, reason: str) -> None:
        if self.reached:
            return
        self.reason = reason
        self.reached = True
        self._event.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(reason)
            except Exception:  # a bug in one callback must not stop the others
                log.exception("latch_callback_failed reason=%s", reason)

    def add_callback(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the reason when the latch is set; immediately if it is set already."""
        if self.reached:
            callback(self.reason)
        else:
            self._callbacks.append(callback)

    def remove_callback(self, callback: Callable[[str], None]) -> None:
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    async def wait(self) -> str:
        await self._event.wait()
        return self.reason
