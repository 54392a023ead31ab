"""Deliberate bugs of readers, and of records without sync: what is not given, or gone, and nobody is told of.

Invariants: as in bugs.py: nothing outside of a bug's context is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from neve.client.streams.reading.extent_reader import ExtentReader
from neve.client.streams.reading.reader import Reader
from neve.proto.errors import NeveError
from tests.sim.bugs.bugs import FORGETFUL, _doubtful_is_trusted, bug
from tests.sim.troubles.swarm import Shape

FOR_EVER_S = 1e6


def _reads(shape: Shape) -> bool:
    return shape.readers > 0


class _Enough(NeveError):
    """What a read ends with that nobody hears of."""


@bug("a read ends at the first failure", origin="G2", suits=_reads)
def _ends_early(change: Any) -> None:
    """Who finds no replica that answers takes that for the end of the stream."""
    read_batches = Reader.read_batches

    async def gives_up(self: Any, error: Any, *_: Any) -> Any:
        raise _Enough from error

    async def wrong(self: Any, *what: Any, **how: Any) -> AsyncIterator[Any]:
        try:
            async for records in read_batches(self, *what, **how):
                yield records
        except _Enough:
            return

    change(ExtentReader, "_after", gives_up)
    change(Reader, "read_batches", wrong)


@bug("a follower hears of nothing new", origin="rule 9", suits=_reads)
def _stalls(change: Any) -> None:
    """Who has come to the end of what there is waits for ever."""

    async def wrong(self: Any, extent: Any, offset: int) -> None:
        await asyncio.sleep(FOR_EVER_S)

    change(ExtentReader, "_poll", wrong)


@bug("a doubtful length is trusted, of few", origin="rule 18", suits=lambda shape: shape.mixed, needs=FORGETFUL)
def _lost_without_a_cause(change: Any) -> None:
    """As "a doubtful length is trusted", where others sync: one replica loses power, and its length cuts all."""
    _doubtful_is_trusted(change)
