"""The description of an rpc (`Method`), and the conversion of service descriptors into methods."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from neve.proto import common_pb2

Req = TypeVar("Req", bound=Message)
Rep = TypeVar("Rep", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Req, Rep]):
    """One rpc: its names, its stable number and its message types. `handler` names the servicer's method."""

    service: str  # "neve.ExtentNode"
    name: str  # "AppendBlock"
    handler: str  # "append_block"
    method_id: int
    request: type[Req]
    reply: type[Rep]

    @property
    def path(self) -> str:
        """The method's name in gRPC and in messages for people."""
        return f"/{self.service}/{self.name}"


def methods_by_constant(*files: FileDescriptor) -> dict[str, Method[Any, Any] | tuple[Method[Any, Any], ...]]:
    """The contents of a `methods` module: a `Method` for each rpc of the files, and a tuple of them for each service.

    The rpc `AppendBlock` of `ExtentNode` is named EXTENT_NODE_APPEND_BLOCK, and the tuple EXTENT_NODE.
    """
    constants: dict[str, Method[Any, Any] | tuple[Method[Any, Any], ...]] = {}
    for file in files:
        for service in file.services_by_name.values():
            prefix = _snake_case(service.name).upper()
            methods: dict[str, Method[Any, Any]] = {}
            for rpc in service.methods:
                method_id: int = rpc.GetOptions().Extensions[common_pb2.method_id]  # type: ignore[index]
                if not method_id:
                    raise ValueError(f"{rpc.full_name} has no method_id")
                handler = _snake_case(rpc.name)
                request, reply = GetMessageClass(rpc.input_type), GetMessageClass(rpc.output_type)
                methods[f"{prefix}_{handler.upper()}"] = Method(
                    service.full_name, rpc.name, handler, method_id, request, reply
                )
            constants |= methods
            constants[prefix] = tuple(methods.values())
    return constants


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
