"""The client's connection to the etcd that the managers use.

Invariants: if a secured etcd refuses the client, the error says which option the client lacks.
"""

from __future__ import annotations

from collections.abc import Sequence

from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdAccess
from neve.meta.lock import lock_key
from neve.proto.errors import InvalidArgument, MetaUnavailable, PermissionDenied, Unauthenticated


async def connect_etcd(access: EtcdAccess, endpoints: Sequence[str], root: bytes) -> EtcdStore:
    """Connect to etcd and check that this client may use the cluster's locks, which are below `root`.

    Raises InvalidArgument if TLS is needed, and MetaUnavailable if etcd refuses the client or does not answer.
    """
    if not endpoints:
        raise MetaUnavailable(detail="the managers did not return the address of the metadata store")
    if access.tls is None and any(endpoint.startswith("https://") for endpoint in endpoints):
        detail = f"{', '.join(endpoints)} require TLS: pass `etcd=EtcdAccess(tls=…)` or --etcd-ca"
        raise InvalidArgument(what="etcd", detail=detail)
    try:
        store = await EtcdStore.connect(access.to(endpoints))
        try:
            await store.get(lock_key(root, ""))  # needs the same permission as our locks
        except BaseException:
            await store.close()
            raise
    except (PermissionDenied, Unauthenticated) as error:
        who = f"the user {access.user!r}" if access.user else "a client without a user"
        need = "`etcd=EtcdAccess(user=…, password=…)` or --etcd-user, for a user who may use the cluster's locks"
        raise MetaUnavailable(detail=f"etcd refuses {who} ({error.detail or error}); pass {need}") from error
    except MetaUnavailable as error:
        if access.tls is not None:
            raise
        hint = "if it uses TLS, pass `etcd=EtcdAccess(tls=…)` or --etcd-ca"
        raise MetaUnavailable(detail=f"{error.detail or error}; {hint}") from error
    return store
