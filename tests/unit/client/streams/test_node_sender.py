"""When frames are cut: at once for one append alone, together for appends of one turn, never too many in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from neve.client.streams.core.batch import Batch, PayloadRun
from neve.client.streams.core.writer import Taken
from neve.client.streams.options import ClientOptions
from neve.client.streams.sending import append_frame as frame
from neve.client.streams.sending.append_frame import AppendFrame, Sent, SharedSegment
from neve.client.streams.sending.node_sender import NodeSender, NodeSenders, SegmentSource
from neve.client.streams.sending.segment_codec import PlaceEncoder, encode_place, join_segment
from neve.proto import extent_node_pb2 as pb
from neve.proto.coroutine_driver import OnDone
from neve.proto.errors import ConnectionLost, NeveError
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Buffer, Reply

OPTIONS = ClientOptions(frames_in_flight_max=2)


class Wire:
    """A channel that keeps what was begun until the test answers it, and its own pool."""

    address = "node:1"

    def __init__(self) -> None:
        self.begun: list[tuple[pb.AppendBlockRequest, OnDone[Reply[Any]]]] = []
        self.attachments: list[Sequence[Buffer]] = []

    def channel(self, _: str) -> Wire:
        return self

    def begin(
        self, _: object, request: bytes, on_done: OnDone[Reply[Any]], *, attachment: Sequence[Buffer], **how: object
    ) -> Wire:
        self.begun.append((pb.AppendBlockRequest.FromString(request), on_done))
        self.attachments.append(attachment)
        return self

    def answer(self, *, brief: bool = False) -> None:
        request, on_done = self.begun.pop(0)
        results = [pb.SegmentResult() for _ in request.segments if not brief]
        on_done(Reply(pb.AppendBlockReply(results=results, all_taken=brief)), None)

    def segments(self) -> list[int]:
        return [len(request.segments) for request, _ in self.begun]


class Source:
    """A lane that has so many blocks to send."""

    ready = True
    template = b""

    def __init__(self, sender: NodeSender) -> None:
        self.sender = sender
        self.blocks = 0
        self.ends: list[NeveError | None] = []
        self.failures: list[Exception] = []
        self._places = PlaceEncoder()

    @property
    def has_more(self) -> bool:
        return self.blocks > 0

    def wake(self) -> None:
        self.sender.wake(self)

    def take(self, frame: AppendFrame, bytes_max: int) -> bool | None:
        if not self.blocks:
            return None
        batch = self._batch()
        frame.add(self, 0, join_segment(b"", self._places.encode([batch], 0)), [batch])
        return False

    def take_for_all(
        self, lanes: Sequence[SegmentSource], frames: list[AppendFrame | None]
    ) -> tuple[SharedSegment, bytes] | None:
        return None

    def _batch(self) -> Batch:
        batch = PayloadRun([b"x"] * self.blocks, 9 * self.blocks, waiters=[]).encode()
        batch.offset, self.blocks = 0, 0
        return batch

    def on_taken(self, taken: Sent) -> None:
        self.ends.append(None)

    def on_taken_by_all(self, part: SharedSegment) -> None:
        self.ends.append(None)

    def split_up(self) -> None:
        """Of one lane alone there is nothing to be told before."""

    def on_result(self, taken: Sent, result: pb.SegmentResult) -> None:
        self.ends.append(None)

    def on_failed(self, taken: Sent, error: NeveError) -> None:
        self.ends.append(error)

    def on_bug(self, failure: Exception) -> None:
        self.failures.append(failure)


class Abreast(Source):
    """One that is always where the other lanes of its extent are, if there are any."""

    def take_for_all(
        self, lanes: Sequence[SegmentSource], frames: list[AppendFrame | None]
    ) -> tuple[SharedSegment, bytes] | None:
        if not self.blocks:
            return None
        batch = self._batch()
        taken = Taken(0, 0, 0, batch.size_bytes, [batch], False)
        return SharedSegment(lanes, frames, taken), encode_place(0, 0, batch.block_sizes)


@pytest.fixture(params=[Source, Abreast])
def kind(request: pytest.FixtureRequest) -> type[Source]:
    """Frames are cut alike, however lanes are asked."""
    return cast(type[Source], request.param)


def make(count: int, kind: type[Source]) -> tuple[Wire, NodeSenders, list[Source]]:
    wire = Wire()
    senders = NodeSenders(cast(ChannelPool, wire), OPTIONS)
    return wire, senders, [kind(senders.to(wire.address)) for _ in range(count)]


def append(senders: NodeSenders, source: Source, *, hurry: bool = True) -> None:
    source.blocks += 1
    senders.wake([source], hurry=hurry)


async def test_one_append_at_a_time_leaves_at_once(kind: type[Source]) -> None:
    wire, senders, (source,) = make(1, kind)
    for _ in range(3):
        append(senders, source)
        assert wire.segments() == [1]
        wire.answer()
    await asyncio.sleep(0)
    assert source.ends == [None] * 3


async def test_a_brief_answer_is_one_for_every_segment_and_only_asked_for(kind: type[Source]) -> None:
    wire, senders, sources = make(3, kind)
    for source in sources:
        append(senders, source, hurry=False)
    await asyncio.sleep(0)
    ((request, _),) = wire.begun
    assert request.brief
    wire.answer(brief=True)
    assert [source.ends for source in sources] == [[None]] * 3


async def test_an_append_that_nobody_awaits_leaves_on_the_next_turn_with_those_behind_it(kind: type[Source]) -> None:
    wire, senders, (source,) = make(1, kind)
    for _ in range(5):
        append(senders, source, hurry=False)
    assert wire.segments() == []
    await asyncio.sleep(0)
    assert [len(request.segments[0].block_sizes) for request, _ in wire.begun] == [5]


async def test_callers_that_append_in_one_turn_share_a_frame_once_they_are_known(kind: type[Source]) -> None:
    wire, senders, sources = make(3, kind)
    for source in sources:  # the first one leaves alone: nobody knew of the others
        append(senders, source)
    await asyncio.sleep(0)
    assert wire.segments() == [1, 2]
    for _ in range(3):
        while wire.begun:
            wire.answer()
        for source in sources:
            append(senders, source)
        assert wire.segments() == []
        await asyncio.sleep(0)
        assert wire.segments() == [3]


async def test_no_more_frames_are_in_flight_than_may_be(kind: type[Source]) -> None:
    wire, senders, (source,) = make(1, kind)
    for _ in range(4):
        append(senders, source)
        await asyncio.sleep(0)
    assert wire.segments() == [1, 1]
    assert source.blocks == 2
    wire.answer()
    await asyncio.sleep(0)
    assert [len(request.segments[0].block_sizes) for request, _ in wire.begun] == [1, 2]


class InParts(Source):
    """Gives one block at a time."""

    def take(self, frame: AppendFrame, bytes_max: int) -> bool | None:
        if not self.blocks:
            return None
        left, self.blocks = self.blocks - 1, 1
        super().take(frame, bytes_max)
        self.blocks = left
        return left > 0


@pytest.mark.parametrize("hurry", [True, False])
@pytest.mark.parametrize(("blocks", "frames"), [(3, [3]), (4, [4]), (5, [4, 1]), (9, [4, 4])])
async def test_an_idle_sender_cuts_the_same_frames_at_once_as_on_the_next_turn(
    blocks: int, frames: list[int], hurry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "SEGMENTS_MAX", 4)
    wire = Wire()
    senders = NodeSenders(cast(ChannelPool, wire), ClientOptions(frames_in_flight_max=2))
    source = InParts(senders.to(wire.address))
    source.blocks = blocks
    senders.wake([source], hurry=hurry)
    assert wire.segments() == (frames if hurry else [])
    await asyncio.sleep(0)
    assert wire.segments() == frames
    assert source.blocks == blocks - sum(frames)


async def test_an_idle_sender_of_a_lane_that_has_nothing_sends_nothing(kind: type[Source]) -> None:
    wire, senders, (source,) = make(1, kind)
    senders.wake([source], hurry=True)
    assert wire.segments() == []
    append(senders, source)
    assert wire.segments() == [1]


async def test_what_goes_to_all_nodes_in_step_is_joined_once_and_not_kept() -> None:
    wire = Wire()
    senders = NodeSenders(cast(ChannelPool, wire), OPTIONS)
    extents = [[Abreast(senders.to(f"node:{number}")) for number in range(3)] for _ in range(2)]
    for lanes in extents:
        lanes[0].blocks = 1
        senders.wake(lanes, hurry=False)
    await asyncio.sleep(0)
    assert wire.segments() == [2, 2, 2]
    first, second, third = wire.attachments
    assert sum(map(len, first)) == 18
    assert first is second
    assert second is third
    assert senders.attachments._batches == ()
    assert senders.attachments._attachment == ((), 0)


async def test_nodes_get_frames_in_turn(kind: type[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them begin while the rest is framed, instead of one after the other."""
    monkeypatch.setattr(frame, "SEGMENTS_MAX", 2)
    wire = Wire()
    senders = NodeSenders(cast(ChannelPool, wire), ClientOptions())
    sources = [kind(senders.to(f"node:{number % 3}")) for number in range(12)]
    for number, source in enumerate(sources):
        source.blocks = 1 + number % 3  # tells the node
        senders.wake([source], hurry=False)
    await asyncio.sleep(0)
    assert [len(request.segments[0].block_sizes) for request, _ in wire.begun] == [1, 2, 3, 1, 2, 3]


