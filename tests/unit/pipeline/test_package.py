"""Neve as an archive, and Spark's needs: what users are told when something is missing."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from neve.client.command.failures import CommandFailed
from neve.pipeline import package, session


def test_the_archive_has_every_package() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    names = {name.split(".")[1] for name in pyproject["tool"]["setuptools"]["packages"] if "." in name}
    assert set(package.PACKAGES) == names


def test_neve_can_be_imported_from_the_archive_alone(tmp_path: Path) -> None:
    archive = package.build(tmp_path / "neve.zip")
    assert package.build(tmp_path / "again.zip").read_bytes() == archive.read_bytes()
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "import neve.pipeline.source, neve.pipeline.gc, neve.pipeline.scrub, neve.pipeline.usage\n"
        "print(neve.pipeline.source.__file__)"
    )
    # -S: no site-packages, so that no installed neve is found; what it needs is put on the path by name.
    command = [sys.executable, "-S", "-c", code, str(archive), sysconfig.get_paths()["purelib"]]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(archive))


def test_without_java_the_user_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"Java 17 or newer.*apt install"):
        session.check_installed({"PATH": str(tmp_path)})
    with pytest.raises(CommandFailed, match=r"JAVA_HOME is .*no bin/java"):
        session.check_installed({"PATH": "/usr/bin", "JAVA_HOME": str(tmp_path)})
