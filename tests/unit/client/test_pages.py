"""Listings page by page: empty pages, pages that do not advance, and one revision for all of them."""

from __future__ import annotations

from typing import Any

from neve.client.pages import pages
from neve.proto import stream_manager_pb2 as sm


class Manager:
    """Answers with these pages; `asked` has a copy of each request."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.asked: list[Any] = []

    async def ask(self, request: Any) -> Any:
        copy = type(request)()
        copy.CopyFrom(request)
        self.asked.append(copy)
        return self.replies.pop(0)


def page(*stream_ids: int, more: bool = True, scanned: int = 0) -> sm.ListStreamsReply:
    streams = [sm.StreamInfo(stream_id=stream_id) for stream_id in stream_ids]
    return sm.ListStreamsReply(streams=streams, more=more, revision=7, scanned_stream_id=scanned)


async def listed(manager: Manager) -> list[int]:
    found = pages(manager.ask, sm.ListStreamsRequest(limit=2), items="streams", after="after_stream_id")
    return [info.stream_id async for info in found]


async def test_the_next_page_begins_after_the_last_item_and_has_the_same_revision() -> None:
    manager = Manager(page(3, 5), page(8, more=False))
    assert await listed(manager) == [3, 5, 8]
    assert [(each.after_stream_id, each.revision, each.limit) for each in manager.asked] == [(0, 0, 2), (5, 7, 2)]


async def test_an_empty_page_says_how_far_the_manager_has_looked() -> None:
    manager = Manager(page(scanned=40), page(41, scanned=80), page(more=False))
    assert await listed(manager) == [41]
    assert [each.after_stream_id for each in manager.asked] == [0, 40, 80]


async def test_a_page_that_does_not_advance_is_the_last() -> None:
    manager = Manager(page(3), page(3), page(4))
    assert await listed(manager) == [3, 3]
    assert await listed(Manager(page(), page(1))) == []


async def test_tasks_are_listed_by_extent_and_without_a_revision() -> None:
    replies = [
        sm.ListTasksReply(tasks=[sm.RecoveryTask(task_id=1, extent_id=9)], more=True),
        sm.ListTasksReply(tasks=[sm.RecoveryTask(task_id=2, extent_id=12)]),
    ]
    manager = Manager(*replies)
    found = pages(manager.ask, sm.ListTasksRequest(), items="tasks", after="after_extent_id")
    assert [task.task_id async for task in found] == [1, 2]
    assert [each.after_extent_id for each in manager.asked] == [0, 9]
