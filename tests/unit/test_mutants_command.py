"""The command of the mutants: a core that is not there, and mutants that were not come to, are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants import __main__ as mutants

CORE = "client/streams/core/batch"


def test_a_core_that_is_not_there_is_told_also_beside_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        mutants.main([CORE, "core_nosuch"])
    assert "there is no core_nosuch" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--minutes", "-1"], ["--minutes", "0"], ["--jobs", "0"]])
def test_no_time_and_no_processes_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        mutants.main(wrong)
    assert "--minutes is more than 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("codes", "result"), [({"a": 1, "b": 0, "c": 34}, 0), ({"a": 1, "b": None}, 1), ({"a": 1, "b": 2}, 1), ({}, 1)]
)
def test_mutants_that_were_not_come_to_are_no_success(
    codes: dict[str, int | None], result: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "TREE", tmp_path)
    meta = tmp_path / "mutants" / "neve" / f"{CORE}.py.meta"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"exit_code_by_key": codes}))
    assert mutants.report([CORE]) == result
