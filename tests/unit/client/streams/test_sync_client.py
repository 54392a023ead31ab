"""The synchronous twin: what it adds to the client, a loop in a thread and iterators over it."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from neve.client import Client, ConnectFailed, NotFound, Position, Record, ShuttingDown, SyncClient, Writer
from neve.client.streams.options import ClientOptions
from neve.client.streams.sync import RECORDS_PER_HOP, LoopThread, SyncWriter


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.stop()


def test_work_runs_in_the_loops_thread_and_its_errors_come_back(thread: LoopThread) -> None:
    async def name() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise NotFound(kind="stream", name="x")

    assert thread.run(name()) == "neve-client"
    with pytest.raises(NotFound):
        thread.run(fail())


def test_an_iterator_gives_everything_in_order_and_then_the_error(thread: LoopThread) -> None:
    async def items() -> AsyncIterator[int]:
        for number in range(1000):
            if number % 100 == 0:
                await asyncio.sleep(0.001)
            yield number
        raise NotFound(kind="extent", name="1")

    got = []
    iterator = thread.iterate(items())
    with pytest.raises(NotFound):  # noqa: PT012 - it is raised by the loop, after the last item
        for number in iterator:
            got.append(number)  # noqa: PERF402 - looked at after the error
    assert got == list(range(1000))


def test_an_iterator_fetches_only_some_ahead_and_ends_with_its_reader(thread: LoopThread) -> None:
    made: list[int] = []
    ended = threading.Event()

    async def items() -> AsyncIterator[int]:
        try:
            for number in range(100_000):
                made.append(number)
                yield number
        finally:
            ended.set()

    iterator = thread.iterate(items())
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    time.sleep(0.05)
    assert len(made) <= 2 * RECORDS_PER_HOP + 2
    iterator.close()  # type: ignore[attr-defined]  # it is a generator
    assert ended.wait(10)


def test_large_records_are_fetched_a_few_at_a_time(thread: LoopThread) -> None:
    made: list[int] = []
    position = Position(1, 0)

    async def items() -> AsyncIterator[Record]:
        for number in range(100):
            made.append(number)
            yield Record(position, bytes(1 << 20), position)

    iterator = thread.iterate(items())
    next(iterator)
    time.sleep(0.05)
    assert len(made) <= 10
    iterator.close()  # type: ignore[attr-defined]


def test_a_stopped_thread_refuses_further_work() -> None:
    thread = LoopThread()
    thread.stop()
    thread.stop()

    async def nothing() -> None: ...

    with pytest.raises(ShuttingDown):
        thread.run(nothing())


def test_what_is_under_way_when_another_thread_stops_the_loop_ends_as_shutting_down() -> None:
    thread = LoopThread()
    begun = threading.Event()
    outcomes: list[BaseException] = []

    async def long() -> None:
        begun.set()
        await asyncio.sleep(3600)

    def call() -> None:
        try:
            thread.run(long())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
            outcomes.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert begun.wait(30)
    thread.stop()
    caller.join(30)
    assert [type(outcome) for outcome in outcomes] == [ShuttingDown]


def test_a_cluster_that_cannot_be_reached_is_one_clear_error_and_leaves_no_thread() -> None:
    threads = set(threading.enumerate())  # of other tests, too, which may end meanwhile
    client = SyncClient(["127.0.0.1:1"], options=ClientOptions(call_timeout_s=0.3))
    with pytest.raises(ConnectFailed, match="no stream manager answers"), client:
        pass
    assert not set(threading.enumerate()) - threads


@pytest.mark.parametrize(("twin", "original"), [(SyncClient, Client), (SyncWriter, Writer)])
def test_the_twin_has_the_methods_of_the_original(twin: type, original: type) -> None:
    inside = {
        "on_end",
        "on_acknowledged",
        "on_settled",
        "on_unknown",
        "ensure_outcomes",  # what a writer group asks of its writers
        "freeze",
        "abort",
        "ready",
        "error",
        "owner",
        "committed",
        "drain",
        # What servers need, which are asyncio throughout.
        "submit_many",
        "tell_again",
        "read_batches",
        "writer_group",
        "metadata",
        "lease",
    }
    public = {name for name, _ in inspect.getmembers(original) if not name.startswith("_")} - inside
    assert public <= set(dir(twin))
