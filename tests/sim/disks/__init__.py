"""The simulated file system, and its faults."""
