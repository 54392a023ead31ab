"""Decisions of a stream's writer and reader, without I/O."""
