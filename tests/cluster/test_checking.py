"""The check of the fault tests is able to fail: each way in which a stream can be wrong is noticed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest

from neve.client.streams.client import Client
from neve.client.streams.types import Position, Record
from tests.cluster.checking import Written, check_stream, payload_of


class Reading:
    """A client that reads what it is given: (writer, number), each at offset 100 × its number."""

    def __init__(self, *records: tuple[str, int]) -> None:
        self._records = records

    async def read(self, stream_id: int) -> AsyncIterator[Record]:
        for name, number in self._records:
            yield Record(Position(1, 100 * number), payload_of(name, number), Position(1, 100 * number + 100))


def written(name: str = "w", *, acknowledged: int, unknown: int = 0) -> Written:
    known = {number: Position(1, 100 * number) for number in range(acknowledged)}
    return Written(name, known, dict.fromkeys(range(acknowledged, acknowledged + unknown), "lost"))


async def check(reading: Reading, *writers: Written) -> int:
    return await check_stream(cast(Client, reading), 1, *writers)


async def test_what_was_acknowledged_once_and_in_order_is_right_with_or_without_the_unknown() -> None:
    records = [("w", 0), ("w", 1), ("w", 2)]
    assert await check(Reading(*records), written(acknowledged=3)) == 3
    assert await check(Reading(*records), written(acknowledged=2, unknown=1)) == 3
    assert await check(Reading(*records[:2]), written(acknowledged=2, unknown=1)) == 2


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0, 2], "1 of 3 acknowledged records are lost"),
        ([0, 1], "are lost"),
        ([], "3 of 3"),
        ([0, 1, 1, 2], "is there twice"),
        ([0, 2, 1], "comes after 2"),
        ([0, 1, 2, 3], "was never appended"),
    ],
)
async def test_lost_doubled_reordered_and_foreign_records_are_noticed(numbers: list[int], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        await check(Reading(*(("w", number) for number in numbers)), written(acknowledged=3))


async def test_a_record_elsewhere_than_it_was_told_is_noticed() -> None:
    known = written(acknowledged=2)
    known.acknowledged[1] = Position(7, 7)
    with pytest.raises(AssertionError, match="not at the position"):
        await check(Reading(("w", 0), ("w", 1)), known)


async def test_a_writer_that_comes_again_after_its_successor_is_noticed() -> None:
    old, new = written("old", acknowledged=2), written("new", acknowledged=1)
    assert await check(Reading(("old", 0), ("old", 1), ("new", 0)), old, new) == 3
    with pytest.raises(AssertionError, match="it was not fenced"):
        await check(Reading(("old", 0), ("new", 0), ("old", 1)), old, new)
