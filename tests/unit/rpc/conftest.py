"""The fixtures that run a test on each transport; the simulated one on the deterministic loop."""

from __future__ import annotations

import pytest

from tests.unit.rpc.conformance import GrpcTransport, SimTransport, Transport, WireTransport


@pytest.fixture(
    params=[
        pytest.param(WireTransport, id="wire"),
        pytest.param(GrpcTransport, id="grpc"),
        pytest.param(SimTransport, id="sim", marks=pytest.mark.sim(seed=1)),
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
