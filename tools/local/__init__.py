"""A whole cluster on one machine: `neve up`."""
