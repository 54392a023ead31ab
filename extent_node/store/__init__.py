"""The replicas of a node: append, read, seal, copy, scrub, and the start after a clean or an unclean end."""
