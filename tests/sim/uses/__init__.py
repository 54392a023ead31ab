"""Who uses a simulated cluster: writers, readers, operators, clients of objects."""
