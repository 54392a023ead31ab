"""A deterministic asyncio loop: virtual time, one thread, and a seeded source of chance.

Invariants: time moves only when nothing is ready, and then straight to the next timer, so that
            `asyncio.sleep(3600)` costs nothing and two runs with one seed take the same steps;
            nothing real gets in: sockets, signals, subprocesses and other threads are refused;
            an idle loop that nothing could ever wake is a `Deadlock`, not a hang.
Not here:   faults. A fault is the network's, the disk's or the store's, never the scheduler's.

Ready callbacks run in the order asyncio gave them: code may rely on call_soon being first in, first out, and
a loop that shuffled them would report bugs that cannot happen. Chance enters by delays, all taken from `rng`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import random
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LOOKS_EVERY = 1024  # turns of the loop, for whether it takes too long
THREAD_DELAY_S_MAX = 0.001  # before and after a call in a thread
EPOCH_S = 1_000_000.0  # far from 0, so that code which mistakes "never" for time 0 is seen


class Deadlock(RuntimeError):
    """Every task waits and no timer is set: in the real world this would hang for ever."""


class NotSimulated(RuntimeError):
    """Code under simulation reached for a socket, a signal, a subprocess or another thread."""


class TooLong(RuntimeError):
    """The real time that a run was given is over: on virtual time a livelock would otherwise never end."""


class _VirtualSelector(selectors.SelectSelector):
    """Has no files. Waiting is what moves the clock."""

    def __init__(self, real_limit_s: float) -> None:
        super().__init__()
        self.now_s = EPOCH_S
        self._real_deadline_s = time.process_time() + real_limit_s  # of this process: a machine may be busy
        self._selects = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits, and no timer is set that could wake one")
        if timeout > 0:
            self.now_s += timeout
        self._selects += 1
        if self._selects % LOOKS_EVERY == 0 and time.process_time() > self._real_deadline_s:
            self._real_deadline_s = math.inf  # once: what is cancelled now still needs the loop to end
            raise TooLong(f"still running at virtual second {self.now_s - EPOCH_S:.0f}")
        return []


class _Numbered:
    """Hashes by its number. Sets order what they hold by hash, and asyncio keeps tasks in sets: by address, as objects
    hash otherwise, a TaskGroup would cancel its tasks in another order in every run."""

    _number: int

    def __hash__(self) -> int:
        return self._number


class _SimTask(_Numbered, asyncio.Task[Any]):
    def __init__(self, coro: Any, *, loop: SimLoop, **options: Any) -> None:
        self._number = loop.next_number()  # before Task's: that one puts the task into a set
        super().__init__(coro, loop=loop, **options)


class _SimFuture(_Numbered, asyncio.Future[Any]):
    def __init__(self, *, loop: SimLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is virtual and whose chance is `rng`."""

    def __init__(self, seed: int = 0, *, real_limit_s: float = math.inf) -> None:
        self._virtual = _VirtualSelector(real_limit_s)
        super().__init__(self._virtual)
        self.seed = seed
        self.rng = random.Random(seed)
        self._trace = hashlib.blake2b(digest_size=16)
        self._thread_id_own = threading.get_ident()
        self._thread_rng = random.Random(f"threads {seed}")  # of its own: it must not shift what others draw
        self._numbers = itertools.count(1)
        self.set_task_factory(lambda loop, coro, **options: _SimTask(coro, loop=self, **options))
        # A timer due within the resolution runs now; without this, rounding in `now + timeout` could
        # leave a timer a few ulps in the future and spin.
        self._clock_resolution = 1e-6

    def _make_self_pipe(self) -> None:
        """No self-pipe: it is a socket, and no other thread may wake this loop."""

    def _close_self_pipe(self) -> None:
        pass

    def next_number(self) -> int:
        return next(self._numbers)

    def create_future(self) -> asyncio.Future[Any]:
        return _SimFuture(loop=self)

    def time(self) -> float:
        return self._virtual.now_s

    def note(self, line: str) -> None:
        """Add a line to the trace, of which `trace_hash` is the fingerprint."""
        self._trace.update(f"{self.time():.9f} {line}\n".encode())

    def trace_hash(self) -> str:
        """Equal for two runs that noted the same lines at the same virtual times."""
        return self._trace.hexdigest()

    # What follows refuses the real world. Each override names what to use instead.

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Any:
        if threading.get_ident() != self._thread_id_own:
            raise NotSimulated("another thread tried to wake the simulated loop")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Runs the call in this thread, after a delay, and gives its outcome after another one, both by the seed: calls
        that are under way at the same time begin and end in any order. Each runs in one piece."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - whatever it was, it belongs to the awaiting task
                self.call_later(self._thread_delay_s(), finish, None, error)
            else:
                self.call_later(self._thread_delay_s(), finish, result, None)

        def finish(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._thread_delay_s(), run)
        return future

    def _thread_delay_s(self) -> float:
        return self._thread_rng.choice((0.0, self._thread_rng.uniform(0.0, THREAD_DELAY_S_MAX)))

    def _add_reader(self, *_: Any) -> Any:
        raise NotSimulated("a socket was opened under simulation: use tests.sim.network")

    _add_writer = _add_reader

    async def create_connection(self, *_: Any, **__: Any) -> Any:
        raise NotSimulated("create_connection under simulation: use tests.sim.network")

    async def create_server(self, *_: Any, **__: Any) -> Any:
        raise NotSimulated("create_server under simulation: use tests.sim.network")

    async def subprocess_exec(self, *_: Any, **__: Any) -> Any:
        raise NotSimulated("a subprocess was started under simulation")

    subprocess_shell = subprocess_exec

    def add_signal_handler(self, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        raise NotSimulated("a signal handler was set under simulation")


def current() -> SimLoop:
    """The running simulated loop; an error outside one."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimLoop):
        raise NotSimulated("this runs on the deterministic loop only: mark the test with pytest.mark.sim")
    return loop


def run(main: Coroutine[Any, Any, T], *, seed: int = 0, real_limit_s: float = math.inf) -> T:
    """Run `main` on a fresh loop with that seed; like `asyncio.run`, it cancels and awaits what is left."""
    with asyncio.Runner(loop_factory=lambda: SimLoop(seed, real_limit_s=real_limit_s)) as runner:
        return runner.run(main)
