"""A small cluster of real processes whose data can be kept among the tests, and brought back from there.

    kept/<commit>/nodes.tar.xz    the folders of the extent nodes after a clean stop, with extended attributes
    kept/<commit>/etcd.json       etcd's keys and values at that moment, in base64, with their revisions
    kept/<commit>/contents.json   what the cluster must then tell and have: make_kept_data.py writes it

Invariants: a restored key has the mod revision that it had when it was kept, and etcd's next revision is above all
            that nodes have seen as tokens;
            keys on leases are not kept: their owners stopped cleanly, and what is left would end by itself;
            no process outlives the context.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from neve.client import Client, KeyValueClient
from neve.client.streams.options import ClientOptions
from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.txn import KeyRange, Put
from neve.proto import extent_node_pb2 as pb
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError
from neve.rpc.wire.client import WireChannel
from neve.tools.local import layout as local_layout
from tests.cluster.etcd import EtcdCluster, free_ports
from tests.cluster.local_cluster import NEVE
from tests.cluster.stream_cluster import MANAGER_SETTINGS, NODE_SETTINGS, STEP_TIMEOUT_S, ServerProcess

CLUSTER = "kept"
NODES = 3
ALL_KEYS = KeyRange.prefix(b"")
FILLER_KEY = b"filler"  # put to raise etcd's revision, and deleted again

SETTINGS = {
    local_layout.MANAGER: (*MANAGER_SETTINGS, "recovery.unread_delay_s=2"),
    local_layout.NODE: NODE_SETTINGS,
    local_layout.PMANAGER: ("lease_ttl_s=3", "start_grace_s=2", "balance.interval_s=1000"),
    local_layout.PSERVER: ("lease_ttl_s=4",),
}


class KeptCluster:
    """A context with a running etcd; `start` and `stop` are about the servers. `folder` has the nodes' folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etcd = EtcdCluster()
        counts = local_layout.Counts(managers=1, nodes=NODES, partition_managers=1, partition_servers=1)
        made = local_layout.free_ports_layout(CLUSTER, counts, free_ports=free_ports)
        self.layout = local_layout.Layout(
            CLUSTER,
            int(self.etcd.endpoints[0].rpartition(":")[2]),
            made.etcd_peer_port,
            *(made.managers, made.nodes, made.partition_managers, made.partition_servers),
        )
        listed = local_layout.processes(self.layout, data=str(folder), python=sys.executable, settings=SETTINGS)
        self._servers = {
            process.name: ServerProcess(process.name, process.command, folder / f"{process.name}.log")
            for process in listed
            if process.kind != local_layout.ETCD
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers.values():
            server.kill()
        self.etcd.close()
        if kind is not None:
            for server in self._servers.values():
                print(f"--- {server.name}", *server.log().splitlines()[-25:], sep="\n")

    # --- processes -----------------------------------------------------------------------------------------------

    def start(self, kinds: Sequence[str] = local_layout.STOP_ORDER) -> None:
        for name, server in self._servers.items():
            if local_layout.kind_of(name) in kinds:
                server.start()

    def stop(self, kinds: Sequence[str] = local_layout.STOP_ORDER) -> None:
        """As an operator stops a cluster; every process must end cleanly."""
        for kind in kinds:
            for name, server in self._servers.items():
                if local_layout.kind_of(name) == kind:
                    assert server.terminate() == 0, f"{name} did not stop cleanly\n{server.log()[-4000:]}"

    # --- use -----------------------------------------------------------------------------------------------------

    def client(self, **options: Any) -> Client:
        return Client(self.layout.manager_addresses, cluster=CLUSTER, options=ClientOptions(lease_ttl_s=5, **options))

    def objects(self) -> KeyValueClient:
        return KeyValueClient(self.layout.partition_manager_addresses, cluster=CLUSTER)

    async def neve(self, *words: str) -> Any:
        """An operator's command; what it prints as JSON."""
        environment = {
            **os.environ,
            "NEVE_CLUSTER": CLUSTER,
            "NEVE_MANAGERS": ",".join(self.layout.manager_addresses),
            "NEVE_PARTITION_MANAGERS": ",".join(self.layout.partition_manager_addresses),
        }
        result = await asyncio.to_thread(
            subprocess.run,
            [*NEVE, *words, "--json"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
        assert result.returncode == 0, f"neve {' '.join(words)}: {result.stdout}{result.stderr}"
        return json.loads(result.stdout)

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                while not await holds():
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"it did not come to this: {what}") from None

    async def until_all_alive(self) -> None:
        """Until a manager leads and knows all nodes, each by a registration of the processes that run now."""
        wanted = sorted(self.layout.node_addresses)

        async def all_alive() -> bool:
            try:
                async with self.client(call_timeout_s=2.0) as neve:
                    nodes = await neve.admin.nodes()
            except NeveError:
                return False
            alive = [node for node in nodes if node.health == sm.NODE_HEALTH_ALIVE]
            return sorted(node.wire_address for node in alive) == wanted

        await self.until(all_alive, "all nodes are alive at their new addresses")

    async def until_rested(self) -> None:
        """Until every sealed extent is confirmed, and recovery has nothing to do."""

        async def rested() -> bool:
            async with self.client() as neve:
                status = await neve.admin.status()
            return (status.under_replicated, status.unconfirmed, status.tasks) == (0, 0, 0)

        await self.until(rested, "nothing is left to confirm or to recover")

    async def described(self, stream_id: int) -> dict[str, Any]:
        """What the managers tell of a stream, as far as it must stay. An open extent has length None."""
        async with self.client() as neve:
            stream, extents = await neve.admin.stream(stream_id)
        return {
            "id": stream.stream_id,
            "name": stream.name,
            "lock": stream.lock,
            "labels": dict(stream.labels),
            "sealed": stream.sealed,
            "sync": not stream.policy.no_sync,
            "replicas": stream.policy.replicas,
            "extent_bytes_max": stream.policy.extent_bytes_max,
            "truncated_before": stream.truncated_before,
            "after_hole": list(stream.after_hole),
            "created_ms": stream.created_ms,
            "extents": [
                {
                    "id": extent.extent_id,
                    "length": extent.seal.length if extent.HasField("seal") else None,
                    "nodes": sorted(each.replica.node_id for each in extent.replicas),
                    "extent_bytes_max": extent.extent_bytes_max,
                    "created_ms": extent.created_ms,
                }
                for extent in extents
            ],
        }

    async def replicas(self, extent_ids: Sequence[int]) -> list[dict[str, Any]]:
        """What every node tells of its replicas, as far as it must stay over a restart."""
        found = []
        for address in self.layout.node_addresses:
            channel = WireChannel(address, cluster=CLUSTER)
            try:
                for extent_id in extent_ids:
                    request = pb.DescribeReplicaRequest(extent_id=extent_id)
                    reply = await channel.call(methods.EXTENT_NODE_DESCRIBE_REPLICA, request, timeout_s=10)
                    found.append(_told(reply.message))
            finally:
                await channel.close()
        return sorted(found, key=lambda each: (each["extent"], each["node"]))

    # --- etcd ----------------------------------------------------------------------------------------------------

    async def keep_etcd(self) -> dict[str, Any]:
        async with await EtcdStore.connect(EtcdConfig(self.etcd.endpoints)) as store:
            listing = await store.range_all(ALL_KEYS)
            revision = await store.revision()
        kept = [
            {"mod_revision": kv.mod_revision, "key": _text(kv.key), "value": _text(kv.value)}
            for kv in sorted(listing.kvs, key=lambda kv: (kv.mod_revision, kv.key))
            if not kv.lease_id
        ]
        return {"revision": revision, "keys": kept}

    async def restore_etcd(self, kept: dict[str, Any]) -> None:
        async with await EtcdStore.connect(EtcdConfig(self.etcd.endpoints)) as store:
            assert not (await store.range_all(ALL_KEYS)).kvs, "this etcd is not new"
            for mod_revision, keys in itertools.groupby(kept["keys"], key=lambda each: int(each["mod_revision"])):
                await _raise_to(store, mod_revision - 1)
                puts = [Put(base64.b64decode(each["key"]), base64.b64decode(each["value"])) for each in keys]
                now = (await store.txn([], puts)).revision
                assert now == mod_revision, f"the keys of revision {mod_revision} got {now}"
            await _raise_to(store, int(kept["revision"]))
            await store.delete(FILLER_KEY)


async def _raise_to(store: EtcdStore, revision: int) -> None:
    now = await store.revision()
    while now < revision:
        now = await store.put(FILLER_KEY, b"")


def _told(replica: pb.ReplicaInfo) -> dict[str, Any]:
    seal = replica.seal if replica.HasField("seal") else None
    return {
        "extent": replica.extent_id,
        "node": replica.replica.node_id,
        "disk": replica.replica.disk_uuid,
        "incarnation": replica.replica.incarnation,
        "eversion": replica.eversion,
        "kind": pb.LengthAnswer.Kind.Name(replica.kind),
        "length": replica.length,
        "token": replica.token,
        "fenced": replica.fenced,
        "seal": [seal.length, seal.eversion, _text(seal.digest)] if seal is not None else None,
        "created_ms": replica.created_ms,
        "stream": replica.stream_id,
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
