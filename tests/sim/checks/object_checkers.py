"""What must hold of keys and partitions at the end of a story, whatever happened in it.

check_objects     T48, T49: the histories of hot keys are linearizable; every acknowledged put is found, and nothing
                  that nobody put; batches are whole (twins)
check_at_rest     partitions hold on to nothing when nobody asks for anything
check_left_over   a server that was told to stop has no tasks, partitions or memory left, nobody holds a partition's
                  lock, and every stream is a region's or somebody else's
"""

from __future__ import annotations

from neve.client.objects.client import KeyValueClient
from neve.meta.lock import lock_key
from neve.meta.txn import KeyRange
from neve.partition_server.engine.engine import Partition
from tests.history.history import RecordingClient
from tests.history.linearizable import assert_linearizable
from tests.sim.checks import held_memory as held
from tests.sim.checks.leaks import counts_of
from tests.sim.cluster import ROOT
from tests.sim.partitions import PartitionCluster
from tests.sim.uses.objects import HOT_KEYS, TWINS, KeyValueUsers

REST_S = 60.0


async def check_objects(users: KeyValueUsers, client: KeyValueClient) -> None:
    """Of a cluster that is well again: whatever fails now is lost."""
    last = RecordingClient(client, users.recorder, name="last")
    found = await last.scan((*HOT_KEYS, *TWINS))
    assert found is not None, f"the last scan failed: {last.error}"
    users.check_scan(found, set(users.journal.acknowledged))
    twins = [(await client.get(key)).value if any(each.info.key == key for each in found) else None for key in TWINS]
    assert twins[0] == twins[1], f"a batch was done by half: {twins}"
    for key in HOT_KEYS:
        await last.get(key)
        assert last.error is None, f"the last get of {key!r} failed: {last.error!r}"
    assert_linearizable(users.recorder.history)


async def check_at_rest(partitions: PartitionCluster) -> None:
    def held() -> list[str]:
        found = []
        for server in partitions.servers.values():
            if server.host_.held:
                found.append(f"{server.host} holds {server.host_.held} calls")
            for number, hosted in server.host_.hosted.items():
                if hosted.partition is None:
                    continue
                assert isinstance(hosted.partition, Partition)
                store = hosted.partition._store
                if store.pins or store.pending or store.committing:
                    found.append(f"partition {number}: {len(store.pins)} pins, {len(store.pending)} pending")
        return found

    try:
        await partitions.until(lambda: not held(), "partitions are at rest", limit_s=REST_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {held()}") from None


def check_left_over(partitions: PartitionCluster) -> None:
    """When all servers and managers were told to stop, and have."""
    for process in (*partitions.servers.values(), *partitions.managers.values()):
        assert not process.running, f"{process.host} runs"
        assert not process.left, f"{process.host} has stopped, and has tasks: {process.left}"
    for server in partitions.servers.values():
        assert not server.host_.hosted, f"{server.host} has stopped with {list(server.host_.hosted)}"
        memory = server.around.memory
        assert not memory.used_bytes, f"{server.host} has {memory.used_bytes} bytes in memtables"
        assert not memory.shares, f"{server.host} has stopped, and partitions share its memory"
    check_memory(partitions)
    etcd = partitions.sim.etcd
    locks = etcd.key_space.read(KeyRange.prefix(lock_key(ROOT, "partition/"))).kvs
    assert not locks, f"nobody serves, and there are locks: {[kv.key for kv in locks]}"
    assert not partitions.watcher.state.servers, f"registered: {list(partitions.watcher.state.servers)}"
    linked = {
        stream_id
        for region in partitions.map.regions
        for stream_id in (region.log_stream_id, region.row_stream_id, region.meta_stream_id)
    }
    streams = partitions.sim.stored_state().streams
    assert linked <= streams.keys(), f"streams of regions are gone: {sorted(linked - streams.keys())}"
    orphans = sorted(streams.keys() - linked - partitions.sim.ledger.streams.keys())
    assert not orphans, f"no region has these streams, and nobody will delete them: {orphans}"


def check_memory(partitions: PartitionCluster) -> None:
    """Of servers and managers that have stopped, and of clients that are closed."""
    counts, found = counts_of(partitions.sim), []
    for server in partitions.servers.values():
        served = (server.host_, server.around, server.registration, server.door.wire, server.streams, server._channels)
        found += [f"{server.host} holds {what}" for what in held.too_much(held.STOPPED_SERVER, counts, *served)]
    for manager in partitions.managers.values():
        managed = (manager.manager, manager.door.wire, manager.streams, manager._channels)
        found += [f"{manager.host} holds {what}" for what in held.too_much(held.STOPPED_MANAGER, counts, *managed)]
    for client in partitions.clients:
        if client.process.stopped:
            assert not client.left, f"{client.name} is closed, and has left: {client.left}"
            found += [f"{client.name} holds {what}" for what in held.too_much(held.KEY_VALUE, counts, client.kv)]
    assert not found, found
