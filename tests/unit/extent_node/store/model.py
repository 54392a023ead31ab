"""What a store may forget and what it may not: a simple model of its promises, kept outside of the machine that dies.

Every request goes through the model, which notes what was sent before, and what was answered after. `check` then
compares a restarted store with that: an answered thing must be there, a sent one may be, and nothing else.

The writer of an extent has one byte sequence (rule 6): whatever is in a replica must be a prefix of it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from neve.extent_node.store.storage import Storage
from neve.proto import blocks, errors
from neve.proto import extent_node_pb2 as pb
from tests.unit.extent_node.store import rig

# How the process before this one ended, from the gentlest to the roughest.
Ending = Literal["kill", "lose_all", "random"]

Kind = pb.LengthAnswer


class Files(Protocol):
    """Where to look at files behind the store's back."""

    def content(self, path: str) -> bytes: ...


@dataclass
class ExtentModel:
    extent_id: int
    sequence: bytearray = field(default_factory=bytearray, repr=False)  # all bytes that were ever sent
    boundaries: list[int] = field(default_factory=lambda: [0])
    create_sent: bool = False
    incarnation: int = 0  # answered
    disk_uuid: str = ""
    sync_end: int = 0  # answered as durable, by an append or as a length
    any_end: int = 0  # answered, if only from the page cache
    no_sync_sent: bool = False  # since the last thing that clears `unsynced`
    sent_end: int = 0
    token_sent: int = 0
    token: int = 0  # answered
    fence_sent: bool = False
    fenced: bool = False
    seal_sent: int | None = None
    seal: tuple[int, bytes] | None = None  # answered: length, digest
    delete_sent: bool = False
    deleted: bool = False
    doubtful: bool = False  # seen; it never goes again but by a seal
    doubt_excused: bool = False  # a fault of the disk explains a doubt that the endings do not

    def forget_above(self, length: int) -> None:
        """The replica ends at `length`, and whoever sent more was not answered: the sequence goes on from here."""
        assert length in self.boundaries, (length, self)
        del self.sequence[length:]
        self.boundaries = [at for at in self.boundaries if at <= length]
        self.sent_end = min(self.sent_end, length)


