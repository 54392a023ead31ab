"""A `Method` for each rpc of the .proto files, made from the descriptors. The generated methods.pyi has their types."""

from __future__ import annotations

from neve.proto import diagnostics_pb2, extent_node_pb2, partition_manager_pb2, partition_server_pb2, stream_manager_pb2
from neve.proto.method import methods_by_constant

globals().update(
    methods_by_constant(
        diagnostics_pb2.DESCRIPTOR,
        extent_node_pb2.DESCRIPTOR,
        partition_manager_pb2.DESCRIPTOR,
        partition_server_pb2.DESCRIPTOR,
        stream_manager_pb2.DESCRIPTOR,
    )
)
