"""Objects on real processes: the README's examples, the commands, the gateway; and histories while servers are killed,
stopped and continued and partitions split and move."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from neve.client import KeyValueClient, NeveError
from neve.client.objects.options import KeyValueOptions
from neve.tools.local.supervisor import parse_procfile
from tests.cluster.etcd import dying_with_parent
from tests.cluster.local_cluster import NEVE, SETTINGS, TIMEOUT_S, LocalCluster
from tests.history.history import Outcome, Recorder
from tests.history.linearizable import assert_linearizable
from tests.history.workload import Journal, read_all, run_clients

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = ("--nodes", "3", "--managers", "1", "--partition-managers", "1", "--partition-servers", "2")
LETTERS = 26
OPERATIONS_MIN = 200
PARTITION_SETTINGS = ("pserver.lease_ttl_s=3", "pmanager.lease_ttl_s=3", "pmanager.start_grace_s=2")


@pytest.fixture(scope="module")
def cluster(module_tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(module_tmp_path, *PROCESSES) as running:
        yield running


# --- what the documentation says ---------------------------------------------------------------------------------


def readme_lines() -> list[str]:
    """The lines of the README's block of curl commands."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (block,) = [block for block in blocks if "curl" in block]
    return [line for line in block.splitlines() if line]


def test_the_curl_examples_of_the_readme_work(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / ".curlrc").write_text("fail\nsilent\nshow-error\n")
    ran = 0
    for line in readme_lines():
        command, _, expected = line.partition("# ")
        command = command.replace("127.0.0.1:3950", cluster.facts["gateway"]).replace("/tmp/", f"{tmp_path}/")
        result = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, "CURL_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
        if expected.startswith("→ "):
            assert expected.removeprefix("→ ").strip() in result.stdout, f"{command}\n{result.stdout}"
        ran += command.startswith("curl")
    assert ran >= 7


def test_the_example_program_runs(cluster: LocalCluster) -> None:
    managers = ",".join(cluster.facts["partition_managers"])
    out, _ = cluster.run(
        sys.executable, str(ROOT / "examples" / "objects.py"), "--managers", managers, "--cluster", "main"
    )
    assert "104 objects removed" in out


