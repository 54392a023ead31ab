"""GET, HEAD, PUT and DELETE of one object.

Invariants: a body is streamed in both directions: a request holds two parts of a value at most;
            nothing is read for a client that has gone;
            what is sent is one version of the object: a range is read at the version whose size and tag the headers
            tell; if the object changes under a long answer, the connection ends before the announced length;
            a condition is decided by the partition, not by the look before it: what changed in between is a 412.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from email.utils import formatdate

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from neve.client.objects.client import KeyValueClient
from neve.client.objects.transfer import ObjectStream
from neve.client.objects.types import ObjectInfo
from neve.gateway.config import Limits
from neve.gateway.core_http import (
    Conditions,
    Unsatisfiable,
    byte_range,
    entity_tag,
    key_from_path,
    key_to_text,
    query_fields,
    seconds,
)
from neve.proto.errors import ConditionFailed, InvalidArgument, NeveError, NotFound, Overloaded, WrongServer

log = logging.getLogger(__name__)

CHANGED_ATTEMPTS_MAX = 10  # looks at an object that changes between the look and the read


class BodyStalled(Exception):
    """The client sent nothing for too long: 408."""


class StreamResponse(Response):
    """An object's bytes as they come. The first part is here already, so that most errors are still errors."""

    def __init__(self, stream: ObjectStream, *, status: int, headers: dict[str, str], idle_timeout_s: float) -> None:
        super().__init__(status_code=status, headers=headers)
        self._stream = stream
        self._idle_timeout_s = idle_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            async with aclosing(self._stream.__aiter__()) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    if gone.done():  # a send would be lost without an error
                        return
                    async with asyncio.timeout(self._idle_timeout_s):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except (NeveError, TimeoutError) as error:
            # The length was announced: ending short of it is how the client sees that this is not the object.
            log.warning("response_cut key=%s error=%s", key_to_text(self._stream.info.key), error or "stalled")
            return
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Objects:
    def __init__(self, client: KeyValueClient, limits: Limits) -> None:
        self._client = client
        self._limits = limits

    async def get(self, request: Request) -> Response:
        if request.method == "HEAD":
            return await self._head(request)
        key = key_from_path(request.scope["raw_path"])
        conditions = _conditions(request)
        if not conditions and "range" not in request.headers:
            return self._stream(await self._client.get_stream(key), 200, {})
        for _ in range(CHANGED_ATTEMPTS_MAX):
            info = await self._client.head(key)
            if (refused := _refused(conditions, info)) is not None:
                return refused
            try:
                return await self._get_version(request, info)
            except ConditionFailed:
                continue  # it changed since the look
        raise Overloaded(what="object", detail="it changes faster than it can be read")

    async def _get_version(self, request: Request, info: ObjectInfo) -> Response:
        header = request.headers.get("range")
        if_range = request.headers.get("if-range")
        if if_range is not None and if_range.strip() != entity_tag(info):
            header = None
        try:
            part = byte_range(header, info.size_bytes)
        except Unsatisfiable:
            headers = {"Content-Range": f"bytes */{info.size_bytes}"}
            body = {"error": "OutOfRange", "message": f"the object has {info.size_bytes} bytes"}
            return JSONResponse({**body, "outcome_unknown": False}, 416, headers)
        if part is None:
            return self._stream(await self._client.get_stream(info.key, version=info.version), 200, {})
        offset, length = part
        stream = await self._client.get_stream(info.key, offset=offset, length=length, version=info.version)
        headers = {"Content-Range": f"bytes {offset}-{offset + length - 1}/{info.size_bytes}"}
        return self._stream(stream, 206, headers)

    def _stream(self, stream: ObjectStream, status: int, headers: dict[str, str]) -> Response:
        headers = {**_headers(stream.info), "Content-Length": str(stream.length), **headers}
        return StreamResponse(stream, status=status, headers=headers, idle_timeout_s=self._limits.idle_timeout_s)

    async def _head(self, request: Request) -> Response:
        info = await self._client.head(key_from_path(request.scope["raw_path"]))
        if (refused := _refused(_conditions(request), info)) is not None:
            return refused
        return Response(None, 200, {**_headers(info), "Content-Length": str(info.size_bytes)})

    async def put(self, request: Request) -> Response:
        key = key_from_path(request.scope["raw_path"])
        fields = query_fields(request.scope["query_string"])
        ttl_s = seconds(fields, "ttl_s")
        if "content-range" in request.headers:
            raise InvalidArgument(what="Content-Range", detail="an object is put as a whole")
        conditions = _conditions(request)
        if_version, if_absent = None, conditions.only_if_absent
        if conditions and not if_absent:
            found = await self._look(key, conditions)
            if_version, if_absent = (found.version, False) if found is not None else (None, True)
        try:
            info = await self._client.put_stream(
                key, self._body(request), ttl_s=ttl_s, if_absent=if_absent, if_version=if_version
            )
        except NotFound as error:  # the upload, not the object: its parts were the old server's alone
            detail = "the partition moved while the object came in, and nothing was stored: put it again"
            raise WrongServer(detail=detail) from error
        body = {"key": key_to_text(key), **describe(info)}
        return JSONResponse(body, 201 if if_absent else 200, {"ETag": entity_tag(info)})

    async def delete(self, request: Request) -> Response:
        key = key_from_path(request.scope["raw_path"])
        conditions = _conditions(request)
        if_version = None
        if conditions:
            found = await self._look(key, conditions)
            if found is None:
                raise NotFound(kind="object", name=key_to_text(key))
            if_version = found.version
        if not await self._client.delete(key, if_version=if_version):
            raise NotFound(kind="object", name=key_to_text(key))
        return Response(None, 204)

    async def _look(self, key: bytes, conditions: Conditions) -> ObjectInfo | None:
        """The present object, if it meets the conditions. The write is then conditional on exactly its version."""
        try:
            found: ObjectInfo | None = await self._client.head(key)
        except NotFound:
            found = None
        if not conditions.met_by(found):
            raise ConditionFailed(version=found.version if found is not None else 0)
        return found

    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        chunks = request.stream()
        while True:
            try:
                async with asyncio.timeout(self._limits.idle_timeout_s):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                raise BodyStalled from None
            if chunk is None:
                return
            if chunk:
                yield chunk


