"""The picture of a usage report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from neve.client.command.failures import CommandFailed
from neve.pipeline import picture

REPORT: dict[str, Any] = {
    "revision": 7,
    "streams": [{"name": "events", "bytes": 3 << 30, "live_bytes": 1 << 30, "live_ratio": 1 / 3}],
    "nodes": [{"node_id": 1, "rack": "r1", "bytes": 1 << 30, "free_bytes": 2 << 30, "capacity_bytes": 4 << 30}],
}


def test_a_report_is_drawn_as_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture.draw(REPORT, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_without_matplotlib_it_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    with pytest.raises(CommandFailed, match=r"^a picture needs matplotlib: pip install 'neve\[plot\]'$"):
        picture.draw(REPORT, tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()
