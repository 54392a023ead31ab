"""Serves GET, PUT, DELETE and scans of its key ranges from log, row and meta streams."""