class Logged(Abreast):
    """A lane that says when its segment is made."""

    def __init__(self, sender: NodeSender, log: list[str]) -> None:
        super().__init__(sender)
        self._log = log

    @property
    def template(self) -> bytes:  # type: ignore[override]
        self._log.append("made")
        return b""


class LoggedWire(Wire):
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self._log = log

    def begin(self, *args: Any, **how: Any) -> Wire:
        self._log.append("sent")
        return super().begin(*args, **how)


@pytest.mark.parametrize(("hurry", "order"), [(True, ["made", "sent"] * 3), (False, ["made"] * 3 + ["sent"] * 3)])
async def test_one_append_is_on_its_way_to_the_first_node_before_the_others_have_their_frames(
    hurry: bool, order: list[str]
) -> None:
    log: list[str] = []
    wire = LoggedWire(log)
    senders = NodeSenders(cast(ChannelPool, wire), ClientOptions(frames_in_flight_max=3))
    lanes = [Logged(senders.to(f"node:{number}"), log) for number in range(3)]
    for _ in range(2):
        lanes[0].blocks = 1
        senders.wake(lanes, hurry=hurry)
        await asyncio.sleep(0)
        assert log == order
        assert wire.segments() == [1, 1, 1]
        assert senders.attachments._batches == ()
        for _ in lanes:
            wire.answer(brief=True)
        assert [len(lane.ends) for lane in lanes] == [1, 0, 0]  # one of them, for all
        lanes[0].ends.clear()
        log.clear()


