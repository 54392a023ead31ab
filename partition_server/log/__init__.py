"""The log of a partition: its records, replay on load, and giving extents back."""
