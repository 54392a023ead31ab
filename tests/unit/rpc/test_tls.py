"""TLS on both transports that have sockets: who is trusted, and certificates replaced under a running server."""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.proto.errors import ConnectFailed, ConnectionLost
from neve.rpc.tls import TlsFiles
from tests.unit.rpc.certs import Authority
from tests.unit.rpc.conformance import Servicer, Transport, do

# With TLS 1.3 a client may believe itself connected before the server has looked at its certificate.
REFUSED = (ConnectFailed, ConnectionLost)


async def test_a_client_that_trusts_the_authority_is_served(network_transport: Transport, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "snow")
    cert, key = authority.issue("server")
    async with network_transport as transport:
        server = await transport.serve(Servicer(), tls=TlsFiles(cert=cert, key=key))
        channel = transport.channel(server, tls=TlsFiles(ca=authority.ca))
        reply = await do(channel, attachment=[bytes(200_000)], echo_attachment=True, reply_bytes_max=200_000)
        assert reply.attachment == bytes(200_000)


async def test_a_client_that_trusts_another_authority_refuses(network_transport: Transport, tmp_path: Path) -> None:
    cert, key = Authority(tmp_path, "snow").issue("server")
    stranger = Authority(tmp_path, "stranger")
    async with network_transport as transport:
        server = await transport.serve(Servicer(), tls=TlsFiles(cert=cert, key=key))
        with pytest.raises(REFUSED):
            await do(transport.channel(server, tls=TlsFiles(ca=stranger.ca)))


async def test_a_client_without_tls_is_not_served(network_transport: Transport, tmp_path: Path) -> None:
    cert, key = Authority(tmp_path, "snow").issue("server")
    async with network_transport as transport:
        servicer = Servicer()
        server = await transport.serve(servicer, tls=TlsFiles(cert=cert, key=key))
        with pytest.raises(REFUSED):
            await do(transport.channel(server))
        assert servicer.sequence == 0


async def test_a_certificate_for_another_host_is_refused(network_transport: Transport, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "snow")
    cert, key = authority.issue("server", host="elsewhere.example")
    async with network_transport as transport:
        server = await transport.serve(Servicer(), tls=TlsFiles(cert=cert, key=key))
        with pytest.raises(REFUSED):
            await do(transport.channel(server, tls=TlsFiles(ca=authority.ca)))
        named = TlsFiles(ca=authority.ca, server_name="elsewhere.example")
        assert (await do(transport.channel(server, tls=named), text="named")).message.text == "named"


async def test_mutual_tls_serves_only_clients_with_a_certificate(network_transport: Transport, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "snow"), Authority(tmp_path, "stranger")
    cert, key = authority.issue("server")
    client_cert, client_key = authority.issue("client")
    strange_cert, strange_key = stranger.issue("strange-client")
    async with network_transport as transport:
        servicer = Servicer()
        server = await transport.serve(servicer, tls=TlsFiles(ca=authority.ca, cert=cert, key=key))
        with pytest.raises(REFUSED):
            await do(transport.channel(server, tls=TlsFiles(ca=authority.ca)))
        with pytest.raises(REFUSED):
            await do(transport.channel(server, tls=TlsFiles(ca=authority.ca, cert=strange_cert, key=strange_key)))
        assert servicer.sequence == 0
        known = transport.channel(server, tls=TlsFiles(ca=authority.ca, cert=client_cert, key=client_key))
        assert (await do(known, text="known")).message.text == "known"


async def test_replaced_certificates_are_used_without_a_restart(network_transport: Transport, tmp_path: Path) -> None:
    """The new certificate is of another authority, so that each client can talk to exactly one of the two."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    files = old.issue("server")
    async with network_transport as transport:
        server = await transport.serve(Servicer(), tls=TlsFiles(cert=files[0], key=files[1]))
        before = transport.channel(server, tls=TlsFiles(ca=old.ca))
        await do(before)
        new.issue("server", over=files)
        assert (await do(transport.channel(server, tls=TlsFiles(ca=new.ca)), text="new")).message.text == "new"
        with pytest.raises(REFUSED):
            await do(transport.channel(server, tls=TlsFiles(ca=old.ca)))
        assert (await do(before, text="as before")).message.text == "as before", "a running connection stays"


async def test_half_written_certificates_leave_the_last_good_ones_in_use(
    network_transport: Transport, tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "snow")
    cert, key = authority.issue("server")
    async with network_transport as transport:
        server = await transport.serve(Servicer(), tls=TlsFiles(cert=cert, key=key))
        await do(transport.channel(server, tls=TlsFiles(ca=authority.ca)))
        cert.write_bytes(cert.read_bytes()[:100])
        assert (await do(transport.channel(server, tls=TlsFiles(ca=authority.ca)), text="ok")).message.text == "ok"
        authority.issue("other", over=(cert, tmp_path / "unused.key"))  # a certificate that does not fit the key
        assert (await do(transport.channel(server, tls=TlsFiles(ca=authority.ca)), text="ok")).message.text == "ok"


async def test_a_server_does_not_start_with_files_that_do_not_fit(network_transport: Transport, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "snow")
    cert, _ = authority.issue("server")
    _, key = authority.issue("other")
    async with network_transport as transport:
        with pytest.raises(OSError, match=r"(?i)mismatch|tls|ssl"):
            await transport.serve(Servicer(), tls=TlsFiles(cert=cert, key=key))
