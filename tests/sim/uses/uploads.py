"""Uploads in parts, in a story: completed once, twice or at once twice, aborted, abandoned, over a split or a move.

Invariants: an upload is a put from the moment at which somebody asks to complete it; before, and if nobody does, what
            was uploaded is nobody's: a get that finds it has found what nobody put;
            one whose abort was acknowledged is never completed; a call that is repeated has the answer it had (T50).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from neve.client.objects.client import KeyValueClient
from neve.client.objects.core_routing import Region
from neve.client.objects.transfer import Upload
from neve.client.objects.types import ObjectInfo, condition
from neve.proto import methods
from neve.proto import partition_server_pb2 as ps
from neve.proto.common_pb2 import CallId
from neve.proto.errors import ConditionFailed, NeveError, NotFound
from tests.history.history import Kind, Operation, Outcome, Recorder

SIZES_BYTES = (40, 1200, 3000, 6500, 14_000)  # the last one mostly fills an extent of the log
PARTS = (1, 2, 2, 4)
PAUSES_S = (0.0, 0.0, 0.1, 0.6, 2.5)
ENDS = (
    *["complete"] * 4,
    "complete again",
    "complete at once twice",
    "abort",
    "abort and complete",
    "abandon",
)
UPLOADER = "kv upload"
RESHAPED = 0.15  # of pauses: the key's partition is split or moved meanwhile
GIVEN_BACK = 0.25
SENT_AGAIN = 0.2  # of parts

Wrong = Callable[[str], None]
Told = Callable[[str, BaseException], None]


class StoryUpload(Upload):
    """One step by step, some of them twice."""

    async def part_again(self, payload: bytes) -> None:
        """As if the first answer had been lost."""
        begin, crc = self._end, self._crc
        await self.part(payload)
        self._end, self._crc = begin, crc
        await self.part(payload)

    async def end(self) -> None:
        """Abort it; raises what the client would only log."""

        def request(region: Region, version: int) -> ps.AbortUploadRequest:
            return ps.AbortUploadRequest(upload_id=self._upload_id, key=self._key)

        method = methods.PARTITION_SERVER_ABORT_UPLOAD
        await self._router.call(self._key, method, request, deadline_s=self._deadline_s())


@dataclass(frozen=True, slots=True)
class Uploading:
    """How a client uploads. `reshape` has the partition of a key split or moved, `give_back` extents of its log given
    back, in which parts may be that nothing else refers to yet."""

    recorder: Recorder
    rng: random.Random
    wrong: Wrong
    told: Told
    reshape: Callable[[bytes], None]
    give_back: Callable[[bytes], None]

    async def upload(
        self, client: KeyValueClient, name: str, key: bytes, value: bytes, *, if_absent: bool, if_version: int | None
    ) -> int | None:
        """One upload, however it ends; the version if it was completed."""
        upload = StoryUpload(client._router, key, timeout_s=client.options.operation_timeout_s)
        begun_by = CallId(client_id=client._admission.client_id, call_id=self.rng.getrandbits(63) | 1)
        expected = condition(if_absent=if_absent, if_version=if_version)
        try:
            await upload.begin(begun_by, condition=expected, ttl_ms=0)
            await self._send_parts(upload, key, value)
        except NeveError as error:
            self.told(UPLOADER, error)
            if self.rng.random() < 0.5:
                await upload.abort()
            return None
        how = self.rng.choice(ENDS)
        aborted = how.startswith("abort") and await self._abort(upload)
        if how in ("abort", "abandon"):
            return None
        if aborted:
            await self._complete_in_vain(client, upload, key)
            return None
        operation = self.recorder.begin(name, Kind.PUT, key, value=value, if_absent=if_absent, if_version=if_version)
        times = 1 if how == "complete" else 2
        answers = await self._complete(client, upload, times, at_once=how == "complete at once twice")
        version = self._note(operation, answers)
        if version is None and operation.outcome is not Outcome.MAYBE and self.rng.random() < 0.5:
            await upload.abort()
        return version

    async def _send_parts(self, upload: StoryUpload, key: bytes, value: bytes) -> None:
        step = -(-len(value) // self.rng.choice(PARTS))
        for at in range(0, len(value), step):
            await self._pause(key)
            part = value[at : at + step]
            await (upload.part_again(part) if self.rng.random() < SENT_AGAIN else upload.part(part))
        await self._pause(key)

    async def _pause(self, key: bytes) -> None:
        how = self.rng.random()
        if how < RESHAPED:
            self.reshape(key)
        elif how < RESHAPED + GIVEN_BACK:
            self.give_back(key)
        await asyncio.sleep(self.rng.choice(PAUSES_S))

    async def _abort(self, upload: StoryUpload) -> bool:
        """Whether that was acknowledged."""
        try:
            await upload.end()
        except NeveError as error:
            self.told(UPLOADER, error)
            return False
        return True

    async def _complete_in_vain(self, client: KeyValueClient, upload: StoryUpload, key: bytes) -> None:
        """Not noted as a put: nobody may ever see it."""
        (answer,) = await self._complete(client, upload, 1, at_once=False)
        if isinstance(answer, ObjectInfo):
            self.wrong(f"an upload to {key!r} was aborted, and then completed as version {answer.version} (T49)")

    async def _complete(
        self, client: KeyValueClient, upload: StoryUpload, times: int, *, at_once: bool
    ) -> list[ObjectInfo | NeveError]:
        """By one and the same call."""
        admission = client._admission
        deadline_s = asyncio.get_running_loop().time() + client.options.operation_timeout_s
        ticket = await admission.enter(0, deadline_s, write=True)

        async def once() -> ObjectInfo | NeveError:
            try:
                return await upload.complete(lambda: admission.call(ticket.call_id))
            except NeveError as error:
                self.told(UPLOADER, error)
                return error

        try:
            if at_once:
                return await asyncio.gather(*(once() for _ in range(times)))
            return [await once() for _ in range(times)]
        finally:
            admission.leave(ticket)

    def _note(self, operation: Operation, answers: list[ObjectInfo | NeveError]) -> int | None:
        """What the answers of one call tell together: each of them is for good, unless its outcome is unknown."""
        versions = {each.version for each in answers if isinstance(each, ObjectInfo)}
        refusals = [each for each in answers if isinstance(each, (ConditionFailed, NotFound))]
        if len(versions) > 1 or (versions and refusals):
            told = ", ".join(map(str, answers))
            self.wrong(f"an upload to {operation.key!r} was completed by one call with several answers: {told} (T50)")
        if versions:
            self.recorder.end(operation, Outcome.DONE, seen_version=min(versions))
            return min(versions)
        for refusal in refusals:
            if isinstance(refusal, ConditionFailed):
                self.recorder.end(operation, Outcome.REFUSED, seen_version=refusal.version)
            else:
                self.recorder.end(operation, Outcome.NOTHING)
        if not refusals and not any(isinstance(each, NeveError) and each.outcome_unknown for each in answers):
            self.recorder.end(operation, Outcome.NOTHING)
        return None
