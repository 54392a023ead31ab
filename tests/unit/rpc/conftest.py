"""The fixtures that run a test on each transport; the in-memory one on the deterministic loop."""

from __future__ import annotations

import pytest

from tests.unit.rpc.conformance import GrpcTransport, MemoryTransport, RaggedTransport, Transport, WireTransport


@pytest.fixture(
    params=[
        pytest.param(WireTransport, id="wire"),
        pytest.param(GrpcTransport, id="grpc"),
        pytest.param(MemoryTransport, id="memory", marks=pytest.mark.sim(seed=1)),
        pytest.param(RaggedTransport, id="ragged", marks=pytest.mark.sim(seed=1)),
    ]
)
def transport(request: pytest.FixtureRequest) -> Transport:
    made: Transport = request.param()
    return made


@pytest.fixture(params=[pytest.param(WireTransport, id="wire"), pytest.param(GrpcTransport, id="grpc")])
def network_transport(request: pytest.FixtureRequest) -> Transport:
    """The transports that have sockets, hence TLS."""
    made: Transport = request.param()
    return made
