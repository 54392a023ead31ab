"""gRPC, the transport at the edge: the same servicers as inside the cluster, for any language."""
