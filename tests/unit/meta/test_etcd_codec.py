"""Our words as etcd's messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neve.meta.etcd import codec
from neve.meta.txn import Delete, Get, Operation, Put, create_revision_is, mod_revision_is
from neve.proto import etcd_pb2 as pb


@given(
    revisions=st.dictionaries(st.binary(min_size=1, max_size=40), st.integers(0, 2**63 - 1), max_size=5),
    values=st.dictionaries(st.binary(min_size=1, max_size=40), st.none() | st.binary(max_size=300), max_size=5),
    reads=st.lists(st.binary(min_size=1, max_size=200), max_size=3),
)
def test_a_write_is_encoded_as_the_transaction_that_it_is(
    revisions: dict[bytes, int], values: dict[bytes, bytes | None], reads: list[bytes]
) -> None:
    guard = [create_revision_is(b"leader", 7)]
    compares = [*guard, *(mod_revision_is(key, revision) for key, revision in revisions.items())]
    success: list[Operation] = [Delete(key) if value is None else Put(key, value) for key, value in values.items()]
    wanted = codec.txn_request(compares, success, [Get(key) for key in reads])
    assert pb.TxnRequest.FromString(codec.write_request(guard, revisions, values, reads)) == wanted


@given(keys=st.lists(st.binary(min_size=1, max_size=200), max_size=5))
def test_a_question_for_revisions_is_encoded_as_the_transaction_that_it_is(keys: list[bytes]) -> None:
    guard = [create_revision_is(b"leader", 7)]
    wanted = codec.txn_request(guard, [Get(key) for key in keys], [])
    for operation in wanted.success:
        operation.request_range.keys_only = True
    assert pb.TxnRequest.FromString(codec.revisions_request(guard, keys)) == wanted
