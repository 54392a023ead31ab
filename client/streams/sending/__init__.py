"""From a writer's batches to AppendBlock calls: segments, frames for each node, and bounds on what is held."""
