"""A process's connections to a cluster, for code without asyncio: Spark's tasks, its planner, and the jobs.

Invariants: one loop in one thread does all the work; one `Link` for each cluster serves all tasks of a process, one
            after the other or side by side;
            every call is bounded in time: a task that cannot be done fails, and Spark or the job decides what follows.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from neve.client.manager_link import ManagerLink
from neve.client.streams.admin import Admin
from neve.client.streams.catalog import Catalog
from neve.client.streams.options import ClientOptions
from neve.client.streams.reading.extent_reader import ExtentReader
from neve.client.streams.sync import LoopThread
from neve.pipeline.scan.options import ScanOptions
from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError, NotFound, RequestError
from neve.proto.method import Method, Rep, Req
from neve.rpc.pool import ChannelPool
from neve.rpc.wire.client import WireChannel

T = TypeVar("T")

NODE_CALL_TIMEOUT_S = 10.0
NODE_ROUNDS = 3  # of asking all replicas, with fresh metadata in between
ROUND_PAUSE_S = 0.5
RANGE_BYTES = 8 << 20  # size of one read from a node
REPLY_BYTES_MAX = 20 << 20  # the most that a node sends at a time, and a margin

CLIENT_OPTIONS = ClientOptions(read_bytes=8 << 20, cache_bytes_max=0, keep_freed_memory=False)


class Link:
    def __init__(self, options: ScanOptions) -> None:
        self.options = options.connection()
        self._thread = LoopThread()
        self._thread.run(self._open(self.options))

    async def _open(self, reach: ScanOptions) -> None:
        rng = random.SystemRandom()
        cluster, token, tls = reach.cluster, reach.token, reach.tls()
        self._channels = ChannelPool(
            lambda address: WireChannel(address, cluster=cluster, token=token, tls=tls, agent="neve.pipeline")
        )
        self.managers = ManagerLink(self._channels, reach.managers, options=CLIENT_OPTIONS, rng=rng)
        self.admin = Admin(self.managers)
        self.catalog = Catalog(self.managers)
        self.reader = ExtentReader(self._channels, self.managers, self.catalog, options=CLIENT_OPTIONS, rng=rng)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """From any thread but the loop's."""
        return self._thread.run(work)

    async def describe_cluster(self) -> sm.DescribeClusterReply:
        return await self.managers.ask(methods.STREAM_MANAGER_DESCRIBE_CLUSTER, sm.DescribeClusterRequest())

    async def ask_node(
        self, address: str, method: Method[Req, Rep], request: Req, *, timeout_s: float = NODE_CALL_TIMEOUT_S
    ) -> tuple[Rep, memoryview]:
        reply = await self._channels.channel(address).call(
            method, request, timeout_s=timeout_s, reply_bytes_max=REPLY_BYTES_MAX
        )
        return reply.message, reply.attachment

    async def ask_replicas(
        self, info: sm.ExtentInfo, method: Method[Req, Rep], request: Req
    ) -> tuple[Rep, memoryview, sm.ExtentReplica]:
        """From the first replica that answers. When none does, with fresh metadata either, the last error."""
        error: NeveError = NotFound(kind="replica", name=str(info.extent_id), detail="metadata lists none in reach")
        anything: Any = request
        for turn in range(NODE_ROUNDS):
            if turn:
                await asyncio.sleep(ROUND_PAUSE_S * turn)
                info = await self.refreshed(info)
            for each in in_turn(info):
                anything.replica.CopyFrom(each.replica)
                try:
                    message, attachment = await self.ask_node(each.address, method, request)
                except RequestError:
                    raise
                except NeveError as failed:
                    error = failed
                    continue
                return message, attachment, each
        raise error

    async def read_range(
        self, address: str, replica: common_pb2.Replica, extent_id: int, start: int, end: int
    ) -> memoryview:
        """The bytes [start, end) of one sealed replica, as they are."""
        pieces = []
        for at in range(start, end, RANGE_BYTES):
            length = min(RANGE_BYTES, end - at)
            request = en.ReadRangeRequest(extent_id=extent_id, replica=replica, offset=at, length=length)
            pieces.append((await self.ask_node(address, methods.EXTENT_NODE_READ_RANGE, request))[1])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    async def refreshed(self, info: sm.ExtentInfo) -> sm.ExtentInfo:
        """The extent as metadata has it now; NotFound if it has it no more."""
        found = await self.admin.describe_extents([info.extent_id])
        if not found:
            raise NotFound(kind="extent", name=str(info.extent_id), detail="it was deleted during the scan")
        return found[0]

    async def committed(self, info: sm.ExtentInfo) -> int | None:
        """The readable end of an open extent: the highest `committed` of its replicas. None if no replica answers."""
        answers = await asyncio.gather(*(self._committed_of(info, each) for each in info.replicas))
        known = [answer for answer in answers if answer is not None]
        return max(known) if known else None

    async def _committed_of(self, info: sm.ExtentInfo, each: sm.ExtentReplica) -> int | None:
        request = en.DescribeReplicaRequest(extent_id=info.extent_id, replica=each.replica)
        try:
            found, _ = await self.ask_node(each.address, methods.EXTENT_NODE_DESCRIBE_REPLICA, request)
        except NeveError:
            return None  # another replica may answer; the caller handles the case that none does
        return found.seal.length if found.HasField("seal") else found.committed


def in_turn(info: sm.ExtentInfo) -> list[sm.ExtentReplica]:
    """The replicas to ask: those that have confirmed, if any has; another extent begins with another one."""
    usable = [each for each in info.replicas if each.address]
    if info.HasField("seal") and any(each.confirmed for each in usable):
        usable = [each for each in usable if each.confirmed]
    turn = info.extent_id % len(usable) if usable else 0
    return usable[turn:] + usable[:turn]


_links: dict[ScanOptions, Link] = {}
_links_lock = threading.Lock()


def link_for(options: ScanOptions) -> Link:
    """This process's link to the cluster: made once, used until the process ends."""
    key = options.connection()
    with _links_lock:
        link = _links.get(key)
        if link is None:
            link = _links[key] = Link(options)
        return link
