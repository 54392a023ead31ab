"""The tables of a partition: their format, and how they are written, merged and read."""
