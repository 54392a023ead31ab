"""A partition server's registration with the partition manager: a key on the lease of its locks, and heartbeats.

Invariants: the registration is on the same lease as the locks: when it is gone, so are the locks;
            a lost lease ends all partitions at once, independently of this module (writer_group.py); here the server
            gets a new lease and registers again with the same id;
            the server serves whether or not a manager answers: without the manager it gets no news but loses no data.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

from neve.client.manager_link import ManagerLink
from neve.client.streams.client import Client
from neve.meta.lease import Lease
from neve.partition_server.config import PartitionServerConfig
from neve.proto import common_pb2, methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import NeveError, NotFound

log = logging.getLogger(__name__)

PROTOCOL = 1
RETRY_S = 0.5


class Registration:
    """Keeps a server registered. `run` never returns; `registered` is set once the server has an id."""

    def __init__(
        self,
        config: PartitionServerConfig,
        client: Client,
        managers: ManagerLink,
        *,
        wire_address: str,
        grpc_address: str,
        loads: Callable[[], Iterable[pm.PartitionLoad]],
        rng: random.Random,
    ) -> None:
        self.server_id = config.server_id
        self.registered = asyncio.Event()
        self.regions_version = 0  # from the manager's last reply
        self._config = config
        self._client = client
        self._managers = managers
        self._wire_address = wire_address
        self._grpc_address = grpc_address
        self._loads = loads
        self._rng = rng

    async def run(self) -> None:
        while True:
            try:
                lease = await self._client.lease()
                await self._register(lease)
                await self._beat(lease)
            except NeveError as error:
                log.warning("registration_failed error=%s", error)
            await asyncio.sleep(RETRY_S * self._rng.uniform(0.5, 1.0))

    async def _register(self, lease: Lease) -> None:
        request = pm.RegisterPartitionServerRequest(
            cluster=self._config.cluster,
            server_id=self.server_id,
            wire_address=self._wire_address,
            grpc_address=self._grpc_address,
            lease_id=lease.lease_id,
            version=common_pb2.Version(protocol=PROTOCOL),
        )
        reply = await self._managers.order(methods.PARTITION_MANAGER_REGISTER_PARTITION_SERVER, request)
        self.server_id = reply.server_id
        self.registered.set()
        log.info("registered server_id=%d lease_id=%x", reply.server_id, lease.lease_id)

    async def _beat(self, lease: Lease) -> None:
        """Send heartbeats until the lease is lost or the manager does not know this server."""
        while lease.alive():
            request = pm.PartitionHeartbeatRequest(server_id=self.server_id, load=list(self._loads()))
            try:
                reply = await self._managers.order(methods.PARTITION_MANAGER_PARTITION_HEARTBEAT, request)
                self.regions_version = reply.regions_version
            except NotFound:
                return  # or its map is older than our registration: registering again changes nothing then
            except NeveError as error:
                log.info("heartbeat_failed error=%s", error)
            await asyncio.sleep(self._config.heartbeat_s)
        log.warning("registration_lost server_id=%d reason=%s", self.server_id, lease.lost.reason)
