"""Quotas: limits on the number of streams, extents and bytes of the streams with certain labels.

Invariants: usage is computed from the streams' lists and kept in step with the state; an open extent counts with its
            maximum size;
            a request reserves what it is about to create, so that concurrent requests cannot exceed a limit together;
            the reservation ends with the request, whatever its outcome.

A quota's prefix is compared with the text `key=value` of each label: `tenant=acme` limits one tenant and, as a prefix,
also `tenant=acme-test`; `tenant=` limits all streams that have a tenant. A limit applies to what is created after it
was set: a quota below the current usage deletes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from neve.proto.errors import QuotaExceeded
from neve.stream_manager.metadata.record_kinds import EXTENT, QUOTA, STREAM
from neve.stream_manager.metadata.records import Extent, Labels, Quota, Stream
from neve.stream_manager.metadata.state import State


@dataclass(slots=True)
class Usage:
    streams: int = 0
    extents: int = 0
    size_bytes: int = 0

    def add(self, *, streams: int, extents: int, size_bytes: int) -> None:
        self.streams += streams
        self.extents += extents
        self.size_bytes += size_bytes


_UNBOUNDED = nullcontext()


def matches(prefix: str, labels: Labels) -> bool:
    return any(f"{key}={value}".startswith(prefix) for key, value in labels)


class QuotaTable:
    """Usage and reservations of each quota. It follows a state that is already loaded."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._used: dict[str, Usage] = {}
        self._reserved: dict[str, Usage] = {}
        for prefix in state.quotas:
            self._count(prefix)
        state.listen(QUOTA, self._on_quota)
        state.listen(STREAM, self._on_stream)
        state.listen(EXTENT, self._on_extent)

    def usage(self, prefix: str) -> Usage:
        return self._used.get(prefix, Usage())

    def bounds(self, labels: Labels) -> bool:
        """Whether a quota applies, so that a reservation could be refused."""
        return bool(labels and self._used)

    def size_bytes(self, extent_ids: Iterable[int]) -> int:
        """The bytes with which these extents count."""
        return sum(map(_counted, self._known(extent_ids)))

    def reserve(
        self, labels: Labels, *, streams: int = 0, extents: int = 0, size_bytes: int = 0
    ) -> AbstractContextManager[None]:
        """Reserve room within a `with` block; raises `QuotaExceeded` if there is none."""
        if not self.bounds(labels):
            return _UNBOUNDED
        return self._reserve(labels, streams=streams, extents=extents, size_bytes=size_bytes)

    @contextmanager
    def _reserve(self, labels: Labels, *, streams: int, extents: int, size_bytes: int) -> Iterator[None]:
        prefixes = [prefix for prefix in self._used if matches(prefix, labels)]
        for prefix in prefixes:
            self._check(self._state.quotas[prefix], streams=streams, extents=extents, size_bytes=size_bytes)
        # Keep the objects: a quota that is removed and set again meanwhile has new ones, and the release must not go
        # there.
        reserved = [self._reserved[prefix] for prefix in prefixes]
        for usage in reserved:
            usage.add(streams=streams, extents=extents, size_bytes=size_bytes)
        try:
            yield
        finally:
            for usage in reserved:
                usage.add(streams=-streams, extents=-extents, size_bytes=-size_bytes)

    def _check(self, quota: Quota, *, streams: int, extents: int, size_bytes: int) -> None:
        used, reserved = self._used[quota.prefix], self._reserved[quota.prefix]
        for what, more, now, limit in (
            ("streams", streams, used.streams + reserved.streams, quota.streams_max),
            ("extents", extents, used.extents + reserved.extents, quota.extents_max),
            ("bytes", size_bytes, used.size_bytes + reserved.size_bytes, quota.bytes_max),
        ):
            if limit and more > 0 and now + more > limit:
                raise QuotaExceeded(what=f"{what} of {quota.prefix!r}", used=now, limit=limit)

    # --- following the state ---------------------------------------------------------------------------------

    def _on_quota(self, old: Quota | None, new: Quota | None) -> None:
        if new is None:
            assert old is not None
            self._used.pop(old.prefix, None)
            self._reserved.pop(old.prefix, None)
        elif new.prefix not in self._used:
            self._count(new.prefix)

    def _on_stream(self, old: Stream | None, new: Stream | None) -> None:
        for stream, sign in ((old, -1), (new, 1)):
            if stream is None:
                continue
            for prefix, used in self._used.items():
                if matches(prefix, stream.labels):
                    size_bytes = self.size_bytes(stream.extent_ids)
                    used.add(streams=sign, extents=sign * len(stream.extent_ids), size_bytes=sign * size_bytes)

    def _on_extent(self, old: Extent | None, new: Extent | None) -> None:
        if not self._used:
            return
        grown = _counted(new) - _counted(old)
        extent_id = (new or old).extent_id  # type: ignore[union-attr]
        for stream_id in self._state.streams_of(extent_id):
            stream = self._state.streams[stream_id]
            for prefix, used in self._used.items():
                if matches(prefix, stream.labels):
                    used.add(streams=0, extents=0, size_bytes=grown)

    def _count(self, prefix: str) -> None:
        used = self._used[prefix] = Usage()
        self._reserved.setdefault(prefix, Usage())
        for stream in self._state.streams.values():
            if matches(prefix, stream.labels):
                size_bytes = self.size_bytes(stream.extent_ids)
                used.add(streams=1, extents=len(stream.extent_ids), size_bytes=size_bytes)

    def _known(self, extent_ids: Iterable[int]) -> Iterator[Extent | None]:
        return (self._state.extents.get(extent_id) for extent_id in extent_ids)


def _counted(extent: Extent | None) -> int:
    if extent is None:
        return 0
    return extent.extent_bytes_max if extent.seal is None else extent.seal.length
