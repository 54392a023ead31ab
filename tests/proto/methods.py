"""A `Method` for each rpc of testing.proto, made from its descriptor. methods.pyi (generated) has their types."""

from __future__ import annotations

from neve.proto.method import methods_by_constant
from tests.proto import testing_pb2

globals().update(methods_by_constant(testing_pb2.DESCRIPTOR))
