"""The front doors: wire, gRPC and the status page of one process."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from prometheus_client import CollectorRegistry, Counter

from neve.proto.errors import TransportError
from neve.rpc.front import Front, FrontConfig
from neve.rpc.grpc.client import GrpcChannel
from neve.rpc.logs import JsonFormatter
from neve.rpc.service import Service
from neve.rpc.wire.client import WireChannel
from tests.proto import methods
from tests.proto import testing_pb2 as pb
from tests.unit.rpc.wire.wire_peers import Servicer

CONFIG = FrontConfig(wire="127.0.0.1:0", grpc="127.0.0.1:0", status="127.0.0.1:0")


async def http(address: str, request: bytes) -> tuple[int, bytes]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await reader.read(-1)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


async def test_one_servicer_behind_every_door_and_a_clean_end() -> None:
    registry = CollectorRegistry()
    Counter("neve_test_things", "Things.", registry=registry).inc(3)
    services = [Service([methods.CONFORMANCE_DO, methods.CONFORMANCE_HANG], Servicer())]
    front = Front(CONFIG, services, cluster="c", registry=registry, facts=lambda: {"node_id": 7})
    await front.start()
    channels = [WireChannel(front.wire_address, cluster="c"), GrpcChannel(front.grpc_address, cluster="c")]
    for channel in channels:
        reply = await channel.call(methods.CONFORMANCE_DO, pb.DoRequest(text="x"), timeout_s=10)
        assert reply.message.text == "x"

    code, body = await http(front.status_address, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (code, b"neve_test_things_total 3.0" in body) == (200, True)
    code, body = await http(front.status_address, b"GET /ready HTTP/1.1\r\n\r\n")
    assert (code, json.loads(body)) == (200, {"ready": True, "node_id": 7})
    front.ready = False
    assert (await http(front.status_address, b"GET /ready HTTP/1.1\r\n\r\n"))[0] == 503
    assert (await http(front.status_address, b"GET /health HTTP/1.1\r\n\r\n"))[0] == 200
    assert (await http(front.status_address, b"GET /other HTTP/1.1\r\n\r\n"))[0] == 404
    assert (await http(front.status_address, b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == 405

    await front.stop(1.0)
    for channel in channels:
        with pytest.raises(TransportError):
            await channel.call(methods.CONFORMANCE_DO, pb.DoRequest(), timeout_s=5)
        await channel.close()
    with pytest.raises(OSError, match=r"refused|Connect"):
        await http(front.status_address, b"GET /metrics HTTP/1.1\r\n\r\n")


def test_a_log_line_as_json_has_its_event_apart() -> None:
    record = logging.LogRecord("neve.x", logging.INFO, "f", 1, "extent_sealed extent_id=%s", (7,), None)
    entry = json.loads(JsonFormatter().format(record))
    assert (entry["event"], entry["message"]) == ("extent_sealed", "extent_sealed extent_id=7")
    assert entry["level"] == "INFO"
