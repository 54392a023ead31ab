"""Options of a scan: what users can say, and what they are told when it cannot be."""

from __future__ import annotations

import pytest

from neve.pipeline.scan import options
from neve.pipeline.scan.columns import METADATA_COLUMNS, PAYLOAD_COLUMNS
from neve.proto.errors import InvalidArgument


def test_options_are_found_in_any_case_and_in_the_environment() -> None:
    environment = {"NEVE_MANAGERS": "a:1,b:2", "NEVE_CLUSTER": "blue", "NEVE_TOKEN": "secret", "NEVE_DISKS": "/d/*"}
    parsed = options.parse({"Stream": "events", "sliceBytes": "4MiB", "COLUMNS": "payload"}, environment)
    assert parsed.managers == ("a:1", "b:2")
    assert (parsed.cluster, parsed.token, parsed.disks) == ("blue", "secret", ("/d/*",))
    assert (parsed.stream_key, parsed.slice_bytes) == ("events", 4 << 20)
    assert parsed.columns == PAYLOAD_COLUMNS
    assert "secret" not in repr(parsed)
    assert options.parse({"stream": "12", "replica": "3"}, {}).stream_key == 12
    assert options.parse({"replica": "3"}, {}).replica_node_id == 3
    assert options.parse({"extents": "3, 4"}, {}).extents == (3, 4)


def test_files_and_the_password_reach_those_who_connect() -> None:
    files = {"NEVE_CA": "/ca.pem", "NEVE_ETCD_CA": "/etcd.pem", "NEVE_ETCD_USER": "neve", "NEVE_ETCD_PASSWORD": "pass"}
    parsed = options.parse({"stream": "events", "cert": "/c.pem", "key": "/k.pem"}, files)
    reach = parsed.connection()
    assert reach.stream == ""
    tls, etcd = reach.tls(), reach.etcd()
    assert tls is not None
    assert [str(path) for path in tls.paths()] == ["/ca.pem", "/c.pem", "/k.pem"]
    assert etcd.tls is not None
    assert (str(etcd.tls.ca_file), etcd.user, etcd.password) == ("/etcd.pem", "neve", "pass")
    assert "pass'" not in repr(parsed)
    assert options.parse({}, {}).tls() is None
    for wrong in ({"cert": "/c.pem"}, {"etcdKey": "/k.pem"}, {"etcdUser": "neve"}):
        with pytest.raises(InvalidArgument):
            options.parse(wrong, {})


def test_a_task_has_more_of_extents_where_it_reads_their_indexes_alone() -> None:
    parsed = options.parse({}, {})
    assert parsed.task_bytes(PAYLOAD_COLUMNS) == options.SLICE_BYTES
    assert parsed.task_bytes(("offset", "key")) == options.SLICE_BYTES
    assert parsed.task_bytes(METADATA_COLUMNS) == options.SLICE_BYTES_INDEX > options.SLICE_BYTES
    assert options.parse({"rows": "replicas"}, {}).task_bytes(("extent_id",)) == options.SLICE_BYTES
    assert options.parse({"sliceBytes": "1KiB"}, {}).task_bytes(METADATA_COLUMNS) == 1 << 10


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"streem": "x"}, "streem"),
        ({"managers": "nowhere"}, "managers"),
        ({"columns": "payload,nothing"}, "columns"),
        ({"columns": " "}, "columns"),
        ({"replica": "0"}, "replica"),
        ({"revision": "-1"}, "revision"),
        ({"sliceBytes": "0"}, "slicebytes"),
        ({"rows": "records"}, "rows"),
        ({"openExtents": "maybe"}, "openextents"),
        ({"stream": "a", "extents": "1"}, "extents"),
        ({"stream": " "}, "stream"),  # of a variable that was not set: it must not become everything
        ({"extents": ""}, "extents"),
        ({"extents": "1,,2"}, "extents"),
        ({"node": "0"}, "node"),
        ({"partition": "0"}, "partition"),
        ({"rows": "entries", "stream": "a"}, "stream"),  # it would be passed over
        ({"rows": "files", "extents": "1"}, "extents"),
        ({"batchBytes": "4GiB"}, "batchbytes"),  # lengths would wrap
    ],
)
def test_what_cannot_be_is_refused_by_its_name(given: dict[str, str], word: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        options.parse(given, {})
    assert raised.value.what == word
