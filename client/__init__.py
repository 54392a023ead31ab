"""What users import: the stream client, the key-value client and the command stream-client."""
