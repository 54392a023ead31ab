"""Configuration: what is right is taken, and what is wrong is named."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from neve.proto.errors import InvalidArgument
from neve.rpc import config
from neve.rpc.front import FrontConfig


@dataclass(frozen=True, kw_only=True)
class Part:
    size_bytes: int = 10
    delay_s: float = 1.0
    on: bool = False

    def __post_init__(self) -> None:
        if self.delay_s > 60:
            raise ValueError("delay_s must not be above 60")


@dataclass(frozen=True, kw_only=True)
class Whole:
    name: str
    folders: list[Path] = field(default_factory=list)
    part: Part = Part()
    maybe: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    listen: FrontConfig = field(default_factory=FrontConfig)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "neve.toml"
    path.write_text(text)
    return path


def test_a_file_and_assignments_fill_the_dataclass(tmp_path: Path) -> None:
    text = """
        name = "n"
        folders = ["/a", "/b"]
        maybe = "x"
        [part]
        size_bytes = "64 MiB"
        delay_s = 2
        [labels]
        zone = "1"
    """
    whole = config.load(Whole, write(tmp_path, text), ["part.on=true", "listen.wire=127.0.0.1:0", "name=other"])
    assert whole == Whole(
        name="other",
        folders=[Path("/a"), Path("/b")],
        part=Part(size_bytes=64 << 20, delay_s=2.0, on=True),
        maybe="x",
        labels={"zone": "1"},
    )


def test_defaults_need_no_file() -> None:
    assert config.load(Whole, None, ["name=n"]) == Whole(name="n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "invalid config key name: is missing"),
        ("name = 1", "invalid config key name: must be text, not 1"),
        ('name = "n"\nnaem = 1', "invalid config key naem: did you mean name?"),
        ('name = "n"\n[part]\nsize_byte = 1', "invalid config key part.size_byte: did you mean part.size_bytes?"),
        ('name = "n"\n[part]\nsize_bytes = "64 MB"', "invalid config key part.size_bytes: must be a number of bytes"),
        ('name = "n"\n[part]\nsize_bytes = true', "must be a whole number, not True"),
        ('name = "n"\n[part]\nsize_bytes = 1.5', "must be a whole number, not 1.5"),
        ('name = "n"\n[part]\ndelay_s = 61', "invalid config table [part]: delay_s must not be above 60"),
        ('name = "n"\n[part]\ndelay_s = -1.0', "invalid config key part.delay_s: must be a number that is 0 or more"),
        ('name = "n"\n[part]\ndelay_s = nan', "invalid config key part.delay_s: must be a number that is 0 or more"),
        ('name = "n"\npart = 3', "invalid config key part: must be a table, not 3"),
        ('name = "n"\nfolders = "/a"', "invalid config key folders: must be a list"),
        ('name = "n"\nfolders = [1]', "invalid config key folders[0]: must be a path as text"),
        ('name = "n"\n[listen]\nwire = "nowhere"', "invalid config table [listen]: 'nowhere' is not host:port"),
        ('name = "n"\n[listen.limits]\nconnections_max = 0', "limits.connections_max must be above 0"),
        ('name = "n"\n[listen.tls]\ncert = "/c"', "cert and key go together"),
        ("name =", "neve.toml"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        config.load(Whole, write(tmp_path, text))
    assert complaint in str(refused.value)


@pytest.mark.parametrize("assignment", ["name", "=1", "a..b=1", ".a=1"])
def test_a_malformed_assignment_is_refused(assignment: str) -> None:
    with pytest.raises(InvalidArgument, match="expected key=value"):
        config.load(Whole, None, ["name=n", assignment])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"absent\.toml: No such file"):
        config.load(Whole, tmp_path / "absent.toml")
