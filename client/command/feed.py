"""A feed: records from a file or a pipe, read in a thread because the event loop must not block on a keyboard.

Invariants: at most `bytes_max` of records and one more are held; then the thread waits;
            a read error is raised where the records are consumed;
            the thread is a daemon, so one that waits for a keyboard does not keep the process alive. While it reads, it
            holds the lock of its file: no other thread may close that file, and it must not be `sys.stdin`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import BinaryIO

BYTES_MAX = 16 << 20


def standard_input() -> BinaryIO:
    """Open standard input for a feed. Python closes `sys.stdin` at exit, and aborts if a thread still reads it."""
    return os.fdopen(sys.stdin.fileno(), "rb", closefd=False)


def closing(source: BinaryIO, cut: Callable[[BinaryIO], Iterator[bytes]]) -> Iterator[bytes]:
    """Cut the source into records. The feed's thread closes it: others would wait for its read."""
    with source:
        yield from cut(source)


class Feed:
    """Reads records in a thread, from its creation on."""

    def __init__(self, payloads: Iterator[bytes], *, bytes_max: int = BYTES_MAX) -> None:
        self._payloads = payloads
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._room = threading.Condition()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        threading.Thread(target=self._read, name="feed", daemon=True).start()

    def _read(self) -> None:
        try:
            for payload in self._payloads:
                with self._room:
                    while self._held_bytes >= self._bytes_max:
                        self._room.wait()
                    self._held.append(payload)
                    self._held_bytes += len(payload) + 1  # so that empty records count too
                    first = len(self._held) == 1
                if first and not self._wake():
                    return
        except Exception as error:  # noqa: BLE001 - raised again where the records are consumed
            self._error = error
        self._ended = True
        self._wake()

    def _wake(self) -> bool:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no consumer any more
            self._loop.call_soon_threadsafe(self._news.set)
            return True
        return False

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """Iterate over lists of the records read so far, until the end."""
        while True:
            await self._news.wait()
            self._news.clear()
            ended = self._ended  # read before taking the records: nothing comes after the end
            with self._room:
                taken, self._held, self._held_bytes = self._held, [], 0
                self._room.notify()
            if taken:
                yield taken
            if ended:
                if self._error is not None:
                    raise self._error
                return
