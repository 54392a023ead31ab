"""The metadata store: etcd, or an in-memory store with the same semantics (transactions, leases, watches).

`store.py` has the interface that all other packages use. `etcd/` and `memory/` implement it. `lease.py`, `election.py`
and `lock.py` use only the interface, so they run on both.
"""
