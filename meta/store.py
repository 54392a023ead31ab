"""The metadata store's interface: a small, exact model of etcd's keys, transactions, leases and watches.

Invariants: one transaction is one revision, applied as a whole or not at all;
            a listing of several pages is read at one revision and is complete, or it is an error;
            a watch delivers every change of its range in order and once, or says `Resync`;
            a write that ends in `MetaUnavailable` was not applied, one that ends in `MaybeApplied` may be.
Not here:   I/O of any kind, and the meaning of the keys, which the servers define.

After cancelling a write, its caller does not know whether it was applied, as after `MaybeApplied`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from neve.meta.lease import Lease
from neve.meta.txn import (
    Compare,
    Delete,
    DeleteResult,
    Get,
    KeyRange,
    Keys,
    KeyValue,
    Operation,
    Put,
    TxnResult,
    as_range,
    check_int64,
    mod_revision_is,
)
from neve.proto.errors import InvalidArgument, TooLarge

PAGE_KEYS = 500  # etcd's default allows values of 1.5 MiB; Neve's have a few KiB, so a page has about one MiB


TTL_S_MAX = 9_000_000_000  # etcd's own bound


def check_ttl(ttl_s: int) -> None:
    if not 1 <= ttl_s <= TTL_S_MAX:
        raise InvalidArgument(what="ttl_s", detail=f"{ttl_s}, at least 1 and at most {TTL_S_MAX}")


def check_read(*, limit: int, revision: int) -> None:
    for what, number in (("limit", limit), ("revision", revision)):
        check_int64(what, number)
        if number < 0:
            raise InvalidArgument(what=what, detail=f"{number} is negative")


def check_start_revision(revision: int) -> None:
    check_int64("start_revision", revision)
    if revision < 1:  # 0 means "from now on" in etcd: it is unknown what such a watch has missed
        raise InvalidArgument(what="start_revision", detail=f"{revision}, at least 1")


# --- reads and watches ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RangePage:
    """Keys in order, read at `revision`. Read the next page at the same revision."""

    kvs: tuple[KeyValue, ...]
    more: bool
    count: int
    revision: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys of a range at `revision`."""

    kvs: tuple[KeyValue, ...]
    revision: int


class EventKind(enum.Enum):
    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Event:
    """The change of one key. A DELETE has only the key and the mod revision."""

    kind: EventKind
    kv: KeyValue


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """All changes of the watched range in one revision, so a transaction is never split."""

    revision: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Resync:
    """The history was compacted before it was delivered: this is the whole watched range at `revision`.

    Keys that are not in `kvs` do not exist. The batches that follow begin after `revision`.
    """

    revision: int
    kvs: tuple[KeyValue, ...]


WatchItem = WatchBatch | Resync


class Watch(ABC):
    """An async iterator of `WatchItem`s that survives disconnections. Close it, or use it as a context manager.

    It ends only with a permanent error, by `close`, or with its store.
    """

    @abstractmethod
    async def __anext__(self) -> WatchItem: ...

    @abstractmethod
    async def close(self) -> None: ...

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


# --- the store --------------------------------------------------------------------------------------------


