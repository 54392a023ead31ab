"""The stream manager, which is elected: streams, extents, nodes; allocation, sealing, placement, recovery, deletion."""
