"""Where replicas go: policies, node locations, and the nodes that failed lately."""
