"""A TCP proxy in the test's own loop: it lets a request through and loses the answer, stalls, cuts, refuses."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

CHUNK_BYTES = 65536


class TcpProxy:
    """Forwards to `target`. Set the switches at any time; they act on the next bytes."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._held = asyncio.Event()
        self._flowing.set()
        self.swallows_replies = False
        self.refuses = False
        self.cuts_after_reply_bytes = 0  # 0: never; else once, the connection that has answered so much

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stall(self) -> None:
        self._held.clear()
        self._flowing.clear()

    async def until_held(self) -> None:
        """Wait until the stalled proxy holds back bytes of a client."""
        await self._held.wait()

    def resume(self) -> None:
        self._flowing.set()

    async def cut(self) -> None:
        """Close every connection; what was held back is lost."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.close()
            return
        there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        try:
            pumps = [
                asyncio.create_task(self._pump(reader, there_writer, replies=False)),
                asyncio.create_task(self._pump(there_reader, writer, replies=True)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            writer.transport.abort()
            there_writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, replies: bool) -> None:
        passed_bytes = 0
        while data := await source.read(CHUNK_BYTES):
            if not replies and not self._flowing.is_set():
                self._held.set()
            await self._flowing.wait()
            passed_bytes += len(data)
            if replies and 0 < self.cuts_after_reply_bytes < passed_bytes:
                self.cuts_after_reply_bytes = 0
                return
            if replies and self.swallows_replies:
                continue
            sink.write(data)
            await sink.drain()
