"""A whole cluster of real processes for tests: etcd, managers, nodes; each can be killed, paused, and started again.

Invariants: no process outlives the test run (PR_SET_PDEATHSIG), and none is left when the context ends;
            every process keeps its ports and its folder over restarts, so that it is the same one again;
            delays of the managers are short (`MANAGER_SETTINGS`): a test waits for what happens, never for a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from neve.client.streams.client import Client
from neve.client.streams.options import ClientOptions
from neve.proto import extent_node_pb2 as pb
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError
from neve.rpc.wire.client import WireChannel
from neve.tools.local import layout as local_layout
from tests.cluster.etcd import EtcdCluster, dying_with_parent, free_ports

CLUSTER = "test"
STEP_TIMEOUT_S = 120.0  # a bound for a very slow machine, not an expectation

# As a real cluster's, but shorter, in proportion.
MANAGER_SETTINGS = (
    "lease_ttl_s=3",
    "health.heartbeat_s=0.5",
    "health.suspect_after_s=2",
    "health.dead_after_s=5",
    "health.stabilise_s=1",
    "health.leader_grace_s=4",
    "recovery.delay_s=1",
    "recovery.poll_s=0.3",
    "recovery.retry_delay_s=0.5",
    "recovery.retry_delay_s_max=3",
    "collecting.interval_s=5",
    "timeouts.node_call_s=2",
    "limits.extent_bytes_min=1",  # small extents roll often
)
NODE_SETTINGS = ("report_interval_s=3", "scrub_bytes_per_s=0")
CLIENT_OPTIONS = ClientOptions(lease_ttl_s=5)


SMALL_DISK_BYTES = 64 << 20


def small_disk_prelude(disk: Path) -> tuple[str, ...]:
    """Runs before a node: gives it a mount namespace in which `disk` is a small tmpfs. Needs no root where user
    namespaces are allowed. (Before `dying_with_parent`, because the change of credentials undoes that.)"""
    script = f'mount -t tmpfs -o size={SMALL_DISK_BYTES},mode=700 tmpfs "$0" && exec "$@"'
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(disk))


def small_disks_work(folder: Path) -> bool:
    """May we mount a tmpfs here, and does it have extended attributes (Linux 6.6)?"""
    code = "import os, sys; os.setxattr(sys.argv[1], 'user.neve.probe', b'1')"
    command = [*small_disk_prelude(folder), sys.executable, "-S", "-c", code, str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


class ServerProcess:
    """A manager or a node."""

    def __init__(self, name: str, command: Sequence[str], log_path: Path) -> None:
        self.name = name
        self.command = list(command)
        self.log_path = log_path
        self.prelude: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, extra: Sequence[str] = ()) -> None:
        """`extra` are more settings, for this start only."""
        assert not self.runs, self.name
        words = [word for setting in extra for word in ("--set", setting)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prelude, *dying_with_parent(*self.command, *words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """As a crash: SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> int:
        """As an operator: SIGTERM; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(STEP_TIMEOUT_S)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""


class StreamCluster:
    """An async context. `folder` has everything, and stays."""

    def __init__(
        self,
        folder: Path,
        *,
        managers: int = 3,
        nodes: int = 4,
        manager_settings: Sequence[str] = (),
        node_settings: Sequence[str] = (),
        small_disk: str = "",
    ) -> None:
        """`small_disk` names a node whose disk is a tmpfs of `SMALL_DISK_BYTES`: where `small_disks_work`."""
        self.folder = folder
        self._small = {small_disk} if small_disk else set()
        self._node_ids: dict[str, int] = {}
        self._etcd = EtcdCluster()
        made = local_layout.free_ports_layout(
            CLUSTER, local_layout.Counts(managers=managers, nodes=nodes), free_ports=free_ports
        )
        etcd_port = int(self._etcd.endpoints[0].rpartition(":")[2])
        self.layout = local_layout.Layout(CLUSTER, etcd_port, made.etcd_peer_port, made.managers, made.nodes)
        settings = {
            local_layout.MANAGER: [*MANAGER_SETTINGS, *manager_settings],
            local_layout.NODE: [*NODE_SETTINGS, *node_settings],
        }
        self.servers = {
            process.name: ServerProcess(process.name, process.command, folder / f"{process.name}.log")
            for process in local_layout.processes(
                self.layout, data=str(folder), python=sys.executable, settings=settings
            )
            if process.kind != local_layout.ETCD
        }
        for name in self._small:
            disk = folder / name / "disk1"
            disk.mkdir(parents=True)
            self.servers[name].prelude = small_disk_prelude(disk)

    @property
    def managers(self) -> list[ServerProcess]:
        return [server for name, server in self.servers.items() if name.startswith("manager")]

    @property
    def nodes(self) -> list[ServerProcess]:
        return [server for name, server in self.servers.items() if name.startswith("node")]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the managers."""
        return self.layout.manager_addresses

    def client(self) -> Client:
        return Client(self.addresses, cluster=CLUSTER, options=CLIENT_OPTIONS)

    async def __aenter__(self) -> Self:
        try:
            for server in self.servers.values():
                server.start()
            await self.until(self._all_alive, "a leader, and every node registered")
            for server in self.nodes:  # as their disks' labels have it
                label = json.loads((self.disk_folder(server) / "disk.json").read_text())
                self._node_ids[server.name] = int(label["node_id"])
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is not None:
            print(self.logs())

    def close(self) -> None:
        for server in self.servers.values():
            server.kill()  # SIGKILL ends a paused process too
        self._etcd.close()

    def logs(self, lines: int = 25) -> str:
        """The ends of all logs, for a test that failed."""
        return "\n".join(
            f"--- {server.name}\n" + "\n".join(server.log().splitlines()[-lines:]) for server in self.servers.values()
        )

    # --- what it says of itself ---------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for something that other processes do."""
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                while not await holds():
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"it did not come to this: {what}\n{self.logs()}") from None

    async def ask_status(self) -> sm.ClusterStatusReply | None:
        """The leader's own word; None if none can be asked now."""
        for address in self.addresses:
            channel = WireChannel(address, cluster=CLUSTER)
            try:
                request = sm.ClusterStatusRequest()
                reply = await channel.call(methods.STREAM_MANAGER_CLUSTER_STATUS, request, timeout_s=2)
            except NeveError:
                continue
            finally:
                await channel.close()
            if reply.message.leader.address == address:
                return reply.message
        return None

    async def _all_alive(self) -> bool:
        status = await self.ask_status()
        if status is None:
            return False
        alive = sum(node.health == sm.NODE_HEALTH_ALIVE for node in status.nodes)
        return alive == sum(server.runs for server in self.nodes)

    async def until_all_alive(self) -> None:
        await self.until(self._all_alive, "every node that runs is alive")

    async def leader(self) -> ServerProcess:
        found: list[ServerProcess] = []

        async def known() -> bool:
            status = await self.ask_status()
            if status is not None and status.leader.address in self.addresses:
                found.append(self.managers[self.addresses.index(status.leader.address)])
            return bool(found) and found[-1].runs

        await self.until(known, "a manager that leads")
        return found[-1]

    def node_id(self, server: ServerProcess) -> int:
        return self._node_ids[server.name]

    def disk_folder(self, server: ServerProcess) -> Path:
        """Where a node's files are to be seen: one on a small disk of its own has them in its own mount namespace."""
        folder = self.folder / server.name / "disk1"
        return Path(f"/proc/{server.pid}/root{folder}") if server.name in self._small else folder

    async def until_dead(self, server: ServerProcess) -> None:
        node_id = self.node_id(server)

        async def dead() -> bool:
            status = await self.ask_status()
            return status is not None and any(
                node.node_id == node_id and node.health == sm.NODE_HEALTH_DEAD for node in status.nodes
            )

        await self.until(dead, f"{server.name} is declared dead")

    async def until_recovered(self) -> None:
        """No extent lacks a replica or a confirmation, and there is nothing left to do."""

        async def recovered() -> bool:
            status = await self.ask_status()
            return status is not None and (status.under_replicated, status.unconfirmed, status.tasks) == (0, 0, 0)

        await self.until(recovered, "under-replicated, unconfirmed and tasks are 0")

    # --- what is on the disks -----------------------------------------------------------------------------------

    async def check_sealed_replicas(self, client: Client, stream_id: int) -> int:
        """Every replica of every sealed extent has confirmed, and all have the same bytes; how many extents there are.

        By the digest that each node proves (DescribeReplica), and by the bytes of the files themselves.
        """
        stream = await client.stream(stream_id)
        checked = 0
        for info in await client.admin.describe_extents(stream.extent_ids):
            if not info.HasField("seal"):
                continue
            assert info.seal.digest, f"extent {info.extent_id} has no digest"
            for each in info.replicas:
                where = f"extent {info.extent_id} on node {each.replica.node_id}"
                assert each.confirmed, f"{where} has not confirmed"
                found = await self._describe_replica(each.address, info.extent_id)
                assert found.kind == pb.LengthAnswer.LENGTH, where
                assert (found.seal.length, found.seal.digest) == (info.seal.length, info.seal.digest), where
            hashes = {path: _sha256(path) for path in self._files(info)}
            assert len(hashes) == len(info.replicas)
            assert len(set(hashes.values())) == 1, f"the files of extent {info.extent_id} differ: {hashes}"
            assert all(path.stat().st_size == info.seal.length for path in hashes)
            checked += 1
        return checked

    async def _describe_replica(self, address: str, extent_id: int) -> pb.ReplicaInfo:
        channel = WireChannel(address, cluster=CLUSTER)
        try:
            request = pb.DescribeReplicaRequest(extent_id=extent_id)
            return (await channel.call(methods.EXTENT_NODE_DESCRIBE_REPLICA, request, timeout_s=30)).message
        finally:
            await channel.close()

    def _files(self, info: sm.ExtentInfo) -> Iterator[Path]:
        wanted = {each.replica.node_id for each in info.replicas}
        name = f"{info.extent_id:016x}"
        for server in self.nodes:
            if self.node_id(server) in wanted:
                yield self.disk_folder(server) / "extents" / name[-2:] / f"{name}.ext"

    # --- etcd ---------------------------------------------------------------------------------------------------

    def kill_etcd(self) -> None:
        self._etcd.members[0].kill()

    def restart_etcd(self) -> None:
        self._etcd.restart(self._etcd.members[0])

    # --- the end of a node ------------------------------------------------------------------------------------------

    def lose_for_ever(self, server: ServerProcess) -> None:
        """Killed, and its folder with it."""
        server.kill()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder / server.name)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
