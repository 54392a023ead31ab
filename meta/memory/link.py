"""The simulated connection between a process and the in-memory store, with planned delays, losses and stalls.

Invariants: a request may be executed after its caller has given up, which is how an outcome becomes unknown;
            the same plan gives the same faults: the module uses neither real time nor real randomness;
            as with etcd's client, an error is `MetaUnavailable` for a write only if it was not executed.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from neve.proto.errors import MaybeApplied, MetaUnavailable, NeveError

T = TypeVar("T")

HELD_MAX = 10_000  # requests and answers that a stalled link keeps; far above the calls in flight of any caller


class Fault(enum.Enum):
    """The fault of one call."""

    UNAVAILABLE = "unavailable"  # refused before it was sent
    LOST_BEFORE_APPLY = "lost before apply"  # the request is lost: not executed, but the caller cannot know
    LOST_AFTER_APPLY = "lost after apply"  # the answer is lost: executed, but the caller cannot know


@dataclass(slots=True)
class FaultPlan:
    """The faults and delays of a link. `scripted` faults come first, one for each call."""

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    delay_s_min: float = 0.0  # one way
    delay_s_max: float = 0.0
    unavailable_share: float = 0.0
    lost_before_apply_share: float = 0.0
    lost_after_apply_share: float = 0.0
    scripted: deque[Fault] = field(default_factory=deque)
    scripted_for_writes_only: bool = True
    on_fault: Callable[[Fault, bool], None] = lambda fault, write: None  # called for each fault that is not scripted

    def draw_fault(self, *, write: bool) -> Fault | None:
        if self.scripted and (write or not self.scripted_for_writes_only):
            return self.scripted.popleft()
        shares = (self.unavailable_share, self.lost_before_apply_share, self.lost_after_apply_share)
        if not any(shares):
            return None
        at = self.rng.random()
        for fault, share in zip(Fault, shares, strict=True):
            if at < share:
                self.on_fault(fault, write)
                return fault
            at -= share
        return None

    def draw_delay_s(self) -> float:
        if self.delay_s_max <= 0:
            return 0.0
        return self.rng.uniform(self.delay_s_min, self.delay_s_max)


class _Call:
    """One request in flight."""

    def __init__(self, answer: asyncio.Future[None], *, write: bool) -> None:
        self.answer = answer
        self.write = write

    def lose(self, detail: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(MaybeApplied(detail=detail) if self.write else MetaUnavailable(detail=detail))


class Link:
    """One simulated connection. `up` is false from `disconnect` to `reconnect`."""

    def __init__(self, plan: FaultPlan, *, call_timeout_s: float) -> None:
        self.plan = plan
        self.up = True
        self.stalled = False
        self._call_timeout_s = call_timeout_s
        self._calls: dict[int, _Call] = {}
        self._calls_made = 0
        self._held: deque[Callable[[], None]] = deque()

    @property
    def passing(self) -> bool:
        return self.up and not self.stalled

    async def call(self, execute: Callable[[], T], *, write: bool, timeout_s: float | None = None) -> T:
        """Have the server run `execute`, which may raise only a `NeveError`."""
        fault = self.plan.draw_fault(write=write)
        if not self.up or fault is Fault.UNAVAILABLE:
            await asyncio.sleep(self.plan.draw_delay_s())
            raise MetaUnavailable(detail="the simulated store refuses the connection")
        loop = asyncio.get_running_loop()
        call = _Call(loop.create_future(), write=write)
        self._calls_made += 1
        number = self._calls_made
        self._calls[number] = call
        results: list[T] = []

        def arrive() -> None:
            if fault is Fault.LOST_BEFORE_APPLY:
                call.lose("the simulated connection ended on the way to the store")
                return
            try:
                results.append(execute())
            except NeveError as error:
                failed: NeveError | None = error
            else:
                failed = None
            if fault is Fault.LOST_AFTER_APPLY:
                call.lose("the simulated connection ended before the answer arrived")
                return
            self._send(lambda: answer(failed))

        def answer(failed: NeveError | None) -> None:
            if call.answer.done():
                return
            if failed is not None:
                call.answer.set_exception(failed)
            else:
                call.answer.set_result(None)

        self._send(arrive)
        try:
            async with asyncio.timeout(self._call_timeout_s if timeout_s is None else timeout_s):
                await call.answer
        except TimeoutError:
            detail = "the simulated store did not answer in time"
            raise (MaybeApplied(detail=detail) if write else MetaUnavailable(detail=detail)) from None
        finally:
            del self._calls[number]
        return results[0]

    def _send(self, deliver: Callable[[], None]) -> None:
        def on_the_other_side() -> None:
            if not self.stalled:
                deliver()
            elif len(self._held) < HELD_MAX:
                self._held.append(deliver)

        asyncio.get_running_loop().call_later(self.plan.draw_delay_s(), on_the_other_side)

    def stall(self) -> None:
        """Nothing arrives on either side until `resume`. Then everything arrives, even without a waiting caller."""
        self.stalled = True

    def resume(self) -> None:
        self.stalled = False
        loop = asyncio.get_running_loop()
        while self._held:
            loop.call_soon(self._held.popleft())

    def disconnect(self) -> None:
        """Every call in flight fails with an unknown outcome, and new calls are refused."""
        self.up = False
        self._held.clear()
        for call in self._calls.values():
            call.lose("the simulated connection was cut")

    def reconnect(self) -> None:
        self.up = True
