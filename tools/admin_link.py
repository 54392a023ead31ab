"""The connection of a command of `neve` to the stream managers, for the duration of the command.

Not here:   appends and reads, which the client does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from neve.client.manager_link import ManagerLink
from neve.client.streams.admin import Admin
from neve.client.streams.options import ClientOptions
from neve.proto import stream_manager_pb2 as sm
from neve.rpc.pool import ChannelPool
from neve.rpc.tls import TlsFiles
from neve.rpc.wire.client import WireChannel


class AdminLink(Admin):
    """A context manager, one for each command. A manager has reported `cluster` as its cluster's name."""

    cluster: sm.DescribeClusterReply

    def __init__(
        self, managers: Sequence[str], *, cluster: str, token: str, tls: TlsFiles | None, timeout_s: float
    ) -> None:
        self._channels = ChannelPool(
            lambda address: WireChannel(address, cluster=cluster, token=token, tls=tls, agent="neve tools")
        )
        options = ClientOptions(call_timeout_s=timeout_s, attempt_timeout_s=min(5.0, timeout_s))
        super().__init__(ManagerLink(self._channels, managers, options=options, rng=random.SystemRandom()))

    async def __aenter__(self) -> Self:
        """Find the leader by asking any manager. Later calls go to the leader first."""
        try:
            self.cluster = await self.describe()
        except BaseException:
            await self._channels.close()
            raise
        self._link.learn(self.cluster.managers, self.cluster.leader.address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channels.close()
