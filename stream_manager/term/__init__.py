"""One term of leadership: the pipeline of a call, locks, and calls to extent nodes."""
