"""Decisions about nodes, without I/O: their health, and which replicas to recover first."""
