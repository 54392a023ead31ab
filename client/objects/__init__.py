"""The key-value client, its routing by the region map, and its synchronous twin."""
