"""Trouble at the worst moment: it waits for a message of a certain kind, and befalls those who sent and get it.

    ambush = Ambush(cluster.wire, rng)
    moment = await ambush.wait(("Fence", "reply"))
    moment.source, moment.target                   # the message is on its way now

By chance alone trouble nearly never meets a message on its way, which takes a tenth of a millisecond: what happens
between a node's answer and its arrival, or while some replicas are fenced and others are not, would not be tested.

Invariants: waiting changes nothing; when `wait` returns, the message is sent and has not arrived, unless some more time
            was drawn: then it may be anywhere in what it causes.
            messages that are hit belong to nobody: a stopped process does not stop what happens to them.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.sim.checks.wire_watch import WireWatch
from tests.sim.troubles.troubles import Kind, Scene

NOBODY = contextvars.Context()  # of no process: what is done in it goes on when all of them are stopped
HELD_S = (0.001, 0.02, 0.3, 0.8)

# What opens, appends, seals, repairs and deletes; some of them more often, since more depends on them.
MOMENTS = (
    ("AppendBlock", "request"),
    ("AppendBlock", "request"),
    ("AppendBlock", "reply"),
    ("CheckCommitLength", "request"),
    ("CheckCommitLength", "reply"),
    ("CreateExtent", "request"),
    ("CreateExtent", "reply"),
    ("DeleteExtent", "request"),
    ("Fence", "request"),
    ("Fence", "reply"),
    ("PrepareExtent", "reply"),
    ("RaiseToken", "request"),
    ("RaiseToken", "reply"),
    ("RaiseToken", "reply"),
    ("ReportReplicas", "request"),
    ("SealExtent", "request"),
    ("SealExtent", "reply"),
    ("StartCopy", "request"),
    ("StreamAllocExtent", "request"),
    ("StreamAllocExtent", "request"),
    ("StreamAllocExtent", "reply"),
    ("StreamAllocExtent", "reply"),
    ("StreamAllocExtent", "reply"),
    ("WaitConfirmed", "request"),
)
# What writers repeat when they do not hear: the appends, and the request that seals (rules 4, 5 and 16).
OFTEN_HIT = (("AppendBlock", "request"), ("StreamAllocExtent", "request"))
OPENING = frozenset({"CheckCommitLength", "RaiseToken", "Fence"})
CUT_OFF, HELD_UP, NOT_ANSWERED = "messages cut off", "messages held up", "answers lost"
DELAYS_S = (0.0, 0.0, 0.0, 0.0005, 0.005)


@dataclass(frozen=True, slots=True)
class Moment:
    method: str
    kind: str
    source: str
    target: str


class MessageTroubles:
    """For a while, some of the messages of one kind are hit, wherever they go."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._network = scene.cluster.network

    def kinds(self) -> Sequence[Kind]:
        return (
            Kind(CUT_OFF, self._cut, sharp=True, armed=True),
            Kind(HELD_UP, self._hold, sharp=True, armed=True),
            Kind(NOT_ANSWERED, self._lose, sharp=True, armed=True),
        )

    def _cut(self) -> bool:
        def cut(source: str, target: str) -> None:
            if self._network.cut(source, target):
                self._scene.hit(CUT_OFF)

        return self._hit("cut off", cut)

    def _hold(self) -> bool:
        loop = asyncio.get_running_loop()

        def hold(source: str, target: str) -> None:
            self._network.partition_one_way(source, target)
            self._scene.hit(HELD_UP)
            loop.call_later(self._scene.rng.choice(HELD_S), self._network.heal, source, target, context=NOBODY)

        return self._hit("held up", hold)

    def _lose(self) -> bool:
        def lose(source: str, target: str) -> None:
            self._network.drop_next(target, source, on_lost=lambda: self._scene.hit(NOT_ANSWERED))

        return self._hit("not answered", lose)

    def _hit(self, how: str, hit: Callable[[str, str], None]) -> bool:
        scene = self._scene
        wanted = scene.rng.choice((*OFTEN_HIT, scene.rng.choice(scene.moments)))
        share = scene.rng.choice((0.1, 0.5, 1.0))
        listeners = scene.cluster.wire.listeners
        loop = asyncio.get_running_loop()

        def look(method: str, kind: str, source: str, target: str) -> None:
            if (method, kind) == wanted and scene.rng.random() < share:
                loop.call_soon(hit, source, target, context=NOBODY)  # it must be on its way

        listeners[look] = None

        def end() -> None:
            listeners.pop(look, None)

        length_s = scene.for_a_while(end)
        scene.say(f"{share:.0%} of {wanted[0]}, {wanted[1]}, {how} for {length_s:.2f} s")
        return True


class Ambush:
    """Waits for one of the story's moments at a time."""

    def __init__(self, wire: WireWatch, rng: random.Random, moments: Sequence[tuple[str, str]] = MOMENTS) -> None:
        self._wire = wire
        self._rng = rng
        self._moments = moments

    def choose(self) -> tuple[str, str]:
        return self._rng.choice(self._moments)

    async def wait(self, wanted: tuple[str, str]) -> Moment:
        seen: asyncio.Future[Moment] = asyncio.get_running_loop().create_future()
        left = self._rng.choice((1, 1, 2, 3))

        def look(method: str, kind: str, source: str, target: str) -> None:
            nonlocal left
            if (method, kind) == wanted:
                left -= 1
                if left == 0 and not seen.done():
                    seen.set_result(Moment(method, kind, source, target))

        self._wire.listeners[look] = None
        try:
            moment = await seen
        finally:
            self._wire.listeners.pop(look, None)
        delay_s = self._rng.choice(DELAYS_S)
        if delay_s:
            await asyncio.sleep(self._rng.uniform(0.0, delay_s))
        return moment
