"""The wheel: built from the sources, installed into a clean environment, it is the whole of `neve`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

import neve

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, **options: object) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert result.returncode == 0, result.stdout + result.stderr
    return str(result.stdout)


def test_the_wheel_installs_in_a_clean_environment_and_imports(tmp_path: Path) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders: dict[str, str] = pyproject["tool"]["setuptools"]["package-dir"]
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for folder in sorted({Path(folder).parts[0] for folder in folders.values()}):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    wheels = tmp_path / "wheels"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(wheels), str(source))
    (wheel,) = wheels.glob("neve-*.whl")

    venv.create(tmp_path / "clean", with_pip=False)
    python = tmp_path / "clean" / "bin" / "python"
    run(*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    # Dependencies come from this environment's folder by path. An editable install works through a .pth file, which is
    # not read from there, so that the `neve` that is imported can only be the wheel's.
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"], "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONSAFEPATH", None)
    code = (
        "import importlib, sys; from pathlib import Path\n"
        "for name in sys.argv[1:]:\n"
        "    module = importlib.import_module(name)\n"
        "    print(name, module.__file__)\n"
    )
    names = [*folders, "neve.rpc.wire.server", "neve.rpc.wire.client", "neve.proto.methods", "neve.proto.errors"]
    output = run(str(python), "-c", code, *names, cwd=tmp_path, env=environment)
    imported = dict(line.split(" ", 1) for line in output.splitlines())
    assert set(imported) == set(names)
    assert all(Path(path).is_relative_to(tmp_path / "clean") for path in imported.values()), imported

    # What a program imports, and the commands that a user types.
    assert list((tmp_path / "clean").glob("lib/*/site-packages/neve/py.typed"))
    program = "import neve, neve.client; from neve import Client; print(neve.__version__, Client is neve.client.Client)"
    assert run(str(python), "-c", program, cwd=tmp_path, env=environment).split() == [neve.__version__, "True"]
    assert pyproject["project"]["dynamic"] == ["version"]
    assert wheel.name.split("-")[1] == neve.__version__
    for command in pyproject["project"]["scripts"]:
        said = run(str(tmp_path / "clean" / "bin" / command), "--version", cwd=tmp_path, env=environment)
        assert said.split() == [command, neve.__version__]


def test_a_server_does_not_load_the_client_through_the_package() -> None:
    code = (
        "import sys, neve, neve.rpc.wire.server\n"
        "print('neve.client' in sys.modules, neve.__version__)\n"
        "neve.Client\n"
        "print('neve.client' in sys.modules, 'Client' in dir(neve))\n"
    )
    said = run(sys.executable, "-c", code).split()
    assert said == ["False", neve.__version__, "True", "True"]


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Klient'"):
        neve.Klient  # noqa: B018 - the access is what is tested


def test_the_editable_install_is_this_checkout() -> None:
    import neve.rpc.wire

    assert Path(neve.rpc.wire.__file__).is_relative_to(ROOT)
