"""The extent node: the server that stores replicas of extents."""
