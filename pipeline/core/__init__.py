"""The decisions of the Spark jobs, without I/O: filters, slices, verdicts and garbage."""
