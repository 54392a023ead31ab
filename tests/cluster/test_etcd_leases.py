"""Paused owners and leaders on a real etcd: they notice by themselves, and what they write is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neve.meta.election import Election
from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.lock import acquire_lock
from neve.meta.store import EventKind, WatchBatch
from neve.meta.txn import Put
from neve.proto.errors import LeaseLost, LockHeld, NotOwner
from tests.cluster.etcd import EtcdCluster, child_process
from tests.cluster.proxy import TcpProxy

CHILD = Path(__file__).parent / "leader_child.py"


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "the child has ended"
    return line


def _order(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


async def test_t14_a_leader_paused_beyond_its_lease_notices_by_itself_and_its_write_is_refused(
    one_etcd: EtcdCluster,
) -> None:
    prefix = "/t14/leader"
    endpoint = one_etcd.endpoints[0]
    with child_process(sys.executable, CHILD, endpoint, prefix, "4") as child:
        assert (await asyncio.to_thread(_read_line, child)).startswith("leading ")
        _order(child, "write")
        assert [await asyncio.to_thread(_read_line, child) for _ in range(2)] == ["ensure ok", "txn ok"]

        os.kill(child.pid, signal.SIGSTOP)
        async with await EtcdStore.connect(EtcdConfig((endpoint,))) as store:
            lease = await store.grant_lease(10)
            successor = await Election(store, prefix.encode()).campaign(b"successor", lease)
            written = await store.txn(successor.guard(), [Put(b"/t14/leader-state", b"successor")])
            assert written.succeeded

            # The order lies in its input when it goes on: whatever it does first, it must know that it is deposed.
            _order(child, "write")
            os.kill(child.pid, signal.SIGCONT)
            lines = [await asyncio.to_thread(_read_line, child) for _ in range(3)]
            assert lines[0].startswith("lost "), lines
            assert lines[1:] == ["ensure refused LeaseLost", "txn refused"]
            kv = await store.get(b"/t14/leader-state")
            assert kv is not None
            assert kv.value == b"successor"
            successor.ensure()
            await successor.give_up("resigned")


async def test_t18_a_lease_that_ends_between_acquire_and_first_write_is_noticed_before_it(
    one_etcd: EtcdCluster,
) -> None:
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
        await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as other,
    ):
        lock = await acquire_lock(store, "s", "old", await store.grant_lease(4), root=b"/t18/", timeout_s=5)
        lease = await other.grant_lease(10)
        with pytest.raises(LockHeld, match="old"):
            await acquire_lock(other, "s", "new", lease, root=b"/t18/", timeout_s=0.1)
        proxy.stall()
        successor = await acquire_lock(other, "s", "new", lease, root=b"/t18/", timeout_s=60)
        assert successor.token > lock.token
        with pytest.raises(LeaseLost):
            lock.ensure()
        proxy.resume()
        await proxy.cut()
        with pytest.raises(LeaseLost):
            await lock.verify()
        guarded = (lock.guard(), [Put(b"/t18/state", b"old")])
        async with await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as late:
            assert not (await late.txn(*guarded)).succeeded
        await successor.verify()
        await successor.release()
        with pytest.raises(NotOwner):
            successor.ensure()


@pytest.mark.parametrize("renewed", [False, True])
async def test_a_lease_is_lost_here_before_etcd_ends_it(one_etcd: EtcdCluster, renewed: bool) -> None:
    """With the connection silent, the owner has lost its lease by the time that another client sees its key deleted.

    Only the order counts: the deletion is seen after etcd made it, however late, and the deadline must lie before that.
    """
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
        await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as other,
    ):
        lease = await store.grant_lease(4)
        start = await store.put(b"/lost-first", b"", lease_id=lease.lease_id) + 1
        granted_deadline_s = lease._deadline_s
        while renewed and lease._deadline_s == granted_deadline_s:
            await asyncio.sleep(0.01)
        proxy.stall()
        async with other.watch(b"/lost-first", start_revision=start) as watch:
            item = await anext(watch)
        assert isinstance(item, WatchBatch)
        assert [event.kind for event in item.events] == [EventKind.DELETE]
        assert not lease.alive(), f"it would have gone on for {lease.remaining_s():.1f} s"
        assert lease.lost.reason == "its time to live has passed"


async def test_a_grant_that_was_slow_counts_from_when_it_was_sent(one_etcd: EtcdCluster) -> None:
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
    ):
        proxy.stall()
        granting = asyncio.create_task(store.grant_lease(20))
        await asyncio.sleep(1.0)
        proxy.resume()
        lease = await granting
        assert lease.remaining_s() <= 19.0
        await lease.revoke()


async def test_a_leader_of_etcd_that_was_paused_does_not_renew_a_lease_that_its_successor_ends(
    three_etcds: EtcdCluster,
) -> None:
    """The leader sleeps, is deposed, wakes, answers the keep-alive that waited in its socket, and sleeps again.

    Whatever the client makes of that, it must have given the lease up when the key is deleted. Whether the old leader
    answers before it knows better is chance: `tests/unit/meta/test_etcd_keep_alive.py` has that case for certain.
    """
    old = three_etcds.leader
    others = tuple(member.endpoint for member in three_etcds.members if member is not old)
    key = b"/paused-leader"
    async with (
        await EtcdStore.connect(EtcdConfig((old.endpoint,))) as store,
        await EtcdStore.connect(EtcdConfig(others)) as other,
    ):
        lease = await store.grant_lease(9)  # renewed at 7 s by the old leader; ends in the new one after about 13 s
        start = await store.put(key, b"", lease_id=lease.lease_id) + 1
        old.pause()
        try:
            await asyncio.sleep(8.3)  # the second keep-alive is under way, the first was given up
            deadline_s = lease._deadline_s
            old.resume()
            for _ in range(100):
                await asyncio.sleep(0.005)
                if lease._deadline_s != deadline_s:
                    break
            old.pause()
            async with other.watch(key, start_revision=start) as watch:
                item = await anext(watch)
            assert item.revision >= start
            assert not lease.alive(), f"it would have gone on for {lease.remaining_s():.1f} s"
        finally:
            old.resume()


def test_no_etcd_outlives_a_test_run_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from tests.cluster.etcd import EtcdCluster; cluster = EtcdCluster();"
        " print(cluster.members[0].pid, flush=True); time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(root)}
    run = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment, cwd=root
    )
    try:
        assert run.stdout is not None
        etcd_pid = int(run.stdout.readline())
        assert _runs(etcd_pid)
    finally:
        run.kill()
        run.communicate()
    for _ in range(1000):  # the kernel is on its way; a bound, not an expectation
        if not _runs(etcd_pid):
            return
        time.sleep(0.05)
    pytest.fail(f"etcd {etcd_pid} outlived the process that started it")


def _runs(pid: int) -> bool:
    """Not gone, and not just waiting to be reaped by whoever inherited it."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
