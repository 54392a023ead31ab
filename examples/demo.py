"""The program of `make demo`: a cluster on this machine is written to, loses a node and no data, and heals.

   python examples/demo.py       exit code 0 if every check held; no process and no file is left

1. `neve up` starts etcd, managers, nodes and partition servers in a temporary folder, on free ports.
2. `stream-client wbench` measures writing, to stable storage and to memory.
3. A checking writer appends. A node that it writes to is killed with -9 meanwhile, and the writer continues.
4. All acknowledged records are read back and compared: once each, in order, at the acknowledged position.
5. The cluster heals: every extent has all its replicas again.
6. Objects are put in all key ranges. A partition server is killed meanwhile, and another one serves its keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neve.client.objects.client import KeyValueClient
from neve.client.streams.client import Client
from neve.client.streams.types import Position
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError
from neve.tools.local.supervisor import dying_with_parent

STEP_TIMEOUT_S = 90.0  # a bound for a slow machine; the steps take seconds
STOP_TIMEOUT_S = 40.0
BENCH_S = 4
RECORDS_BEFORE, RECORDS_AFTER = 2_000, 2_000
RECORD_BYTES = 1_000
EXTENT_BYTES = 1 << 20  # small, so that the stream has several, open and sealed
INFLIGHT = 32
OBJECTS_BEFORE, OBJECTS_AFTER = 1_000, 1_000

# A node counts as dead, and is recovered, after some seconds rather than after a minute.
SETTINGS = (
    "manager.lease_ttl_s=3",
    "manager.health.suspect_after_s=2",
    "manager.health.dead_after_s=5",
    "manager.health.leader_grace_s=3",
    "manager.recovery.delay_s=1",
    "manager.recovery.poll_s=0.5",
    "node.scrub_bytes_per_s=0",
    "pserver.lease_ttl_s=4",
)


class DemoFailed(Exception):
    """A check did not hold. The message names it."""


def say(text: str) -> None:
    print(text, flush=True)


def check(holds: bool, text: str) -> None:
    if not holds:
        raise DemoFailed(text)
    say(f"  ok: {text}")


# --- the cluster -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[dict[str, Any]]:
    """Run `neve up` as a process; yield its report when it is ready, and stop it cleanly at the end."""
    command = [
        sys.executable,
        "-m",
        "neve.tools.main",
        "up",
        "--data",
        str(folder),
        "--free-ports",
        "--json",
        "--quiet",
    ]
    command += [word for setting in SETTINGS for word in ("--set", setting)]
    process = subprocess.Popen(dying_with_parent(*command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()  # `neve up` ends by itself if it does not become ready
        if not line or json.loads(line)["event"] != "ready":
            raise DemoFailed(f"the cluster did not start\n{log_ends(folder)}")
        yield json.loads(line)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def log_ends(folder: Path) -> str:
    parts = []
    for path in sorted((folder / "logs").glob("*.log")):
        parts += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-5:]]
    return "\n".join(parts)


def run(command: list[str]) -> int:
    """Run a command that ends with this process, even if a signal ends it while the command is being started."""
    return subprocess.run(dying_with_parent(*command), check=False).returncode


def wbench(managers: list[str], *options: str) -> None:
    command = [sys.executable, "-m", "neve.client.command", "wbench", "--managers", ",".join(managers)]
    command += ["--duration", str(BENCH_S), *options]
    say(f"$ stream-client wbench --duration {BENCH_S} {' '.join(options)}")
    code = run(command)
    if code != 0:
        raise DemoFailed(f"wbench ended with {code}")


# --- the checking writer -------------------------------------------------------------------------------------------


def payload_of(number: int) -> bytes:
    return f"record {number} ".encode().ljust(RECORD_BYTES, b".")


class CheckingWriter:
    """Appends numbered records and records the position at which each was acknowledged."""

    def __init__(self, client: Client, stream_id: int) -> None:
        self._client = client
        self._stream_id = stream_id
        self.acknowledged: dict[int, Position] = {}
        self.unknown: set[int] = set()  # begun when a writer ended: each may be in the stream, once
        self.longest_wait_s = 0.0
        self._next = 0
        self._goal = RECORDS_BEFORE + RECORDS_AFTER

    async def run(self) -> None:
        while self._next < self._goal:
            try:
                async with self._client.writer(self._stream_id) as writer:
                    while self._next < self._goal:
                        await self._append_some(writer)
            except NeveError as error:
                say(f"  the writer was put out ({error}) and opens the stream again")
                await asyncio.sleep(0.5)

    async def _append_some(self, writer: Any) -> None:
        numbers = range(self._next, min(self._next + INFLIGHT, self._goal))
        self._next = numbers.stop
        began_s = time.monotonic()
        outcomes = await asyncio.gather(
            *(writer.append(payload_of(number)) for number in numbers), return_exceptions=True
        )
        self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began_s)
        failure = None
        for number, outcome in zip(numbers, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self.unknown.add(number)
                failure = outcome
            else:
                self.acknowledged[number] = outcome
        if failure is not None:
            raise failure


async def read_back(client: Client, stream_id: int, writer: CheckingWriter) -> None:
    """Compare the stream with what was acknowledged."""
    seen: dict[int, Position] = {}
    doubled = disordered = damaged = 0
    last = -1
    async for record in client.read(stream_id):
        payload = bytes(record.payload)
        number = int(payload.split()[1])
        doubled += number in seen
        disordered += number < last
        damaged += payload != payload_of(number)
        seen[number], last = record.position, number
    lost = [number for number in writer.acknowledged if number not in seen]
    moved = [number for number, position in writer.acknowledged.items() if seen.get(number) not in (None, position)]
    strangers = [number for number in seen if number not in writer.acknowledged and number not in writer.unknown]
    say(
        f"  {len(seen)} records read, {len(writer.acknowledged)} acknowledged, {len(writer.unknown)} of unknown outcome"
    )
    check(not lost, f"{len(lost)} acknowledged records lost")
    check(not doubled, f"{doubled} records doubled")
    check(not disordered, f"{disordered} records out of order")
    check(not damaged, f"{damaged} records damaged")
    check(not moved and not strangers, f"{len(moved)} records elsewhere than was told, {len(strangers)} from nowhere")


# --- the story -----------------------------------------------------------------------------------------------------


async def kill_a_node(ready: dict[str, Any]) -> None:
    async with Client(ready["managers"]) as client:
        stream = await client.create_stream(name="demo", replicas=3, extent_bytes_max=EXTENT_BYTES)
        writer = CheckingWriter(client, stream.id)
        running = asyncio.ensure_future(writer.run())
        try:
            await until(lambda: len(writer.acknowledged) >= RECORDS_BEFORE, running, "the first records")
            name = await node_of_tail(client, stream.id, ready)
            pid = ready["pids"][name]
            say(f"$ kill -9 {pid}    # {name}, which is being written to")
            os.kill(pid, signal.SIGKILL)
            killed_s = time.monotonic()
            async with asyncio.timeout(STEP_TIMEOUT_S):
                await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        say(f"  all {RECORDS_BEFORE + RECORDS_AFTER} records sent; the longest wait was {writer.longest_wait_s:.2f} s")
        await read_back(client, stream.id, writer)

        say("recovery")
        address = dict(zip((f"node{n}" for n in range(1, 5)), ready["nodes"], strict=True))[name]
        dead_id = await until_recovered(client, address)
        say(f"  done {time.monotonic() - killed_s:.0f} s after the kill")
        status = await client.admin.status()
        check(status.under_replicated == 0, f"{status.under_replicated} extents under-replicated")
        extents = await client.admin.describe_extents((await client.stream(stream.id)).extent_ids)
        left = sum(each.replica.node_id == dead_id for extent in extents for each in extent.replicas)
        check(left == 0, f"{left} of {len(extents)} extents rely on the dead node")
        check(all(len(extent.replicas) == 3 for extent in extents), "every extent has three replicas again")
        await read_back(client, stream.id, writer)


async def kill_a_partition_server(ready: dict[str, Any]) -> None:
    put: dict[bytes, bytes] = {}
    longest_wait_s = 0.0

    async def put_some(kv: KeyValueClient, count: int) -> None:
        nonlocal longest_wait_s
        for _ in range(count):
            key = b"%c/%06d" % (97 + len(put) % 26, len(put))
            put[key] = payload_of(len(put))
            began_s = time.monotonic()
            await kv.put(key, put[key])
            longest_wait_s = max(longest_wait_s, time.monotonic() - began_s)

    async with KeyValueClient(ready["partition_managers"]) as kv, asyncio.timeout(STEP_TIMEOUT_S):
        await asyncio.gather(*(put_some(kv, OBJECTS_BEFORE // INFLIGHT) for _ in range(INFLIGHT)))
        pid = ready["pids"]["pserver1"]
        say(f"$ kill -9 {pid}    # pserver1, which has half of the keys")
        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*(put_some(kv, OBJECTS_AFTER // INFLIGHT) for _ in range(INFLIGHT)))
        say(f"  all {len(put)} objects put; the longest wait was {longest_wait_s:.2f} s: the lease, and a load")
        found = {each.info.key: each.value async for each in kv.scan_objects()}
    lost = sum(key not in found for key in put)
    wrong = sum(put.get(key) != value for key, value in found.items())
    check(not lost, f"{lost} acknowledged objects lost")
    check(not wrong, f"{wrong} objects with a value that nobody put")


async def until(holds: Any, running: asyncio.Future[None], what: str) -> None:
    async with asyncio.timeout(STEP_TIMEOUT_S):
        while not holds():
            if running.done():
                running.result()
                raise DemoFailed(f"the writer ended before {what}")
            await asyncio.sleep(0.01)


async def node_of_tail(client: Client, stream_id: int, ready: dict[str, Any]) -> str:
    """The name of a process that has a replica of the stream's tail."""
    tail = (await client.stream(stream_id)).extent_ids[-1]
    (extent,) = await client.admin.describe_extents([tail])
    return f"node{ready['nodes'].index(extent.replicas[0].address) + 1}"


