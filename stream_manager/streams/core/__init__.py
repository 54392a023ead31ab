"""What the flows of streams decide, without I/O: the length of a seal, going on with a tail, digests."""
