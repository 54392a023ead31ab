"""Spark on a cluster that speaks TLS everywhere, on an etcd with TLS and passwords."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.local_cluster import STREAM_CLIENT
from tests.cluster.test_secured_commands import CLUSTER, PASSWORD, Secured
from tests.spark import programs
from tests.spark.driver import FunctionFailed, SparkDriver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def secured(module_tmp_path: Path) -> Iterator[Secured]:
    with ExitStack() as stack:
        yield Secured(module_tmp_path, stack)


def _options(words: tuple[str, ...]) -> dict[str, str]:
    """`--etcd-ca FILE` as `etcdCa`: FILE."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return {name[2:].replace("-c", "C").replace("-k", "K").replace("-u", "U"): value for name, value in pairs}


def test_a_secured_cluster_is_scanned_with_its_files_and_its_password(spark: SparkDriver, secured: Secured) -> None:
    both = (*secured.wire(), *secured.etcd())
    secured.run(STREAM_CLIENT, "create", "events", "--replicas", "1", *both)
    secured.run(STREAM_CLIENT, "append", "events", *both, stdin="one\ntwo\n")
    options = {"managers": secured.manager, "cluster": CLUSTER, "stream": "events", "columns": "payload"}
    wire, etcd = _options(secured.wire()), {**_options(secured.etcd()), "etcdPassword": PASSWORD}
    found = spark.call(programs.rows, options={**options, **wire, **etcd}, columns=["payload"], order="offset")
    assert found == [["one"], ["two"]]

    for given, word in (({**wire}, "etcdCa"), ({**wire, **etcd, "etcdPassword": "wrong"}, "etcd|password")):
        with pytest.raises(FunctionFailed, match=word) as refused:
            spark.call(programs.rows, options={**options, **given}, columns=["payload"])
        assert PASSWORD not in str(refused.value)

    words = ["--managers", secured.manager, "--cluster", CLUSTER, *both, "--json"]
    nameless = spark.call(programs.run_main, module="usage", arguments=words)
    assert (nameless["code"], nameless["out"]) == (2, "")
    assert "NEVE_ETCD_PASSWORD" in nameless["err"]
    done = spark.call(programs.run_with_password, module="usage", arguments=words, password=PASSWORD)
    assert done["code"] == 0, done
