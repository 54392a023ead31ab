"""Processes on the deterministic loop: each can be killed, or stopped and continued, with all of its tasks and timers.

    process = Process("node1")
    process.spawn(node.run())                  # its tasks, and all that they start, belong to it
    process.pause(); ...; process.resume()     # as SIGSTOP and SIGCONT
    await process.run(work)                    # the same, for whoever waits for it: `Killed` if it ended before
    process.kill()                             # as SIGKILL: what still runs in a `finally` has no effect on its disk

Invariants: a callback belongs to the process in whose context it was made; what a network or the metadata store does
            on its own account (deliver, expire a lease) belongs to nobody and goes on;
            a paused process takes no step: as after SIGCONT, what came meanwhile is heard first, and then its timers
            run late, all at once and in order;
            time is what a process's own clock shows; the network and the metadata store go by the world's;
            a killed process's file system refuses every further call, so that no cleanup outlives it; its timers do
            not run any more, only its tasks do, to their end.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
import math
import sys
import types
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from tests.sim.disks.disk import SimFileSystem
from tests.sim.disks.faults import SimulatedCrash
from tests.sim.loop import SimLoop

T = TypeVar("T")

TASKS_LEFT_S = 0.05  # far above what a cancelled task takes to hear of it, far below any timeout

_OWNER: contextvars.ContextVar[Process | None] = contextvars.ContextVar("owner", default=None)

# Callbacks of these run on their own account, whoever caused them, and these ask for the world's time.
_OUTSIDE = frozenset(
    {
        "tests.sim.network.frames",
        "tests.sim.network.pipe",
        "tests.sim.network.transport",
        "neve.meta.memory.client",
        "neve.meta.memory.link",
        "tests.sim.checks.watched_store",
    }
)


class Killed(Exception):
    """The process ended before it had done this."""


class Clock:
    """What a machine's monotonic clock shows. It may run fast or slow, and never jumps."""

    def __init__(self) -> None:
        self.rate = 1.0
        self.true = True  # it has always shown the world's time
        self._since_s = self._shown_s = 0.0

    def set_rate(self, rate: float) -> None:
        if rate == self.rate:
            return
        now_s = asyncio.get_running_loop().time()
        self._since_s, self._shown_s = now_s, self.shown_s(now_s)
        self.rate = rate
        self.true = False

    def shown_s(self, now_s: float) -> float:
        return now_s if self.true else self._shown_s + (now_s - self._since_s) * self.rate

    def when_s(self, shown_s: float) -> float:
        """The world's time at which it will show this."""
        return shown_s if self.true else self._since_s + (shown_s - self._shown_s) / self.rate


class Process:
    """One process of the simulation. `fs` is its door to the machine's disks, closed by its end. `clock`: its
    machine's."""

    def __init__(self, name: str, *, clock: Clock | None = None) -> None:
        self.name = name
        self.clock = clock or Clock()
        self.paused = False
        self.killed = False
        self.stopped = False  # it was told to stop, and has; then it is killed
        self.slow_factor = 1.0  # of what its threads do
        self._held: list[asyncio.Handle] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._context = contextvars.copy_context()
        self._context.run(_OWNER.set, self)

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str = "") -> asyncio.Task[T]:
        loop = asyncio.get_running_loop()
        return loop.create_task(work, name=name or self.name, context=self._context.copy())

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this as the process, and wait for it."""
        task = self.spawn(work)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self.killed and caller is not None and not caller.cancelling():
                raise Killed(self.name) from None
            task.cancel()
            raise

    def time(self) -> float:
        """By its own clock, whoever asks."""
        return self.clock.shown_s(asyncio.get_running_loop().time())

    def enter(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function as this process: what it starts belongs to it."""
        return self._context.copy().run(function, *arguments)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        held, self._held = self._held, []
        held.sort(key=lambda handle: isinstance(handle, asyncio.TimerHandle))  # a loop looks at its sockets first
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        loop.put_back(held)

    def kill(self) -> None:
        """Ends at once. Its tasks are cancelled so that nothing waits for ever, but they change nothing any more."""
        self.killed = True
        for task in [*self._tasks]:
            _close_unstarted_arguments(task.get_coro())
            task.cancel()
        self.resume()

    def tasks(self) -> list[str]:
        """By name, those that are not over."""
        return [task.get_name() for task in self._tasks if not task.done()]

    async def left(self, wait_s: float = TASKS_LEFT_S) -> list[str]:
        """The tasks of a process that was told to stop and says that it has, but for those that were cancelled and are
        about to end. For whoever runs outside of it."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while self.tasks() and loop.time() < deadline_s:
            await asyncio.sleep(wait_s / 10)
        return self.tasks()

    def hold(self, handle: asyncio.Handle) -> None:
        self._held.append(handle)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        # Not by `exception()`: that would count as having looked at it, and nobody may have.
        if isinstance(task._exception, SimulatedCrash):
            assert self.killed, f"{self.name} met its end before it was killed"


class ProcessFileSystem:
    """A machine's file system as one process sees it, until it is killed."""

    def __init__(self, fs: SimFileSystem, process: Process) -> None:
        self._fs = fs
        self._process = process

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._fs, name)
        if not callable(member):
            return member

        def call(*arguments: Any, **named: Any) -> Any:
            if self._process.killed:
                raise SimulatedCrash(f"{self._process.name} was killed")
            return member(*arguments, **named)

        # Found without __getattr__ from now on: this is the busiest place of a simulation.
        self.__dict__[name] = call
        return call


