"""Questions to several nodes: all are sent before one is waited for, and none is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from neve.proto.coroutine_driver import CoroutineDriver
from neve.proto.errors import ConnectFailed, NeveError
from neve.stream_manager.term.fan_out import answer_of, fan_out


class Nodes:
    def __init__(self) -> None:
        self.story: list[str] = []
        self.answer = asyncio.Event()

    async def at_once(self, name: str) -> str:
        self.story.append(f"asked {name}")
        return name

    async def later(self, name: str) -> str:
        self.story.append(f"asked {name}")
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.story.append(f"cancelled {name}")
            raise
        return name

    async def refused(self, name: str, *, wait: bool = False) -> str:
        if wait:
            await self.answer.wait()
        raise ConnectFailed(address=name)

    async def bug(self) -> str:
        await self.answer.wait()
        raise ZeroDivisionError("a bug")


def told(answers: list[str | NeveError]) -> list[Any]:
    return [type(one) if isinstance(one, NeveError) else one for one in answers]


async def test_all_are_asked_before_one_is_waited_for_and_answers_are_in_order() -> None:
    nodes = Nodes()
    works = [nodes.later("a"), nodes.at_once("b"), nodes.refused("c"), nodes.refused("d", wait=True)]
    asking = asyncio.ensure_future(fan_out(works))
    await asyncio.sleep(0)
    assert nodes.story == ["asked a", "asked b"]
    assert len(asyncio.all_tasks()) == 2  # the one that asks, and this one: no question has a task
    nodes.answer.set()
    assert told(await asking) == ["a", "b", ConnectFailed, ConnectFailed]


async def test_what_is_answered_at_once_needs_no_waiting() -> None:
    nodes = Nodes()
    assert answer_of(CoroutineDriver(nodes.at_once("a"))) == "a"
    refused = CoroutineDriver(nodes.refused("b"))
    assert refused.ended
    assert isinstance(answer_of(refused), ConnectFailed)
    later = CoroutineDriver(nodes.later("c"))
    assert not later.ended
    nodes.answer.set()
    await later.when_ended()
    assert answer_of(later) == "c"


async def test_a_bug_in_one_and_the_end_of_who_asks_cancel_the_others() -> None:
    nodes, others = Nodes(), Nodes()
    asking = asyncio.ensure_future(fan_out([nodes.bug(), others.later("a")]))
    await asyncio.sleep(0)
    nodes.answer.set()
    with pytest.raises(ZeroDivisionError):
        await asking
    assert others.story == ["asked a", "cancelled a"]
    given_up = asyncio.ensure_future(fan_out([others.later("b"), others.later("c")]))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert others.story[-2:] == ["cancelled b", "cancelled c"]
