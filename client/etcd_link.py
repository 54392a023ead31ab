"""How a client comes to the etcd that the managers have told it of.

Invariants: an etcd that is secured says no in its own words; here it is said what the client lacks.
"""

from __future__ import annotations

from collections.abc import Sequence

from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdAccess
from neve.meta.lock import lock_key
from neve.proto.errors import InvalidArgument, MetaUnavailable, PermissionDenied, Unauthenticated


async def connect_etcd(access: EtcdAccess, endpoints: Sequence[str], root: bytes) -> EtcdStore:
    """A connection that may use the cluster's locks, which are under `root`."""
    if not endpoints:
        raise MetaUnavailable(detail="the managers did not tell where the metadata store is")
    if access.tls is None and any(endpoint.startswith("https://") for endpoint in endpoints):
        detail = f"{', '.join(endpoints)} want TLS: give `etcd=EtcdAccess(tls=…)`, or --etcd-ca"
        raise InvalidArgument(what="etcd", detail=detail)
    try:
        store = await EtcdStore.connect(access.to(endpoints))
        try:
            await store.get(lock_key(root, ""))  # beside our locks
        except BaseException:
            await store.close()
            raise
    except (PermissionDenied, Unauthenticated) as error:
        who = f"the user {access.user!r}" if access.user else "a client without a name"
        need = "`etcd=EtcdAccess(user=…, password=…)`, or --etcd-user, of one who may use the cluster's locks"
        raise MetaUnavailable(detail=f"etcd refuses {who} ({error.detail or error}); give {need}") from error
    except MetaUnavailable as error:
        if access.tls is not None:
            raise
        hint = "if it speaks TLS, give `etcd=EtcdAccess(tls=…)`, or --etcd-ca"
        raise MetaUnavailable(detail=f"{error.detail or error}; {hint}") from error
    return store
