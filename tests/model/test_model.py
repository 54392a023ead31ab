"""The models of docs/protocol.md: nothing breaks in any configuration, and without a rule what rules.py says breaks.

Nothing of this depends on the product, so what has many states is marked `long`: `make long` runs it. The rest takes
about 20 seconds of one core.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import SealUnavailable
from neve.stream_manager.streams.core import seal as core_seal
from tests.model.__main__ import main, switch_row
from tests.model.configurations import CONFIGURATIONS
from tests.model.explore import TooManyStates, explore
from tests.model.protocol_seal import choose_length
from tests.model.protocol_state import ABSENT, DOUBTFUL, LENGTH, NONE, SEALED, Answer
from tests.model.rules import SWITCHES, UNMODELLED, Switch

LONG = {
    *("owners", "rolls", "managers", "lost disk", "dead nodes", "power, rolls"),
    *("15-fenced", "15-proof", "19-leader", "19-extent", "20-digest", "20-source"),
}

PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] if name in LONG else []


@pytest.mark.parametrize("name", [pytest.param(name, id=name, marks=_marks(name)) for name in CONFIGURATIONS])
def test_every_guarantee_holds_in_every_state(name: str) -> None:
    configuration = CONFIGURATIONS[name]
    outcome = explore(configuration.model(), witnesses=configuration.witnesses)
    assert not outcome.broken, "\n".join([*outcome.trace, outcome.broken])
    assert outcome.reached == set(configuration.witnesses), "it never comes to what it is meant to show"
    assert f"| {name} | {configuration.what} | {outcome.states:,} |" in PROTOCOL, "docs/protocol.md: run --table"


@pytest.mark.parametrize("switch", [pytest.param(each, id=each.name, marks=_marks(each.name)) for each in SWITCHES])
def test_without_a_rule_its_guarantee_breaks_or_it_is_said_why_not(switch: Switch) -> None:
    outcome = explore(CONFIGURATIONS[switch.where].model(switch.name))
    if switch.found:
        assert outcome.broken.startswith(switch.found), outcome.broken
    else:
        assert not outcome.broken, "\n".join([*outcome.trace, outcome.broken])
        assert switch.why
    assert switch_row(switch, len(outcome.trace)) in PROTOCOL, "docs/protocol.md: run --table"


def test_what_is_marked_long_exists() -> None:
    assert {*CONFIGURATIONS, *(switch.name for switch in SWITCHES)} >= LONG


def test_every_rule_up_to_20_and_24_has_a_switch_or_a_reason() -> None:
    switched = {switch.rule for switch in SWITCHES}
    assert {*range(1, 21), 24} <= switched | set(UNMODELLED)
    assert len({switch.name for switch in SWITCHES}) == len(SWITCHES)
    unwrapped = " ".join(PROTOCOL.split())
    for reason in UNMODELLED.values():
        assert reason in unwrapped


def test_a_counterexample_is_told_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--without", "9-committed"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 9
    assert "a reader reads (11,)" in "".join(told)
    assert told[-1].startswith("G4: ")


def test_a_rule_that_is_not_there_cannot_be_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--without", "nosuch"])
    assert "there is no switch 'nosuch'; there are: " in capsys.readouterr().err


def test_a_configuration_that_outgrows_its_bound_proves_nothing() -> None:
    with pytest.raises(TooManyStates):
        explore(CONFIGURATIONS["owners"].model(), states_max=100)


def _message(answer: Answer) -> pb.LengthAnswer | None:
    if not answer:
        return None
    kind, length, committed = answer
    if kind == ABSENT:
        return pb.LengthAnswer(kind=pb.LengthAnswer.NEVER_EXISTED)
    if kind == DOUBTFUL:
        return pb.LengthAnswer(kind=pb.LengthAnswer.DOUBTFUL, valid_length=length, committed=committed)
    message = pb.LengthAnswer(kind=pb.LengthAnswer.LENGTH, length=length, committed=committed)
    if kind == SEALED:
        message.seal.length = length
    return message


def test_rule_18_in_the_model_is_rule_18_in_the_manager() -> None:
    """All answers of three replicas with up to two blocks, with and without E, with any of them dead."""
    lengths = [(kind, length, 0) for kind in (LENGTH, DOUBTFUL) for length in range(3)]
    answers: list[Answer] = [(), (ABSENT, 0, 0), *lengths, (LENGTH, 2, 1), (LENGTH, 2, 2), (SEALED, 1, 0)]
    compared = 0
    for three in itertools.combinations_with_replacement(answers, 3):
        for dead in itertools.product((False, True), repeat=3):
            for end in (NONE, 0, 1, 2):
                expected = choose_length(three, dead=dead, end=end)
                try:
                    decision = core_seal.choose_length(
                        {number: _message(answer) for number, answer in enumerate(three)},
                        acknowledged_end=None if end == NONE else end,
                        dead=[number for number, is_dead in enumerate(dead) if is_dead],
                    )
                except SealUnavailable:
                    assert expected is None, (three, dead, end)
                else:
                    found = (decision.length, decision.all_took_part and not decision.sealed_before)
                    assert found == expected, (three, dead, end)
                compared += 1
    assert compared > 5000
