"""The nodes of a cluster: registration, health, recovery of lost replicas, deletion of unneeded ones."""
