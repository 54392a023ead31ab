"""One servicer, three transports: `wire` (TCP, inside the cluster), `grpc` (the edge), `sim` (tests).

Only this package and `meta` open sockets. See `rpc/service.py` for the two interfaces everything else uses.
"""
