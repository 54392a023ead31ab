"""The example that shows both transports runs and agrees with itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_example_of_the_transports_agrees_on_both() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "transports.py"], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("raised NotFound: no such echo: nobody") == 2
    assert run.stderr == ""