async def until_recovered(client: Client, address: str) -> int:
    """Wait until the node at `address` is declared dead and no extent relies on it. Returns its id."""
    shown = ""
    async with asyncio.timeout(STEP_TIMEOUT_S):
        while True:
            status = await client.admin.status()
            node = next(node for node in status.nodes if node.wire_address == address)
            dead = node.health == sm.NODE_HEALTH_DEAD
            words = (
                f"  node {node.node_id} is {'dead' if dead else 'not yet declared dead'}, "
                f"{status.under_replicated} extents under-replicated, {status.tasks} being recovered"
            )
            if words != shown:
                say(words)
                shown = words
            if dead and not status.under_replicated and not status.tasks and not status.unconfirmed:
                return int(node.node_id)
            await asyncio.sleep(0.5)


def show(folder: Path) -> None:
    began_s = time.monotonic()
    say("$ neve up    # etcd, 3 stream managers, 4 extent nodes, 2 partition managers, 2 partition servers")
    with running_cluster(folder) as ready:
        say(f"  ready after {time.monotonic() - began_s:.1f} s: managers at {', '.join(ready['managers'])}\n")
        say("--- How fast: 3 replicas, acknowledged when on stable storage, then when in memory of all three")
        wbench(ready["managers"], "--size", "4KiB", "--sync")
        wbench(ready["managers"], "--size", "4KiB", "--no-sync")
        say("\n--- How safe: a node is killed while it is written to")
        asyncio.run(kill_a_node(ready))
        say("\n--- Objects: a partition server is killed while objects are put")
        asyncio.run(kill_a_partition_server(ready))
        say("\n$ neve status")
        command = [sys.executable, "-m", "neve.tools.main", "status", "--managers", ",".join(ready["managers"])]
        command += ["--partition-managers", ",".join(ready["partition_managers"])]
        run(command)
        say("\n$ ^C         # neve up stops everything in order")
    say(f"\nall as it should be, in {time.monotonic() - began_s:.0f} s")


def main() -> int:
    # As an exception, so that the cluster is stopped and the folder removed on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")  # of the client here
    try:
        with tempfile.TemporaryDirectory(prefix="neve-demo-") as folder:
            show(Path(folder))
    except (DemoFailed, NeveError, TimeoutError) as error:
        say(f"\nthe demo FAILED: {error or type(error).__name__}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
