"""The command neve: local cluster, admin, inspection, limits, benchmarks."""
