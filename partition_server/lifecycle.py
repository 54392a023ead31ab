"""The partitions of this server: follows the region map, and loads and gives up partitions accordingly.

Invariants: a partition that the map gives to another server is not served here once we see that map, and served there
            only under the lock: two servers never answer for one key at a time;
            a key is looked up in the newest map that we have; a caller with a newer map waits until we have it too;
            calls for a partition that is loading or frozen are held, limited in number and time, and then refused with
            a retriable error.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable

from neve.meta import keys
from neve.meta.follower import Follower
from neve.meta.regions import RegionsState
from neve.meta.store import MetaStore
from neve.partition_server.engine.interface import Engine
from neve.partition_server.hosted import Hosted, Phase, Surroundings
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import MetaUnavailable, NeveError, Overloaded, WrongServer

log = logging.getLogger(__name__)

ANSWER_MARGIN_S = 0.02


class Host:
    """All partitions of a server. `start` when it has its id; `stop` gives up all of them and releases the locks."""

    def __init__(self, surroundings: Surroundings, store: MetaStore) -> None:
        self._around = surroundings
        root = surroundings.root
        self.hosted: dict[int, Hosted] = {}
        self.server_id = 0
        self.held = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._starts: list[bytes] = []
        self._regions: list[pm.RegionRecord] = []  # of the whole map, by start
        self._version = -1
        self._stopping = False
        self.follower: Follower[RegionsState] = Follower(
            store,
            lambda: RegionsState(root),
            ranges=keys.region_ranges(root),
            watched=keys.region_span(root),
            on_change=self._on_change,
        )
        self._loop = asyncio.get_running_loop()

    def start(self, server_id: int) -> None:
        self.server_id = server_id
        self.follower.start()

    async def stop(self) -> None:
        self._stopping = True
        for hosted in self.hosted.values():
            hosted.want(None)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.follower.stop()

    @property
    def version(self) -> int:
        """The version of the newest map that we have."""
        return max(self._version, 0)

    # --- the map ---------------------------------------------------------------------------------------------

    def _on_change(self, state: RegionsState) -> None:
        if state.version == self._version or self._stopping:
            return
        self._version = state.version
        self._regions = sorted((stored.record for stored in state.regions.values()), key=lambda each: each.start)
        self._starts = [region.start for region in self._regions]
        mine = {region.partition_id: region for region in self._regions if region.server_id == self.server_id}
        for partition_id, hosted in list(self.hosted.items()):
            hosted.want(mine.get(partition_id))
        for partition_id, region in mine.items():
            if partition_id not in self.hosted:
                self._host(region)

    def _host(self, region: pm.RegionRecord) -> None:
        hosted = Hosted(self._around, region, server_id=self.server_id)
        self.hosted[region.partition_id] = hosted
        task = self._loop.create_task(hosted.run(), name=f"partition-{region.partition_id}")
        self._tasks[region.partition_id] = task
        task.add_done_callback(lambda _: self._on_ended(hosted))

    def _on_ended(self, hosted: Hosted) -> None:
        del self.hosted[hosted.partition_id]
        task = self._tasks.pop(hosted.partition_id)
        if task.cancelled() or self._stopping:
            return
        if (error := task.exception()) is not None:
            log.error("partition_task_failed partition_id=%d", hosted.partition_id, exc_info=error)
        for region in self._regions:  # it may have been assigned to us again while it was being given up
            if region.partition_id == hosted.partition_id and region.server_id == self.server_id:
                self._host(region)

    # --- by key ----------------------------------------------------------------------------------------------

    def find(self, key: bytes, *, regions_version: int, write: bool) -> Engine | None:
        """Return the partition that serves this key now; None: wait for it. Raises WrongServer if it is elsewhere."""
        if regions_version > self._version:
            if self._stopping:  # no further maps arrive, so callers must not wait for one
                raise self.wrong_server()
            return None
        hosted = self._hosted_of(key)
        if hosted.phase is Phase.SERVING or (hosted.phase is Phase.FREEZING and not write):
            return hosted.partition
        return None

    def _hosted_of(self, key: bytes) -> Hosted:
        if not self._regions or self._stopping:
            raise self.wrong_server()
        region = self._regions[bisect_right(self._starts, key) - 1]
        hosted = self.hosted.get(region.partition_id)
        if hosted is None or region.server_id != self.server_id:
            raise self.wrong_server(region.partition_id)
        return hosted

    def check_range(self, start: bytes, end: bytes) -> None:
        """Raise WrongServer if the range extends beyond the region of its start.

        A "complete" answer would be taken as complete up to the requested end. The caller needs a newer map.
        """
        region = self._regions[bisect_right(self._starts, start) - 1]
        if region.end and (not end or end > region.end):
            detail = f"the range goes beyond the end of partition {region.partition_id}"
            raise WrongServer(partition_id=region.partition_id, regions_version=self.version, detail=detail)

    def wrong_server(self, partition_id: int = 0) -> WrongServer:
        return WrongServer(partition_id=partition_id, regions_version=self.version)

    async def wait_for(self, key: bytes, *, regions_version: int, write: bool, deadline_s: float) -> Engine:
        """Hold a call until its partition is served. Raises WrongServer after too long: it may have moved."""
        return await self._held(
            lambda: self.find(key, regions_version=regions_version, write=write),
            lambda: self._hosted_of(key),
            regions_version,
            deadline_s,
        )

    async def by_id(self, partition_id: int, *, deadline_s: float) -> Engine:
        """Return the served partition of this id, for calls of managers and operators."""

        def find() -> Engine | None:
            hosted = self.by_number(partition_id)
            return hosted.partition if hosted.phase is Phase.SERVING else None

        return await self._held(find, lambda: self.by_number(partition_id), 0, deadline_s)

    def by_number(self, partition_id: int) -> Hosted:
        hosted = self.hosted.get(partition_id)
        if hosted is None:
            raise self.wrong_server(partition_id)
        return hosted

    async def _held(
        self,
        find: Callable[[], Engine | None],
        hosted_of: Callable[[], Hosted],
        regions_version: int,
        deadline_s: float,
    ) -> Engine:
        serving = self._around.config.serving
        if self.held >= serving.held_calls_max:
            raise Overloaded(what="partition server", detail=f"{self.held} calls are already waiting for partitions")
        until_s = min(deadline_s - ANSWER_MARGIN_S, self._loop.time() + serving.hold_s)
        self.held += 1
        try:
            while True:
                found = find()
                if found is not None:
                    return found
                left_s = until_s - self._loop.time()
                if left_s <= 0:
                    raise WrongServer(regions_version=self.version, detail=self._why(hosted_of))
                if regions_version > self._version:
                    await self._until_version(regions_version, until_s)
                else:
                    await hosted_of().until_changed(left_s)
        finally:
            self.held -= 1

    async def _until_version(self, version: int, until_s: float) -> None:
        try:
            await self.follower.until(
                lambda state: state.version >= version, deadline_s=until_s, what=f"version {version} of the map"
            )
        except MetaUnavailable:
            raise self.wrong_server() from None  # the caller's map is newer, and names the right server

    def _why(self, hosted_of: Callable[[], Hosted]) -> str:
        try:
            hosted = hosted_of()
        except NeveError as error:
            return str(error)
        return f"partition {hosted.partition_id} is {hosted.phase.value}: {hosted.error or 'wait'}"
