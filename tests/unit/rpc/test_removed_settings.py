"""Settings of the last release: they are ignored with a warning, and are no fields any more."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, field
from typing import Any

import pytest

from neve.proto.errors import InvalidArgument
from neve.rpc import config, removed_settings
from neve.stream_manager import config as manager_config
from tests.measure import product_modules, settings


@dataclass(frozen=True, slots=True)
class Table:
    kept: int = 1


@dataclass(frozen=True, slots=True)
class Config:
    name: str = ""
    table: Table = field(default_factory=Table)


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of these two classes."""
    package = Table.__module__.partition(".")[0]
    table = {f"{package}.Table": {"gone_max": "fixed at 7"}, f"{package}.Config": {"old": "done by itself"}}
    monkeypatch.setattr(removed_settings, "REMOVED", table)


@pytest.mark.usefixtures("removed")
def test_each_removed_setting_gets_one_warning_and_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    made = config.build(Config, {"name": "n", "old": [1], "table": {"gone_max": "nonsense", "kept": 3}})
    assert made == Config("n", Table(3))
    found = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in found] == [logging.WARNING] * 2
    assert sorted(text for _, text in found) == [
        "setting_removed key=old: it is done by itself; delete it, the next release refuses it",
        "setting_removed key=table.gone_max: it is fixed at 7; delete it, the next release refuses it",
    ]


@pytest.mark.usefixtures("removed")
def test_a_name_that_never_was_is_still_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"table\.gone_min"):
        config.build(Config, {"table": {"gone_min": 3}})


@pytest.mark.usefixtures("removed")
def test_a_keyword_that_was_removed_is_ignored_with_a_warning_at_the_callers_line() -> None:
    @removed_settings.ignores_removed
    @dataclass(frozen=True, slots=True)
    class Table:
        kept: int = 1

    table: Any = Table
    with pytest.warns(FutureWarning, match=r"Table\.gone_max is fixed at 7") as caught:
        assert table(kept=2, gone_max=5).kept == 2
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert table(kept=3).kept == 3
    with pytest.raises(TypeError, match="gone_min"):
        table(gone_min=5)


def test_a_server_starts_with_a_configuration_of_the_last_release(caplog: pytest.LogCaptureFixture) -> None:
    etcd = ['etcd.endpoints=["a:3"]', "etcd.message_bytes_max=1000"]
    given = ["cluster=c", "limits.labels_max=5", "limits.requests_in_flight_max=9", *etcd]
    made = manager_config.load(None, given)
    assert made.limits.requests_in_flight_max == 9
    keys = [record.getMessage().split(":")[0] for record in caplog.records]
    assert sorted(keys) == ["setting_removed key=etcd.message_bytes_max", "setting_removed key=limits.labels_max"]


def test_what_is_listed_as_removed_is_no_field_of_its_class() -> None:
    found: dict[str, set[str]] = {}
    for module, class_name, name in settings(product_modules()):
        found.setdefault(f"{module.split('.')[1]}.{class_name}", set()).add(name)
    assert removed_settings.removed_from(manager_config.Limits) == removed_settings.REMOVED["stream_manager.Limits"]
    for class_name, removed in removed_settings.REMOVED.items():
        assert not removed.keys() & found[class_name], class_name
