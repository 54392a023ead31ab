"""Rules 10 to 14 as a model of one replica on one node: page cache, disk, journal, attributes, boots.

protocol.py takes for granted what this model shows: an answer with sync is on stable storage; bytes that may be gone
are either there after a power cut or the replica says that it is doubtful; a fence and a length survive; a journal
adds nothing that does not belong there.

A file is a tuple of blocks, HOLE where a power cut or a flipped bit left something that is not a block. The process
starts in four steps, and may die between any two: doubt, boot id, replay, verification.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Step = tuple[str, "Node"]

HOLE = 0
NONE = -1
SERVING, TO_DOUBT, TO_STORE_BOOT, TO_REPLAY, TO_VERIFY = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBounds:
    blocks: int = 2
    cuts: int = 1  # power cuts
    remounts: int = 0  # a disk goes and comes back within the same boot
    kills: int = 0
    flips: int = 0
    journal_losses: int = 0
    incarnations: int = 1


class Node(NamedTuple):
    phase: int = SERVING
    incarnation: int = 1
    cache: tuple[int, ...] = ()  # what a reader of the file gets
    durable: int = 0  # so many of its blocks survive a power cut
    journal: tuple[tuple[int, int, int], ...] = ()  # (incarnation, offset, block), durable, sorted
    journal_gone: int = 0
    unsynced: int = 0
    doubtful: int = 0
    fenced: int = 0
    sealed: int = NONE
    boot_new: int = 0  # the machine's boot, or the disk's mounting, is not the one that is stored
    # what was answered
    promised: int = 0  # the end of what was answered as durable
    told: int = 0  # ... or from the page cache
    was_fenced: int = 0
    damaged: int = 0  # a bit was flipped or the journal lost: then doubt is all that can be asked for
    # what may still happen
    cuts: int = 0
    remounts: int = 0
    kills: int = 0
    flips: int = 0
    journal_losses: int = 0
    incarnations: int = 1


class NodeModel:
    def __init__(self, bounds: NodeBounds, *, without: str = "") -> None:
        self.bounds = bounds
        self.without = without

    def initial(self) -> Node:
        bounds = self.bounds
        return Node(
            cuts=bounds.cuts,
            remounts=bounds.remounts,
            kills=bounds.kills,
            flips=bounds.flips,
            journal_losses=bounds.journal_losses,
            incarnations=bounds.incarnations,
        )

    def canonical(self, state: Node) -> Node:
        return state

    def steps(self, node: Node) -> Iterator[Step]:
        if node.phase == SERVING:
            yield from self._serves(node)
        else:
            yield self._starts(node)
        yield from self._troubles(node)

    # --- serving ---------------------------------------------------------------------------------------------

    def _serves(self, node: Node) -> Iterator[Step]:
        length = len(node.cache)
        if node.sealed == NONE and not node.doubtful:
            if not node.fenced and length < self.bounds.blocks:
                yield from self._appends(node)
            if not node.fenced:
                durable = node.durable if self.without == "14-page-cache" else length
                fence = node._replace(fenced=1, was_fenced=1, unsynced=0, durable=durable, promised=length)
                yield f"Fence answers {length}", fence
        if node.sealed == NONE and node.fenced:
            for end in range(length + 1):  # L is the others' matter, too: it may lie below what this one has
                cut = node.cache[:end]
                sealed = node._replace(cache=cut, durable=end, sealed=end, doubtful=0, unsynced=0, promised=0, told=0)
                yield f"Seal at {end}", sealed
        if node.durable < length:
            yield "the checkpointer syncs the file", node._replace(durable=length)
        if node.journal and node.durable == length:
            yield "the journal is recycled", node._replace(journal=())
        if node.incarnations > 1:
            anew = Node(incarnation=node.incarnation + 1, journal=node.journal, boot_new=0)
            yield (
                "the replica is deleted, another one is made",
                anew._replace(
                    cuts=node.cuts,
                    remounts=node.remounts,
                    kills=node.kills,
                    flips=node.flips,
                    journal_losses=node.journal_losses,
                    incarnations=node.incarnations - 1,
                ),
            )

    def _appends(self, node: Node) -> Iterator[Step]:
        at = len(node.cache)
        block = 10 * node.incarnation + at + 1
        written = node._replace(cache=(*node.cache, block))
        yield f"{block} is in the page cache, not answered", written
        unsynced = node.unsynced if self.without == "10-mark" else 1
        yield f"{block} is answered from the page cache", written._replace(unsynced=unsynced, told=at + 1)
        yield f"{block} is answered, synced in place", written._replace(durable=at + 1, promised=at + 1)
        journaled = {offset for incarnation, offset, _ in node.journal if incarnation == node.incarnation}
        below = all(offset < node.durable or offset in journaled for offset in range(at))
        if not node.journal_gone and (below or self.without == "10-journal"):
            journal = tuple(sorted((*node.journal, (node.incarnation, at, block))))
            yield f"{block} is answered, journaled", written._replace(journal=journal, promised=at + 1)

    # --- starting --------------------------------------------------------------------------------------------

    def _starts(self, node: Node) -> Step:
        swapped = self.without == "12-order"
        if node.phase == TO_DOUBT:
            after = node._replace(phase=TO_REPLAY if swapped else TO_STORE_BOOT)
            open_and_marked = node.unsynced and node.sealed == NONE
            if open_and_marked and node.boot_new and self.without != "12-doubt":
                return "the start marks it doubtful", after._replace(doubtful=1)
            return "the start sees no reason to doubt it", after
        if node.phase == TO_STORE_BOOT:
            # In the wrong order the process that goes on remembers that the boot was another one; the next one cannot.
            stored = node._replace(boot_new=2 if swapped and node.boot_new else 0)
            return "the start stores the boot id", stored._replace(phase=TO_DOUBT if swapped else TO_REPLAY)
        if node.phase == TO_REPLAY:
            return "the start replays the journal", self._replayed(node)._replace(phase=TO_VERIFY, boot_new=0)
        return "the start verifies it", self._verified(node)._replace(phase=SERVING)

    def _replayed(self, node: Node) -> Node:
        if node.journal_gone:
            if self.without == "13-journal":
                return node
            return node._replace(doubtful=int(node.sealed == NONE))
        cache = node.cache
        for incarnation, offset, block in node.journal:
            if incarnation != node.incarnation and self.without != "11-incarnation":
                continue
            if node.sealed != NONE and offset >= node.sealed and self.without != "11-seal":
                continue
            if offset > len(cache) and self.without != "11-gap":
                continue
            cache = cache + (HOLE,) * (offset + 1 - len(cache))
            cache = (*cache[:offset], block, *cache[offset + 1 :])
        return node._replace(cache=cache)

    def _verified(self, node: Node) -> Node:
        """A block cut short by the end of the file is not in `cache` at all; whatever else is no block is damage."""
        if HOLE not in node.cache:
            return node
        if self.without == "13-damage":
            return node._replace(cache=node.cache[: node.cache.index(HOLE)])
        return node._replace(doubtful=1)

    # --- trouble ---------------------------------------------------------------------------------------------

    def _troubles(self, node: Node) -> Iterator[Step]:
        first = TO_STORE_BOOT if self.without == "12-order" else TO_DOUBT
        if node.kills:
            again = node._replace(kills=node.kills - 1, phase=first)
            if node.boot_new == 2:  # the id was stored, and whoever knew better is dead
                again = again._replace(boot_new=0)
            yield "the process is killed", again
        if node.cuts:
            for cache in self._left(node):
                dark = node._replace(cache=cache, durable=len(cache), cuts=node.cuts - 1, phase=first)
                yield f"power is lost: {cache} is left", dark._replace(boot_new=1)
        if node.remounts:
            for cache in self._left(node):
                gone = node._replace(cache=cache, durable=len(cache), phase=first)
                boot_new = node.boot_new if self.without == "12-remount" else 1
                yield (
                    f"the disk went and came back: {cache} is left",
                    gone._replace(remounts=node.remounts - 1, boot_new=boot_new),
                )
        if node.flips and node.phase == first:
            for at in range(len(node.cache)):
                flipped = (*node.cache[:at], HOLE, *node.cache[at + 1 :])
                yield f"a bit flips at {at}", node._replace(cache=flipped, flips=node.flips - 1, damaged=1)
        if node.journal_losses and node.phase == first and node.journal:
            lost = node._replace(journal=(), journal_gone=1, journal_losses=node.journal_losses - 1, damaged=1)
            yield "the journal is lost", lost

    def _left(self, node: Node) -> Iterator[tuple[int, ...]]:
        """Each page that was not synced is there or not; the file ends with the last one that is."""
        unsure = range(node.durable, len(node.cache))
        for kept in itertools.product((False, True), repeat=len(unsure)):
            there = [block if keep else HOLE for keep, block in zip(kept, node.cache[node.durable :], strict=True)]
            while there and there[-1] == HOLE:
                there.pop()
            yield (*node.cache[: node.durable], *there)

    # --- what must hold --------------------------------------------------------------------------------------

    def broken(self, node: Node) -> str:
        if node.phase != SERVING:
            return ""
        valid = node.cache.index(HOLE) if HOLE in node.cache else len(node.cache)
        for at, block in enumerate(node.cache[:valid]):
            if block != 10 * node.incarnation + at + 1:
                return f"G2: {block} stands at {at} of incarnation {node.incarnation}"
        if node.sealed != NONE:
            if len(node.cache) != node.sealed:
                return f"G3: sealed at {node.sealed}, the file is {node.cache}"
            return ""
        if valid < node.promised and not (node.damaged and node.doubtful):
            return f"G1: {node.promised} blocks were answered as durable, {valid} are left, doubtful={node.doubtful}"
        if valid < node.told and not node.doubtful:
            return f"G8: {node.told} blocks were answered, {valid} are left, and it is not doubtful"
        if node.was_fenced and not node.fenced:
            return "G5: a fence was answered, and is gone"
        return ""
