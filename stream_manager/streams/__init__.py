"""The flows of streams: create, allocate, open, seal, split, merge, and confirm seals."""
