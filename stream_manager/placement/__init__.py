"""Placement of replicas: policies, node locations, and the recent failures of nodes."""