async def test_one_append_to_replicas_at_one_address_keeps_to_the_frames_that_may_be_in_flight() -> None:
    wire, senders, _ = make(0, Abreast)
    lanes = [Abreast(senders.to(wire.address)) for _ in range(3)]  # of which two frames may be in flight
    lanes[0].blocks = 1
    senders.wake(lanes, hurry=True)
    assert wire.segments() == [3]


class Refusing(Wire):
    """One whose connection is not there: frames fail while they are being sent."""

    def begin(self, _: object, request: bytes, on_done: OnDone[Reply[Any]], **how: object) -> Wire:
        on_done(None, ConnectionLost(detail="no connection"))
        return self


class Followed(Source):
    """When it fails, another one has something to send."""

    next: Source | None = None

    def on_failed(self, taken: Sent, error: NeveError) -> None:
        super().on_failed(taken, error)
        if self.next is not None:
            self.next.blocks += 1
            self.next.wake()


async def test_whoever_is_woken_by_a_frame_that_fails_at_once_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its sender had it before, and nothing else is sent any more (found by seed 303)."""
    wires = {"up:1": Wire(), "down:1": Refusing()}

    class Pool:
        def channel(self, address: str) -> Wire:
            return wires[address]

    monkeypatch.setattr(frame, "SEGMENTS_MAX", 1)
    senders = NodeSenders(cast(ChannelPool, Pool()), ClientOptions())
    up, down = Source(senders.to("up:1")), Followed(senders.to("down:1"))
    down.next = up
    for lane in (up, down):
        append(senders, lane, hurry=False)
    await asyncio.sleep(0)
    assert wires["up:1"].segments() == [1]
    assert len(down.ends) == 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wires["up:1"].segments() == [1, 1]
    assert not senders._due


class InStepLane(Abreast):
    """One that knows what its extent has in step, as a writer's lanes do."""

    part: SharedSegment | None = None

    def take_for_all(
        self, lanes: Sequence[SegmentSource], frames: list[AppendFrame | None]
    ) -> tuple[SharedSegment, bytes] | None:
        taken = super().take_for_all(lanes, frames)
        self.part = taken[0] if taken is not None else None
        return taken

    def split_up(self) -> None:
        assert self.part is not None
        self.part.split_up()


