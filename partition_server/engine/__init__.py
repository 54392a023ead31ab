"""The storage engine of one partition: writes, reads, scans, sessions, and their memory."""
