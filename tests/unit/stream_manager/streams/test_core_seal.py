"""Rule 18: which length an extent is sealed at. Checked case by case, exhaustively over a small world against an oracle
that is written from the rule's text alone, and by what must hold in a world where acknowledgements really happened."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import SealUnavailable
from neve.stream_manager.streams.core.open import decide_open
from neve.stream_manager.streams.core.seal import Counted, SealDecision, choose_length

Kind = pb.LengthAnswer.Kind
Answers = dict[int, pb.LengthAnswer | None]


def length(n: int, *, committed: int = 0, **fields: object) -> pb.LengthAnswer:
    return pb.LengthAnswer(kind=Kind.LENGTH, length=n, committed=committed, fenced=True, **fields)  # type: ignore[arg-type]


def doubtful(valid: int, committed: int = 0) -> pb.LengthAnswer:
    return pb.LengthAnswer(kind=Kind.DOUBTFUL, valid_length=valid, committed=committed, fenced=True)


def damaged(valid: int, committed: int = 0) -> pb.LengthAnswer:
    return pb.LengthAnswer(kind=Kind.DAMAGED, valid_length=valid, committed=committed, fenced=True)


def sealed(n: int) -> pb.LengthAnswer:
    return length(n, seal=common_pb2.Seal(length=n, eversion=2, digest=b"d" * 16))


NEVER = pb.LengthAnswer(kind=Kind.NEVER_EXISTED)
DELETED = pb.LengthAnswer(kind=Kind.DELETED)


def choose(*answers: pb.LengthAnswer | None, end: int | None = None, dead: tuple[int, ...] = ()) -> SealDecision:
    return choose_length(dict(enumerate(answers, 1)), acknowledged_end=end, dead=dead, extent_id=0xAB)


def refused(*answers: pb.LengthAnswer | None, end: int | None = None, dead: tuple[int, ...] = ()) -> str:
    with pytest.raises(SealUnavailable) as caught:
        choose(*answers, end=end, dead=dead)
    assert caught.value.extent_id == 0xAB
    return str(caught.value)


# --- the scenarios --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [NEVER, DELETED, None, damaged(0), doubtful(0)])
@pytest.mark.parametrize("end", [None, 100])
def test_t01_an_error_is_not_length_zero(absent: pb.LengthAnswer | None, end: int | None) -> None:
    decision = choose(length(100), absent, length(100), end=end)
    assert decision.length == 100
    assert not decision.all_took_part


def test_t04_one_reachable_replica_is_not_enough_while_others_may_return() -> None:
    assert "node 2 does not answer and is not declared dead" in refused(length(90), None, None, dead=(3,))
    assert choose(length(90), None, None, dead=(2, 3)).length == 90
    assert "node 1 is doubtful" in refused(doubtful(90), None, None, dead=(2, 3))
    assert choose(doubtful(90), None, None, dead=(2, 3), end=80).length == 80
    assert "no replica holds the 95 bytes" in refused(doubtful(90), None, None, dead=(2, 3), end=95)


def test_t05_a_replica_shorter_than_the_writers_end_counts_as_absent() -> None:
    decision = choose(length(100), length(90), length(120), end=100)
    assert decision.length == 100
    assert not decision.all_took_part
    assert decision.by_node == {1: Counted.TRUSTWORTHY, 2: Counted.SHORT, 3: Counted.TRUSTWORTHY}


def test_t06_an_extent_without_a_block_is_sealed_at_zero() -> None:
    assert choose(length(0), length(0), length(0)) == SealDecision(
        0, True, {1: Counted.TRUSTWORTHY, 2: Counted.TRUSTWORTHY, 3: Counted.TRUSTWORTHY}
    )
    assert choose(length(0), None, NEVER, end=0).length == 0
    assert "no replica holds" in refused(NEVER, NEVER, None, end=0)


# --- the rule's lines -----------------------------------------------------------------------------------------


def test_all_trustworthy_gives_the_minimum_and_all_took_part() -> None:
    for end in (None, 0, 9):
        decision = choose(length(10), length(9), length(12), end=end)
        assert (decision.length, decision.all_took_part) == (9, True)


def test_a_replica_shorter_than_what_any_was_told_is_committed_counts_as_absent() -> None:
    decision = choose(length(10, committed=10), length(9), length(12))
    assert (decision.length, decision.all_took_part) == (10, False)
    assert decision.by_node[2] is Counted.SHORT
    # The one that was told may itself be doubtful or damaged: what it was told is true all the same.
    assert choose(doubtful(10, committed=10), length(9), length(12), length(11)).length == 11
    refused(length(10, committed=10), length(9), None, dead=(3,))


def test_committed_above_the_writers_end_is_not_cut() -> None:
    assert choose(length(10, committed=10), NEVER, length(12), end=7).length == 10


def test_two_trustworthy_answers_suffice_without_a_writer() -> None:
    assert choose(length(10), None, length(12)).length == 10
    assert choose(length(10), doubtful(3), length(12)).length == 10


def test_one_trustworthy_answer_suffices_only_if_all_others_are_silent_and_dead() -> None:
    assert choose(length(10), None, dead=(2,)).length == 10
    assert "node 2 is doubtful" in refused(length(10), doubtful(10), dead=(2,))  # it answered: it counts by that
    assert "missing" in refused(length(10), NEVER, None, dead=(2, 3))
    refused(length(10), None, None, dead=(1, 2))


def test_a_dead_node_that_answers_counts_by_its_answer() -> None:
    decision = choose(length(10), length(8), None, dead=(1, 2, 3))
    assert decision.length == 8
    assert decision.by_node == {1: Counted.TRUSTWORTHY, 2: Counted.TRUSTWORTHY, 3: Counted.DEAD}


def test_all_doubtful_gives_the_longest_valid_prefix_unless_that_is_below_what_is_known() -> None:
    assert choose(doubtful(5), doubtful(9), doubtful(7)).length == 9
    assert choose(doubtful(5), doubtful(9), doubtful(7), end=8).length == 8
    assert "12 bytes" in refused(doubtful(5, committed=12), doubtful(9), doubtful(7))
    refused(doubtful(5), doubtful(9), None)
    refused(doubtful(5), doubtful(9), damaged(9))


def test_when_all_answers_are_trustworthy_the_shortest_counts_and_all_took_part() -> None:
    decided = 0
    for lengths, committed, end in itertools.product(
        itertools.product((0, 5, 9), repeat=3), (0, 5, 9), (None, 0, 1, 5, 9)
    ):
        answers: dict[int, pb.LengthAnswer | None] = {
            node_id: length(replica_bytes, committed=min(committed, replica_bytes))
            for node_id, replica_bytes in enumerate(lengths, start=1)
        }
        acknowledged = max(end or 0, min(committed, max(lengths)))
        if min(lengths) >= acknowledged:
            decided += 1
            decision = choose_length(answers, acknowledged_end=end)
            assert (decision.length, decision.all_took_part) == (min(lengths), True)
            assert not decision.sealed_before
        elif end is not None and max(lengths) >= acknowledged:
            decision = choose_length(answers, acknowledged_end=end)
            assert (decision.length, decision.all_took_part) == (acknowledged, False)
    assert decided > 100


@pytest.mark.parametrize("odd", [None, doubtful(9), damaged(9), length(8)])
def test_with_one_odd_answer_not_all_took_part(odd: pb.LengthAnswer | None) -> None:
    assert choose(length(9), length(9), length(9), end=9).all_took_part
    for answers in ([odd, length(9), length(9)], [length(9), length(9), odd]):
        decision = choose(*answers, end=9)
        assert (decision.length, decision.all_took_part) == (9, False)


def test_an_extent_of_one_replica() -> None:
    assert choose(length(5)).all_took_part
    assert choose(doubtful(5)).length == 5
    assert "bring back node 1" in refused(None)


def test_no_replicas_at_all_decide_nothing() -> None:
    for end in (None, 0):
        refused(end=end)


def test_an_answer_of_a_kind_from_the_future_counts_as_silence() -> None:
    odd = pb.LengthAnswer(length=3)
    assert choose(length(10), odd, length(12)).by_node[2] is Counted.SILENT
    refused(length(10), odd)


def test_an_earlier_seal_at_exactly_what_is_acknowledged_stands() -> None:
    assert choose(sealed(100), length(200), length(200), end=100).length == 100
    assert choose(sealed(100), length(200, committed=100), length(200)).length == 100


def test_a_replica_that_is_sealed_already_has_the_last_word() -> None:
    decision = choose(length(5), sealed(9), length(12))
    assert (decision.length, decision.sealed_before, decision.all_took_part) == (9, (2,), False)
    assert decision.by_node[1] is Counted.SHORT
    assert choose(sealed(9), None, None).length == 9
    assert choose(sealed(9), sealed(9), length(9)).all_took_part
    assert "different lengths" in refused(sealed(9), sealed(8), None)
    assert "10 bytes are acknowledged" in refused(sealed(9), length(12), None, end=10)
    assert "10 bytes are acknowledged" in refused(sealed(9), length(12, committed=10), None)


def test_what_is_refused_names_each_replica_and_what_to_do() -> None:
    text = refused(length(10), damaged(4), None, dead=())
    assert "extent 171:" in text
    assert "node 1 is trustworthy, 10 valid bytes" in text
    assert "node 2 is damaged, 4 valid bytes" in text
    assert "bring back node 3, or let an operator accept a length by name" in text


# --- against an oracle ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """One replica as the oracle sees it: a word of the rule, how many valid bytes it has, what it was told."""

    word: str  # length, never, damaged, doubtful, nothing
    valid: int = 0
    committed: int = 0
    dead: bool = False

    def answer(self) -> pb.LengthAnswer | None:
        return {
            "length": length(self.valid, committed=self.committed),
            "doubtful": doubtful(self.valid, self.committed),
            "damaged": damaged(self.valid, self.committed),
            "never": NEVER,
        }.get(self.word)


def oracle(said: list[Said], end: int | None) -> int | None:
    """The rule, read aloud. None: Unavailable."""
    told = max(s.committed for s in said)
    limit = told if end is None else max(end, told)
    trustworthy = [s for s in said if s.word == "length" and s.valid >= limit]
    rest = [s for s in said if s not in trustworthy]
    holding = [s.valid for s in said if s.word in ("length", "doubtful", "damaged")]
    if not rest:
        return min(s.valid for s in said)
    if end is not None:
        return limit if any(valid >= limit for valid in holding) else None
    enough = len(trustworthy) >= 2 or (bool(trustworthy) and all(s.word == "nothing" and s.dead for s in rest))
    if enough:
        return min(s.valid for s in trustworthy)
    if {s.word for s in said} == {"doubtful"} and max(holding) >= limit:
        return max(holding)
    return None


def check_against_oracle(said: list[Said], end: int | None) -> None:
    answers = {number: s.answer() for number, s in enumerate(said)}
    dead = {number for number, s in enumerate(said) if s.dead}
    expected = oracle(said, end)
    if expected is None:
        with pytest.raises(SealUnavailable):
            choose_length(answers, acknowledged_end=end, dead=dead)
        return
    decision = choose_length(answers, acknowledged_end=end, dead=dead)
    assert decision.length == expected, (said, end)
    assert decision.all_took_part == all(s.word == "length" and s.valid >= expected for s in said), (said, end)


def test_every_small_case_is_decided_as_the_rule_says() -> None:
    lengths = [Said("length", n, c) for n in range(3) for c in range(n + 1)]
    others = [Said(word, n, c) for word in ("doubtful", "damaged") for n in range(3) for c in {0, n}]
    options = [*lengths, *others, Said("never"), Said("nothing"), Said("nothing", dead=True)]
    for said in itertools.combinations_with_replacement(options, 3):  # the order of replicas means nothing
        for end in (None, 0, 1, 2, 3):
            check_against_oracle(list(said), end)


SAID = st.builds(
    lambda word, valid, told, dead: Said(word, valid, min(told, valid) if word != "nothing" else 0, dead),
    st.sampled_from(["length", "length", "doubtful", "damaged", "nothing"]),
    st.integers(0, 6),
    st.integers(0, 6),
    st.booleans(),
) | st.builds(Said, st.just("never"), dead=st.booleans())


@given(st.lists(SAID, min_size=1, max_size=5), st.none() | st.integers(0, 7))
def test_any_number_of_replicas_is_decided_as_the_rule_says(said: list[Said], end: int | None) -> None:
    check_against_oracle(said, end)


@given(st.data())
def test_in_a_world_with_real_acknowledgements_nothing_acknowledged_is_cut(data: st.DataObject) -> None:
    """`acked` bytes are on every replica. Then each one may be lost, wiped, damaged, made doubtful or merely silent.
    Whatever is decided keeps them, except when all are doubtful at once and no writer is there to tell (G4)."""
    acked = data.draw(st.integers(0, 8))
    end = data.draw(st.none() | st.just(acked))
    answers: Answers = {}
    dead: set[int] = set()
    for node_id in range(data.draw(st.integers(1, 4))):
        fate = data.draw(st.sampled_from(["well", "well", "wiped", "power cut", "bad sector", "away", "dead"]))
        extra = data.draw(st.integers(0, 4))
        if fate == "well":
            answers[node_id] = length(acked + extra, committed=data.draw(st.integers(0, acked)))
        elif fate == "power cut":
            answers[node_id] = doubtful(data.draw(st.integers(0, acked + extra)))
        elif fate == "bad sector":
            answers[node_id] = damaged(data.draw(st.integers(0, acked + extra)))
        else:
            answers[node_id] = NEVER if fate == "wiped" else None
        if fate == "dead" or data.draw(st.booleans()):
            dead.add(node_id)
    try:
        decision = choose_length(answers, acknowledged_end=end, dead=dead)
    except SealUnavailable:
        return
    if end is None and all(answer is not None and answer.kind == Kind.DOUBTFUL for answer in answers.values()):
        return
    assert decision.length >= acked
    if decision.all_took_part:
        assert all(answer is not None and answer.length >= decision.length for answer in answers.values())


# --- rule 15 --------------------------------------------------------------------------------------------------


def raised(n: int, **fields: object) -> pb.LengthAnswer:
    return pb.LengthAnswer(kind=Kind.LENGTH, length=n, token=7, **fields)  # type: ignore[arg-type]


def test_a_new_owner_goes_on_only_when_all_replicas_agree() -> None:
    assert decide_open({1: raised(10), 2: raised(10), 3: raised(10)}, [1, 2, 3], token=7) == 10
    assert decide_open({1: raised(0)}, [1]) == 0
    assert decide_open({}, []) is None


@pytest.mark.parametrize(
    "other",
    [
        None,
        raised(9),
        raised(11),
        raised(10, fenced=True),
        raised(10, seal=common_pb2.Seal(length=10, eversion=2)),
        doubtful(10),
        damaged(10),
        NEVER,
        DELETED,
        pb.LengthAnswer(kind=Kind.LENGTH, length=10, token=6),
        pb.LengthAnswer(length=10, token=7),
    ],
)
def test_one_replica_that_differs_in_anything_makes_the_tail_be_sealed(other: pb.LengthAnswer | None) -> None:
    for place in (1, 2, 3):
        answers: Answers = {1: raised(10), 2: raised(10), 3: raised(10)}
        answers[place] = other
        assert decide_open(answers, [1, 2, 3], token=7) is None


def test_a_replica_that_was_not_asked_makes_the_tail_be_sealed() -> None:
    assert decide_open({1: raised(10), 2: raised(10)}, [1, 2, 3]) is None
