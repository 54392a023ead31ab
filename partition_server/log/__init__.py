"""The log of a partition: its records, replay at load, and reclaiming of extents."""