class Model:
    def __init__(self) -> None:
        self.extents: dict[int, ExtentModel] = {}

    def extent(self, extent_id: int) -> ExtentModel:
        return self.extents.setdefault(extent_id, ExtentModel(extent_id))

    # --- requests, noted before and after --------------------------------------------------------------------

    async def create(self, store: Storage, extent_id: int, *, disk: int | None = None) -> None:
        extent = self.extent(extent_id)
        extent.create_sent = True
        made = await rig.create(store, extent_id, disk=disk)
        if extent.incarnation:
            assert made.incarnation == extent.incarnation
        extent.incarnation, extent.disk_uuid = made.incarnation, made.disk_uuid

    def next_segment(
        self, extent_id: int, *made: bytes, no_sync: bool = False, token: int = rig.TOKEN, committed: int = 0
    ) -> tuple[pb.Segment, bytes]:
        """New blocks at the end of the sequence; noted as sent."""
        extent = self.extent(extent_id)
        offset = len(extent.sequence)
        for block in made:
            extent.sequence += block
            extent.boundaries.append(len(extent.sequence))
        return self.segment(extent_id, offset, len(extent.sequence), no_sync=no_sync, token=token, committed=committed)

    def segment(
        self,
        extent_id: int,
        start: int,
        end: int,
        *,
        no_sync: bool = False,
        token: int = rig.TOKEN,
        committed: int = 0,
    ) -> tuple[pb.Segment, bytes]:
        """Blocks of the sequence, once more or for the first time; noted as sent."""
        extent = self.extent(extent_id)
        inner = [at for at in extent.boundaries if start <= at <= end]
        assert inner[0] == start
        assert inner[-1] == end
        cut = [bytes(extent.sequence[a:b]) for a, b in itertools.pairwise(inner)]
        extent.sent_end = max(extent.sent_end, end)
        extent.token_sent = max(extent.token_sent, token)
        extent.no_sync_sent |= no_sync
        return rig.segment(extent_id, start, cut, no_sync=no_sync, token=token, committed=committed)

    async def append(self, store: Storage, *segments: tuple[pb.Segment, bytes]) -> list[pb.SegmentResult]:
        results = await rig.append_all(store, *segments)
        for (sent, body), result in zip(segments, results, strict=True):
            if not result.HasField("error") and body:
                assert result.end == sent.offset + len(body)
                assert result.length >= result.end
                self.note_answered(sent, result.end)
        return results

    def note_answered(self, sent: pb.Segment, end: int) -> None:
        extent = self.extent(sent.extent_id)
        extent.any_end = max(extent.any_end, end)
        extent.token = max(extent.token, sent.token)
        if not sent.no_sync:
            extent.sync_end = max(extent.sync_end, end)

    async def raise_token(self, store: Storage, extent_id: int, token: int) -> pb.LengthAnswer:
        extent = self.extent(extent_id)
        extent.token_sent = max(extent.token_sent, token)
        answer = await rig.raise_token(store, extent_id, token)
        self._note_length(extent, answer)
        if answer.kind in (Kind.LENGTH, Kind.DOUBTFUL) and not answer.HasField("seal"):
            extent.token = max(extent.token, token)
        return answer

    async def fence(self, store: Storage, extent_id: int) -> pb.LengthAnswer:
        extent = self.extent(extent_id)
        extent.fence_sent = True
        answer = await rig.fence(store, extent_id)
        self._note_length(extent, answer)
        if answer.kind == Kind.LENGTH:
            extent.no_sync_sent = False
        extent.fenced |= answer.fenced
        return answer

    def _note_length(self, extent: ExtentModel, answer: pb.LengthAnswer) -> None:
        if answer.kind == Kind.LENGTH:
            assert answer.length >= extent.any_end or answer.HasField("seal")
            extent.sync_end = max(extent.sync_end, answer.length)
            extent.any_end = max(extent.any_end, answer.length)

    async def seal(self, store: Storage, extent_id: int, length: int) -> pb.SealExtentReply:
        extent = self.extent(extent_id)
        assert extent.seal_sent in (None, length), "a seal is decided once"
        extent.seal_sent = length
        extent.fence_sent = True
        reply = await rig.seal(store, extent_id, length, digest=extent.seal[1] if extent.seal else b"")
        if reply.confirmed:
            assert reply.seal.length == length
            assert extent.seal in (None, (length, reply.seal.digest))
            extent.seal = (length, reply.seal.digest)
            extent.doubtful = False
        extent.fenced = True
        return reply

    async def delete(self, store: Storage, extent_id: int) -> None:
        extent = self.extent(extent_id)
        extent.delete_sent = True
        await rig.delete(store, extent_id)
        extent.deleted = True

    # --- after a restart -------------------------------------------------------------------------------------

    async def check(self, store: Storage, files: Files, ending: Ending) -> None:
        """Everything answered is there; G1 to G3 hold."""
        await store.verified()
        for extent in self.extents.values():
            await self._check_extent(store, files, extent, ending)

    async def _check_extent(self, store: Storage, files: Files, extent: ExtentModel, ending: Ending) -> None:
        try:
            info = rig.describe(store, extent.extent_id)
        except errors.ReplicaDeleted:
            assert extent.delete_sent, extent
            return
        except errors.ReplicaMissing:
            assert not extent.incarnation, extent
            return
        assert not extent.deleted, extent
        assert extent.create_sent, extent
        if extent.incarnation:
            assert info.replica.incarnation == extent.incarnation, extent
        assert info.token in range(extent.token, extent.token_sent + 1), (info, extent)
        assert info.fenced or not extent.fenced, (info, extent)
        assert extent.fence_sent or not info.fenced, (info, extent)
        content = files.content(f"{_folder(store, info)}/{extent.extent_id & 0xFF:02x}/{extent.extent_id:016x}.ext")
        assert len(content) == info.length, (info, len(content))
        if info.HasField("seal"):
            self._check_sealed(info, extent, content)
            return
        assert extent.seal is None, (info, extent)
        self._check_open(info, extent, content, ending)

    def _check_sealed(self, info: pb.ReplicaInfo, extent: ExtentModel, content: bytes) -> None:
        assert info.seal.length == extent.seal_sent, (info, extent)
        assert info.kind == Kind.LENGTH, (info, extent)
        if extent.seal is not None:
            assert (info.seal.length, info.seal.digest) == extent.seal, (info, extent)
        assert content == extent.sequence[: info.seal.length], extent
        extent.doubtful = False

    def _check_open(self, info: pb.ReplicaInfo, extent: ExtentModel, content: bytes, ending: Ending) -> None:
        problem = blocks.verify(content)
        valid_length = len(content) if problem is None else problem.offset
        assert content[:valid_length] == extent.sequence[:valid_length], extent
        if not (extent.doubt_excused and info.kind == Kind.DOUBTFUL):
            assert valid_length >= extent.sync_end, ("acknowledged bytes are gone", valid_length, extent)
        if info.kind == Kind.DOUBTFUL:
            assert extent.doubtful or self._may_doubt(extent, ending), (info, extent)
            extent.doubtful = True
        else:
            assert info.kind == Kind.LENGTH, (info, extent)
            assert not extent.doubtful, ("a doubt was forgotten", extent)
            assert problem is None, (problem, extent)
            assert valid_length in extent.boundaries, extent
            assert valid_length >= extent.any_end, ("acknowledged bytes are gone, and no doubt", valid_length, extent)

    def _may_doubt(self, extent: ExtentModel, ending: Ending) -> bool:
        if extent.doubt_excused:
            return True
        if ending == "kill":
            return False
        # In "random", bytes that nobody was told of may have come out as anything but a cut (rule 13).
        return extent.no_sync_sent or (ending == "random" and extent.sent_end > extent.sync_end)

    async def repeat(self, store: Storage) -> None:
        """Whoever got no answer asks again, in exactly the same words; what is answered now is promised."""
        for extent in self.extents.values():
            if extent.delete_sent:
                await self.delete(store, extent.extent_id)
                continue
            if extent.create_sent and not extent.incarnation:
                await self.create_if_absent(store, extent)
            if extent.seal_sent is not None:
                await self.seal(store, extent.extent_id, extent.seal_sent)
            elif extent.fence_sent:
                await self.fence(store, extent.extent_id)
            elif extent.sent_end:
                last = extent.boundaries.index(extent.sent_end)
                start, end = extent.boundaries[last - 1], extent.sent_end
                again = self.segment(
                    extent.extent_id, start, end, no_sync=extent.no_sync_sent, token=max(1, extent.token_sent)
                )
                await self.append(store, again)

    # --- going on --------------------------------------------------------------------------------------------

    async def finish(self, store: Storage) -> None:
        """The writer sends everything again, the manager seals: nothing that was promised may stand in the way."""
        for extent in self.extents.values():
            if extent.delete_sent or not extent.create_sent:
                continue
            await self.create_if_absent(store, extent)
            info = rig.describe(store, extent.extent_id)
            if info.kind == Kind.LENGTH and not info.fenced and extent.sent_end:
                await self._resend(store, extent)
            length = extent.seal_sent
            if length is None:
                answer = await self.fence(store, extent.extent_id)
                length = answer.length if answer.kind == Kind.LENGTH else answer.valid_length
            await self._seal_and_read(store, extent, length)

    async def create_if_absent(self, store: Storage, extent: ExtentModel) -> None:
        if not extent.incarnation:
            try:
                await self.create(store, extent.extent_id)
            except errors.AlreadyExists:
                made = rig.describe(store, extent.extent_id).replica
                extent.incarnation, extent.disk_uuid = made.incarnation, made.disk_uuid

    async def _resend(self, store: Storage, extent: ExtentModel) -> None:
        token = max(extent.token_sent, 1)
        for start, end in itertools.pairwise(extent.boundaries):
            if end <= extent.sent_end:
                (result,) = await self.append(store, self.segment(extent.extent_id, start, end, token=token))
                assert not result.HasField("error"), errors.from_message(result.error)

    async def _seal_and_read(self, store: Storage, extent: ExtentModel, length: int) -> None:
        reply = await self.seal(store, extent.extent_id, length)
        if not reply.confirmed:
            assert reply.length < length, reply
            assert extent.sync_end < length, (reply, extent)
            extent.seal_sent = None  # the extent stays short; a copy would fill it
            return
        wanted: dict[str, Any] = {"max_bytes": 0}
        assert await rig.read_bytes(store, extent.extent_id, **wanted) == extent.sequence[:length]


def _folder(store: Storage, info: pb.ReplicaInfo) -> str:
    for number in range(8):
        if rig.disk_uuid(number) == info.replica.disk_uuid:
            return f"/disk{number}/extents"
    raise AssertionError(info)
