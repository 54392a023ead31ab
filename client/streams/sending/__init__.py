"""Sending a writer's batches to nodes: segments, frames of AppendBlock calls, and bounds on buffered bytes."""
