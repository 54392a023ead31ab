"""Calls between processes: one servicer on two transports, `wire` (TCP, inside the cluster) and `grpc` (the edge).

Only this package and `meta` open sockets. `rpc/service.py` has the two interfaces that all other packages use.
"""
