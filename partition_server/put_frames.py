"""Frames of many puts in columns. Each partition gets its puts as one group; the frame is answered after all groups.

Invariants: each put has its own error; the frame itself fails only if it cannot be decoded;
            the puts of a partition begin in frame order. Those of a partition that is not served yet wait for it, and
            then go to the partition that serves each key by that time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from neve.partition_server.engine.interface import Engine
from neve.partition_server.engine.puts import Puts, Results
from neve.partition_server.lifecycle import Host
from neve.partition_server.metrics import ServerMetrics
from neve.partition_server.operation_frames import OPERATIONS_MAX
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import InvalidArgument, NeveError, to_message
from neve.rpc.service import Call


class _Group(NamedTuple):
    """Puts of one partition: their places in the frame, and their results."""

    numbers: Sequence[int]
    results: asyncio.Future[Results]


class PutMany:
    def __init__(self, host: Host, metrics: ServerMetrics) -> None:
        self._host = host
        self._metrics = metrics

    async def run(self, request: ps.PutManyRequest, call: Call) -> ps.PutManyReply:
        puts = _columns(request, call)
        count = len(puts.keys)
        self._metrics.count_operations(count)
        version = request.regions_version
        groups: list[_Group] = []
        waiting: list[int] = []
        failed: dict[int, BaseException] = {}
        for partition, numbers in self._by_partition(puts, range(count), version, failed):
            if partition is None:
                waiting += numbers
            else:
                _begin(partition, puts, numbers, groups, failed)
        while waiting:
            waiting = await self._begin_later(puts, waiting, version, call, groups, failed)
        return await _reply(count, groups, failed)

    def _by_partition(
        self, puts: Puts, numbers: Sequence[int], version: int, failed: dict[int, BaseException]
    ) -> list[tuple[Engine | None, list[int]]]:
        """Group the puts by the partition that serves them now; None: not served yet."""
        find, keys = self._host.find, puts.keys
        found: dict[int, tuple[Engine | None, list[int]]] = {}
        for number in numbers:
            try:
                partition = find(keys[number], regions_version=version, write=True)
            except NeveError as error:
                failed[number] = error
                continue
            group = found.get(id(partition))
            if group is None:
                found[id(partition)] = (partition, [number])
            else:
                group[1].append(number)
        return list(found.values())

    async def _begin_later(
        self,
        puts: Puts,
        numbers: Sequence[int],
        version: int,
        call: Call,
        groups: list[_Group],
        failed: dict[int, BaseException],
    ) -> list[int]:
        """Wait for the partition of the first put. Returns the puts that still have none."""
        first, *rest = numbers
        try:
            await self._host.wait_for(puts.keys[first], regions_version=version, write=True, deadline_s=call.deadline_s)
        except NeveError as error:
            failed[first] = error
            return rest
        left: list[int] = []
        for partition, some in self._by_partition(puts, numbers, version, failed):
            if partition is None:
                left += some
            else:
                _begin(partition, puts, some, groups, failed)
        return left


def _begin(
    partition: Engine, puts: Puts, numbers: Sequence[int], groups: list[_Group], failed: dict[int, BaseException]
) -> None:
    try:
        groups.append(_Group(numbers, partition.start_puts(_chosen(puts, numbers))))
    except Exception as error:  # noqa: BLE001 - the result of these puts; any other exception becomes Internal
        failed.update(dict.fromkeys(numbers, error))


def _chosen(puts: Puts, numbers: Sequence[int]) -> Puts:
    if len(numbers) == len(puts.keys):
        return puts
    return Puts(
        [puts.keys[number] for number in numbers],
        [puts.values[number] for number in numbers],
        [puts.ttls_ms[number] for number in numbers] if puts.ttls_ms else (),
        puts.client_id,
        puts.completed_below,
        [puts.call_ids[number] for number in numbers],
    )


async def _reply(count: int, groups: Sequence[_Group], failed: dict[int, BaseException]) -> ps.PutManyReply:
    versions, modified_ms, crcs = [0] * count, [0] * count, [0] * count
    for numbers, future in groups:
        try:
            results = await future
        except NeveError as error:
            failed.update(dict.fromkeys(numbers, error))
            continue
        for number, result in zip(numbers, results, strict=True):
            if isinstance(result, NeveError):
                failed[number] = result
            else:
                versions[number], _, modified_ms[number], _, crcs[number] = result
    reply = ps.PutManyReply(versions=versions, modified_ms=modified_ms, value_crc32c=crcs)
    for number in sorted(failed):
        reply.failures.add(index=number, error=to_message(failed[number]))
    return reply


def _columns(request: ps.PutManyRequest, call: Call) -> Puts:
    keys, call_ids, ttls_ms = list(request.keys), list(request.call_ids), list(request.ttl_ms)
    ends = list(accumulate(request.value_bytes))
    count = len(keys)
    if not 0 < count <= OPERATIONS_MAX:
        raise InvalidArgument(what="keys", detail=f"{count}, at least 1 and at most {OPERATIONS_MAX}")
    if len(call_ids) != count or len(ends) != count or len(ttls_ms) not in (0, count):
        detail = f"{len(call_ids)} calls, {len(ends)} values and {len(ttls_ms)} times for {count} keys"
        raise InvalidArgument(what="keys", detail=detail)
    payload = call.attachment
    if ends[-1] != len(payload):
        raise InvalidArgument(what="payload", detail=f"{len(payload)} bytes, the values have {ends[-1]}")
    starts = [0, *ends[:-1]]
    values = [payload[start:end] for start, end in zip(starts, ends, strict=True)]
    return Puts(keys, values, ttls_ms, request.call.client_id, request.call.completed_below, call_ids)