class MetaStore(ABC):
    """A connection to the metadata store. Reads are linearizable unless `serializable` is asked for."""

    clock: Callable[[], float]  # measures leases: seconds, never set back, also counting while the machine is suspended

    @abstractmethod
    async def range(self, keys: Keys, *, limit: int = 0, revision: int = 0, serializable: bool = False) -> RangePage:
        """One page, at the newest revision or at an older one; raises `Compacted` if that was compacted away."""

    @abstractmethod
    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        """Run `success` if all compares hold, else `failure`. A put on an ended lease raises `LeaseLost`."""

    async def write(
        self,
        guard: Sequence[Compare],
        revisions: Mapping[bytes, int],
        values: Mapping[bytes, bytes | None],
        reads: Sequence[bytes] = (),
    ) -> TxnResult:
        """The most common transaction, which a store may execute faster than `txn`.

        If `guard` holds and every key of `revisions` has that mod revision (0: it is absent), put `values` (None:
        delete). Otherwise read the keys of `reads`; `responses` are those of the reads.
        """
        compares = [*guard, *(mod_revision_is(key, revision) for key, revision in revisions.items())]
        success: list[Operation] = [Delete(key) if value is None else Put(key, value) for key, value in values.items()]
        result = await self.txn(compares, success, [Get(key) for key in reads])
        return TxnResult(True, result.revision, ()) if result.succeeded else result

    async def mod_revisions(self, guard: Sequence[Compare], keys: Sequence[bytes]) -> list[int] | None:
        """The mod revisions of these keys at one revision at which `guard` holds; None if it does not hold.

        An absent key has 0. A store may execute this faster than `txn`.
        """
        result = await self.txn(guard, [Get(key) for key in keys])
        if not result.succeeded:
            return None
        found = [result.get_at(index).first for index in range(len(keys))]
        return [kv.mod_revision if kv is not None else 0 for kv in found]

    @abstractmethod
    async def grant_lease(self, ttl_s: int) -> Lease:
        """A new lease, which renews itself. The store may grant a longer time to live: see `Lease.ttl_s`."""

    @abstractmethod
    async def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys. It is no error if the lease has ended already."""

    @abstractmethod
    async def compact(self, revision: int) -> None:
        """Drop values that were overwritten or deleted before `revision`. For tests and operators."""

    @abstractmethod
    def watch(self, keys: Keys, *, start_revision: int) -> Watch:
        """Every change from `start_revision` on. List first, and start at the listing's revision + 1."""

    @abstractmethod
    async def close(self) -> None:
        """End the watches, stop keeping leases alive (they are not revoked), and disconnect."""

    async def get(self, key: bytes, *, revision: int = 0, serializable: bool = False) -> KeyValue | None:
        page = await self.range(key, revision=revision, serializable=serializable)
        return page.kvs[0] if page.kvs else None

    async def put(self, key: bytes, value: bytes, *, lease_id: int = 0) -> int:
        """Returns the revision, which is the key's mod revision."""
        return (await self.txn((), (Put(key, value, lease_id),))).revision

    async def delete(self, keys: Keys) -> int:
        """Returns the number of deleted keys."""
        response = (await self.txn((), (Delete(keys),))).responses[0]
        assert isinstance(response, DeleteResult), response
        return response.deleted_count

    async def revision(self, key: bytes = b"\x00") -> int:
        """The newest revision, read linearizably: every write acknowledged before the call is at or below it.

        Any key will do. Where etcd restricts a user to some keys, pass one of those.
        """
        return (await self.range(key, limit=1)).revision

    async def range_pages(
        self, keys: Keys, *, page_keys: int = PAGE_KEYS, revision: int = 0, serializable: bool = False
    ) -> AsyncIterator[RangePage]:
        """All pages at the revision of the first page. An error of any page is raised, so none can be missing."""
        if page_keys < 1:
            raise InvalidArgument(what="page_keys", detail=f"{page_keys}, at least 1")
        rest: KeyRange | None = as_range(keys)
        while rest is not None:
            try:
                page = await self.range(rest, limit=page_keys, revision=revision, serializable=serializable)
            except TooLarge:
                if page_keys == 1:
                    raise
                page_keys //= 2  # the values are unusually large: read the same range in smaller pages
                continue
            revision = page.revision
            yield page
            rest = rest.after(page.kvs[-1].key) if page.more else None

    async def range_all(self, keys: Keys, *, page_keys: int = PAGE_KEYS, revision: int = 0) -> Listing:
        """The whole range at one revision."""
        kvs: list[KeyValue] = []
        async for page in self.range_pages(keys, page_keys=page_keys, revision=revision):
            kvs.extend(page.kvs)
            revision = page.revision
        return Listing(tuple(kvs), revision)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
