"""Commands on objects and partitions: `neve kv` and `neve partitions`."""
