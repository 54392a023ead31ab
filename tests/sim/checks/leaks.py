"""What nobody needs any more and is still there: descriptors, tasks, locks, files, memory, connections.

    left_over            while everything runs, and nobody asks for anything: locks, files below a node's disks and in
                         its journal's folder that have no business there (leaked_files.py), descriptors that nothing
                         in its memory accounts for, whatever else it holds in memory beyond its bounds, connections of
                         processes that have ended
    stop_and_look        everything is told to stop, as by SIGTERM: no task, no descriptor and no connection may be left

Invariants: it looks, and has nothing repaired; whatever is left for good is a leak, and fails the story.
"""

from __future__ import annotations

import asyncio
import collections
import gc
from collections.abc import Mapping

from neve.extent_node.store.replica import NO_FD
from neve.meta.lock import lock_key
from neve.stream_manager.metadata import records
from tests.sim.checks import held_memory as held
from tests.sim.checks import memory
from tests.sim.checks.leaked_files import leaked_files
from tests.sim.cluster import ROOT, SimCluster
from tests.sim.network.connection import host_of
from tests.sim.processes.manager import SimManager
from tests.sim.processes.node import SimNode

LOCKS = lock_key(ROOT, "")
GROWTH_MAX = 20
STOP_S = 60.0  # virtual, for whatever a stop lets finish


def left_over(cluster: SimCluster) -> list[str]:
    found = [f"the leader's lock of {what}" for what in cluster.term.ctx.locks.waiters]
    found += [f"{kv.key!r}" for kv in cluster.etcd.all_keys() if kv.key.startswith(LOCKS)]
    for node in cluster.nodes.values():
        if node.running:
            found += leaked_files(node, cluster.state.extents)
            found += unexplained_descriptors(node)
    return found or [*held_in_memory(cluster), *unused_connections(cluster), *unanswered_calls(cluster)]


# --- memory and connections ----------------------------------------------------------------------------------


def held_in_memory(cluster: SimCluster) -> list[str]:
    """Of nodes, managers, and clients that are closed: what there is of which no more than so much may be."""
    counts, found = counts_of(cluster), []
    for node in cluster.nodes.values():
        if node.running:
            roots = (node.store, node.copier, node.registrar, node.server.wire, node._channels)
            found += [f"{node.host} holds {what}" for what in held.too_much(held.NODE, counts, *roots)]
    for manager in cluster.managers.values():
        if manager.running:
            many = held.too_much(held.MANAGER, counts, manager.manager, manager._server.wire, manager._channels)
            found += [f"{manager.host} holds {what}" for what in many]
    for client in cluster.clients.values():
        if client.process.stopped:
            found += [f"{client.name} holds {what}" for what in held.too_much(held.CLIENT, counts, client.neve)]
    return found


def counts_of(cluster: SimCluster) -> held.Counts:
    state = cluster.stored_state()
    made = cluster.etcd.made_with_ids()
    replayed = [kv for kv in cluster.etcd.all_keys() if kv.key.startswith(ROOT + records.REPLAY)]
    return held.Counts(
        hosts=held.LANES * (len(cluster.nodes) + len(cluster.managers) + len(cluster.clients)),
        nodes=len(cluster.nodes),
        disks=sum(len(node.disks) for node in state.nodes.values()),
        streams=len(state.streams),
        extents=len(state.extents),
        streams_made=made["stream"],
        extents_made=len(cluster.wire.extents_ordered | cluster.etcd.linked.keys()),
        calls=len(replayed),
    )


def unused_connections(cluster: SimCluster) -> list[str]:
    """Those of clients that have ended and of nodes that are gone, and those that a process has beside the ones it
    uses."""
    found = collections.Counter((each.client_host, each.address) for each in cluster.network._connections)
    ended = {name for name, client in cluster.clients.items() if not client.running}
    ended |= {node.host for node in cluster.nodes.values() if node.gone}
    return [
        f"{count} connections from {host} to {address}"
        for (host, address), count in found.items()
        if host in ended or host_of(address) in ended or count > held.LANES
    ]


def unanswered_calls(cluster: SimCluster) -> list[str]:
    """Those on connections that both ends keep up."""
    return [
        f"{len(each.calls.open)} calls from {each.client_host} to {each.address} have no answer"
        for each in cluster.network._connections
        if each.calls.open and not each.client.over and not each.server.over
    ]


def unexplained_descriptors(node: SimNode) -> list[str]:
    """Those of its disks and its journal that its store would not find again, and those that sealed replicas have
    beside the ones that they are read through, whose number is bounded."""
    state, sealed_files = node.store.state, node.store.state.sealed_files._open
    journal = state.journal
    segments = [*journal._filled, *journal._ready, *journal._set_aside]
    segments += [journal._current] if journal._current is not None else []
    known = {journal._lock_fd, *(segment.fd for segment in segments), *(each.fd for each in sealed_files.values())}
    known |= {disk._lock_fd for disk in state.disks.values() if disk._lock_fd is not None}
    known |= {found.fd for found in state.replicas.values() if found.state.seal is None and found.fd != NO_FD}
    found = [f"descriptor {fd} of {path} on {node.host}" for fd, path in node.fs.opened().items() if fd not in known]
    if len(sealed_files) > state.config.sealed_files_max:
        found.append(f"{len(sealed_files)} sealed files are open on {node.host}")
    return found


def grown(before: Mapping[str, int]) -> list[str]:
    """What modules and classes hold more of than before the story, by more than what is loaded once."""
    now = memory.held_by_modules()
    many = {name: size for name, size in now.items() if size > before.get(name, size) + GROWTH_MAX}
    return [f"{name}: {size}" for name, size in many.items() if name not in held.CACHES]


async def stop_and_look(cluster: SimCluster) -> None:
    """All at once, in a cluster that is in order and that nobody uses."""
    found = grown(cluster.held_before)
    assert not found, f"modules hold more and more: {found}"
    for name, client in cluster.clients.items():
        assert not client.left, f"{name} is closed, and has left: {client.left}"
    nodes = [node for node in cluster.nodes.values() if node.running]
    processes: list[SimManager | SimNode] = [manager for manager in cluster.managers.values() if manager.running]
    processes += nodes
    async with asyncio.timeout(STOP_S):
        await asyncio.gather(*(process.stop() for process in processes))
    for process in processes:
        assert not process.left, f"{process.host} has stopped, and has left: {process.left}"
    for node in nodes:
        assert not node.left_open, f"{node.host} has stopped, and has open: {node.left_open}"
    await cluster.until(lambda: not cluster.network._connections, "all connections are closed", limit_s=STOP_S)
    gc.collect()  # exceptions that nobody has looked at are told of when they are collected
    cluster.check_no_bugs()