def _conditions(request: Request) -> Conditions:
    headers = request.headers
    return Conditions.parse(
        _joined(request, "if-match"),
        _joined(request, "if-none-match"),
        headers.get("if-unmodified-since"),
        headers.get("if-modified-since") if request.method in ("GET", "HEAD") else None,
    )


def _joined(request: Request, name: str) -> str | None:
    values = request.headers.getlist(name)
    return ", ".join(values) if values else None


def _refused(conditions: Conditions, info: ObjectInfo) -> Response | None:
    """412 or 304, where a read's conditions say so."""
    if not conditions.preserved_by(info):
        raise ConditionFailed(version=info.version)
    return None if conditions.news_in(info) else Response(None, 304, _headers(info))


def _headers(info: ObjectInfo) -> dict[str, str]:
    headers = {
        "ETag": entity_tag(info),
        "Last-Modified": formatdate(info.modified_ms / 1000, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
        "X-Neve-Version": str(info.version),
    }
    if info.expires_ms:
        headers["X-Neve-Expires-Ms"] = str(info.expires_ms)
    return headers


def describe(info: ObjectInfo) -> dict[str, object]:
    """The JSON fields of an object besides its key."""
    return {
        "version": info.version,
        "size_bytes": info.size_bytes,
        "modified_ms": info.modified_ms,
        "expires_ms": info.expires_ms,
        "etag": entity_tag(info),
    }


__all__ = ["BodyStalled", "ClientDisconnect", "Objects", "describe"]
