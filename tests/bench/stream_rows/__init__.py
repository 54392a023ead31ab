"""The processes and samples of `tests.bench.stream`."""
