"""The engine of wbench and rbench: workers that repeat a call until the time is up or the user interrupts.

Invariants: every call that was begun is counted: as a success, as an error, or as "Unfinished" if it did not end within
            the grace time;
            a worker waits longer after each failure and gives up after FAILURES_MAX in a row, or at once after an error
            that has ended its writer, so a benchmark of a dead cluster ends;
            an interrupt asks the workers to stop and keeps the report.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from neve.client.command.core_statistics import NS, Recorder, Report, Sample
from neve.meta.core_retry import Delays
from neve.proto import errors

T = TypeVar("T")

FAILURES_MAX = 10
DELAYS = Delays(0.05, 2.0)
GRACE_S = 10.0  # for calls in flight when time is up
LIVE_INTERVAL_S = 0.25
YIELD_NS = 1_000_000  # calls served from a cache never wait, so workers yield to others after this time
UNFINISHED = "Unfinished"

# After one of these errors, the same writer or reader can never succeed again.
FINAL = (
    errors.RequestError,
    errors.NotOwner,
    errors.LockedByOther,
    errors.LeaseLost,
    errors.StreamSealed,
    errors.AppendOutcomeUnknown,
)

# One call: returns its number of operations and of bytes.
Operation = Callable[[], Awaitable[tuple[int, int]]]


class Sink(Protocol):
    """Receives every sample as it is taken: the file of --json."""

    def add(self, sample: Sample) -> None: ...


class Live(Protocol):
    """Shows a run while it is running."""

    def update(self, recorder: Recorder, elapsed_s: float) -> None: ...


class Bench:
    """One run. A failed call counts as `operations_each` operations."""

    def __init__(
        self,
        *,
        duration_s: float,
        operations_each: int = 1,
        sink: Sink | None = None,
        live: Live | None = None,
        stop: asyncio.Event | None = None,
        grace_s: float = GRACE_S,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._duration_s = duration_s
        self._operations_each = operations_each
        self._sink = sink
        self._live = live
        self._stop = stop or asyncio.Event()
        self._grace_s = grace_s
        self._clock_ns = clock_ns
        self._start_ns = 0
        self.recorder = Recorder()
        self.last_error: BaseException | None = None  # with its details, for the report
        self.interrupted = False  # `stop` was set from outside before the time was up

    async def run(self, operations: Sequence[Operation]) -> Report:
        """Run one worker for each operation, each with one call at a time."""
        self._start_ns = self._clock_ns()
        workers = [asyncio.ensure_future(self._work(operation)) for operation in operations]
        everybody = asyncio.ensure_future(_all(workers))
        stopping = asyncio.ensure_future(self._stop.wait())
        showing = asyncio.ensure_future(self._show())
        try:
            await asyncio.wait([everybody, stopping], timeout=self._duration_s, return_when=asyncio.FIRST_COMPLETED)
            self.interrupted = self._stop.is_set()
            self._stop.set()
            await asyncio.wait([everybody], timeout=self._grace_s)
            if everybody.done():
                everybody.result()
        finally:
            duration_s = self._elapsed_s()
            for task in (*workers, everybody, stopping, showing):
                task.cancel()
            await asyncio.gather(*workers, everybody, stopping, showing, return_exceptions=True)
        return self.recorder.report(duration_s)

    def _elapsed_s(self) -> float:
        return (self._clock_ns() - self._start_ns) / NS

    async def _work(self, operation: Operation) -> None:
        failures = 0
        end_ns = self._start_ns + int(self._duration_s * NS)
        yielded_ns = self._start_ns
        while not self._stop.is_set():
            began_ns = self._clock_ns()
            if began_ns >= end_ns:
                return
            if began_ns - yielded_ns > YIELD_NS:
                yielded_ns = began_ns
                await asyncio.sleep(0)
                began_ns = self._clock_ns()
            try:
                operations, size_bytes = await operation()
            except errors.NeveError as error:
                failures += 1
                self.last_error = error
                self._add(began_ns, self._operations_each, 0, type(error).__name__)
                if failures >= FAILURES_MAX or isinstance(error, FINAL):
                    return
                await self._pause(DELAYS.after(failures))
            except asyncio.CancelledError:
                self._add(began_ns, self._operations_each, 0, UNFINISHED)
                raise
            else:
                failures = 0
                self._add(began_ns, operations, size_bytes, "")

    def _add(self, began_ns: int, operations: int, size_bytes: int, error: str) -> None:
        now_ns = self._clock_ns()
        sample = Sample((now_ns - self._start_ns) / NS, now_ns - began_ns, operations, size_bytes, error)
        self.recorder.add(sample)
        if self._sink is not None:
            self._sink.add(sample)

    async def _pause(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._stop.wait()
        except TimeoutError:
            return

    async def _show(self) -> None:
        while self._live is not None:
            elapsed_s = self._elapsed_s()
            self.recorder.advance(elapsed_s)
            self._live.update(self.recorder, elapsed_s)
            await asyncio.sleep(LIVE_INTERVAL_S)


async def _all(tasks: Sequence[asyncio.Future[None]]) -> bool:
    """Wait until all have ended; raises the error of the first that failed."""
    await asyncio.gather(*tasks)
    return True


@asynccontextmanager
async def stop_on_interrupt() -> AsyncIterator[asyncio.Event]:
    """An event that the first Ctrl-C sets. The second one ends the process, as by default."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, on_signal)
    try:
        yield stop
    finally:
        if not stop.is_set():
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, before)


async def unless_stopped(work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T:
    """Return the result of `work`, or cancel it and raise KeyboardInterrupt if the user interrupts first."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise KeyboardInterrupt
        return task.result()
    finally:
        stopping.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