def _close_unstarted_arguments(work: object) -> None:
    """Close the coroutines that were handed to a coroutine which will never take its first step.

    A task that is cancelled before its first step never runs its body, so nothing else would start or close them, and
    Python would warn of each one at some later time, in whatever test runs then.
    """
    if not inspect.iscoroutine(work) or inspect.getcoroutinestate(work) != inspect.CORO_CREATED:
        return
    for argument in inspect.getcoroutinelocals(work).values():
        if inspect.iscoroutine(argument) and inspect.getcoroutinestate(argument) == inspect.CORO_CREATED:
            _close_unstarted_arguments(argument)
            argument.close()


def _owner_of(context: contextvars.Context | None) -> Process | None:
    return _OWNER.get() if context is None else context.get(_OWNER)


def owner() -> str:
    """The name of the process that this is done by; "" if it is none."""
    process = _OWNER.get()
    return "" if process is None else process.name


def was_cut_off(future: Any) -> bool:
    """Whether a future or a task is of a process that was killed: nobody is left to look at what became of it."""
    process = getattr(future, "owner", None)
    return process is not None and process.killed and not process.stopped


def lasting(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """One that runs for as long as its process does: if it dies of an error, the loop's exception handler hears so at
    once, whoever looks at the task later."""
    task.add_done_callback(_tell_death)
    return task


def _tell_death(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": f"{task.get_name()} has died", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)


def owner_is_killed() -> bool:
    """Whether this is done by a process that has ended: what is left of one is being cancelled, and nobody hears it."""
    process = _OWNER.get()
    return process is not None and process.killed


def _clock_of(caller: types.FrameType) -> Clock | None:
    """The clock that a caller goes by; None if that shows the world's time."""
    owner = _OWNER.get()
    if owner is None or owner.clock.true:
        return None
    module = caller.f_globals.get("__name__", "")
    return None if module in _OUTSIDE or module.startswith("tests.") else owner.clock


def _is_outside(callback: Callable[..., object]) -> bool:
    return getattr(callback, "__module__", None) in _OUTSIDE


def _is_ours(callback: Callable[..., object]) -> bool:
    """Not asyncio's own, by which cancelled tasks come to their end."""
    return (getattr(callback, "__module__", None) or "").startswith("neve.")


class _Handle(asyncio.Handle):
    __slots__ = ("_owner",)

    def __init__(self, callback: Any, args: Any, loop: Any, context: Any = None) -> None:
        super().__init__(callback, args, loop, context)
        self._owner = None if _is_outside(callback) else _owner_of(context)

    def _run(self) -> None:
        if self._owner is not None and self._owner.paused:
            self._owner.hold(self)
        else:
            super()._run()


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ("_owner",)

    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: Any = None) -> None:
        super().__init__(when, callback, args, loop, context)
        self._owner = None if _is_outside(callback) else _owner_of(context)

    def _run(self) -> None:
        owner = self._owner
        if owner is not None and owner.paused:
            owner.hold(self)
        elif owner is None or not owner.killed or not _is_ours(self._callback):  # type: ignore[attr-defined]
            super()._run()


class ProcessLoop(SimLoop):
    """The deterministic loop, with callbacks that know whose they are."""

    def __init__(self, seed: int = 0, *, real_limit_s: float = math.inf) -> None:
        super().__init__(seed, real_limit_s=real_limit_s)
        make = self.get_task_factory()
        assert make is not None

        def adopted(loop: Any, work: Any, **options: Any) -> Any:
            task = make(loop, work, **options)
            owner = _owner_of(options.get("context"))
            if owner is not None:
                task.owner = owner  # type: ignore[attr-defined]
                owner.adopt(cast("asyncio.Task[Any]", task))
            return task

        self.set_task_factory(adopted)

    def create_future(self) -> asyncio.Future[Any]:
        future = super().create_future()
        future.owner = _OWNER.get()  # type: ignore[attr-defined]
        return future

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def time(self) -> float:
        """By the clock of whoever asks."""
        clock = _clock_of(sys._getframe(1))
        now_s = super().time()
        return now_s if clock is None else clock.shown_s(now_s)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        clock = _clock_of(sys._getframe(1))
        if clock is not None:
            when = clock.when_s(when)
        return self._add_timer(when, callback, args, context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        clock = _clock_of(sys._getframe(1))
        if clock is not None:
            delay /= clock.rate
        return self._add_timer(super().time() + delay, callback, args, context)

    def _add_timer(self, when: float, callback: Any, args: Any, context: Any) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _thread_delay_s(self) -> float:
        owner = _OWNER.get()
        return super()._thread_delay_s() * (1.0 if owner is None else owner.slow_factor)

    def put_back(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]


def run(main: Coroutine[Any, Any, T], *, seed: int = 0, real_limit_s: float = math.inf) -> T:
    """Run `main` on a fresh loop with that seed."""
    with asyncio.Runner(loop_factory=lambda: ProcessLoop(seed, real_limit_s=real_limit_s)) as runner:
        return runner.run(main)
