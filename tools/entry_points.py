"""The installed commands: pyproject.toml names these functions.

Invariants: importing this module imports nothing slow, so that `enter` can prepare the process first.
"""

from __future__ import annotations

from neve.rpc.entry import enter


def neve() -> int:
    return enter("neve", "neve.tools.main")


def neve_extent_node() -> int:
    return enter("neve-extent-node", "neve.extent_node.server")


def neve_gateway() -> int:
    return enter("neve-gateway", "neve.gateway.server")


def neve_partition_manager() -> int:
    return enter("neve-partition-manager", "neve.partition_manager.server")


def neve_partition_server() -> int:
    return enter("neve-partition-server", "neve.partition_server.server")


def neve_stream_manager() -> int:
    return enter("neve-stream-manager", "neve.stream_manager.server")


def stream_client() -> int:
    return enter("stream-client", "neve.client.command.main")
