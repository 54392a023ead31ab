"""The nodes of a cluster: registration, health, recovery of lost replicas, collection of what nothing needs."""
