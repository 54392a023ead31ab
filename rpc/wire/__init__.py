"""The wire transport: framed protobuf over TCP, with the bulk bytes after the message (docs/formats/wire.md)."""
