"""Processes of the simulation: paused, resumed and killed with all that belongs to them."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from neve.meta.memory.client import MemoryStore
from neve.proto.errors import LeaseLost
from neve.rpc.service import Call, Service
from tests.proto import methods
from tests.proto import testing_pb2 as pb
from tests.sim.disks.disk import SimFileSystem
from tests.sim.disks.faults import SimulatedCrash
from tests.sim.network.network import SimNetwork
from tests.sim.processes import processes
from tests.sim.processes.processes import Process, ProcessFileSystem


def test_a_paused_process_takes_no_step_and_runs_late_and_in_order_afterwards() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        process, seen = Process("one"), []

        async def work() -> None:
            for number in range(3):
                await asyncio.sleep(1)
                seen.append((number, loop.time()))

        begun_s = loop.time()
        task = process.spawn(work())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(10)
        assert [number for number, _ in seen] == [0]
        process.resume()
        await task
        assert [(number, round(at_s - begun_s, 1)) for number, at_s in seen] == [(0, 1.0), (1, 11.5), (2, 12.5)]

    processes.run(main())


def test_a_lease_of_a_paused_process_ends() -> None:
    async def main() -> None:
        store = MemoryStore()
        process = Process("owner")
        client = store.client()
        lease = await process.spawn(client.grant_lease(3))
        await asyncio.sleep(60)
        lease.ensure_alive()
        process.pause()
        await asyncio.sleep(10)
        assert lease.lease_id not in store.key_space.leases
        process.resume()
        await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        with pytest.raises(LeaseLost):
            lease.ensure_alive()
        await client.close()

    processes.run(main())


def test_a_kill_closes_what_a_task_without_its_first_step_was_to_run() -> None:
    async def main() -> None:
        process, ran = Process("one"), []

        async def handler() -> None:
            ran.append("handler")

        async def started(work: Coroutine[Any, Any, None]) -> None:
            try:
                await asyncio.sleep(1)
            finally:
                await work

        async def not_started(work: Coroutine[Any, Any, None]) -> None:
            await work

        kept, closed, closed_within = handler(), handler(), handler()
        tasks = [process.spawn(started(kept))]
        await asyncio.sleep(0.5)
        tasks += [process.spawn(not_started(closed)), process.spawn(not_started(not_started(closed_within)))]
        process.kill()
        assert inspect.getcoroutinestate(closed) == inspect.CORO_CLOSED
        assert inspect.getcoroutinestate(closed_within) == inspect.CORO_CLOSED
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        assert ran == ["handler"], "what has begun comes to its end"

    processes.run(main())


def test_a_killed_process_changes_nothing_on_its_disk_whatever_its_tasks_still_do() -> None:
    async def main() -> None:
        fs = SimFileSystem(random.Random(0))
        fs.make_dirs("/disk")
        process = Process("writer")
        own = ProcessFileSystem(fs, process)
        ends: list[str] = []

        async def work() -> None:
            own.make_dirs("/disk/alive")
            try:
                await asyncio.sleep(100)
            finally:
                ends.append("finally")
                own.make_dirs("/disk/dead")

        task = process.spawn(work())
        await asyncio.sleep(1)
        process.kill()
        with pytest.raises(SimulatedCrash):
            await task
        assert ends == ["finally"]
        assert fs.list_dir("/disk") == ["alive"]

    processes.run(main())


def test_handlers_belong_to_the_process_that_serves() -> None:
    async def main() -> None:
        network = SimNetwork(random.Random(0))
        server, client = Process("server"), Process("client")
        started = asyncio.Event()

        class Servicer:
            async def do(self, request: pb.DoRequest, call: Call) -> pb.DoReply:
                started.set()
                await asyncio.sleep(5)
                return pb.DoReply()

        service = Service([methods.CONFORMANCE_DO], Servicer())
        server.enter(lambda: network.serve("server:1", [service], cluster="test"))
        channel = network.channel("client", "server:1", cluster="test")

        async def call() -> Any:
            return await channel.call(methods.CONFORMANCE_DO, pb.DoRequest(), timeout_s=1000)

        task = client.spawn(call())
        await started.wait()
        server.pause()
        network.pause("server")
        await asyncio.sleep(20)
        assert not task.done()
        network.resume("server")
        server.resume()
        await task
        await channel.close()

    processes.run(main())


def test_a_process_goes_by_its_own_clock_and_the_world_by_the_worlds() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        process = Process("slow")
        process.clock.set_rate(0.5)

        async def nap() -> tuple[float, float]:
            own_s = process.time()
            async with asyncio.timeout(3.0):
                await asyncio.sleep(2.0)
            slept_s = process.time() - own_s
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await asyncio.sleep(5.0)
            return slept_s, process.time() - own_s

        assert await process.spawn(nap()) == pytest.approx((2.0, 3.0))
        assert loop.time() - begun_s == pytest.approx(6.0)
        process.clock.set_rate(1.0)
        shown_s = process.time()
        assert loop.time() - shown_s == pytest.approx(3.0), "it does not jump"
        await process.spawn(asyncio.sleep(1.0))
        assert process.time() - shown_s == pytest.approx(1.0)

    processes.run(main())


def test_what_is_left_of_a_killed_process_knows_that_it_is() -> None:
    """Short story 7159: a node was killed by what it had just sent; what it did after that was counted."""

    async def main() -> None:
        process = Process("one")
        seen = []

        async def work() -> None:
            seen.append(processes.owner_is_killed())
            try:
                await asyncio.sleep(1)
            finally:
                seen.append(processes.owner_is_killed())

        process.spawn(work())
        await asyncio.sleep(0.5)
        process.kill()
        await asyncio.sleep(1)
        assert seen == [False, True]
        assert not processes.owner_is_killed(), "this is done by nobody's process"

    processes.run(main())
