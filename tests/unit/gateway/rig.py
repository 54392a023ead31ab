"""A gateway on a free port, over partitions in a dict on the wire transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from neve.gateway.config import GatewayConfig, Limits, Listen
from neve.gateway.server import Gateway
from tests.unit.client.objects.scripted_partitions import CLUSTER, ScriptedCluster


class Rig:
    def __init__(self, cluster: ScriptedCluster, gateway: Gateway, http: httpx.AsyncClient) -> None:
        self.cluster = cluster
        self.gateway = gateway
        self.http = http

    @property
    def url(self) -> str:
        return f"http://{self.gateway.http_address}"


@asynccontextmanager
async def running(
    *, token_file: Path | None = None, token: str = "", split_keys: tuple[bytes, ...] = (b"m",), **limits: Any
) -> AsyncIterator[Rig]:
    cluster = ScriptedCluster(servers=2, split_keys=split_keys)
    manager = await cluster.serve_on_wire()
    config = GatewayConfig(
        cluster=CLUSTER,
        managers=[manager],
        listen=Listen(http="127.0.0.1:0", status="127.0.0.1:0", token_file=token_file),
        limits=Limits(**limits),
        drain_timeout_s=2.0,
    )
    gateway = Gateway(config)
    await gateway.start()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with httpx.AsyncClient(
            base_url=f"http://{gateway.http_address}", headers=headers, timeout=30.0, trust_env=False
        ) as http:
            yield Rig(cluster, gateway, http)
    finally:
        await gateway.stop()
        await cluster.stop()
