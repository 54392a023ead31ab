"""The client's copy of the region map, which it refreshes when a server reports that it is out of date.

Invariants: the map never goes back to an older version; only one request for it is in flight, for all operations;
            pages of different versions are never combined;
            after a manager without news, the next read goes to another one: the first may be cut off for good.
"""

from __future__ import annotations

import asyncio
import logging

from neve.client.manager_link import ManagerLink
from neve.client.objects.core_routing import RegionMap
from neve.proto import methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import NeveError, VersionConflict

log = logging.getLogger(__name__)

PAGE = 10_000  # regions; far fewer bytes than one reply may have
ATTEMPTS_MAX = 10  # to read all pages of one version


class RegionCache:
    """The newest region map that this client has read."""

    def __init__(self, link: ManagerLink, *, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._refreshing: asyncio.Task[None] | None = None
        self.map = RegionMap(0)

    @property
    def refreshing(self) -> asyncio.Task[None] | None:
        return self._refreshing

    def refresh_soon(self, version_min: int = 0) -> asyncio.Task[None]:
        """Start a refresh unless one is running. Its task ends without an error, even if the refresh fails."""
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._refresh(version_min))
        return self._refreshing

    async def load(self, timeout_s: float) -> None:
        """Read the first map, or raise why there is none. Retries until the timeout, as managers may be starting."""
        self._accept(await self._read(0, timeout_s))

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    async def _refresh(self, version_min: int) -> None:
        try:
            found = await self._read(version_min, self._timeout_s)
            known = self.map
            if found.version < known.version or (found.version == known.version and found.regions == known.regions):
                self._link.ask_another()
            self._accept(found)
        except NeveError as error:
            # Waiting operations continue with the old map, and refresh again within their own deadlines.
            log.info("region_map_not_refreshed version=%d error=%s", self.map.version, error)
        finally:
            self._refreshing = None

    def _accept(self, found: RegionMap) -> None:
        if found.version >= self.map.version:
            self.map = found

    async def _read(self, version_min: int, timeout_s: float) -> RegionMap:
        for _ in range(ATTEMPTS_MAX):
            regions: list[pm.Region] = []
            version = 0
            while True:
                after = regions[-1].start if regions else b""
                request = pm.ListRegionsRequest(version_min=version_min, after_key=after, limit=PAGE)
                reply = await self._link.ask(methods.PARTITION_MANAGER_LIST_REGIONS, request, timeout_s=timeout_s)
                if version and reply.version != version:
                    break  # the map changed between two pages
                version = reply.version
                regions += reply.regions
                if not reply.more:
                    return RegionMap.from_messages(version, regions)
        raise VersionConflict(what="region map", detail=f"it changed during each of {ATTEMPTS_MAX} attempts to read it")
