"""The flows of streams: create, allocate, open, seal, split, merge, and confirming what was sealed."""
