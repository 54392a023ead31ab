"""The metadata of streams, extents and nodes: records, the state in memory, and how both change."""