def test_the_commands_and_the_gateway_see_the_same_objects(cluster: LocalCluster, tmp_path: Path) -> None:
    managers = ("--managers", ",".join(cluster.facts["partition_managers"]))
    large = tmp_path / "large"
    large.write_bytes(random.Random(1).randbytes(40_000_000))
    cluster.neve("kv", "put", "from/kv", str(large), *managers)
    url = f"http://{cluster.facts['gateway']}/v1/objects"
    got = subprocess.run(
        ["curl", "-sSf", "--noproxy", "*", f"{url}/from/kv"], capture_output=True, timeout=TIMEOUT_S, check=True
    )
    assert got.stdout == large.read_bytes()
    subprocess.run(
        ["curl", "-sSf", "--noproxy", "*", "-T", str(large), f"{url}/from/%00http"],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    cluster.neve("kv", "get", r"from/\x00http", "-o", str(tmp_path / "copy"), *managers)
    assert (tmp_path / "copy").read_bytes() == large.read_bytes()
    out, _ = cluster.neve("kv", "scan", "from/", "--keys", *managers)
    assert out == "from/\\x00http\nfrom/kv\n"
    out, _ = cluster.neve("kv", "bench", "--mix", "F", "--objects", "500", "--duration", "1", *managers)
    assert "errors      0" in out


# --- trouble -----------------------------------------------------------------------------------------------------


class Servers:
    """The partition servers of a local cluster, to be killed, stopped and started again."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._commands = parse_procfile((cluster.data / "Procfile").read_text())
        self.pids: dict[str, int] = {
            name: pid for name, pid in cluster.facts["pids"].items() if name.startswith("pserver")
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)

    def start(self, name: str) -> None:
        process = subprocess.Popen(
            dying_with_parent(*self._commands[name]), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._started.append(process)
        self.pids[name] = process.pid

    def pause(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGSTOP)

    def resume(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGCONT)

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


async def neve(cluster: LocalCluster, *words: str) -> int:
    """A command of an operator; at a bad moment it may fail, and nothing may be wrong because of it."""
    process = await asyncio.create_subprocess_exec(
        *NEVE,
        *words,
        *("--managers", ",".join(cluster.facts["partition_managers"]), "--timeout", "20"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()


async def until_served(journal: Journal) -> None:
    """Every letter of the alphabet has acknowledged a put that was begun after now: all regions are served."""
    before = set(journal.tried)
    while len({key[:1] for key in journal.acknowledged - before}) < LETTERS:
        await asyncio.sleep(0.05)


async def until_registered(cluster: LocalCluster) -> None:
    """Both partition servers are registered with the manager."""
    while len(json.loads((await asyncio.to_thread(cluster.neve, "partitions", "--json"))[0])["servers"]) < 2:
        await asyncio.sleep(0.1)


async def trouble(
    cluster: LocalCluster, servers: Servers, kv: KeyValueClient, recorder: Recorder, journal: Journal
) -> dict[str, int]:
    """Deaths, a pause beyond the lease, moves, a split and a merge, one after the other. Exit codes of the orders."""
    await until_served(journal)
    servers.kill("pserver1")
    await until_served(journal)  # beyond its lease: the other one has everything
    servers.start("pserver1")
    await until_registered(cluster)
    servers.pause("pserver2")
    await until_served(journal)  # beyond its lease again
    servers.resume("pserver2")
    await until_registered(cluster)
    await until_served(journal)
    codes = {}
    await kv.regions.refresh_soon()
    region = kv.regions.map.find(b"h")
    assert region is not None
    codes["split"] = await neve(cluster, "split", str(region.partition_id), "--at", "i")
    codes["move"] = await neve(cluster, "move", str(region.partition_id), str(3 - region.server_id))
    await until_served(journal)
    await kv.regions.refresh_soon()
    left, right = kv.regions.map.find(b"h"), kv.regions.map.find(b"i")
    assert left is not None
    assert right is not None
    codes["merge"] = await neve(cluster, "merge", str(left.partition_id), str(right.partition_id))
    servers.kill("pserver2")
    servers.start("pserver2")
    await until_served(journal)
    while _done(recorder) <= OPERATIONS_MIN:  # a slow machine has had less time for them
        await asyncio.sleep(0.05)
    return codes


def _done(recorder: Recorder) -> int:
    return sum(operation.outcome is Outcome.DONE for operation in recorder.history)


@pytest.mark.slow
async def test_t48_t49_histories_while_servers_die_hang_and_move(tmp_path: Path) -> None:
    """Clients work on few keys, recorded, and put many keys once, while all that happens. In the end the history has an
    order, and every acknowledged put is there."""
    options = KeyValueOptions(operation_timeout_s=20.0, attempt_timeout_s=2.0)
    keys = [b"%c-contended" % letter for letter in b"ahiz"]
    settings = (*SETTINGS, *PARTITION_SETTINGS)
    with LocalCluster(tmp_path / "cluster", *PROCESSES, "--split-keys", "g,n", settings=settings) as cluster:
        servers = Servers(cluster)
        managers = cluster.facts["partition_managers"]
        try:
            async with (
                KeyValueClient(managers, options=options) as one,
                KeyValueClient(managers, options=options) as two,
            ):
                recorder = Recorder()
                journal = Journal()
                troubling = asyncio.ensure_future(trouble(cluster, servers, one, recorder, journal))
                longest_s = 0.0

                async def put_many(worker: int) -> None:
                    nonlocal longest_s
                    number = 0
                    while not troubling.done():
                        number += 1
                        begun_s = time.monotonic()
                        await journal.put(
                            two, b"%c/once/%d/%06d" % (97 + number % LETTERS, worker, number), os.urandom(100)
                        )
                        longest_s = max(longest_s, time.monotonic() - begun_s)
                        await asyncio.sleep(0.002)

                await asyncio.gather(
                    run_clients(
                        [one, two],
                        recorder,
                        rng=random.Random(1),
                        keys=keys,
                        operations_each=10**9,
                        pause_s_mean=0.05,
                        timeout_s=15.0,
                        stop=troubling.done,
                    ),
                    *(put_many(worker) for worker in range(4)),
                )
                codes = troubling.result()
                await read_all(one, recorder, keys)
                assert_linearizable(recorder.history)
                found = [info.key async for info in two.scan()]
                assert set(found) >= journal.acknowledged
                assert len(found) == len(set(found))
                for key in sorted(journal.acknowledged)[::37]:
                    assert (await two.get(key)).value == journal.tried[key]
        finally:
            servers.end()
    done = _done(recorder)
    print(
        f"{done} of {len(recorder.history)} recorded operations done, {len(journal.acknowledged)} of "
        f"{len(journal.tried)} puts acknowledged, the longest took {longest_s:.1f} s; orders: {codes}"
    )
    assert done > OPERATIONS_MIN
    assert codes["split"] == codes["move"] == 0


async def test_a_client_outlives_all_servers_being_away(cluster: LocalCluster) -> None:
    """An operation that cannot be done in its time says so; the next one, when all is well, works."""
    options = KeyValueOptions(operation_timeout_s=5.0)
    async with KeyValueClient(cluster.facts["partition_managers"], options=options) as kv:
        await kv.put(b"steady", b"1")
        pids = [pid for name, pid in cluster.facts["pids"].items() if name.startswith("pserver")]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(NeveError):
                await kv.get(b"steady", timeout_s=1.0)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        assert (await kv.get(b"steady")).value == b"1"
