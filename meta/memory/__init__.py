"""The metadata store in memory, with etcd's semantics, for tests and the simulator."""
