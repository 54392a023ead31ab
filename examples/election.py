"""Three processes elect a leader; the leader is stopped, then the next one is killed; nothing is ever written twice.

    python examples/election.py 127.0.0.1:2379

A stopped leader (SIGSTOP: a long pause, as on a machine under memory pressure) does not notice that time passes. When
it resumes, it believes for a moment that it still leads. Its write is refused all the same, because every write of a
leader compares the leader's key in the same transaction.

Exit code 0 if every step had the expected outcome, 1 if not.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import aclosing

from neve.meta.election import Election
from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.txn import KeyRange, KeyValue, Put
from neve.proto.errors import NeveError

TTL_S = 2
STEP_TIMEOUT_S = 30.0  # a bound for a slow machine; an election takes about as long as the lease


# --- one candidate: a process of its own ----------------------------------------------------------------------


async def candidate(endpoint: str, root: bytes, name: str) -> None:
    """Campaign, then write as the leader once for each line on standard input."""
    ctypes.CDLL(None).prctl(
        1, signal.SIGKILL
    )  # PR_SET_PDEATHSIG: otherwise a stopped candidate would outlive this program
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with await EtcdStore.connect(EtcdConfig((endpoint,))) as store:
        lease = await store.grant_lease(TTL_S)
        leadership = await Election(store, root + b"leader").campaign(name.encode(), lease)
        leadership.lost.add_callback(lambda reason: print(f"lost the lead ({reason})", flush=True))
        print(f"leads, with create revision {leadership.create_revision}", flush=True)
        while await orders.readline():  # the end of the input ends this process
            try:
                leadership.ensure()
            except NeveError as error:
                print(f"knows by its own clock that it is deposed: {type(error).__name__}", flush=True)
            # A careless leader would write all the same. This one does, to show that etcd refuses the write.
            result = await store.txn(leadership.guard(), [Put(root + b"state", name.encode())])
            print("wrote" if result.succeeded else "write REFUSED", flush=True)


# --- the show -------------------------------------------------------------------------------------------------


class Candidates:
    """The child processes by name."""

    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}

    async def start(self, endpoint: str, root: bytes, name: str) -> None:
        self._processes[name] = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--candidate", endpoint, root.decode(), name, stdin=PIPE, stdout=PIPE
        )

    async def wait_for(self, name: str, words: str) -> None:
        """Print the candidate's output up to the line that contains `words`."""
        output = self._processes[name].stdout
        assert output is not None
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while line := (await output.readline()).decode().strip():
                print(f"  {name}: {line}")
                if words in line:
                    return
        raise RuntimeError(f"{name} ended without saying {words!r}")

    async def write(self, name: str, expected: str) -> None:
        orders = self._processes[name].stdin
        assert orders is not None
        orders.write(b"write\n")
        await orders.drain()
        await self.wait_for(name, expected)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        print(f"* {number.name} to {name}")
        self._processes[name].send_signal(number)

    async def end(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def next_leader(election: Election, *, after: KeyValue | None) -> KeyValue:
    """The first leader other than `after`."""
    async with asyncio.timeout(STEP_TIMEOUT_S), aclosing(election.observe()) as leaders:
        async for leader in leaders:
            if leader is not None and (after is None or leader.create_revision > after.create_revision):
                return leader
    raise RuntimeError("the election ended")


async def show(endpoint: str) -> None:
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)  # the candidates end with us
    root = f"/neve-example-election/{os.getpid()}/".encode()
    candidates = Candidates()
    async with await EtcdStore.connect(EtcdConfig((endpoint,))) as store:
        election = Election(store, root + b"leader")
        try:
            print("Three candidates campaign.")
            for name in ("ann", "bob", "eve"):
                await candidates.start(endpoint, root, name)
            first = await next_leader(election, after=None)
            await candidates.wait_for(first.value.decode(), "leads")
            await candidates.write(first.value.decode(), "wrote")

            print("The leader is stopped for longer than its lease: another one is elected.")
            candidates.send_signal(first.value.decode(), signal.SIGSTOP)
            second = await next_leader(election, after=first)
            await candidates.wait_for(second.value.decode(), "leads")
            await candidates.write(second.value.decode(), "wrote")

            print("The old leader goes on and tries to write: it must be refused.")
            candidates.send_signal(first.value.decode(), signal.SIGCONT)
            await candidates.write(first.value.decode(), "REFUSED")
            state = await store.get(root + b"state")
            if state is None or state.value != second.value:
                raise RuntimeError(f"the state is {state}, but {second.value!r} leads")

            print("The second leader is killed: the last candidate takes over.")
            candidates.send_signal(second.value.decode(), signal.SIGKILL)
            third = await next_leader(election, after=second)
            await candidates.wait_for(third.value.decode(), "leads")
            await candidates.write(third.value.decode(), "wrote")
            print("All as it must be.")
        finally:
            await candidates.end()
            await store.delete(KeyRange.prefix(root))


def main() -> int:
    if sys.argv[1:2] == ["--candidate"]:
        endpoint, root, name = sys.argv[2:5]
        asyncio.run(candidate(endpoint, root.encode(), name))
        return 0
    if len(sys.argv) != 2:
        print(f"usage: {sys.argv[0]} HOST:PORT of an etcd", file=sys.stderr)
        return 2
    try:
        asyncio.run(show(sys.argv[1]))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    except (NeveError, RuntimeError, TimeoutError) as error:
        print(f"NOT as it must be: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
