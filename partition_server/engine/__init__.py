"""One partition: its writes, reads, scans and sessions, and the memory that they take."""
