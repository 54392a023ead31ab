"""The metadata store on etcd: connections, transactions, watches, and finding a sound etcd program."""
