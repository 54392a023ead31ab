"""What the Spark jobs decide, without I/O: filters, slices, verdicts, and what is garbage."""
