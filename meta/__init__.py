"""The metadata store: etcd, and an in-memory twin with the same semantics (transactions, leases, watches).

`store.py` has the interface that everything else uses; `etcd.py` and `memory.py` implement it; `lease.py`,
`election.py` and `lock.py` build on the interface alone, so they run on both.
"""
