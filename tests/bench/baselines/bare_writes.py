"""What Python on uvloop takes at least for one append to several nodes: no protocol, no checksum, no decision.

    python -m tests.bench.baselines.bare_writes server FILE
        writes what comes, 1 KiB at a time, to the file, and answers a byte
    python -m tests.bench.baselines.bare_writes client
        {"addresses": ["127.0.0.1:1", …], "duration_s": 1.0} on its standard input: answers {"value": seconds, p50} of
        a KiB to all of them

A measuring stick beside one append: what Neve adds to it is the rest. Both end when their standard input does.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import uvloop

from neve.rpc.wire.sockets import split_address, tune
from tests.bench import orders, processes
from tests.bench.processes import Child

BLOCK_BYTES = 1 << 10
FILE_BYTES_MAX = 64 << 20  # it begins anew there
ASK_TIMEOUT_S = 60.0
WARM_UP_WRITES = 200


class Unexpected(Exception):
    """What no benchmark can go on with."""


class _Peer(asyncio.BufferedProtocol):
    """Either end: receives into one buffer."""

    def __init__(self) -> None:
        self._buffer = bytearray(BLOCK_BYTES)
        self._view = memoryview(self._buffer)
        self._have_bytes = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is one in all but its base class
        tune(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._have_bytes :]


class Node(_Peer):
    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._offset = 0

    def buffer_updated(self, nbytes: int) -> None:
        self._have_bytes += nbytes
        if self._have_bytes == BLOCK_BYTES:
            self._have_bytes = 0
            os.pwrite(self._fd, self._buffer, self._offset)
            self._offset = (self._offset + BLOCK_BYTES) % FILE_BYTES_MAX
            self._transport.write(b"!")


class Caller(_Peer):
    """One connection of the client; `answered` is told of every answer."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def buffer_updated(self, nbytes: int) -> None:
        self._client.answered()

    def connection_lost(self, error: Exception | None) -> None:
        self._client.lost(error)

    def write(self, block: bytes) -> None:
        self._transport.write(block)


class Client:
    """One write to all nodes at a time."""

    def __init__(self) -> None:
        self._callers: dict[str, Caller] = {}
        self._left = 0
        self._done: asyncio.Future[None] | None = None

    async def take(self, order: dict[str, Any]) -> float:
        callers = [await self._caller(address) for address in order["addresses"]]
        block = b"n" * BLOCK_BYTES
        for _ in range(WARM_UP_WRITES):
            await self._write(callers, block)
        took_s: list[float] = []
        end_s = time.perf_counter() + order["duration_s"]
        while not took_s or time.perf_counter() < end_s:
            begun_s = time.perf_counter()
            await self._write(callers, block)
            took_s.append(time.perf_counter() - begun_s)
        return statistics.median(took_s)

    async def close(self) -> None:
        return

    def answered(self) -> None:
        self._left -= 1
        if not self._left and self._done is not None:
            self._done.set_result(None)

    def lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(Unexpected(f"a connection was lost: {error}"))

    async def _caller(self, address: str) -> Caller:
        if address not in self._callers:
            host, port = split_address(address)
            _, caller = await asyncio.get_running_loop().create_connection(lambda: Caller(self), host, port)
            self._callers[address] = caller
        return self._callers[address]

    async def _write(self, callers: Sequence[Caller], block: bytes) -> None:
        self._left = len(callers)
        self._done = asyncio.get_running_loop().create_future()
        for caller in callers:
            caller.write(block)
        await self._done


class BareWrites:
    """A client and its nodes, as processes."""

    def __init__(self, client: Child, addresses: Sequence[str]) -> None:
        self._client = client
        self._addresses = list(addresses)

    def p50_s(self, *, duration_s: float) -> float:
        order = {"addresses": self._addresses, "duration_s": duration_s}
        return self._client.ask(order, timeout_s=ASK_TIMEOUT_S)


@contextmanager
def start(folder: Path, *, nodes: int) -> Iterator[BareWrites]:
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        files = [folder / f"bare{number}" for number in range(nodes)]
        children = [stack.enter_context(processes.start(__name__, "server", str(path))) for path in files]
        client = stack.enter_context(processes.start(__name__, "client"))
        yield BareWrites(client, [child.read_line() for child in children])


async def _serve(path: str) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Node(fd), "127.0.0.1", 0)
    print("{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    if sys.argv[1] == "server":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(sys.argv[2]))
    else:
        orders.serve(Client, Unexpected)
