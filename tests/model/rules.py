"""Every rule that can be switched off: what is different then, which configuration shows it, or why the rule stands.

A switch's name begins with its rule's number. `found` is the guarantee that breaks first without it. Where nothing
breaks, `why` says what the rule is for all the same: mostly it is a second line behind another rule, and then a switch
that takes both away shows that they are not needless together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    name: str
    off: str  # what happens without it
    where: str  # the configuration
    found: str = ""  # the guarantee that is broken; "" if none is
    why: str = ""

    @property
    def rule(self) -> int:
        return int(self.name.partition("-")[0])


SWITCHES: tuple[Switch, ...] = (
    Switch(
        name="1-new-token", off="a process that opens again keeps its token", where="reopening", found="one sequence"
    ),
    Switch(
        name="1-adopt", off="a writer adopts another writer's lock", where="page cache, owners", found="one sequence"
    ),
    Switch(name="2-deadline", off="a writer acknowledges after its lease has ended", where="reopening", found="G5"),
    Switch(
        name="3-every-answer",
        off="a repeated answer with a sealed length is given to any caller",
        where="takeovers",
        found="G5",
    ),
    Switch(name="4-fenced", off="fenced and sealed replicas take appends", where="reopening", found="G3"),
    Switch(name="4-token", off="old tokens are accepted", where="reopening", found="one sequence"),
    Switch(name="4-gap", off="an append is taken at any offset", where="lost disk, two blocks", found="one sequence"),
    Switch(name="4-truncate", off="a late repetition cuts what follows it", where="lost disk, two blocks", found="G1"),
    Switch(
        name="4-doubtful",
        off="a doubtful replica takes appends",
        where="page cache",
        why="What it lost makes it answer Gap. The rule ends the extent at once, instead of adding blocks to a replica"
        " that no seal will count.",
    ),
    Switch(name="5-all", off="two answers of three acknowledge", where="reopening", found="G1"),
    Switch(name="5-durable", off="with sync, answers come from the page cache", where="reopening", found="G1"),
    Switch(name="5-retry", off="a repeated append is answered without a sync", where="power", found="G1"),
    Switch(
        name="6-cancel",
        off="a cancelled block's place is given to another block",
        where="lost disk, two blocks",
        found="one sequence",
    ),
    Switch(name="8-prepared", off="a prepared extent is written before it is linked", where="page cache", found="G2"),
    Switch(name="9-committed", off="readers get all that a replica has", where="readers", found="G4"),
    Switch(name="10-mark", off="`unsynced` is not marked", where="node", found="G8"),
    Switch(name="10-journal", off="a journal entry stands above unsynced bytes", where="node", found="G1"),
    Switch(
        name="11-gap",
        off="a replay writes beyond a gap",
        where="node",
        why="No gap can arise while rule 10 holds. If it did, rule 13 would find the hole; without the rule a valid"
        " block would then stand behind it.",
    ),
    Switch(name="11-seal", off="a replay writes past a seal", where="node", found="G3"),
    Switch(
        name="11-incarnation",
        off="a replay writes into another incarnation",
        where="node, incarnations",
        found="G2",
    ),
    Switch(name="12-doubt", off="no replica becomes doubtful", where="page cache", found="G1"),
    Switch(name="12-order", off="the boot id is stored before the doubt", where="node", found="G8"),
    Switch(name="12-remount", off="a remount does not count as a boot", where="node, remount", found="G8"),
    Switch(name="13-damage", off="any bad block at the end is cut silently", where="node, damage", found="G8"),
    Switch(
        name="13-journal", off="a missing journal is taken for an empty one", where="node, lost journal", found="G1"
    ),
    Switch(name="14-page-cache", off="lengths are answered from the page cache", where="page cache", found="G1"),
    Switch(name="14-attributes", off="token and fence are not durable", where="page cache", found="G8"),
    Switch(
        name="14-fence-token",
        off="an old owner's Fence is obeyed",
        where="takeovers",
        why="Rule 19's transaction compares the lock. The fence's refusal keeps a deposed owner from ending its"
        " successor's extent.",
    ),
    Switch(name="15-all", off="two answers of three let a new owner go on", where="reopening", found="one sequence"),
    Switch(name="15-equal", off="a new owner goes on at the shortest length", where="reopening", found="one sequence"),
    Switch(
        name="15-fenced",
        off="a new owner goes on with a fenced tail",
        where="owners",
        why="No writer acknowledges on a fenced replica: the first append is refused and the tail sealed. It costs a"
        " round trip, never data.",
    ),
    Switch(
        name="15-doubtful",
        off="a new owner goes on with a doubtful replica",
        where="doubts",
        why="A replica that lost bytes is shorter than the others, and unequal lengths are sealed. Equal lengths and"
        " doubt mean that all may have lost the same bytes; then a seal must choose, and say so.",
    ),
    Switch(
        name="15-proof",
        off="a new owner goes on without the transaction",
        where="owners",
        why="The manager that sealed the old tail has fenced at least one of its replicas, and an acknowledgement needs"
        " all. The transaction keeps a new owner from taking an old tail for the end of the stream, as a partition"
        " server that replays the stream would.",
    ),
    Switch(
        name="16-silent",
        off="the writer goes on acknowledging while its request is under way",
        where="page cache",
        found="G8",
    ),
    Switch(name="16-settle", off="(E, L] is acknowledged at once", where="page cache", found="G1"),
    Switch(name="16-resend", off="all beyond E is sent again", where="page cache", found="G6"),
    Switch(
        name="17-disk",
        off="a late Create, not bound to a disk, revives an empty replica",
        where="lost disk",
        found="G1",
    ),
    Switch(name="18-absent", off="a missing replica counts as length 0", where="lost disk, two blocks", found="G8"),
    Switch(name="18-doubtful", off="a doubtful length is trusted", where="page cache", found="G8"),
    Switch(
        name="18-short",
        off="a length below E is trusted",
        where="lost disk, two blocks",
        why="A replica that is not doubtful has all that was acknowledged, while rules 4, 5, 12, 14 and 17 hold. It is"
        " what saves E when one of them does not: a lying disk, an empty replica.",
    ),
    Switch(
        name="18-committed",
        off="a length below a reported `committed` is trusted",
        where="readers",
        why="As 18-short, where no E is known.",
    ),
    Switch(
        name="18-end",
        off="E is no help when a replica is missing",
        where="lost disk, two blocks",
        why="For availability: with E one replica is enough, without it two are needed.",
    ),
    Switch(
        name="18-two",
        off="one answer is enough, whichever replicas are missing",
        where="lost disk, readers",
        found="G2",
    ),
    Switch(name="18-longest", off="of doubtful replicas the shortest decides", where="doubts", found="G8"),
    Switch(
        name="19-leader",
        off="a deposed manager's transaction is accepted",
        where="managers",
        why="The extent's version alone decides a seal once. The leader's key keeps the leader's memory true (G7), for"
        " all that it decides from memory.",
    ),
    Switch(
        name="19-extent",
        off="the extent is not compared",
        where="managers",
        why="A leader knows what it has sealed. The next switches show what happens when it does not.",
    ),
    Switch(
        name="19-leader-and-extent",
        off="neither leader nor extent is compared",
        where="managers",
        found="G3",
    ),
    Switch(
        name="19-again",
        off="an unknown outcome is taken for a failure",
        where="unknown outcomes",
        why="The next attempt fails, since the extent has changed. Without the rule the writer would get no answer from"
        " this leader.",
    ),
    Switch(
        name="19-again-and-extent",
        off="... and the extent is not compared",
        where="unknown outcomes",
        found="G3",
    ),
    Switch(
        name="19-lock",
        off="a deposed owner's seal is decided",
        where="takeovers",
        why="Its Fence meets the newer token and is refused.",
    ),
    Switch(name="19-lock-and-fence", off="... and its Fence is obeyed", where="takeovers", found="G5"),
    Switch(name="19-bits", off="a replica that took part counts as confirmed", where="reopening", found="G3"),
    Switch(name="20-cut", off="a replica confirms without cutting", where="reopening", found="G3"),
    Switch(name="20-short", off="a shorter replica confirms", where="reopening", found="G3"),
    Switch(
        name="20-digest",
        off="digests are not compared",
        where="dead nodes",
        why="All replicas are prefixes of one sequence while the other rules hold; the digest is for damage,"
        " and for bugs.",
    ),
    Switch(
        name="20-source",
        off="a short replica is filled from any longer one",
        where="dead nodes",
        why="As 20-digest: what is not confirmed was not verified.",
    ),
    Switch(name="24-proof", off="a delete order without the transaction", where="collection", found="G2"),
    Switch(name="24-eversion", off="a delete order for any eversion", where="collection", found="G2"),
    Switch(name="24-grace", off="young replicas are collected", where="collection", found="G2"),
    Switch(name="24-young", off="an extent is linked however old it is", where="collection", found="G2"),
)

# Rules, or parts of them, that no switch can take away from a model of this kind.
UNMODELLED: dict[int, str] = {
    7: "A conflict cannot arise while rules 1, 4 and 6 hold; the models stop a writer that meets one, as the"
    " rule says.",
    8: "That eversion and replicas of an open extent stay as they are is part of the models' structure; the simulator's"
    " metadata store checks it at every transaction.",
    17: "That the successor is made before the tail is fenced, and that the manager does not wait for dead nodes, is"
    " for availability.",
    20: "That the reconciler repeats until all have confirmed is for redundancy: the simulator waits for it.",
}
