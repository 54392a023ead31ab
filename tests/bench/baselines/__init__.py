"""The machine's limits: C and bare Python programs to compare with."""
