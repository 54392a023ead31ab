"""Who waits for durability is looked after, whatever happens while others are answered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from neve.extent_node.journal.commit_queue import AppendCall
from neve.extent_node.journal.group_commit import Committer
from neve.extent_node.store.config import Counters
from neve.extent_node.store.replica import Replica


class Waited:
    """What a committer looks at of a replica."""

    gone = False
    in_place_end = 0

    def __init__(self, state: object) -> None:
        self.state = state
        self.commit: object = None


async def test_an_append_that_comes_while_others_are_answered_keeps_its_queue() -> None:
    """An answer gives room on the wire: frames of other connections are carried out before it returns."""
    begun: list[object] = []
    nothing = SimpleNamespace()
    committer = Committer(
        cast(Any, SimpleNamespace(payload_bytes_max=1000, failed="")),
        cast(Any, SimpleNamespace(in_place_bytes_min=1000, journal_extents_min=2, journal_round_bytes_max=1000)),
        Counters(),
        cast(Any, nothing),
        start_sync=lambda replica, on_done: begun.append(replica),
        start_journal_sync=cast(Any, nothing),
        sync_failed=cast(Any, nothing),
        journal_failed=lambda: None,
        wake_checkpointer=lambda: None,
    )
    state = SimpleNamespace(length=10, durable_end=0, journaled_end=0, read_only=None)
    replica = cast(Replica, Waited(state))
    first, second, third = AppendCall(1), AppendCall(1), AppendCall(1)
    for call in (first, second):
        call.pending = 1
        committer.wait_durable(replica, 5, call, 0, 0, b"12345")

    def answer_first() -> None:
        second.give_up()  # its connection is gone
        committer.forget(replica, second)
        third.pending = 1
        committer.wait_durable(replica, 10, third, 0, 5, b"67890")

    first.then(answer_first)
    state.durable_end = 5
    committer.settle(replica)
    assert replica.commit is not None
    assert [call for _, call, _ in replica.commit.waits] == [third]
    for _ in range(3):
        await asyncio.sleep(0)
    assert begun == [replica]
