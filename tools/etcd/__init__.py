"""The etcd of a local cluster: building a current one, its data folder, and moving that to a newer release."""
