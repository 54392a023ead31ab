"""A channel for each address, made on first use. One pool serves a process, over any transport.

Invariants: the same address and lane always give the same channel, so that calls on it keep their order;
            lanes of one address are separate connections: bulk copies use a lane of their own and delay no other calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from neve.proto.errors import Overloaded
from neve.rpc.service import Channel

CHANNELS_MAX = 10_000  # far above any cluster; it stops a caller that invents addresses


class ChannelPool:
    """`make` opens a channel to an address, for example `lambda a: WireChannel(a, cluster="main")`."""

    def __init__(self, make: Callable[[str], Channel], *, channels_max: int = CHANNELS_MAX) -> None:
        self._make = make
        self._channels_max = channels_max
        self._channels: dict[tuple[str, int], Channel] = {}

    def channel(self, address: str, *, lane: int = 0) -> Channel:
        channel = self._channels.get((address, lane))
        if channel is None:
            if len(self._channels) >= self._channels_max:
                raise Overloaded(what="channel pool", detail=f"{len(self._channels)} channels are open")
            channel = self._channels[address, lane] = self._make(address)
        return channel

    async def close(self) -> None:
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels))

    async def __aenter__(self) -> ChannelPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
