"""Framed protobuf on TCP with the bulk bytes behind the message (docs/formats/wire.md)."""
