"""The engine of the benchmarks, on virtual time: it counts everything, survives errors, and stops when asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from neve.client.command.bench import FAILURES_MAX, UNFINISHED, Bench, unless_stopped
from neve.client.command.core_statistics import Recorder, Sample
from neve.client.command.live import LiveLine, report_lines
from neve.proto import errors


class Samples:
    def __init__(self) -> None:
        self.all: list[Sample] = []

    def add(self, sample: Sample) -> None:
        self.all.append(sample)


def bench(**options: Any) -> Bench:
    loop = asyncio.get_running_loop()
    return Bench(clock_ns=lambda: int(loop.time() * 1e9), **options)


def taking(seconds: float, size_bytes: int = 100) -> Callable[[], Any]:
    async def operation() -> tuple[int, int]:
        await asyncio.sleep(seconds)
        return 2, size_bytes

    return operation


@pytest.mark.sim(seed=1)
async def test_workers_run_side_by_side_until_time_is_up_and_every_call_is_counted() -> None:
    samples = Samples()
    report = await bench(duration_s=10.0, sink=samples).run([taking(0.1), taking(0.5)])
    assert report.operations == 2 * len(samples.all)
    assert report.operations in range(2 * (99 + 20), 2 * (102 + 21))
    assert report.size_bytes == 100 * len(samples.all)
    assert report.latency_ms["max"] == pytest.approx(500, rel=0.02)
    assert report.errors == {}


@pytest.mark.sim(seed=1)
async def test_a_stop_keeps_what_was_measured() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(2.0, stop.set)
    report = await bench(duration_s=1000.0, stop=stop).run([taking(0.25)])
    assert 2.0 <= report.duration_s < 3.0
    assert report.operations == 2 * 8


@pytest.mark.sim(seed=1)
async def test_a_call_that_does_not_end_in_the_grace_time_is_counted_as_unfinished() -> None:
    report = await bench(duration_s=1.0, grace_s=2.0, operations_each=7).run([taking(1000.0), taking(0.3)])
    assert report.errors == {UNFINISHED: 7}
    assert report.operations > 0
    assert report.duration_s == pytest.approx(3.0, rel=0.1)


@pytest.mark.sim(seed=1)
async def test_a_worker_goes_on_after_an_error_and_gives_up_after_many_in_a_row() -> None:
    calls = 0

    async def flaky() -> tuple[int, int]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01)
        if calls % 3 == 0:
            raise errors.ConnectionLost(address="a:1")
        return 1, 1

    async def dead() -> tuple[int, int]:
        raise errors.ConnectFailed(address="a:1")

    one = bench(duration_s=30.0, operations_each=5)
    report = await one.run([flaky])
    assert report.operations > 50
    assert report.errors["ConnectionLost"] > 50
    assert isinstance(one.last_error, errors.ConnectionLost)
    report = await bench(duration_s=1_000_000.0).run([dead, dead])
    assert report.errors == {"ConnectFailed": 2 * FAILURES_MAX}
    assert report.duration_s < 60


@pytest.mark.sim(seed=1)
@pytest.mark.parametrize("error", [errors.LeaseLost(), errors.StreamSealed(), errors.NotOwner(), errors.TooLarge()])
async def test_an_error_that_ends_a_writer_ends_its_worker_at_once(error: errors.NeveError) -> None:
    async def over() -> tuple[int, int]:
        raise error

    report = await bench(duration_s=1000.0).run([over])
    assert report.errors == {type(error).__name__: 1}


async def test_calls_that_never_wait_do_not_keep_the_run_from_ending() -> None:
    async def at_once() -> tuple[int, int]:
        return 1, 1

    report = await Bench(duration_s=0.05).run([at_once, at_once])
    assert report.operations > 0


@pytest.mark.sim(seed=1)
async def test_a_bug_in_a_worker_is_not_hidden_and_the_others_are_stopped() -> None:
    async def bug() -> tuple[int, int]:
        await asyncio.sleep(0.5)
        raise AssertionError("ours")

    with pytest.raises(AssertionError, match="ours"):
        await bench(duration_s=10.0).run([bug, taking(0.1)])
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.sim(seed=1)
async def test_set_up_is_interrupted_by_a_stop() -> None:
    stop = asyncio.Event()
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append("cancelled")

    asyncio.get_running_loop().call_later(1.0, stop.set)
    with pytest.raises(KeyboardInterrupt):
        await unless_stopped(forever(), stop)
    assert ended == ["cancelled"]

    async def at_once() -> int:
        return 5

    assert await unless_stopped(at_once(), asyncio.Event()) == 5


@pytest.mark.sim(seed=1)
async def test_the_live_line_is_fed_and_shows_nothing_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveLine("wbench", 5.0) as live:
        await bench(duration_s=5.0, live=live).run([taking(0.1)])
    assert capsys.readouterr() == ("", "")


def test_the_report_names_rates_percentiles_and_errors() -> None:
    recorder = Recorder()
    recorder.add(Sample(0.5, 1_500_000, 100, 200_000))
    recorder.add(Sample(0.6, 1_500_000, 3, 0, "DiskFull"))
    text = "\n".join(report_lines("wbench", recorder.report(2.0), last_error="the disk is full"))
    for words in ("50 ops/s", "0.10 MB/s", "p50 1.50 ms", "p99.9 1.50 ms", "3: 3 DiskFull", "the disk is full"):
        assert words in text
    assert "errors      0" in "\n".join(report_lines("wbench", Recorder().report(1.0)))
