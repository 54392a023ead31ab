"""What nobody needs any more and is still there: descriptors, tasks, locks, files.

    left_over            while everything runs, and nobody asks for anything: locks, unfinished files, files that no
                         record gives a node, and descriptors of its disks that nothing in its memory accounts for
    stop_and_look        everything is told to stop, as by SIGTERM: no task and no descriptor may be left

Invariants: it looks, and has nothing repaired; whatever is left for good is a leak, and fails the story.
Neighbours: checkers.py calls the first at the end of every story, stories.py the other after that.
"""

from __future__ import annotations

import asyncio
import gc

from neve.extent_node.disk import EXTENTS, TMP
from neve.extent_node.replica import NO_FD
from neve.meta.lock import lock_key
from tests.sim.cluster import ROOT, SimCluster
from tests.sim.manager import SimManager
from tests.sim.node import SimNode

LOCKS = lock_key(ROOT, "")
STOP_S = 60.0  # virtual, for whatever a stop lets finish


def left_over(cluster: SimCluster) -> list[str]:
    found = [f"the leader's lock of {what}" for what in cluster.term.ctx.locks.waiters]
    found += [f"{kv.key!r}" for kv in cluster.etcd.all_keys() if kv.key.startswith(LOCKS)]
    extents = cluster.state.extents
    for node in cluster.nodes.values():
        if not node.running:
            continue
        found += unfinished_files(node)
        found += unexplained_descriptors(node)
        found += [
            f"extent {extent_id} on {node.host}"
            for extent_id in _extents_on(node)
            if extent_id not in extents or node.node_id not in extents[extent_id].node_ids
        ]
    return found


def _extents_on(node: SimNode) -> list[int]:
    folders = [f"/disk{number}/{EXTENTS}" for number in range(node.disks)]
    files = [name for top in folders for part in node.fs.names_in(top) for name in node.fs.names_in(f"{top}/{part}")]
    return [int(name.removesuffix(".ext"), 16) for name in files if name.endswith(".ext")]


def unfinished_files(node: SimNode) -> list[str]:
    folders = [f"/disk{number}/{TMP}" for number in range(node.disks)]
    return [f"{folder}/{name}" for folder in folders for name in node.fs.names_in(folder)]


def unexplained_descriptors(node: SimNode) -> list[str]:
    """Those of its disks and its journal that its store would not find again, and those that sealed replicas have
    beside the ones that they are read through, whose number is bounded."""
    state, sealed_files = node.store._state, node.store._files._open
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


async def stop_and_look(cluster: SimCluster) -> None:
    """All at once, in a cluster that is in order and that nobody uses."""
    for name, client in cluster.clients.items():
        assert not client.left, f"{name} is closed, and its tasks are not over: {client.left}"
    nodes = [node for node in cluster.nodes.values() if node.running]
    processes: list[SimManager | SimNode] = [manager for manager in cluster.managers.values() if manager.running]
    processes += nodes
    async with asyncio.timeout(STOP_S):
        await asyncio.gather(*(process.stop() for process in processes))
    for process in processes:
        assert not process.left, f"{process.host} has stopped, and its tasks are not over: {process.left}"
    for node in nodes:
        assert not node.left_open, f"{node.host} has stopped, and has open: {node.left_open}"
    gc.collect()  # exceptions that nobody has looked at are told of when they are collected
    cluster.check_no_bugs()
