"""`neve up` with partitions, for tests that kill and stop its processes, and bring them back.

Invariants: what a test has killed is started again by `bring_back`, with the command of the cluster's own Procfile;
            everything ends with the context.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from neve.client.objects.client import KeyValueClient
from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.keys import root_of
from tests.cluster.local_cluster import SETTINGS, TIMEOUT_S, LocalCluster
from tests.history.workload import Journal
from tests.sim.checks.region_watcher import RegionWatcher

LEASE_S = 4  # of the partition servers: see SETTINGS
REGION_KEYS = (b"a", b"h", b"o", b"v")  # one of each of the four regions that `neve up` makes


class PartitionedCluster:
    def __init__(self, data: Path) -> None:
        self.local = LocalCluster(
            data,
            *("--managers", "1", "--nodes", "3", "--partition-managers", "2", "--partition-servers", "2"),
            settings=[*SETTINGS, "pmanager.balance.interval_s=1000"],
        )
        self._again: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        self.local.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._again.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._again.values():
            process.wait(TIMEOUT_S)
        self.local.__exit__(kind, error, trace)

    # --- processes -------------------------------------------------------------------------------------------

    def send(self, name: str, number: signal.Signals) -> None:
        process = self._again.get(name)
        os.kill(process.pid if process is not None else self.local.facts["pids"][name], number)

    def kill(self, name: str) -> None:
        self.send(name, signal.SIGKILL)

    def bring_back(self, name: str) -> None:
        """Start a killed process again."""
        for line in (self.local.data / "Procfile").read_text().splitlines():
            if line.startswith(f"{name}: "):
                with (self.local.data / "logs" / f"{name}.log").open("a") as log:
                    self._again[name] = self.local.start(*shlex.split(line.partition(": ")[2]), stdout=log, stderr=log)
                return
        raise AssertionError(f"no {name} in the Procfile")

    # --- use -------------------------------------------------------------------------------------------------

    @property
    def managers(self) -> list[str]:
        return list(self.local.facts["partition_managers"])

    def partitions(self) -> dict[str, Any]:
        return dict(json.loads(self.local.neve("partitions", "--json")[0]))

    async def neve(self, *words: str) -> str:
        """An operator's command, beside what this process does."""
        return (await asyncio.to_thread(self.local.neve, *words))[0]

    async def region(self, key: str) -> dict[str, Any]:
        found = (await asyncio.to_thread(self.partitions))["regions"]
        return next(region for region in reversed(found) if region["start"] <= key)

    async def homes(self) -> dict[int, int]:
        found = await asyncio.to_thread(self.partitions)
        return {region["partition_id"]: region["server_id"] for region in found["regions"]}

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[RegionWatcher]:
        """Every revision of the map while this lasts, and all before it."""
        async with await EtcdStore.connect(EtcdConfig((self.local.facts["etcd"],))) as store:
            watcher = RegionWatcher(root_of(self.local.facts["cluster"]))
            watching = asyncio.ensure_future(watcher.run(store))
            try:
                yield watcher
                await asyncio.sleep(0.2)  # the last change may be on its way
            finally:
                watching.cancel()
                ends = await asyncio.gather(watching, return_exceptions=True)
                if not isinstance(ends[0], asyncio.CancelledError):
                    raise AssertionError("a revision of the region map is broken") from ends[0]


class Writers:
    """Puts of new keys in every region, one after the other in each worker, and when each was acknowledged."""

    def __init__(self, kv: KeyValueClient, *, tag: str, workers_each: int = 2) -> None:
        self.journal = Journal()
        self.tag = tag.encode()
        self.acknowledged_s: dict[bytes, list[float]] = {key: [] for key in REGION_KEYS}
        self._kv = kv
        self._over = False
        self._loop = asyncio.get_running_loop()
        self._tasks = [
            asyncio.ensure_future(self._work(key, worker)) for key in REGION_KEYS for worker in range(workers_each)
        ]

    async def _work(self, region_key: bytes, worker: int) -> None:
        number = 0
        while not self._over:
            number += 1
            key = b"%s/%s/%d/%06d" % (region_key, self.tag, worker, number)
            if await self.journal.put(self._kv, key, b"%s %d" % (key, number)):
                self.acknowledged_s[region_key].append(self._loop.time())
            await asyncio.sleep(0.005)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not holds():
                await asyncio.sleep(0.05)
        assert what

    async def until_all_go_on(self) -> None:
        """Each region has acknowledged something that was begun after now."""
        counts = {key: len(times) for key, times in self.acknowledged_s.items()}
        await self.until(
            lambda: all(len(times) > counts[key] + 4 for key, times in self.acknowledged_s.items()), "all go on"
        )

    def longest_gap_s(self, since_s: float) -> float:
        """The longest time in which some region acknowledged nothing."""
        return max(
            after - before
            for times in self.acknowledged_s.values()
            for before, after in itertools.pairwise(times)
            if after >= since_s
        )

    async def finish(self) -> None:
        """Stop, and check that all that was acknowledged is there, and nothing else."""
        self._over = True
        await asyncio.gather(*self._tasks)
        for key in REGION_KEYS:
            part = Journal()
            prefix = b"%s/%s/" % (key, self.tag)
            part.tried = {k: v for k, v in self.journal.tried.items() if k.startswith(prefix)}
            part.acknowledged = {k for k in self.journal.acknowledged if k.startswith(prefix)}
            await part.check(self._kv, prefix=prefix)
