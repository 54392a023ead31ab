"""The offsets of readStream, over restarts of nodes and changes of the stream."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from neve.pipeline.core.slices import ScanExtent
from neve.pipeline.scan import options
from neve.pipeline.scan.columns import METADATA_COLUMNS
from neve.pipeline.scan.follow import NeveStreamReader
from neve.proto.errors import InvalidArgument, NotFound


def reader(monkeypatch: pytest.MonkeyPatch, *extents: ScanExtent) -> NeveStreamReader:
    made = NeveStreamReader(options.parse({"stream": "s"}, {}), METADATA_COLUMNS)
    monkeypatch.setattr(made, "_now", lambda: (9, list(extents)))
    return made


def offset(**ends: int) -> dict[str, Any]:
    return {"extents": {name.removeprefix("e"): end for name, end in ends.items()}}


def test_a_batch_is_repeated_also_when_nodes_have_forgotten_how_far_an_open_extent_may_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sealed, open_ = ScanExtent(1, 4, 100, True, b""), ScanExtent(2, 4, 0, False, b"")
    found = reader(monkeypatch, sealed, open_).partitions(offset(e1=40), offset(e1=100, e2=30))
    slices = [(piece.extent.extent_id, piece.start, piece.end) for each in found for piece in each.value.slices]
    assert slices == [(1, 40, 100), (2, 0, 30)]


@pytest.mark.parametrize("now", [(), (ScanExtent(1, 4, 50, True, b""),)])
def test_what_has_left_the_stream_before_it_was_read_is_an_error(
    monkeypatch: pytest.MonkeyPatch, now: tuple[ScanExtent, ...]
) -> None:
    with pytest.raises(NotFound, match="left the stream"):
        reader(monkeypatch, *now).partitions(offset(e1=40), offset(e1=100))


@pytest.mark.parametrize("said", [{}, {"stream": "s", "replica": "each"}, {"stream": "s", "revision": "7"}])
def test_what_cannot_be_followed_is_refused(said: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        NeveStreamReader(options.parse(said, {}), METADATA_COLUMNS)
