"""Disks and files: labels, mounts, attributes, block indexes, and the one door to the file system."""
