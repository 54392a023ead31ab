"""The values that users of the stream client see: positions, records, streams and extents.

Invariants: all of them are immutable; a position stays valid until its extent leaves the stream.
Not here:   options (options.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, overload

from neve.proto import common_pb2
from neve.proto import stream_manager_pb2 as sm
from neve.proto.stream_policy import StreamPolicy


class Position(NamedTuple):
    """Where a record begins. Positions are ordered only within an extent: a stream's extent ids need not ascend."""

    extent_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.extent_id}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse the text that `str` returns, such as `"12:4096"`. Raises ValueError for any other text."""
        extent_id, colon, offset = text.partition(":")
        if not (extent_id.isdecimal() and (offset.isdecimal() if colon else not offset)):
            raise ValueError(f"{text!r} is not a position: expected extent:offset")
        return cls(int(extent_id), int(offset or 0))


new_position = tuple.__new__  # new_position(Position, (extent, offset)) costs a third of Position(...); once per append


class Record(NamedTuple):
    """One record of a stream. A reader that restarts continues after it by starting at `next`."""

    position: Position
    payload: bytes | memoryview  # a view only if the caller passed `copy=False`
    next: Position


class PlacedBlocks(NamedTuple):
    """Consecutive blocks in one extent. `first_index`: the place of the first one in its batch of records."""

    first_index: int
    extent_id: int
    offset: int
    block_sizes: Sequence[int]


class Positions(Sequence[Position]):
    """The positions of a batch of records, computed on access because most callers never look at them."""

    __slots__ = ("_length", "_offsets", "_pieces")

    def __init__(self, pieces: Iterable[PlacedBlocks]) -> None:
        self._pieces = sorted(pieces)
        self._length = sum(len(piece.block_sizes) for piece in self._pieces)
        self._offsets: list[list[int]] | None = None

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Position: ...
    @overload
    def __getitem__(self, index: slice) -> list[Position]: ...
    def __getitem__(self, index: int | slice) -> Position | list[Position]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._length))]
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(index)
        number = bisect_right(self._pieces, index, key=lambda piece: piece.first_index) - 1
        piece = self._pieces[number]
        return Position(piece.extent_id, self._offsets_of(number)[index - piece.first_index])

    def __iter__(self) -> Iterator[Position]:
        for number, piece in enumerate(self._pieces):
            extent_id = piece.extent_id
            for offset in self._offsets_of(number):
                yield new_position(Position, (extent_id, offset))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(map(Position.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def _offsets_of(self, number: int) -> list[int]:
        if self._offsets is None:
            self._offsets = [
                list(accumulate(piece.block_sizes[:-1], initial=piece.offset)) if piece.block_sizes else []
                for piece in self._pieces
            ]
        return self._offsets[number]


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of an extent. `confirmed`: this replica has confirmed the seal."""

    node_id: int
    address: str
    confirmed: bool
    disk_uuid: str = ""
    incarnation: int = 0
    _message: common_pb2.Replica | None = field(default=None, compare=False, repr=False)  # as received, if it was

    def message(self) -> common_pb2.Replica:
        return self._message or common_pb2.Replica(
            node_id=self.node_id, disk_uuid=self.disk_uuid, incarnation=self.incarnation
        )


@dataclass(frozen=True, slots=True)
class Extent:
    """An extent as recorded in metadata. `length` is None while the extent is open."""

    id: int
    eversion: int
    replicas: tuple[Replica, ...]
    length: int | None
    extent_bytes_max: int

    @property
    def sealed(self) -> bool:
        return self.length is not None

    @classmethod
    def of(cls, info: sm.ExtentInfo) -> Extent:
        return cls(
            id=info.extent_id,
            eversion=info.eversion,
            replicas=tuple(
                Replica(
                    node_id=each.replica.node_id,
                    address=each.address,
                    confirmed=each.confirmed,
                    disk_uuid=each.replica.disk_uuid,
                    incarnation=each.replica.incarnation,
                    _message=each.replica,
                )
                for each in info.replicas
            ),
            length=info.seal.length if info.HasField("seal") else None,
            extent_bytes_max=info.extent_bytes_max,
        )


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream as recorded in metadata."""

    id: int
    name: str
    extent_ids: tuple[int, ...]
    sealed: bool
    policy: StreamPolicy
    lock: str
    labels: Mapping[str, str] = field(default_factory=dict)
    version: int = 0
    created_ms: int = 0
    truncated_before: int = 0  # extents below this id have been truncated away
    after_hole: tuple[int, ...] = ()  # extents whose predecessor was punched out: no record continues into them

    @property
    def replicas(self) -> int:
        return self.policy.replicas

    @property
    def sync(self) -> bool:
        return self.policy.sync

    @property
    def extent_bytes_max(self) -> int:
        return self.policy.extent_bytes_max

    @property
    def placement(self) -> str:
        return self.policy.placement

    @property
    def strict(self) -> bool:
        return self.policy.strict

    @property
    def start(self) -> Position | None:
        """The first position of the stream; None if it has no extent."""
        return Position(self.extent_ids[0], 0) if self.extent_ids else None

    @classmethod
    def of(cls, info: sm.StreamInfo) -> Stream:
        return cls(
            id=info.stream_id,
            name=info.name,
            extent_ids=tuple(info.extent_ids),
            sealed=info.sealed,
            policy=StreamPolicy.of(info.policy),
            lock=info.lock,
            labels=dict(info.labels),
            version=info.version,
            created_ms=info.created_ms,
            truncated_before=info.truncated_before,
            after_hole=tuple(info.after_hole),
        )
