"""The replicas of a node: append, read, seal, copy, scrub, and starting after any end."""
