"""The processes and samples of `tests.bench.metadata`."""
