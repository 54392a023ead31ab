"""Disks and files: labels, mounts, attributes, block indexes, and the interface to the file system."""
