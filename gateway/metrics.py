"""A gateway's metrics for Prometheus: requests by method and status, durations, bytes in both directions.

A plain ASGI layer around the application: it sees the status that was sent, from any part of the application.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE"})


class GatewayMetrics:
    """`registry` is the gateway's own, so that several fit into one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "neve_gateway_requests_total", "Requests that were answered.", ["method", "status"], registry=registry
        )
        self.seconds = Histogram(
            "neve_gateway_request_seconds",
            "Time from a request's head to the last byte of its answer.",
            ["method"],
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.received = Counter("neve_gateway_received_bytes_total", "Bytes of bodies received.", registry=registry)
        self.sent = Counter("neve_gateway_sent_bytes_total", "Bytes of bodies sent.", registry=registry)
        self.in_progress = Gauge("neve_gateway_requests_in_progress", "Requests under way.", registry=registry)
        self.cut = Counter(
            "neve_gateway_responses_cut_total", "Answers that ended before their announced length.", registry=registry
        )


class Measured:
    """The application, measured."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics = self._metrics
        method = scope["method"] if scope["method"] in METHODS else "other"
        status, complete = "aborted", False

        async def counted_receive() -> Message:
            message = await receive()
            metrics.received.inc(len(message.get("body", b"")))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status, complete
            await send(message)
            if message["type"] == "http.response.start":
                status = str(message["status"])
            elif message["type"] == "http.response.body":
                metrics.sent.inc(len(message.get("body", b"")))
                complete = not message.get("more_body", False)

        begun_s = time.perf_counter()
        metrics.in_progress.inc()
        try:
            await self._app(scope, counted_receive, counted_send)
        finally:
            metrics.in_progress.dec()
            metrics.seconds.labels(method).observe(time.perf_counter() - begun_s)
            metrics.requests.labels(method, status).inc()
            if status != "aborted" and not complete:
                metrics.cut.inc()
