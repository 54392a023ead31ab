"""What the reclaimer makes of a log that is not as it was."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from neve.client import Position
from neve.partition_server.engine.shared import Store
from neve.partition_server.log.reclaimer import Reclaimer
from neve.proto.errors import Internal, NeveError, ShuttingDown


def owns() -> None:
    """It is still ours."""


def does_not_own() -> None:
    raise ShuttingDown(detail="partition 2 ended")


@pytest.mark.parametrize(("ensure_owner", "error"), [(owns, Internal), (does_not_own, ShuttingDown)])
async def test_a_log_without_its_replay_is_a_bug_unless_the_partition_is_somebody_elses_by_now(
    ensure_owner: Callable[[], None], error: type[NeveError]
) -> None:
    """Whose server has flushed, and let go what we would replay (found by short story 12 of the larger world)."""

    async def extents(stream_id: int) -> list[int]:
        return [10026]

    reclaimer = Reclaimer.__new__(Reclaimer)
    log = SimpleNamespace(stream_id=10007)
    store = SimpleNamespace(log_replay_from=Position(10021, 8792), log=log, ensure_owner=ensure_owner)
    reclaimer._store = cast(Store, store)
    reclaimer._extents = extents  # type: ignore[method-assign]
    with pytest.raises(error):
        await reclaimer._log_before_replay()
