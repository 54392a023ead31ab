"""What a scrub concludes: bad is what is proved to be, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from neve.pipeline.core import scrub as core_scrub
from neve.pipeline.core.scrub import BAD, OK, STALE, UNREAD, ReplicaVerdict, Summary


def replica(node_id: int, digest: bytes = b"a", verdict: str = OK, *, extent_id: int = 1) -> ReplicaVerdict:
    return ReplicaVerdict(extent_id, node_id, incarnation=10 + node_id, sealed=False, verdict=verdict, digest=digest)


def verdicts(judged: list[ReplicaVerdict]) -> dict[int, str]:
    return {each.node_id: each.verdict for each in judged}


def test_a_replica_that_differs_from_most_is_bad() -> None:
    judged = core_scrub.compare([replica(1), replica(2, b"b"), replica(3), replica(9, b"z", extent_id=2)])
    assert verdicts(judged) == {1: OK, 2: BAD, 3: OK, 9: OK}
    assert core_scrub.undecided(judged) == []


def test_without_a_majority_nobody_is_called_bad_and_a_person_is_asked() -> None:
    judged = core_scrub.compare([replica(1), replica(2, b"b"), replica(3, b"", UNREAD)])
    assert verdicts(judged) == {1: OK, 2: OK, 3: UNREAD}
    assert core_scrub.undecided(judged) == [1]


def test_bad_replicas_do_not_vote() -> None:
    judged = core_scrub.compare([replica(1), replica(2, b"b", BAD), replica(3, b"b", BAD)])
    assert verdicts(judged) == {1: OK, 2: BAD, 3: BAD}


def test_what_metadata_does_not_list_any_more_is_no_finding() -> None:
    bad = [replica(node_id, b"x", BAD) for node_id in (1, 2, 3)]
    listed = {1: {1: 11, 2: 99}}  # as it was; made anew; gone
    assert verdicts(core_scrub.drop_stale([*bad, replica(5)], listed)) == {1: BAD, 2: STALE, 3: STALE, 5: OK}


def test_the_summary_names_what_is_in_danger() -> None:
    summary = Summary(replicas=9)
    rows = [
        replica(1, b"", BAD),
        replica(2, b"", UNREAD),
        replica(1, b"", BAD, extent_id=2),
        replica(2, extent_id=2),
        replace(replica(3, extent_id=3), problem="its index is wrong"),
        replica(1, b"", STALE, extent_id=4),
    ]
    core_scrub.sort_out(summary, rows)
    assert [(each.extent_id, each.node_id) for each in summary.bad] == [(1, 1), (2, 1)]
    assert [(each.extent_id, each.node_id) for each in summary.unread] == [(1, 2)]
    assert [each.extent_id for each in summary.notes] == [3]
    assert [each.extent_id for each in summary.stale] == [4]
    assert summary.endangered == [1]
