"""What a writer and a reader of a stream decide, without I/O."""
