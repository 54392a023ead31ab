"""The HTTP gateway: small objects over connections that stay open, one large object each way, and its memory.

    python -m tests.bench.gateway

Neve as `neve up` starts it: an etcd, a manager of each kind, three nodes, two partition servers, one gateway. The
caller is one process that writes requests and reads answers by hand, so that it costs little; the puts and gets of the
same objects through the key-value client are told beside. It prints what it measured, in its order; `--json FILE`
writes it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from neve.client import KeyValueClient
from tests.bench.engine import Report
from tests.bench.kv_keys import PROCESSES, SPLIT_KEYS, memory_mib
from tests.bench.processes import cpu_s_of
from tests.cluster.local_cluster import LocalCluster

CONNECTIONS = 64
OBJECTS = 2_000
SIZE_BYTES = 1024
DURATION_S = 5.0
LARGE_BYTES = 512 << 20
CHUNK_BYTES = 1 << 20


class Connection:
    """One request at a time, HTTP/1.1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host

    @classmethod
    async def open(cls, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=4 * CHUNK_BYTES), address)

    async def request(self, method: str, key: str, body: bytes = b"", *, repeat: int = 1) -> int:
        """Sends `body` so many times, as one body; returns how many bytes the answer had."""
        size_bytes = len(body) * repeat if body else 0
        head = f"{method} /v1/objects/{key} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {size_bytes}\r\n\r\n"
        self._writer.write(head.encode() + (body if repeat == 1 else b""))
        if repeat > 1:
            for _ in range(repeat):
                self._writer.write(body)
                await self._writer.drain()
        status, *fields = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        if status.split()[1] not in ("200", "201", "204"):
            raise RuntimeError(f"{method} {key}: {status}")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        left_bytes = answer_bytes = int(headers.get("content-length", "0"))
        while left_bytes:
            piece = await self._reader.read(min(left_bytes, CHUNK_BYTES))
            if not piece:
                raise ConnectionError(f"{method} {key}: {left_bytes} bytes are missing")
            left_bytes -= len(piece)
        return answer_bytes

    def close(self) -> None:
        self._writer.close()


class Bench:
    def __init__(self, cluster: LocalCluster, kv: KeyValueClient, report: Report) -> None:
        self._address = cluster.facts["gateway"]
        self._pid = cluster.facts["pids"]["gateway"]
        self._kv = kv
        self._report = report
        self._value = os.urandom(SIZE_BYTES)

    async def run(self) -> None:
        report = self._report
        connections = [await Connection.open(self._address) for _ in range(CONNECTIONS)]
        numbers = itertools.cycle(range(OBJECTS))
        begun_cpu_s = cpu_s_of(self._pid)
        puts = await self._rate(
            [self._over(each, "PUT", numbers) for each in connections], f"PUT of 1 KiB, {CONNECTIONS} connections"
        )
        put_cpu_s, begun_cpu_s = cpu_s_of(self._pid) - begun_cpu_s, cpu_s_of(self._pid)
        gets = await self._rate(
            [self._over(each, "GET", numbers) for each in connections], f"GET of 1 KiB, {CONNECTIONS} connections"
        )
        report.add("processor time of the gateway for a PUT", put_cpu_s * 1e6 / puts, "µs")
        report.add("processor time of the gateway for a GET", (cpu_s_of(self._pid) - begun_cpu_s) * 1e6 / gets, "µs")
        await self._rate([self._put_directly(numbers)] * CONNECTIONS, "the same puts by the key-value client")
        await self._rate([self._get_directly(numbers)] * CONNECTIONS, "the same gets by the key-value client")
        report.add("memory of the gateway so far, peak", memory_mib(self._pid)["VmHWM"], "MiB")
        await self._large(connections[0])
        report.add("memory of the gateway at the end, peak", memory_mib(self._pid)["VmHWM"], "MiB")
        for each in connections:
            each.close()

    def _over(
        self, connection: Connection, method: str, numbers: itertools.cycle[int]
    ) -> Callable[[], Awaitable[object]]:
        body = self._value if method == "PUT" else b""
        return lambda: connection.request(method, f"bench/{next(numbers)}", body)

    def _put_directly(self, numbers: itertools.cycle[int]) -> Callable[[], Awaitable[object]]:
        return lambda: self._kv.put(b"bench/%d" % next(numbers), self._value)

    def _get_directly(self, numbers: itertools.cycle[int]) -> Callable[[], Awaitable[object]]:
        return lambda: self._kv.get(b"bench/%d" % next(numbers))

    async def _rate(self, works: list[Callable[[], Awaitable[object]]], what: str) -> int:
        """Reports operations a second; returns how many there were."""
        begun_s = time.perf_counter()
        done = 0

        async def repeat(work: Callable[[], Awaitable[object]]) -> None:
            nonlocal done
            while time.perf_counter() - begun_s < DURATION_S:
                await work()
                done += 1

        await asyncio.gather(*map(repeat, works))
        self._report.add(what, done / (time.perf_counter() - begun_s), "ops/s")
        return done

    async def _large(self, connection: Connection) -> None:
        chunk = os.urandom(CHUNK_BYTES)
        size_mb = LARGE_BYTES / 1e6
        begun_s = time.perf_counter()
        await connection.request("PUT", "large", chunk, repeat=LARGE_BYTES // CHUNK_BYTES)
        self._report.add("PUT of 512 MiB", size_mb / (time.perf_counter() - begun_s), "MB/s")
        begun_s = time.perf_counter()
        assert await connection.request("GET", "large") == LARGE_BYTES
        self._report.add("GET of 512 MiB", size_mb / (time.perf_counter() - begun_s), "MB/s")


async def measure(cluster: LocalCluster, report: Report) -> None:
    async with KeyValueClient(cluster.facts["partition_managers"], cluster=cluster.facts["cluster"]) as kv:
        await Bench(cluster, kv, report).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="neve-bench-"))
    report = Report()
    try:
        with (
            LocalCluster(folder / "neve", *PROCESSES, "--split-keys", SPLIT_KEYS, settings=()) as cluster,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(measure(cluster, report))
    finally:
        shutil.rmtree(folder)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
