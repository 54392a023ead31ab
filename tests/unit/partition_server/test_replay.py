"""What is read for a load is not read on when the load has failed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from neve.partition_server.engine.shared import Store
from neve.partition_server.log import loader, replay
from neve.partition_server.tables import manifest
from neve.partition_server.tables.committer import Committer
from neve.proto.errors import Internal


class Reading:
    def __init__(self) -> None:
        self.ended = False

    async def __call__(self, *what: object) -> AsyncIterator[list[Any]]:
        try:
            yield [(None, b"not a record", None)]
        finally:
            self.ended = True


def fails(*what: object) -> Any:
    raise Internal(detail="a record that cannot be")


STORE = cast(
    Store, SimpleNamespace(seq=0, partition_id=1, wall_ms=lambda: 0, streams=SimpleNamespace(client=0, log=0, meta=0))
)


async def test_a_replay_that_fails_ends_its_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading()
    monkeypatch.setattr(replay, "read_to_end", reading)
    monkeypatch.setattr(replay, "_apply", fails)
    with pytest.raises(Internal):
        await replay.replay(STORE, None, fails)
    assert reading.ended


async def test_a_load_that_fails_ends_its_reading_of_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading()
    monkeypatch.setattr(loader, "read_to_end", reading)
    monkeypatch.setattr(manifest, "decode", fails)
    with pytest.raises(Internal):
        await loader._last_manifest(STORE, cast(Committer, None))
    assert reading.ended
