"""Stores extents: append, read, seal, copy; journal, disks, scrubbing."""
