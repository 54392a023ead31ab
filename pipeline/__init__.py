"""PySpark: the neve data source, and the GC, scrub and usage jobs."""
