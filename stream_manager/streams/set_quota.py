"""Setting and removing quotas. metadata/quota.py says what they mean."""

from __future__ import annotations

from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument
from neve.stream_manager.metadata.record_kinds import QUOTA
from neve.stream_manager.metadata.records import Quota
from neve.stream_manager.streams.reads import quota_usage
from neve.stream_manager.term.context import LeaderContext, Mutation
from neve.stream_manager.term.requests import check_name


async def set_quota(ctx: LeaderContext, request: sm.SetQuotaRequest, mutation: Mutation) -> sm.SetQuotaReply:
    wanted = request.quota
    prefix = wanted.prefix
    if not prefix:
        raise InvalidArgument(what="quota.prefix", detail="it is compared with key=value of labels, and not empty")
    check_name("quota.prefix", prefix)
    if mutation.replayed is None:
        async with ctx.locks.hold(settings=[f"quota {prefix}"]):
            old = ctx.state.quotas.get(prefix)
            new = Quota(prefix, wanted.streams_max, wanted.extents_max, wanted.bytes_max)
            changes = ctx.changes()
            if new.streams_max or new.extents_max or new.bytes_max:
                changes.put(QUOTA, old, new)
            elif old is not None:
                changes.delete(QUOTA, old)
            mutation.record(changes)
            await ctx.commit(changes)
    return sm.SetQuotaReply(usage=quota_usage(ctx.state, ctx.quotas, prefix))
