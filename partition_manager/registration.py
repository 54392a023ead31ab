"""Registration of partition servers: a key on the lease of the server's locks, so that both end together.

Invariants: an id belongs to one live server: a second one at another address is refused while the first lease lives;
            a server that restarts at the same address takes over its registration at once: the first process is gone,
            or the address would be in use. It keeps its partitions, and only waits for the old locks;
            a repeated registration changes nothing.
"""

from __future__ import annotations

import logging

from neve.meta import keys
from neve.meta.regions import FORMAT
from neve.meta.txn import Compare, Put, key_absent, mod_revision_is
from neve.partition_manager.core_regions import Cause
from neve.partition_manager.term import Term
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import AlreadyExists, InvalidArgument, VersionConflict, WrongCluster

log = logging.getLogger(__name__)

CONFLICTS_MAX = 10


async def register_server(
    term: Term, request: pm.RegisterPartitionServerRequest, cause: Cause
) -> pm.RegisterPartitionServerReply:
    if request.cluster != term.config.cluster:
        raise WrongCluster(expected=term.config.cluster, got=request.cluster)
    for what in ("wire_address", "lease_id"):
        if not getattr(request, what):
            raise InvalidArgument(what=what, detail="required")
    server_id = request.server_id or _known_id(term, request) or await _new_id(term)
    entry = pm.PartitionServerEntry(
        format=FORMAT,
        server_id=server_id,
        wire_address=request.wire_address,
        grpc_address=request.grpc_address,
        version=request.version,
        process_id=request.lease_id,
    )
    key = keys.partition_server_key(term.root, server_id)
    for _ in range(CONFLICTS_MAX):
        term.ensure_leading()
        kv = await term.store.get(key)
        compare: Compare = key_absent(key)
        if kv is not None:
            there = pm.PartitionServerEntry.FromString(kv.value)
            if kv.lease_id != request.lease_id and there.wire_address != request.wire_address:
                raise AlreadyExists(kind="partition server", name=f"{server_id} at {there.wire_address}")
            if kv.lease_id == request.lease_id and there == entry:
                return pm.RegisterPartitionServerReply(server_id=server_id)
            compare = mod_revision_is(key, kv.mod_revision)
        put = Put(key, entry.SerializeToString(deterministic=True), request.lease_id)
        result = await term.store.txn([*term.leadership.guard(), compare], [put])
        if result.succeeded:
            log.info("partition_server_registered server_id=%d address=%s", server_id, request.wire_address)
            return pm.RegisterPartitionServerReply(server_id=server_id)
        await term.regions.check_leading()
    raise VersionConflict(what="registration", detail=f"the registration of server {server_id} changes too fast")


def _known_id(term: Term, request: pm.RegisterPartitionServerRequest) -> int:
    """The id of a server that has none in its configuration and asks again: its earlier id is on its lease."""
    for server_id, entry in term.regions.snapshot().servers.items():
        if entry.process_id == request.lease_id and entry.wire_address == request.wire_address:
            return server_id
    return 0


async def _new_id(term: Term) -> int:
    """An id that no server and no region has. Operators choose ids, too, and their servers may be down."""
    while True:
        server_id = await term.streams.admin.alloc_ids()
        snapshot = term.regions.snapshot()
        regions = snapshot.map.regions if snapshot.map is not None else ()
        if server_id not in snapshot.servers and all(region.server_id != server_id for region in regions):
            return server_id
