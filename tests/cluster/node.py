"""An extent node as a real process, for tests: started, killed, stopped, and called."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from neve.proto import blocks, common_pb2, methods
from neve.proto import extent_node_pb2 as pb
from neve.rpc.service import Channel
from neve.rpc.wire.client import WireChannel
from tests.cluster.etcd import dying_with_parent

CLUSTER = "test"
START_TIMEOUT_S = 60.0


class NodeProcess:
    """One node on folders under `folder`; the folders outlive the process."""

    def __init__(self, folder: Path, *, node_id: int = 1, disks: int = 1) -> None:
        self.folder = folder
        self._node_id = node_id
        self._disks = [str(folder / f"disk{number}") for number in range(disks)]
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.log: list[str] = []
        self.wire = self.grpc = self.status = ""

    async def start(self, settings: Sequence[str] = (), *, flags: Sequence[str] = ()) -> None:
        """Until it serves; RuntimeError with its log if it does not."""
        disks = ", ".join(f'"{disk}"' for disk in self._disks)
        assignments = [
            f"cluster={CLUSTER}",
            f"node_id={self._node_id}",
            "format_empty_disks=true",  # these folders are the test's own
            f"disks=[{disks}]",
            f"journal={self.folder / 'journal'}",
            "listen.wire=127.0.0.1:0",
            "listen.grpc=127.0.0.1:0",
            "listen.status=127.0.0.1:0",
            *settings,
        ]
        arguments = [word for assignment in assignments for word in ("--set", assignment)]
        self.log.clear()
        self._process = await asyncio.create_subprocess_exec(
            *dying_with_parent(sys.executable, "-m", "neve.extent_node", *arguments, *flags),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        started = asyncio.get_running_loop().create_future()
        self._reading = asyncio.ensure_future(self._read_log(started))
        async with asyncio.timeout(START_TIMEOUT_S):
            line = await started
        match = re.search(r"node_started .*wire=(\S+) grpc=(\S+) status=(\S+)", line)
        if match is None:
            await self._process.wait()
            raise RuntimeError("the node did not start:\n" + "\n".join(self.log))
        self.wire, self.grpc, self.status = match.groups()

    async def _read_log(self, started: asyncio.Future[str]) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while line := (await self._process.stderr.readline()).decode().rstrip():
            self.log.append(line)
            if "node_started" in line and not started.done():
                started.set_result(line)
        if not started.done():
            started.set_result("")

    async def send(self, number: signal.Signals) -> int:
        """Signal it and wait for its end; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        code = await self._process.wait()
        assert self._reading is not None
        await self._reading
        return code

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading


@contextlib.asynccontextmanager
async def running_node(folder: Path, settings: Sequence[str] = (), **options: int) -> AsyncIterator[NodeProcess]:
    node = NodeProcess(folder, **options)
    try:
        await node.start(settings)
        yield node
    finally:
        await node.close()


class Extent:
    """A writer's and reader's view of one extent on one node; keeps what was acknowledged."""

    EVERSION = 1
    TOKEN = 5

    def __init__(self, channel: Channel, extent_id: int) -> None:
        self.channel = channel
        self.extent_id = extent_id
        self.acknowledged = 0
        self.content = b""

    async def create(self, leader: common_pb2.Leader | None = None) -> None:
        request = pb.CreateExtentRequest(
            leader=leader, extent_id=self.extent_id, eversion=self.EVERSION, extent_bytes_max=1 << 30, stream_id=1
        )
        await self.channel.call(methods.EXTENT_NODE_CREATE_EXTENT, request, timeout_s=30)

    async def append(self, payload: bytes, *, no_sync: bool = False) -> pb.SegmentResult:
        block = blocks.encode_block(payload)
        segment = pb.Segment(
            extent_id=self.extent_id,
            eversion=self.EVERSION,
            token=self.TOKEN,
            offset=len(self.content),
            committed=self.acknowledged,
            no_sync=no_sync,
            block_sizes=[len(block)],
        )
        request = pb.AppendBlockRequest(segments=[segment])
        reply = await self.channel.call(methods.EXTENT_NODE_APPEND_BLOCK, request, timeout_s=30, attachment=[block])
        (result,) = reply.message.results
        if not result.HasField("error"):
            self.content += block
            self.acknowledged = result.end
        return result

    async def tell_committed(self) -> None:
        segment = pb.Segment(
            extent_id=self.extent_id, eversion=self.EVERSION, token=self.TOKEN, committed=self.acknowledged
        )
        request = pb.AppendBlockRequest(segments=[segment])
        reply = await self.channel.call(methods.EXTENT_NODE_APPEND_BLOCK, request, timeout_s=30)
        assert not reply.message.results[0].HasField("error"), reply

    async def read(self) -> bytes:
        request = pb.ReadBlockRequest(extent_id=self.extent_id, max_bytes=16 << 20)
        reply = await self.channel.call(methods.EXTENT_NODE_READ_BLOCK, request, timeout_s=30, reply_bytes_max=16 << 20)
        return bytes(reply.attachment)

    async def raise_token(self) -> pb.LengthAnswer:
        request = pb.RaiseTokenRequest(extent_id=self.extent_id, eversion=self.EVERSION, token=self.TOKEN)
        return (await self.channel.call(methods.EXTENT_NODE_RAISE_TOKEN, request, timeout_s=30)).message

    async def seal(self, length: int) -> pb.SealExtentReply:
        request = pb.SealExtentRequest(
            extent_id=self.extent_id, seal=common_pb2.Seal(length=length, eversion=self.EVERSION + 1)
        )
        return (await self.channel.call(methods.EXTENT_NODE_SEAL_EXTENT, request, timeout_s=30)).message


@contextlib.asynccontextmanager
async def wire_channel(address: str) -> AsyncIterator[WireChannel]:
    channel = WireChannel(address, cluster=CLUSTER)
    try:
        yield channel
    finally:
        await channel.close()
