"""Gets, heads and deletes as calls of their own, where the key-value client has frames of many: other clients may.

    kv = RecordingClient(cast(KeyValueClient, SingleCalls(client)), recorder, name="c1")

Invariants: routing, attempts and call ids are the client's own; a get comes in ranges of one version.
"""

from __future__ import annotations

import asyncio
from typing import Any

from neve.client.objects.client import KeyValueClient
from neve.client.objects.core_routing import Region
from neve.client.objects.types import Object, ObjectInfo, condition, info_from
from neve.proto import methods
from neve.proto import partition_server_pb2 as ps


class SingleCalls:
    def __init__(self, client: KeyValueClient) -> None:
        self._client = client

    async def get(self, key: bytes, *, timeout_s: float | None = None) -> Object:
        stream = await self._client.get_stream(key, timeout_s=timeout_s)
        return Object(stream.info, await stream.read())

    async def head(self, key: bytes, *, timeout_s: float | None = None) -> ObjectInfo:
        def request(region: Region, version: int) -> ps.HeadRequest:
            return ps.HeadRequest(partition_id=region.partition_id, regions_version=version, key=key)

        reply = await self._call(key, methods.PARTITION_SERVER_HEAD, request, timeout_s)
        return info_from(reply.info, key)

    async def delete(self, key: bytes, *, if_version: int | None = None, timeout_s: float | None = None) -> bool:
        admission = self._client._admission

        def request(region: Region, version: int) -> ps.DeleteRequest:
            return ps.DeleteRequest(
                call=admission.call(ticket.call_id),
                partition_id=region.partition_id,
                regions_version=version,
                key=key,
                condition=condition(if_version=if_version),
            )

        deadline_s = asyncio.get_running_loop().time() + self._client._timeout_s(timeout_s)
        ticket = await admission.enter(len(key), deadline_s, write=True)
        try:
            reply = await self._call(key, methods.PARTITION_SERVER_DELETE, request, timeout_s)
        finally:
            admission.leave(ticket)
        return bool(reply.existed)

    async def _call(self, key: bytes, method: Any, request: Any, timeout_s: float | None) -> Any:
        deadline_s = asyncio.get_running_loop().time() + self._client._timeout_s(timeout_s)
        return (await self._client._router.call(key, method, request, deadline_s=deadline_s)).message
