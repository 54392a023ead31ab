"""The HTTP port for operators' tools: `/metrics` for Prometheus, `/health` and `/ready` for probes.

Invariants: it is read-only: it accepts only GET, reads no body, and serves one request for each connection;
            a client that is slow, or sends too much, is dropped; at most `CONNECTIONS_MAX` are served at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
REQUEST_TIMEOUT_S = 5.0
REQUEST_BYTES_MAX = 8192

Facts = Callable[[], Mapping[str, object]]


class StatusPage:
    """The status page. `ready` says whether the server accepts traffic; `/health` shows `facts`."""

    def __init__(self, registry: CollectorRegistry, *, ready: Callable[[], bool], facts: Facts) -> None:
        self._registry = registry
        self._ready = ready
        self._facts = facts
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> str:
        self._server = await asyncio.start_server(self._accepted, host, port, limit=REQUEST_BYTES_MAX)
        bound = self._server.sockets[0].getsockname()
        return f"{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.info("status_page_dropped error=%s", type(error).__name__)
            writer.transport.abort()
        finally:
            self._open -= 1

    def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        path = words[1].split(b"?")[0] if len(words) == 3 else b""
        if words[0] != b"GET":
            return _response(405, "text/plain", b"only GET\n")
        if path == b"/metrics":
            return _response(200, CONTENT_TYPE_LATEST, generate_latest(self._registry))
        if path in (b"/health", b"/ready"):
            ready = self._ready()
            body = json.dumps({"ready": ready, **self._facts()}, default=str).encode() + b"\n"
            return _response(503 if path == b"/ready" and not ready else 200, "application/json", body)
        return _response(404, "text/plain", b"try /metrics, /health or /ready\n")


_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def _response(code: int, kind: str, body: bytes) -> bytes:
    lines = [
        f"HTTP/1.1 {code} {_REASONS[code]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
