"""The command of the simulation: what makes no sense is refused, and what was not judged is told."""

from __future__ import annotations

import pytest

from tests.sim import __main__ as sim
from tests.sim import runs


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--jobs 0", "--jobs: 0"),
        ("--jobs -1", "--jobs: -1"),
        ("--seed 1 --seeds 5", "choose"),
        ("--seeds 5 --events 1", "which --seed"),
        ("--events 1", "which --seed"),
        ("--seed -1", "--seed: -1 is below 0"),
        ("--seed 1 --events -1", "--events: -1 is below 0"),
        ("--seeds 5-1", "are no seeds"),
        ("--seeds abc", "neither how many nor first-last"),
        ("--seeds 1-", "neither how many nor first-last"),
        ("--seeds 3 --log", "which --seed"),
        ("--bugs --seed 1", "chooses its own stories"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(arguments: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sim.main(arguments.split())
    assert told in capsys.readouterr().err


def test_a_run_says_what_it_was_too_short_to_judge(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "outcomes", lambda *_, **__: iter(()))
    kinds, methods = "troubles never met: not judged", "methods never answered: not judged"
    assert runs.run_many([*range(149)], jobs=1, short=True) == 0
    told = capsys.readouterr().out
    assert kinds in told
    assert methods in told
    assert runs.run_many([*range(150)], jobs=1, short=True) == 1
    assert "not judged" not in capsys.readouterr().out
    assert runs.run_many([*range(16)], jobs=1, short=True, world="partitions") == 1
    told = capsys.readouterr().out
    assert kinds not in told
    assert methods in told