async def test_one_append_leaves_for_all_nodes_though_the_first_one_cannot_be_reached() -> None:
    wires = {"down:1": Refusing(), "up:1": Wire(), "up:2": Wire()}

    class Pool:
        def channel(self, address: str) -> Wire:
            return wires[address]

    senders = NodeSenders(cast(ChannelPool, Pool()), ClientOptions(frames_in_flight_max=3))
    lanes = [InStepLane(senders.to(address)) for address in wires]
    lanes[0].blocks = 1
    senders.wake(lanes, hurry=True)
    assert [type(end) for end in lanes[0].ends] == [ConnectionLost]
    assert wires["up:1"].segments() == wires["up:2"].segments() == [1]
    wires["up:1"].answer(brief=True)
    wires["up:2"].answer(brief=True)
    assert [lane.ends for lane in lanes[1:]] == [[None], [None]]


async def test_a_lane_that_cannot_give_its_one_append_ends_its_writer_alone() -> None:
    wire, senders, sources = make(2, Abreast)
    sources[0].take_for_all = break_off  # type: ignore[assignment,method-assign]
    append(senders, sources[0])
    assert [*map(str, sources[0].failures)] == ["a bug"]
    append(senders, sources[1])
    assert wire.segments() == [1]


def break_off(*_: object) -> None:
    raise RuntimeError("a bug")


async def test_a_lane_that_cannot_give_what_it_has_ends_its_writer_and_holds_nobody_up(kind: type[Source]) -> None:
    wire, senders, sources = make(3, kind)
    sources[1].take = sources[1].take_for_all = break_off  # type: ignore[assignment,method-assign]
    for source in sources:
        append(senders, source, hurry=False)
    await asyncio.sleep(0)
    assert wire.segments() == [2]
    wire.answer(brief=True)
    assert [source.ends for source in sources] == [[None], [], [None]]
    assert [[*map(str, source.failures)] for source in sources] == [[], ["a bug"], []]
    append(senders, sources[0])
    await asyncio.sleep(0)
    assert wire.segments() == [1]


@pytest.mark.parametrize("answer", ["all taken", "results", "error"])
async def test_a_lane_that_fails_over_its_answer_keeps_nobody_elses_back(kind: type[Source], answer: str) -> None:
    wire, senders, sources = make(3, kind)
    for name in ("on_taken", "on_taken_by_all", "on_result", "on_failed"):
        setattr(sources[1], name, break_off)
    for source in sources:
        append(senders, source, hurry=False)
    await asyncio.sleep(0)
    if answer == "error":
        _, on_done = wire.begun.pop()
        on_done(None, ConnectionLost(address="node:1", detail="gone"))
    else:
        wire.answer(brief=answer == "all taken")
    assert [len(source.ends) for source in sources] == [1, 0, 1]
    assert [[*map(str, source.failures)] for source in sources] == [[], ["a bug"], []]
