"""Streams for programs: the client, its writers and readers, and their synchronous twin."""
