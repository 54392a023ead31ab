"""Elected; streams, extents, nodes; allocation, sealing, placement, recovery, GC."""
