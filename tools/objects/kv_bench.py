"""neve kv bench: how fast are objects read and written? With the mixes of YCSB, or with puts alone.

Invariants: the objects that it loads begin with --prefix and stay, so that a next run need not load again (--no-load);
            --workers operations are on their way at a time; values cannot be compressed;
            latencies are counted for each kind of operation, errors apart.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

from neve.client.command import options
from neve.client.command.bench import Bench, Operation, stop_on_interrupt, unless_stopped
from neve.client.command.core_statistics import Histogram, Report, latency_fields
from neve.client.command.failures import DONE, FAILED, sentence
from neve.client.command.live import LiveLine, report_lines
from neve.client.command.samples import SampleWriter
from neve.client.command.tables import print_table
from neve.client.objects.client import KeyValueClient
from neve.client.objects.types import Object
from neve.proto.errors import NotFound
from neve.rpc.entry import INTERRUPTED
from neve.tools.objects.core_ycsb import MIXES, SCAN_OBJECTS_MAX, Action, Keys, key_of

LOADING_AT_ONCE = 256
VALUES = 16  # different ones


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mix", choices=[*MIXES, "put"], default="A", help="of YCSB, or puts alone (default: A)")
    parser.add_argument("--duration", type=options.duration_s, default=10.0, metavar="SECONDS", help="(default: 10)")
    parser.add_argument(
        "--objects", type=options.whole_number(1, 10**9), default=10_000, metavar="N", help="(default: 10000)"
    )
    parser.add_argument(
        "--size", type=options.record_size_bytes, default=1024, metavar="SIZE", help="of a value (default: 1KiB)"
    )
    parser.add_argument(
        "--workers",
        type=options.whole_number(1, 100_000),
        default=64,
        metavar="N",
        help="operations on their way at a time (default: 64)",
    )
    parser.add_argument("--prefix", default="bench/", metavar="TEXT", help="of all keys (default: bench/)")
    parser.add_argument("--no-load", dest="load", action="store_false", help="the objects are there from another run")
    parser.add_argument("--seed", type=options.whole_number(0, 2**63), default=1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to this file, for plot")
    parser.add_argument("--json-report", action="store_true", help="the report as JSON on stdout")


class Store(Protocol):
    """The measured client: a key-value client, or a client of another system to compare with."""

    async def get(self, key: bytes) -> Object: ...
    async def put(self, key: bytes, value: bytes) -> object: ...
    def scan_objects(self, *, prefix: bytes, start: bytes, limit: int) -> AsyncIterator[Object]: ...


class Workload:
    """The work of the workers. It draws the random numbers and records latencies by kind."""

    def __init__(
        self,
        client: Store,
        mix: str,
        *,
        objects: int,
        size_bytes: int,
        prefix: bytes,
        seed: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._client = client
        self._mix = MIXES.get(mix)
        self._keys = Keys(objects, latest=self._mix is not None and self._mix.latest)
        self._prefix = prefix
        self._rng = random.Random(seed)
        self._values = [os.urandom(size_bytes) for _ in range(VALUES)]
        self._clock_ns = clock_ns
        self.latency_ns: dict[Action, Histogram] = {}

    def _key(self, number: int) -> bytes:
        return self._prefix + key_of(number)

    def _value(self) -> bytes:
        return self._values[self._rng.randrange(VALUES)]

    async def load(self, report: Callable[[int], None] = lambda done: None) -> None:
        """Put every object once, many at a time."""
        numbers = iter(range(self._keys.count))
        done = 0

        async def work() -> None:
            nonlocal done
            for number in numbers:
                await self._client.put(self._key(number), self._value())
                done += 1
                if done % 1000 == 0:
                    report(done)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(LOADING_AT_ONCE, self._keys.count)):
                group.create_task(work())

    async def one(self) -> tuple[int, int]:
        """One operation: how many objects it had, and how many bytes."""
        rng = self._rng
        action = Action.UPDATE if self._mix is None else self._mix.action(rng.random())
        begun_ns = self._clock_ns()
        size_bytes = await self._do(action, rng)
        histogram = self.latency_ns.get(action)
        if histogram is None:
            histogram = self.latency_ns[action] = Histogram()
        histogram.record(self._clock_ns() - begun_ns)
        return 1, size_bytes

    async def _do(self, action: Action, rng: random.Random) -> int:
        client = self._client
        if action is Action.INSERT:
            value = self._value()
            await client.put(self._key(self._keys.insert()), value)
            return len(value)
        key = self._key(self._keys.choose(rng.random()))
        if action is Action.UPDATE:
            value = self._value()
            await client.put(key, value)
            return len(value)
        if action is Action.SCAN:
            found = client.scan_objects(prefix=self._prefix, start=key, limit=rng.randint(1, SCAN_OBJECTS_MAX))
            return sum([len(each.value) async for each in found])
        try:
            size_bytes = len((await client.get(key)).value)
        except NotFound:  # inserted by another worker, and not there yet
            size_bytes = 0
        if action is Action.MODIFY:
            value = self._value()
            await client.put(key, value)
            size_bytes += len(value)
        return size_bytes


async def run(client: KeyValueClient, args: argparse.Namespace) -> int:
    workload = Workload(
        client,
        args.mix,
        objects=args.objects,
        size_bytes=args.size,
        prefix=os.fsencode(args.prefix),
        seed=args.seed,
    )
    async with stop_on_interrupt() as stop:
        if args.load:
            begun_s = time.perf_counter()
            await unless_stopped(workload.load(_progress(args.objects)), stop)
            took_s = time.perf_counter() - begun_s
            print(
                f"loaded {args.objects} objects in {took_s:.1f} s, {args.objects / took_s:,.0f} a second",
                file=sys.stderr,
            )
        operations: list[Operation] = [workload.one for _ in range(args.workers)]
        with contextlib.ExitStack() as stack:
            live = stack.enter_context(LiveLine(f"kv {args.mix}", args.duration))
            sink = None
            if args.json is not None:
                settings = {name: value for name, value in vars(args).items() if isinstance(value, (int, float, str))}
                settings.pop("token", None)
                sink = stack.enter_context(SampleWriter(args.json, kind="kv", options=settings))
            bench = Bench(duration_s=args.duration, sink=sink, live=live, stop=stop)
            report = await bench.run(operations)
            if sink is not None:
                sink.finish(report)
    _print(args, report, workload, bench)
    if bench.interrupted:
        return INTERRUPTED
    return FAILED if report.errors_total else DONE


def _progress(objects: int) -> Callable[[int], None]:
    shown = sys.stderr.isatty()

    def report(done: int) -> None:
        if shown:
            print(f"\rloading {done} of {objects}", end="\n" if done == objects else "", file=sys.stderr, flush=True)

    return report


def report_value(args: argparse.Namespace, report: Report, workload: Workload) -> dict[str, Any]:
    kinds = {
        action.value: {"operations": latency_ns.count, "latency_ms": latency_fields(latency_ns)}
        for action, latency_ns in workload.latency_ns.items()
    }
    return {"mix": args.mix, "objects": args.objects, "size_bytes": args.size, **report.fields(), "kinds": kinds}


def _print(args: argparse.Namespace, report: Report, workload: Workload, bench: Bench) -> None:
    if args.json_report:
        print(json.dumps(report_value(args, report, workload), indent=1))
        return
    last_error = sentence(bench.last_error) if bench.last_error is not None else ""
    title = f"kv {args.mix}, {args.workers} workers, {args.objects} objects of {args.size} B"
    for line in report_lines(title, report, last_error=last_error):
        print(line)
    rows = []
    for action, latency_ns in sorted(workload.latency_ns.items(), key=lambda pair: pair[0].value):
        shown = latency_fields(latency_ns)
        rows.append(
            (action.value, latency_ns.count, *(round(shown[name], 3) for name in ("p50", "p95", "p99", "p99.9", "max")))
        )
    print_table(("kind", "operations", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms"), rows)
