"""Tables of a partition: their format, how they are written, merged and read."""
